"""Equipment of the tests and benchmarks: servers, gateways, batches and synthetic populations.

It is not installed. Programs find it when they run from the root of the repository.
"""
