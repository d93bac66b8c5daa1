"""Core: the mathematics of allocation, in numpy only and without I/O."""
