"""Storage: run directories, their tables and their manifests."""
