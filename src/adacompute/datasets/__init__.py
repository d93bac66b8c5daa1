"""Datasets: question sets and recorded samples, read into one tidy form."""
