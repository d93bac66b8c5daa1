"""Spending: what draws cost, and how a total is held."""
