"""Baseline: the best that one could run without allocation.

It is the best mixture of uniform numbers of samples, and of arms if there are several. Its votes
are weighted as learned on training questions if the samples record their confidence, whatever the
policy that is compared with it can see. Every gain, difference and headroom comes from this one
curve. Weighted votes are a gain of their own, over the mixture in which each sample counts once.

It does not know the policies that are compared with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from adacompute.evaluation.factories import find_factory
from adacompute.evaluation.scoring.held_out import HeldOutCurve, score_held_out

if TYPE_CHECKING:
    from adacompute.evaluation.experiment import Experiment

BASELINE, EQUAL_VOTES = "mixture", "mixture-votes"
"""The baseline as a policy, and the mixture in which each sample counts once."""


def score_baseline(experiment: Experiment, name: str = BASELINE) -> HeldOutCurve:
    """Return the held-out curve of the baseline, or of the mixture with equal votes.

    It is computed once. The two are one curve where votes are not weighted.
    """
    if not experiment.weighs_votes:
        name = BASELINE
    factory = find_factory(name)
    return experiment.memory.remember(name, lambda: score_held_out(experiment, factory))


def describe_baseline(experiment: Experiment, budget: float) -> str:
    """Say which numbers of samples, of which arm, the baseline mixes at a budget."""
    policy = experiment.fit_final(find_factory(BASELINE)).policy
    levels, rows = policy.list_uniform(), np.arange(len(experiment.pool))
    names = [_format_samples(n, arm) for n, arm in levels]
    per_round = experiment.round_cost(rows)
    costs = policy.sample_cost or (experiment.sample_cost(rows),)
    cost = [
        n * costs[0 if arm is None else policy.arms.index(arm)] + per_round for n, arm in levels
    ]
    position = float(np.interp(budget, cost, np.arange(len(names))))
    first, share = divmod(round(100 * position), 100)
    # Weights that count each sample alike are no weights.
    is_weighted = policy.confidence is not None and bool(policy.confidence.signals)
    votes = ", with weighted votes" if is_weighted else ""
    if not share:
        return f"use {names[first]} per question{votes}"
    rest = names[first + 1].removesuffix(" samples")
    return f"use {names[first]} per question, and {rest} for {share} % of the questions{votes}"


def _format_samples(count: int, arm: str | None) -> str:
    samples = "one sample" if count == 1 else f"{count} samples"
    return samples if arm is None else f"{samples} of {arm}"
