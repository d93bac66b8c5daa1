"""Requests and their contract: what a body means, and what its client may ask for now."""
