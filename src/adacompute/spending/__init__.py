"""Spending: what calls cost, a limit on the total, and a price that holds the mean."""
