"""AdaCompute: spend an LLM inference budget where it buys accuracy.

>>> import numpy as np
>>> from adacompute import UtilityTable, solve
>>> table = UtilityTable(np.array([[0.9, 0.9], [0.2, 0.8]]), np.array([1, 4]))
>>> solve(table, budget=2.5).choice.tolist()
[0, 1]

Names are imported when they are first used, so that importing the package is fast.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
        NotFittedError,
        RateLimited,
        RequestRejected,
    )
    from adacompute.core.limits import solve_limits
    from adacompute.core.oracle import Frontier, dual, frontier, solve
    from adacompute.core.types import Allocation, Level, Split, UtilityTable, make_levels
    from adacompute.core.utility import Estimate, estimate
    from adacompute.policies.policy import ObservedSamples, Policy, SampleMatrix, State

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
    "NotFittedError",
    "ObservedSamples",
    "Policy",
    "RateLimited",
    "RequestRejected",
    "SampleMatrix",
    "Split",
    "State",
    "UtilityTable",
    "__version__",
    "dual",
    "estimate",
    "frontier",
    "make_levels",
    "solve",
    "solve_limits",
]

_MODULES = {
    "core.answers": "Answers",
    "core.errors": "AdaComputeError BundleError ConfigError DataError GraderError InfeasibleBudget"
    " MissingExtra ModelError ModelTimeout NotFittedError RateLimited RequestRejected",
    "core.limits": "solve_limits",
    "core.oracle": "Frontier dual frontier solve",
    "core.types": "Allocation Level Split UtilityTable make_levels",
    "core.utility": "Estimate estimate",
    "policies.policy": "ObservedSamples Policy SampleMatrix State",
}
"""Modules of the package, and the public names that each defines."""

if not TYPE_CHECKING:  # type checkers read the imports above, and report names that do not exist

    def __getattr__(name: str) -> object:
        """Import a public name when it is first used."""
        from importlib import import_module, metadata  # noqa: PLC0415 - slow to import

        if name == "__version__":
            return metadata.version("adacompute")
        for module, names in _MODULES.items():
            if name in names.split():
                value = getattr(import_module(f"adacompute.{module}"), name)
                globals()[name] = value
                return value
        raise AttributeError(f"module 'adacompute' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
