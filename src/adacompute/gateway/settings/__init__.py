"""Settings: what the operator sets, read from a file and checked before it starts."""
