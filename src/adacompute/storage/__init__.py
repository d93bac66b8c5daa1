"""Storage: run directories, the store of paid samples and the decision log."""
