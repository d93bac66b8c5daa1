"""Features: statistics of a question that are known before it is sampled."""
