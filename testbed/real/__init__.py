"""Compares tokengap's reports with a real SGLang server on the CPU and with the counts of its clients."""
