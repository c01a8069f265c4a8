"""The real engine without a GPU: SGLang's own output path, run from a release's wheel (see README.md)."""
