"""A real SGLang server on the CPU, a load client that counts what arrives, and tokengap judged against both."""
