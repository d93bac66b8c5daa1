"""Advantage fit: fit the values of a policy to orders of training questions.

Where no table says what samples are worth by votes and text, a uniform number of samples of one arm
competes with the fitted values at each price, on inner folds of the training questions, and wins
where the values are worse by more than a standard error: few questions, or arms whose answers do
not pool, are better served by it.

It does not know where samples come from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from adacompute.core.answers import number_by_appearance
from adacompute.core.states import MAX_SAMPLES, states, vote_keys
from adacompute.policies.learners import assign_folds
from adacompute.policies.price_schedule import PriceSchedule
from adacompute.policies.sequential.fitted_values import (
    FREE,
    Described,
    RoundLimits,
    describe_orders,
    fit_values,
)
from adacompute.policies.sequential.policy import SequentialPolicy

if TYPE_CHECKING:
    from adacompute.core.types import BoolArray, FloatArray, IntArray, KeyArray
    from adacompute.policies.sequential.arm_samples import OrderedSamples
    from adacompute.policies.sequential.fitted_values import Exact
    from adacompute.policies.sequential.prior import Prior
    from adacompute.policies.sequential.vote_table import VoteTable

MIN_ORDERS, MIN_ROWS = 8, 3_000
"""Orders of each question, and of all questions, that values are fitted to; fewer if there are."""

FOLDS, FOLD_ORDERS = 3, 8
"""Inner folds, and orders of each question in them."""

WINDOW, MIN_STANDARD_ERRORS = 3, -1.0
"""Neighbouring prices that are compared together, and the least gain of values, in errors.

It is below 0 because the folds are fitted to two thirds of the questions, which understates values.
"""


@dataclass(frozen=True, eq=False)
class TrainingOrders:
    """Orders of all questions, of which those of ``train`` are learned from.

    ``group`` is equal for copies of a training question. ``n_orders`` is how many orders a question
    has, and ``prices`` are those of the policy, falling. ``rounds`` is how samples can be drawn.
    """

    samples: OrderedSamples
    train: IntArray
    group: KeyArray
    n_orders: int
    prices: FloatArray
    rounds: RoundLimits = FREE

    @property
    def n_fitted(self) -> int:
        """Orders of each question that values are fitted to."""
        return min(self.n_orders, max(MIN_ORDERS, MIN_ROWS // max(1, len(self.train))))


def fit_advantages(
    training: TrainingOrders,
    prior: Prior,
    cell: IntArray,
    table: VoteTable | None,
    known: Mapping[str, Any],
) -> SequentialPolicy:
    """Fit the policy that knows the cell of each training question's text.

    ``table`` is that of single samples of one arm. ``known`` are further fields of the policy.
    """
    n_orders, prices = training.n_fitted, training.prices
    first = training.train[:, None] * training.n_orders + np.arange(n_orders)
    samples, own = training.samples.take(first.ravel()), np.repeat(cell, n_orders)
    text = prior.cell_centre[own].astype(np.float64)
    described = describe_orders(samples, text, n_orders)
    fit = _PolicyFit(training, prior, table, known)
    policy = fit.fit(described, samples, own)
    if table is not None:  # on one arm it is never clearly worse than a uniform number
        return policy
    question = np.repeat(np.arange(len(training.train)), n_orders)
    used = np.tile(np.arange(n_orders) < FOLD_ORDERS, len(training.train))
    fold = assign_folds(number_by_appearance(training.group), FOLDS)[question]
    gain = np.zeros((len(question), len(prices)))
    for f in range(FOLDS):
        rows, held_out = (np.flatnonzero(used & one) for one in (fold != f, fold == f))
        part = replace(described.take(rows), weight=1.0 / min(FOLD_ORDERS, n_orders))
        fitted = fit.fit(part, samples.take(rows), own[rows])
        ends = fitted.find_ends(samples.take(held_out), own[held_out])
        scored, best = described.take(held_out), _choose_uniform(part, policy, prices)
        gain[held_out] = _net(scored, ends.position, prices) - _net(scored, best, prices)
        gain[held_out] -= prices * training.rounds.cost * (ends.n_rounds - 1)
    by_question = gain[used].reshape(len(training.train), -1, gain.shape[1]).mean(axis=1)
    is_better = _find_better(by_question)
    best = _choose_uniform(described, policy, prices)[0]
    counts = policy.fitted.grid.counts[best]
    uniform = np.stack([counts.argmax(axis=1), counts.max(axis=1)], axis=1)
    uniform[is_better] = 0
    return replace(policy, uniform=uniform)


@dataclass(frozen=True, eq=False)
class _PolicyFit:
    """What all fits of one policy share."""

    training: TrainingOrders
    prior: Prior
    table: VoteTable | None
    known: Mapping[str, Any]

    def fit(
        self, described: Described, samples: OrderedSamples, cell: IntArray
    ) -> SequentialPolicy:
        """Fit the values to orders of questions in these cells."""
        prices, rounds = self.training.prices, self.training.rounds
        exact = None if self.table is None else self._look_up(self.table, samples, cell)
        values = fit_values(described, prices, samples.max_samples, exact, rounds)
        return SequentialPolicy(
            prior=self.prior,
            table=self.table,
            values=values,
            schedule=PriceSchedule(tuple(prices.tolist())),
            uniform=np.zeros((len(prices), 2), dtype=np.int64),
            **self.known,
        )

    def _look_up(self, table: VoteTable, samples: OrderedSamples, cell: IntArray) -> Exact:
        """Return the advantages of orders by a table."""
        advantage = table.advantages(self.training.prices * self.known["sample_cost"][0])
        state = states().find(vote_keys(samples.label[:, :MAX_SAMPLES]))

        def exact(rows: IntArray, n_samples: int) -> FloatArray | float:
            if n_samples >= table.n_samples:
                return 0.0
            return np.asarray(advantage[state[rows, n_samples], cell[rows]], dtype=np.float64)

        return exact


def _net(described: Described, end: IntArray, prices: FloatArray) -> FloatArray:
    """Return the accuracy minus the price of the samples of each order that ends there, (M, K)."""
    row = np.arange(len(described.correct))[:, None]
    return np.asarray(described.correct[row, end] - prices * described.cost[row, end])


def _choose_uniform(described: Described, policy: SequentialPolicy, prices: FloatArray) -> IntArray:
    """Return the position of the best number of samples of a single arm at each price, (1, K)."""
    counts = policy.fitted.grid.counts
    single = np.flatnonzero((counts > 0).sum(axis=1) == 1)
    accuracy, cost = (one[:, single].mean(axis=0) for one in (described.correct, described.cost))
    net = accuracy[:, None] - prices * cost[:, None]
    return np.asarray(single[net.argmax(axis=0)])[None, :]


def _find_better(gain: FloatArray) -> BoolArray:
    """Return at which prices fitted values are not clearly worse than the uniform choice, (K,)."""
    n_prices = gain.shape[1]
    smooth = np.stack(
        [gain[:, max(0, k - WINDOW) : k + WINDOW + 1].mean(axis=1) for k in range(n_prices)], axis=1
    )
    error = smooth.std(axis=0) / np.sqrt(len(gain))
    return np.asarray(smooth.mean(axis=0) > MIN_STANDARD_ERRORS * error)
