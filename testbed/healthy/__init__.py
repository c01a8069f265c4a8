"""Healthy responses of the real serving code, for the comparison of text and tool calls."""
