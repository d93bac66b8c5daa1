"""Oracles: the scores of allocations that know the utility curve of each question.

The cross-fitted oracle chooses on one half of the samples of a question and is scored on the other
half, so noise does not help it. The in-sample oracle is scored as in the paper: five levels,
windows, and chosen and scored on the same samples. Oracles are allocations, not policies, because
they use the answer key.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from adacompute.core.allocation.oracle import solve
from adacompute.core.types import Allocation, FloatArray, IntArray, UtilityTable
from adacompute.core.utility import estimate
from adacompute.evaluation.experiment import Experiment
from adacompute.evaluation.kept_results import remember
from adacompute.evaluation.pool import N_FOLDS, Pool, assign_folds
from adacompute.evaluation.running_votes import label_orders, weighted_accuracies
from adacompute.evaluation.scoring.held_out import split_folds

PAPER_LEVELS = (1, 2, 4, 8, 16)
N_HALVINGS = 10
"""Random halvings of the samples that the scores are averaged over."""

N_UTILITY_ORDERS = 24
"""Random orders of a half that weighted votes are averaged over."""

OracleScores = dict[float, tuple[float, FloatArray]]
"""Mean cost, and utility of each question (N,), by budget."""


def score_oracle(experiment: Experiment, budgets: tuple[float, ...]) -> OracleScores:
    """Return the scores of the cross-fitted oracle, which votes as the baseline does.

    Where each sample counts once, its levels are those up to half of the samples.
    """

    def compute() -> dict[str, np.ndarray]:
        if experiment.weighs_votes:
            scores = evidence_oracle(experiment, budgets)
        else:
            half = experiment.pool.n_samples // 2
            levels = tuple(n for n in experiment.levels if n <= half) or experiment.levels[:1]
            scores = cross_fitted_oracle(experiment.pool, levels, budgets, seed=experiment.seed)
        size = (len(budgets), len(experiment.pool))
        cost, utility = zip(*scores.values(), strict=True) if scores else ((), ())
        return {"cost": np.array(cost), "utility": np.reshape(utility, size)}

    key = f"oracle at {list(budgets)} in {experiment.key_at_any_budget}"
    found = remember(experiment.kept, key, compute)
    rows = zip(found["cost"].tolist(), found["utility"], strict=True)
    return dict(zip(budgets, rows, strict=True))


def cross_fitted_oracle(
    pool: Pool, levels: tuple[int, ...], budgets: tuple[float, ...], *, seed: int
) -> OracleScores:
    """Return the scores of the oracle that chooses and is scored on different samples."""
    rng = np.random.default_rng(seed)

    def estimate_halves() -> list[FloatArray]:
        halves = pool.answers.halves(rng)
        return [estimate(half, levels, standard_errors=False).utility for half in halves]

    return _score_halves(estimate_halves, pool.level_cost(levels), pool, budgets)


def _score_halves(
    estimate_halves: Callable[[], list[FloatArray]],
    cost: FloatArray,
    pool: Pool,
    budgets: tuple[float, ...],
) -> OracleScores:
    """Choose by the utilities of one half of the samples and score on the other, many times."""
    total = {budget: np.zeros(len(pool)) for budget in budgets}
    total_cost = dict.fromkeys(budgets, 0.0)
    for _ in range(N_HALVINGS):
        utilities = estimate_halves()
        for chosen_on, scored_on in (utilities, utilities[::-1]):
            table = UtilityTable(chosen_on, cost, pool.key)
            for budget in budgets:
                allocation = solve(table, budget)
                total[budget] += allocation_utility(allocation, scored_on)
                total_cost[budget] += allocation.mixed_cost
    times = 2 * N_HALVINGS
    return {budget: (total_cost[budget] / times, value / times) for budget, value in total.items()}


def evidence_oracle(experiment: Experiment, budgets: tuple[float, ...]) -> OracleScores:
    """Return the scores of the cross-fitted oracle over arms, with votes weighted as learned.

    The weights of a question's samples are learned on the other folds. Utilities are means over
    random orders of each half.
    """
    pool, evidence = experiment.pool, experiment.evidence
    weight = _held_out_weights(experiment)
    rng = np.random.default_rng(experiment.seed)
    caps = [min(cap, n // 2) for cap, n in zip(evidence.max_samples, pool.n_by_arm, strict=True)]
    arm_cost = pool.arm_cost()
    cost = np.concatenate(
        [arm_cost[:, [arm]] * np.arange(1, cap + 1) for arm, cap in enumerate(caps)], axis=1
    )
    cost += evidence.round_cost[:, None]

    def estimate_halves() -> list[FloatArray]:
        halves: list[list[FloatArray]] = [[], []]
        for arm, cap in enumerate(caps):
            index = rng.permuted(_sample_index(pool, arm), axis=1)
            half = index.shape[1] // 2
            for side, part in enumerate((index[:, :half], index[:, half : 2 * half])):
                halves[side].append(_weighted_utility(pool, part, weight, cap, rng))
        return [np.concatenate(parts, axis=1) for parts in halves]

    return _score_halves(estimate_halves, cost, pool, budgets)


def _sample_index(pool: Pool, arm: int) -> IntArray:
    """Return the indices of the first samples of an arm, as many of each question, (N, n)."""
    n_samples = pool.n_by_arm[arm]
    own = np.ones(len(pool.answers.answer), dtype=np.bool_) if pool.arm is None else pool.arm == arm
    first = np.flatnonzero(own & (pool.arm_position < n_samples))
    return first.reshape(len(pool), n_samples)


def _held_out_weights(experiment: Experiment) -> FloatArray:
    """Return the weight of each sample's vote, as learned without its question."""
    evidence, pool = experiment.evidence, experiment.pool
    samples = evidence.samples
    weight = np.ones(len(samples.arm))
    for train, held_out in split_folds(assign_folds(pool.group, N_FOLDS, seed=experiment.seed)):
        confidence = evidence.confidence(train, joint=False)
        own = samples.in_rows(held_out)
        values = samples.column(confidence.signals)
        weight[own] = confidence.weight(samples.arm[own], values[own])
    return weight


def _weighted_utility(
    pool: Pool, index: IntArray, weight: FloatArray, cap: int, rng: np.random.Generator
) -> FloatArray:
    """Return the accuracy of the weighted vote of 1, 2, … of some samples, (N, cap)."""
    repeated = np.repeat(index, N_UTILITY_ORDERS, axis=0)
    order = rng.permuted(repeated, axis=1)[:, :cap]
    correct = weighted_accuracies(label_orders(pool.answers, order), weight[order])
    return np.asarray(correct.reshape(len(index), N_UTILITY_ORDERS, cap).mean(axis=1))


def in_sample_oracle(pool: Pool, budgets: tuple[float, ...]) -> OracleScores:
    """Return the scores of the oracle as the paper computes them."""
    n_samples = int(pool.answers.n_samples.min())
    table = pool.table(tuple(n for n in PAPER_LEVELS if n <= n_samples), windows=True)
    allocations = {budget: solve(table, budget) for budget in budgets}
    return {
        budget: (allocation.mixed_cost, allocation_utility(allocation, table.utility))
        for budget, allocation in allocations.items()
    }


def allocation_utility(allocation: Allocation, utility: FloatArray) -> FloatArray:
    """Return the expected utility of each question under an allocation, its split included."""
    value = utility[np.arange(len(utility)), allocation.choice]
    split = allocation.split
    rows, share = split.question, split.probability
    value[rows] += share * (utility[rows, split.level] - value[rows])
    return np.asarray(value, dtype=np.float64)
