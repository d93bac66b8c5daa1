"""Graders: answers read out of completions, and compared with each other and the reference."""
