"""Research: types and functions that research and extensions need.

The solver's results, and the types that policies, graders and models of one's own meet. It
defines nothing itself.
"""

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
    "Estimate",
    "FittedPolicy",
    "Frontier",
    "FrontierPoint",
    "Grades",
    "Level",
    "ObservedSamples",
    "ParsedAnswer",
    "SampleMatrix",
    "Split",
    "TokenPrices",
    "TotalUsage",
    "dual",
    "estimate",
    "frontier",
    "grade",
]
