"""AdaCompute: spend an LLM inference budget where it buys accuracy.

>>> import numpy as np
>>> from adacompute import UtilityTable, solve
>>> table = UtilityTable(np.array([[0.9, 0.9], [0.2, 0.8]]), np.array([1, 4]))
>>> solve(table, budget=2.5).choice.tolist()
[0, 1]
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from adacompute.core.answers import Answers
from adacompute.core.errors import (
    AdaComputeError,
    BundleError,
    ConfigError,
    DataError,
    GraderError,
    InfeasibleBudget,
    MissingExtra,
    ModelError,
    ModelTimeout,
    RateLimited,
    RequestRejected,
)
from adacompute.core.limits import solve_limits
from adacompute.core.oracle import Frontier, dual, frontier, solve
from adacompute.core.types import Allocation, Level, Split, UtilityTable, make_levels
from adacompute.core.utility import Estimate, estimate

if _TYPE_CHECKING:
    __version__: str

__all__ = [
    "AdaComputeError",
    "Allocation",
    "Answers",
    "BundleError",
    "ConfigError",
    "DataError",
    "Estimate",
    "Frontier",
    "GraderError",
    "InfeasibleBudget",
    "Level",
    "MissingExtra",
    "ModelError",
    "ModelTimeout",
    "RateLimited",
    "RequestRejected",
    "Split",
    "UtilityTable",
    "__version__",
    "dual",
    "estimate",
    "frontier",
    "make_levels",
    "solve",
    "solve_limits",
]


def __getattr__(name: str) -> str:
    """Read the version when it is asked for: finding it takes as long as a fifth of all imports."""
    if name == "__version__":
        from importlib.metadata import version  # noqa: PLC0415 - slow, and seldom needed

        return version("adacompute")
    raise AttributeError(f"module 'adacompute' has no attribute {name!r}")
