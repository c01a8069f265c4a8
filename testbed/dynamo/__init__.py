"""A real Dynamo: the real TokenizerManager outputs to its real decode handler, and its runtime transfers the responses."""
