"""Formats: requests, replies and streams of events as bytes, parsed and written by functions."""
