"""Runs: the stages of the line, each from the artifacts of the last to one of its own."""
