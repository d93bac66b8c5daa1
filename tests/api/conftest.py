"""Samples that ship with the package, and a small population, as the API reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

import adacompute as ada


@pytest.fixture(scope="session")
def example() -> ada.Samples:
    """Return 300 questions with 48 samples each."""
    return ada.read_samples("example")


@pytest.fixture(scope="session")
def hundred(example: ada.Samples) -> ada.Samples:
    """Return every third question of the example."""
    return example.take(range(0, 300, 3))


@pytest.fixture
def small(source: Path) -> ada.Samples:
    """Return 24 questions with 8 samples each."""
    return ada.read_samples(source, grader="numeric")
