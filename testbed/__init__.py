"""The real engine without a GPU: runs SGLang's output path from a release's wheel (see README.md)."""
