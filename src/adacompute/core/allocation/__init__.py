"""Allocation: the best level of each question within a budget, when all utilities are known."""
