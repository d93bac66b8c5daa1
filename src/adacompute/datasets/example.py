"""Example: samples and a policy that ship with the package, of a small real model.

300 generated questions in twelve classes, 48 samples each, as ``collect`` drew them; the card
beside them says how, and what they are good for. ``scripts/make_samples.py`` draws them again, and
``scripts/make_policy.py`` trains the policy on them.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

NAME = "example"
"""What commands call it, unless there is a file of that name."""

QUESTIONS, SAMPLES, SEED = 300, 48, 7
"""Questions, samples of each, and the seed that the questions were generated with."""


def find_example() -> Path:
    """Find the samples."""
    return _find("arithmetic.parquet")


def find_card() -> Path:
    """Find the card: how the samples were made, and what they hold."""
    return _find("arithmetic.md")


def locate_policy(path: Path) -> Path:
    """Find a policy's bundle; ``example`` is the one that ships, unless a file is so named."""
    return _find("policy") if path.name == NAME and not path.exists() else path


def _find(name: str) -> Path:
    return Path(str(resources.files("adacompute.datasets") / "shipped" / name))
