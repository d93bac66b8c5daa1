"""Stages: one file per command; each reads a run directory and writes one artifact."""
