"""Testing: known truth, a misbehaving upstream and a real model, for tests of what is built."""
