"""Vote table fit: the prior and the break-even prices of a policy that decides by votes and text.

How far the cells of the text are shrunk towards all questions is chosen by cross-validation on the
training questions; a cell that is shrunk completely ignores the text. Exact state measures make
this a matter of a second. It does not know where samples come from.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from adacompute.core.answers import number_by_appearance
from adacompute.core.state_sums import NO_GROUP
from adacompute.policies.learners import assign_folds, single_threaded
from adacompute.policies.sequential.induction import break_even_prices, occupancy
from adacompute.policies.sequential.policy import SequentialPolicy
from adacompute.policies.sequential.prior import (
    Prior,
    fit_prior,
    pooled_fit,
    pooled_prior,
    question_weights,
)
from adacompute.policies.sequential.vote_table import VoteTable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from adacompute.core.state_sums import StateSums
    from adacompute.core.states import StateMeasure, States
    from adacompute.core.types import Float32Array, FloatArray, IntArray, Level

SHRINKAGE = (math.inf, 300.0, 80.0, 20.0)
"""Pseudo-questions that are tried for shrinking cells; infinitely many mean one pooled prior."""

SHRINKAGE_FOLDS = 4
SHRINKAGE_PRICES = np.geomspace(0.5, 3e-4, 16)
SHRINKAGE_BUDGETS = (1.5, 2.0, 3.0, 4.0)
"""Mean numbers of samples at which shrinkages are compared."""

SHRINKAGE_SAMPLES = 10
"""Largest number of samples when shrinkages are compared: the text matters most at the start."""


@dataclass(frozen=True, eq=False)
class TrainingSet:
    """Training questions: their features, response profiles and groups, and sums of their states.

    ``rows`` are the training questions among those of ``sums``. Copies of a question share a group.
    """

    features: Float32Array
    profile: FloatArray
    group: IntArray
    sums: StateSums
    rows: IntArray
    seed: int = 0

    def sum(self, assignments: Sequence[IntArray], sizes: Sequence[int]) -> list[StateMeasure]:
        """Return the sums of the training questions over groups of them."""
        spread = []
        for assignment in assignments:
            every = np.full(len(self.sums.answers), NO_GROUP)
            every[self.rows] = assignment
            spread.append(every)
        return self.sums.sum(spread, sizes)


def fit_by_votes(
    training: TrainingSet, levels: tuple[Level, ...], *, round_cost: float = 0.0
) -> SequentialPolicy:
    """Fit the prior and the break-even prices of its cells to training questions.

    How far a cell is shrunk towards all questions is chosen by cross-validation; a cell that is
    shrunk completely ignores the features.
    """
    features, profile, sums = training.features, training.profile, training.sums
    with single_threaded():
        fitted = fit_prior(features, profile, training.group, seed=training.seed)
        shrinkage = 0.0
        if fitted.inverse_penalty is not None:
            shrinkage = _select_shrinkage(training, fitted.inverse_penalty)
        if math.isinf(shrinkage):
            fitted, shrinkage = pooled_fit(features.shape[1], len(profile)), 0.0
        size = np.bincount(fitted.cluster, minlength=len(fitted.cell_share)).astype(np.float64)
        weight = question_weights(fitted.cell_share, size, shrinkage)
        (by_cluster,) = training.sum([fitted.cluster], [len(weight)])
        policy = _make_policy(levels, fitted.prior, by_cluster, weight, sums, round_cost)
        if weight.shape[1] == 1:
            return policy
        prior, alike = pooled_prior(features.shape[1]), np.full((len(weight), 1), 1 / len(profile))
        pooled = _make_policy(levels, prior, by_cluster, alike, sums, round_cost)
        return replace(policy, pooled=pooled)


def _make_policy(
    levels: tuple[Level, ...],
    prior: Prior,
    by_cluster: StateMeasure,
    weight: FloatArray,
    sums: StateSums,
    round_cost: float,
) -> SequentialPolicy:
    """Return the policy of cells in which each question of a cluster has this weight."""
    mixed = by_cluster.map(lambda one: one @ weight)
    break_even_price = break_even_prices(mixed, table=sums.table)
    every = mixed.map(
        lambda one: sums.expand(one).astype(np.float32).astype(np.float64)
    )  # as saved
    prices = sums.expand(break_even_price).astype(np.float32)
    return SequentialPolicy(levels, prior, VoteTable(prices, every, round_cost))


def _select_shrinkage(training: TrainingSet, inverse_penalty: float) -> float:
    """Choose the shrinkage with the best held-out accuracy at equal cost.

    The pooled prior, which ignores the text, is chosen only if it is better in every fold.
    """
    fold = assign_folds(training.group, SHRINKAGE_FOLDS, seed=training.seed)
    fits, assignments, sizes = [], [], []
    for f in range(SHRINKAGE_FOLDS):
        train, held_out = np.flatnonzero(fold != f), np.flatnonzero(fold == f)
        fitted = fit_prior(
            training.features[train],
            training.profile[train],
            number_by_appearance(training.group[train]),
            inverse_penalty=inverse_penalty,
            seed=training.seed,
        )
        cluster, cell = (np.full(len(fold), NO_GROUP) for _ in range(2))
        cluster[train] = fitted.cluster
        cell[held_out] = fitted.prior.find_cell(training.features[held_out])
        fits.append(fitted)
        assignments += [cluster, cell]
        sizes += list(fitted.cell_share.shape)
    table, n_states = training.sums.table, training.sums.table.first[SHRINKAGE_SAMPLES + 1]
    table = table.restrict(np.arange(n_states))
    measures = [
        measure.map(lambda one: one[:n_states]) for measure in training.sum(assignments, sizes)
    ]
    accuracy = np.zeros((SHRINKAGE_FOLDS, len(SHRINKAGE)))
    for f, fitted in enumerate(fits):
        by_cluster, by_cell = measures[2 * f : 2 * f + 2]
        size = np.bincount(fitted.cluster, minlength=len(fitted.cell_share)).astype(np.float64)
        for i, shrinkage in enumerate(SHRINKAGE):
            weight = question_weights(fitted.cell_share, size, shrinkage)
            held_out_cells = by_cell
            if math.isinf(shrinkage):  # all cells are equal: one is enough
                weight = weight[:, :1]
                held_out_cells = by_cell.map(lambda one: one.sum(axis=1, keepdims=True))
            mixed = by_cluster.map(partial(_mix, weight=weight))
            rule = break_even_prices(mixed, SHRINKAGE_PRICES, table=table)
            accuracy[f, i] = _mean_accuracy(rule, held_out_cells, table)
    best = 1 + int(accuracy[:, 1:].mean(axis=0).argmax())
    return SHRINKAGE[0 if (accuracy[:, 0] > accuracy[:, best]).all() else best]


def _mix(table: FloatArray, *, weight: FloatArray) -> Any:  # noqa: ANN401 - of lower precision
    """Return the mixtures of columns in single precision, which is enough for a comparison."""
    return (table @ weight).astype(np.float32)


def _mean_accuracy(rule: FloatArray, measure: StateMeasure, table: States) -> float:
    """Return the accuracy of a rule, averaged over ``SHRINKAGE_BUDGETS``.

    ``rule`` holds break-even prices, and ``measure`` the sum of the scored questions of each cell.
    """
    stop, go = occupancy(rule, SHRINKAGE_PRICES, table=table)
    n_questions = float(measure.mass[0].sum())
    accuracy = np.einsum("sc,scp->p", measure.correct_mass.astype(stop.dtype), stop, optimize=True)
    cost = np.einsum("sc,scp->p", measure.mass.astype(go.dtype), go, optimize=True)
    cost, accuracy = np.maximum.accumulate(cost / n_questions), accuracy / n_questions
    return float(np.interp(SHRINKAGE_BUDGETS, cost, accuracy).mean())
