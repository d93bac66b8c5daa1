"""Models: what an upstream is asked, what it answers, and what it really does."""
