"""Testing: populations with known truth, for the tests of those who build on the library."""
