"""Policies: which level to reach next, at a price, given what is known of each question."""
