"""Caps: limits on what is spent, which processes and machines hold together."""
