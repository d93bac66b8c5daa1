"""Spending: what calls cost, and a limit on the total."""
