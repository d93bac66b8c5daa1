"""AdaCompute: spend an LLM inference budget where it buys accuracy.

>>> import numpy as np
>>> from adacompute import UtilityTable, solve
>>> table = UtilityTable(np.array([[0.9, 0.9], [0.2, 0.8]]), np.array([1, 4]))
>>> solve(table, budget=2.5).choice.tolist()
[0, 1]
"""

from importlib.metadata import version as _version

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
    RequestRefused,
)
from adacompute.core.limits import solve_limits
from adacompute.core.oracle import Frontier, dual, frontier, solve
from adacompute.core.types import Allocation, Level, Split, UtilityTable, ladder
from adacompute.core.utility import Estimate, estimate

__version__ = _version("adacompute")

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
    "RequestRefused",
    "Split",
    "UtilityTable",
    "__version__",
    "dual",
    "estimate",
    "frontier",
    "ladder",
    "solve",
    "solve_limits",
]
