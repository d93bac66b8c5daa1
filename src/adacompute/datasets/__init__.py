"""Datasets: read question sets and recorded samples in many formats into one."""
