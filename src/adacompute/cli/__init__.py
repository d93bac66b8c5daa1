"""Command line: parse options, call a stage, print the result."""
