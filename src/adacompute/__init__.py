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
    from adacompute.api.bundles import load_policy
    from adacompute.api.calibration import Calibration, calibrate
    from adacompute.api.estimator import Estimator, Pretrained
    from adacompute.api.estimators import (
        AdaptiveConsistency,
        DecidedVotes,
        EarlyStopping,
        Fixed,
        LongestFirst,
        Mixture,
        Random,
        Retry,
        Router,
        Sequential,
        SequentialVotes,
        ValueRouter,
    )
    from adacompute.api.samples import Samples, read_samples
    from adacompute.api.scores import Scores, evaluate
    from adacompute.api.serving import create_app
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
    from adacompute.evaluation.experiment import FittedPolicy
    from adacompute.evaluation.registry import register_policy
    from adacompute.graders.grader import Grader, Grades, grade, load_grader
    from adacompute.models.messages import Sample, Settings
    from adacompute.models.model import CallUsage, Model
    from adacompute.models.templates import Template
    from adacompute.policies.bundle import FrontierPoint
    from adacompute.policies.policy import ObservedSamples, Policy, SampleMatrix, State
    from adacompute.sampling.sampler import SampledAnswer, Sampler, TotalUsage
    from adacompute.sampling.session import ParsedAnswer, Request, Session
    from adacompute.spending.token_prices import TokenPrices

    __version__: str

__all__ = [
    "AdaComputeError",
    "AdaptiveConsistency",
    "Allocation",
    "Answers",
    "BundleError",
    "Calibration",
    "CallUsage",
    "ConfigError",
    "DataError",
    "DecidedVotes",
    "EarlyStopping",
    "Estimate",
    "Estimator",
    "FittedPolicy",
    "Fixed",
    "Frontier",
    "FrontierPoint",
    "Grader",
    "GraderError",
    "Grades",
    "InfeasibleBudget",
    "Level",
    "LongestFirst",
    "MissingExtra",
    "Mixture",
    "Model",
    "ModelError",
    "ModelTimeout",
    "NotFittedError",
    "ObservedSamples",
    "ParsedAnswer",
    "Policy",
    "Pretrained",
    "Random",
    "RateLimited",
    "Request",
    "RequestRejected",
    "Retry",
    "Router",
    "Sample",
    "SampleMatrix",
    "SampledAnswer",
    "Sampler",
    "Samples",
    "Scores",
    "Sequential",
    "SequentialVotes",
    "Session",
    "Settings",
    "Split",
    "State",
    "Template",
    "TokenPrices",
    "TotalUsage",
    "UtilityTable",
    "ValueRouter",
    "__version__",
    "calibrate",
    "create_app",
    "dual",
    "estimate",
    "evaluate",
    "frontier",
    "grade",
    "load_grader",
    "load_policy",
    "make_levels",
    "read_samples",
    "register_policy",
    "solve",
    "solve_limits",
]

_MODULES = {
    "api.bundles": "load_policy",
    "api.calibration": "Calibration calibrate",
    "api.estimator": "Estimator Pretrained",
    "api.estimators": "AdaptiveConsistency DecidedVotes EarlyStopping Fixed LongestFirst Mixture"
    " Random Retry Router Sequential SequentialVotes ValueRouter",
    "api.samples": "Samples read_samples",
    "api.scores": "Scores evaluate",
    "api.serving": "create_app",
    "core.answers": "Answers",
    "core.errors": "AdaComputeError BundleError ConfigError DataError GraderError"
    " InfeasibleBudget MissingExtra ModelError ModelTimeout NotFittedError"
    " RateLimited RequestRejected",
    "core.limits": "solve_limits",
    "core.oracle": "Frontier dual frontier solve",
    "core.types": "Allocation Level Split UtilityTable make_levels",
    "core.utility": "Estimate estimate",
    "evaluation.experiment": "FittedPolicy",
    "evaluation.registry": "register_policy",
    "graders.grader": "Grader Grades grade load_grader",
    "models.messages": "Sample Settings",
    "models.model": "CallUsage Model",
    "models.templates": "Template",
    "policies.bundle": "FrontierPoint",
    "policies.policy": "ObservedSamples Policy SampleMatrix State",
    "sampling.sampler": "SampledAnswer Sampler TotalUsage",
    "sampling.session": "ParsedAnswer Request Session",
    "spending.token_prices": "TokenPrices",
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
        return sorted({*globals(), *__all__})
