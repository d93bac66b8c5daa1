"""Registered rivals: the names of the methods of the literature, and what each one needs.

Rivals for one arm decide after every sample or once, so they are left out where rounds are limited
or cost something. It does not know how rivals work.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from adacompute import register_policy
from reproduction.cascades import make_agreement_cascade
from reproduction.marginal_rewards import make_marginal_rewards
from reproduction.rivals import (
    make_bayesian_stopping,
    make_confidence_stopping,
    make_shortest_majority,
    make_weighted_consistency,
)

if TYPE_CHECKING:
    from adacompute.evaluation.experiment import PolicyFactory
    from adacompute.evaluation.recorded_data import RecordedData

RIVALS: dict[str, PolicyFactory] = {
    "weighted-consistency": make_weighted_consistency,
    "bayesian-stopping": make_bayesian_stopping,
    "confidence-stopping": make_confidence_stopping,
    "shortest-majority": make_shortest_majority,
    "marginal-rewards": make_marginal_rewards,
}
"""Methods for one arm."""

ARM_RIVALS: dict[str, PolicyFactory] = {"agreement-cascade": make_agreement_cascade}
"""Methods for several arms."""

NEEDS_LOGPROBS = ("weighted-consistency", "confidence-stopping")
NEEDS_LENGTHS = ("shortest-majority",)


def register_rivals() -> None:
    """Add every rival to the tables of this process."""
    for name, factory in RIVALS.items():
        register_policy(name, factory, find_obstacle=partial(find_obstacle, name))
    for name, factory in ARM_RIVALS.items():
        register_policy(name, factory, several_arms=True)


def find_obstacle(name: str, data: RecordedData) -> str | None:
    """Return why a rival for one arm cannot be scored; None if it can."""
    if data.has_rounds:
        return "it does not plan for rounds that are limited or cost something"
    if name in (*NEEDS_LOGPROBS, *NEEDS_LENGTHS) and not data.use_confidence:
        return "it needs more than the votes"
    if name in NEEDS_LOGPROBS and not data.has_logprobs:
        return "the run has no log-probabilities"
    if name in NEEDS_LENGTHS and not data.has_lengths:
        return "the run does not record how long samples are"
    return None
