"""Bundles: policies with everything that their decisions need, as files."""
