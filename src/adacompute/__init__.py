"""AdaCompute: spend an LLM inference budget where it buys accuracy.

>>> import numpy as np
>>> from adacompute import UtilityTable, solve
>>> table = UtilityTable(np.array([[0.9, 0.9], [0.2, 0.8]]), np.array([1, 4]))
>>> solve(table, budget=2.5).choice.tolist()
[0, 1]

Names are imported when they are first used, so that importing the package is fast. What research
and extensions need besides is in ``adacompute.research``.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from adacompute.api.bundles import load_policy
    from adacompute.api.calibration import Calibration, calibrate
    from adacompute.api.estimator import Estimator, Pretrained
    from adacompute.api.estimators import (
        AdaptiveConsistency,
        DecidedVotes,
        Mixture,
        Router,
        Sequential,
    )
    from adacompute.api.samples import Samples, read_samples
    from adacompute.api.scores import Scores, evaluate
    from adacompute.api.serving import create_app
    from adacompute.core.allocation.oracle import solve
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
    from adacompute.core.types import UtilityTable, make_levels
    from adacompute.evaluation.registry import register_policy
    from adacompute.graders.grader import Grader, load_grader
    from adacompute.models.messages import Sample, Settings
    from adacompute.models.model import CallUsage, Model
    from adacompute.models.templates import Template
    from adacompute.policies.policy import Policy, State
    from adacompute.sampling.sampler import SampledAnswer, Sampler
    from adacompute.sampling.session import Request, Session

    __version__: str

__all__ = [
    "AdaComputeError",
    "AdaptiveConsistency",
    "BundleError",
    "Calibration",
    "CallUsage",
    "ConfigError",
    "DataError",
    "DecidedVotes",
    "Estimator",
    "Grader",
    "GraderError",
    "InfeasibleBudget",
    "MissingExtra",
    "Mixture",
    "Model",
    "ModelError",
    "ModelTimeout",
    "NotFittedError",
    "Policy",
    "Pretrained",
    "RateLimited",
    "Request",
    "RequestRejected",
    "Router",
    "Sample",
    "SampledAnswer",
    "Sampler",
    "Samples",
    "Scores",
    "Sequential",
    "Session",
    "Settings",
    "State",
    "Template",
    "UtilityTable",
    "__version__",
    "calibrate",
    "create_app",
    "evaluate",
    "load_grader",
    "load_policy",
    "make_levels",
    "read_samples",
    "register_policy",
    "solve",
]

_MODULES = {
    "api.bundles": "load_policy",
    "api.calibration": "Calibration calibrate",
    "api.estimator": "Estimator Pretrained",
    "api.estimators": "AdaptiveConsistency DecidedVotes Mixture Router Sequential",
    "api.samples": "Samples read_samples",
    "api.scores": "Scores evaluate",
    "api.serving": "create_app",
    "core.errors": "AdaComputeError BundleError ConfigError DataError GraderError InfeasibleBudget"
    " MissingExtra ModelError ModelTimeout NotFittedError RateLimited RequestRejected",
    "core.allocation.oracle": "solve",
    "core.types": "UtilityTable make_levels",
    "evaluation.registry": "register_policy",
    "graders.grader": "Grader load_grader",
    "models.messages": "Sample Settings",
    "models.model": "CallUsage Model",
    "models.templates": "Template",
    "policies.policy": "Policy State",
    "sampling.sampler": "SampledAnswer Sampler",
    "sampling.session": "Request Session",
}
"""Modules of the package, and the public names that each defines."""

if not TYPE_CHECKING:  # type checkers read the imports above, and report names that do not exist

    def __getattr__(name: str) -> object:
        """Import a public name when it is first used."""
        from importlib import import_module, metadata  # noqa: TID251 - our own modules

        if name == "__version__":
            return metadata.version("adacompute")
        for module, names in _MODULES.items():
            if name in names.split():
                value = getattr(import_module(f"adacompute.{module}"), name)
                globals()[name] = value
                return value
        raise AttributeError(f"module 'adacompute' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return list(__all__)
