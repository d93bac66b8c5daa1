"""Processes and administration: the supervisor, its workers, and the pages for operators."""
