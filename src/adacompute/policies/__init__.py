"""Policies: decide at a price which level each question should reach next."""
