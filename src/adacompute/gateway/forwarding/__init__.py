"""Forwarding: requests that are sent on unchanged, and what is known of the upstream."""
