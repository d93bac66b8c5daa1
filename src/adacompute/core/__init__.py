"""Core: the mathematics of the paper and what was added to it; numpy only, no I/O."""
