"""One `attach` on a real prefill/decode pair of SGLang on the CPU."""
