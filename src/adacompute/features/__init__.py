"""Features: what can be known of a question before it is asked."""
