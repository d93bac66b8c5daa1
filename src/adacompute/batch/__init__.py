"""Batch: answers to files of questions under a hard total, on any number of cores or machines."""
