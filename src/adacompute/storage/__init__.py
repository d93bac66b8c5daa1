"""Storage: run directories, the ledger of paid samples and the decision log."""
