"""Sequential policy: decide about every sample by one price.

After each sample the votes say how likely the majority is correct and what one more sample would
change; the question's text says what to expect before there are votes. Both are in one table of
break-even prices: the price up to which another sample is worth it, for each vote state and each
cell of the prior. The policy samples while the break-even price is above the price of a sample, so
it stops on settled and on hopeless questions, and one model serves every budget. It uses the counts
of the votes, but not which answers they are for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from adacompute.core.answers import number_by_appearance
from adacompute.core.state_sums import NO_GROUP
from adacompute.core.states import StateMeasure
from adacompute.policies.induction import break_even_prices, occupancy, plan
from adacompute.policies.learners import assign_folds, single_threaded
from adacompute.policies.policy import NO_LEVEL, State
from adacompute.policies.prior import (
    Prior,
    fit_prior,
    pooled_fit,
    pooled_prior,
    question_weights,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from adacompute.core.state_sums import StateSums
    from adacompute.core.states import States
    from adacompute.core.types import Float32Array, FloatArray, IntArray, KeyArray, Level

LOG_PRICE_STEP, MIN_PRICE = math.log(1.15), 1e-9
"""Plans are made for prices with these steps, down to the lowest price."""

MAX_PLANS = 8
"""Plans that are cached, of at most 1.4 MB each; the jittered prices of one price need three."""

PRICE_JITTER = 0.2
"""Largest relative difference between the prices of two questions."""

_GOLDEN, _MASK = np.uint64(0x9E3779B97F4A7C15), (1 << 64) - 1

SHRINKAGE = (math.inf, 300.0, 80.0, 20.0)
"""Pseudo-questions that are tried for shrinking cells; infinitely many mean one pooled prior."""

SHRINKAGE_FOLDS = 4
SHRINKAGE_PRICES = np.geomspace(0.5, 3e-4, 16)
SHRINKAGE_BUDGETS = (1.5, 2.0, 3.0, 4.0)
"""Mean numbers of samples at which shrinkages are compared."""

SHRINKAGE_SAMPLES = 10
"""Largest number of samples when shrinkages are compared: the text matters most at the start."""


@dataclass(frozen=True, eq=False)
class SequentialPolicy:
    """Draw one sample at a time while the break-even price is above the price of a sample.

    ``levels`` are 1, 2, … samples. ``break_even_price`` is (states, cells), in utility per sample,
    computed from the ``measure`` of each cell. ``round_cost`` is the cost of a round besides its
    samples, in samples; if it is not 0, or rounds are limited, several samples are requested at a
    time. ``pooled`` decides by the votes alone, for questions whose text is not known; None if this
    policy does so itself.
    """

    name = "sequential"
    levels: tuple[Level, ...]
    prior: Prior
    break_even_price: Float32Array
    measure: StateMeasure
    round_cost: float = 0.0
    pooled: SequentialPolicy | None = None
    _plans: dict[int, IntArray] = field(default_factory=dict, repr=False)

    @property
    def is_index_rule(self) -> bool:
        """Whether, with enough rounds, a decision compares the price with ``continue_price``."""
        return self.round_cost == 0

    def continue_price(
        self, vote_states: IntArray, features: Float32Array, key: KeyArray
    ) -> FloatArray:
        """Return the price of a sample below which another one is drawn in vote states, (M, n)."""
        cell = features[:, :1].astype(np.int64)
        return np.asarray(self.break_even_price[vote_states, cell] / price_jitter(key)[:, None])

    def prepare_features(self, features: Float32Array) -> Float32Array:
        """Return the cell of each question."""
        return self.prior.find_cell(features)[:, None].astype(np.float32)

    def decide(self, state: State, price: float) -> IntArray:
        """Add one sample (or several if rounds matter), or stop; one sample is always drawn."""
        can_go_on = state.observed.n_samples < len(self.levels)
        if can_go_on.all():
            return self._decide(state, price)
        level, rows = state.level.copy(), np.flatnonzero(can_go_on)
        level[rows] = self._decide(state.take(rows), price)
        return level

    def _decide(self, state: State, price: float) -> IntArray:
        """Decide for questions that can be sampled again."""
        n_samples = state.observed.n_samples
        # The next level costs one sample more.
        sample_price = price * state.cost[np.arange(len(n_samples)), n_samples]
        is_first = state.level == NO_LEVEL
        enough_rounds = bool((state.rounds_left >= len(self.levels) - n_samples).all())
        if self.is_index_rule and enough_rounds:
            limit = self.continue_price(state.observed.states[:, None], state.features, state.key)
            goes_on = limit[:, 0] > sample_price
            return np.where(goes_on | is_first, n_samples, state.level)
        jittered = sample_price * price_jitter(state.key)
        request = self._request(state, jittered)
        request = np.where(is_first & (request == 0), 1, request)
        return np.where(request > 0, n_samples + request - 1, state.level)

    def _request(self, state: State, price: FloatArray) -> IntArray:
        """Return the samples to request for each question, by the plan of the nearest price."""
        step = np.rint(np.log(np.maximum(price, MIN_PRICE)) / LOG_PRICE_STEP).astype(np.int64)
        left = np.minimum(state.rounds_left, len(self.levels))
        vote_state, cell = state.observed.states, state.features[:, 0].astype(np.int64)
        request = np.zeros(len(state), dtype=np.int64)
        for near in np.unique(step).tolist():
            rows = np.flatnonzero(step == near)
            cached, rounds = self._plans.get(near), int(left[rows].max())
            if cached is None or len(cached) <= rounds:
                cached = self._plan(math.exp(near * LOG_PRICE_STEP), rounds)
                self._cache(near, cached)
            request[rows] = cached[left[rows], vote_state[rows], cell[rows]]
        return request

    def _plan(self, price: float, rounds: int) -> IntArray:
        """Make the plan for a price of one sample."""
        round_price = price * self.round_cost
        return plan(self.measure, price=price, round_price=round_price, rounds=rounds)

    def _cache(self, step: int, new_plan: IntArray) -> None:
        """Store a plan, and drop the oldest one if there are too many."""
        self._plans.pop(step, None)
        while len(self._plans) >= MAX_PLANS:
            self._plans.pop(next(iter(self._plans)))
        self._plans[step] = new_plan


def price_jitter(key: KeyArray) -> FloatArray:
    """Return a factor for each question's price that depends only on its key.

    Questions of the same cell in the same state share a break-even price. Without jitter the mean
    cost would jump when the price passes it.
    """
    uniform = (key * _GOLDEN) >> np.uint64(11)
    return np.asarray(
        1.0 - PRICE_JITTER / 2 + uniform * (PRICE_JITTER * 2.0**-53), dtype=np.float64
    )


def price_jitter_of(key: int) -> float:
    """Return the factor of ``price_jitter`` for one question, without arrays.

    >>> bool(price_jitter_of(7) == price_jitter(np.array([7], dtype=np.uint64))[0])
    True
    """
    uniform = (key * int(_GOLDEN) & _MASK) >> 11
    return 1.0 - PRICE_JITTER / 2 + uniform * (PRICE_JITTER * 2.0**-53)


def fit_sequential(
    features: Float32Array,
    profile: FloatArray,
    sums: StateSums,
    levels: tuple[Level, ...],
    *,
    rows: IntArray | None = None,
    group: KeyArray | None = None,
    round_cost: float = 0.0,
    seed: int = 0,
) -> SequentialPolicy:
    """Fit the prior and the break-even prices of its cells to training questions.

    ``rows`` are the training questions among those of ``sums``, by default all; ``features``,
    ``profile`` (their response profiles) and ``group`` are those of the training questions. Copies
    of a question share a group; without it every question is its own group. How far a cell is
    shrunk towards all questions is chosen by cross-validation; a cell that is shrunk completely
    ignores the features.
    """
    with single_threaded():
        chosen = choose_prior(features, profile, sums, rows=rows, group=group, seed=seed)
        (by_cluster,) = chosen.sum_clusters(sums, rows)
        weight = chosen.weight
        policy = _make_policy(levels, chosen.prior, by_cluster, weight, sums, round_cost)
        if weight.shape[1] == 1:
            return policy
        prior = pooled_prior(features.shape[1])
        pooled = _make_policy(levels, prior, by_cluster, chosen.equal_weight, sums, round_cost)
        return replace(policy, pooled=pooled)


@dataclass(frozen=True, eq=False)
class ChosenPrior:
    """A prior, the cluster of each training question, and the weight of clusters in cells."""

    prior: Prior
    cluster: IntArray
    weight: FloatArray

    @property
    def equal_weight(self) -> FloatArray:
        """Weights of one cell in which all questions count alike, (clusters, 1)."""
        return np.full((len(self.weight), 1), 1.0 / len(self.cluster))

    def sum_clusters(self, sums: StateSums, rows: IntArray | None) -> list[StateMeasure]:
        """Return the sums of the state measures over the clusters."""
        return _sum(sums, rows, [self.cluster], [len(self.weight)])


def choose_prior(
    features: Float32Array,
    profile: FloatArray,
    sums: StateSums,
    *,
    rows: IntArray | None = None,
    group: KeyArray | None = None,
    seed: int = 0,
) -> ChosenPrior:
    """Fit the prior, and choose by cross-validation how far its cells are shrunk to the pool."""
    groups = np.arange(len(features)) if group is None else number_by_appearance(group)
    training = _TrainingSet(features, profile, groups, sums, rows, seed)
    fitted, shrinkage = fit_prior(features, profile, groups, seed=seed), 0.0
    if fitted.inverse_penalty is not None:
        shrinkage = _select_shrinkage(training, fitted.inverse_penalty)
    if math.isinf(shrinkage):
        fitted, shrinkage = pooled_fit(features.shape[1], len(profile)), 0.0
    size = np.bincount(fitted.cluster, minlength=len(fitted.cell_share)).astype(np.float64)
    weight = question_weights(fitted.cell_share, size, shrinkage)
    return ChosenPrior(fitted.prior, fitted.cluster, weight)


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
    return SequentialPolicy(levels, prior, prices, every, round_cost)


@dataclass(frozen=True, eq=False)
class _TrainingSet:
    """Training questions: their features, profiles and groups, and where their sums come from."""

    features: Float32Array
    profile: FloatArray
    group: IntArray
    sums: StateSums
    rows: IntArray | None
    seed: int

    def sum(self, assignments: Sequence[IntArray], sizes: Sequence[int]) -> list[StateMeasure]:
        """Return the sums of the training questions over groups of them."""
        return _sum(self.sums, self.rows, assignments, sizes)


def _sum(
    sums: StateSums,
    rows: IntArray | None,
    assignments: Sequence[IntArray],
    sizes: Sequence[int],
) -> list[StateMeasure]:
    """Return sums over groups of the questions in ``rows``, by default of all questions."""
    if rows is None:
        return sums.sum(assignments, sizes)
    spread = []
    for assignment in assignments:
        every = np.full(len(sums.answers), NO_GROUP)
        every[rows] = assignment
        spread.append(every)
    return sums.sum(spread, sizes)


def _select_shrinkage(training: _TrainingSet, inverse_penalty: float) -> float:
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
