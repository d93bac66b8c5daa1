"""Sequential policies: what one more sample is worth at every position, and how that is learned."""
