"""Testing: a fake upstream with faults, synthetic populations and a small real model, for tests."""
