"""Research: estimators, types and functions that research and extensions need.

The paper's estimators and the rules of the literature, the solver's results, and the types that
policies, graders and models of one's own meet. It defines nothing itself.
"""

from adacompute.api.estimators import (
    EarlyStopping,
    LongestFirst,
    Random,
    Retry,
    Router,
    SequentialVotes,
    ValueRouter,
)
from adacompute.core.allocation.oracle import Frontier, dual, frontier
from adacompute.core.answers import Answers
from adacompute.core.types import Allocation, Level, Split
from adacompute.core.utility import Estimate, estimate
from adacompute.evaluation.experiment import FittedPolicy
from adacompute.graders.grader import Grades, grade
from adacompute.policies.bundles.bundle import FrontierPoint
from adacompute.policies.policy import ObservedSamples, SampleMatrix
from adacompute.sampling.sampler import TotalUsage
from adacompute.sampling.session import ParsedAnswer
from adacompute.spending.token_prices import TokenPrices

__all__ = [
    "Allocation",
    "Answers",
    "EarlyStopping",
    "Estimate",
    "FittedPolicy",
    "Frontier",
    "FrontierPoint",
    "Grades",
    "Level",
    "LongestFirst",
    "ObservedSamples",
    "ParsedAnswer",
    "Random",
    "Retry",
    "Router",
    "SampleMatrix",
    "SequentialVotes",
    "Split",
    "TokenPrices",
    "TotalUsage",
    "ValueRouter",
    "dual",
    "estimate",
    "frontier",
    "grade",
]
