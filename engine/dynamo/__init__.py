"""The real Dynamo: its runtime carries what the real TokenizerManager gives to its real decode handler."""
