"""Voting: virtual models, and how a request for one is decided, sampled and answered."""
