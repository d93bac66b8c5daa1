"""Vote table: what one more sample is worth in every vote state, exactly, by votes and text.

After each sample the votes say how likely the majority is correct and what one more sample would
change; the cell of the question's text says what to expect before there are votes. Both are in one
table of break-even prices: the price up to which another sample is worth it, for each vote state
and each cell. Sampling goes on while the break-even price is above the price of a sample, so it
stops on settled and on hopeless questions, and one table serves every budget. It uses the counts of
the votes, but not which answers they are for.

This module does not know what samples say of themselves, or texts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from adacompute.core.states import find_state, states
from adacompute.policies.policy import NO_LEVEL
from adacompute.policies.sequential.induction import advantages, occupancy, plan

if TYPE_CHECKING:
    from adacompute.core.states import StateMeasure
    from adacompute.core.types import Float32Array, FloatArray, IntArray, KeyArray
    from adacompute.policies.policy import State

LOG_PRICE_STEP, MIN_PRICE = math.log(1.15), 1e-9
"""Plans are made for prices with these steps, down to the lowest price."""

MAX_PLANS = 8
"""Plans that are cached, of at most 1.4 MB each; the jittered prices of one price need three."""

PRICES_AT_ONCE = 32
"""Prices for which states are followed at the same time, which bounds the memory."""

PRICE_JITTER = 0.2
"""Largest relative difference between the prices of two questions."""

_GOLDEN, _MASK = np.uint64(0x9E3779B97F4A7C15), (1 << 64) - 1


@dataclass(frozen=True, eq=False)
class VoteTable:
    """Draw one sample at a time while the break-even price is above the price of a sample.

    ``break_even_price`` is (states, cells), in utility per sample, computed from the ``measure`` of
    each cell. ``round_cost`` is the cost of a round besides its samples, in samples; if it is not
    0, or rounds are limited, several samples are requested at a time.
    """

    break_even_price: Float32Array
    measure: StateMeasure
    round_cost: float = 0.0
    _plans: dict[int, IntArray] = field(default_factory=dict, repr=False)
    _advantages: dict[bytes, Float32Array] = field(default_factory=dict, repr=False)

    @property
    def n_samples(self) -> int:
        """Largest number of samples."""
        return int(states().n_samples[len(self.break_even_price) - 1])

    def mean_samples(self, prices: FloatArray) -> FloatArray:
        """Return the mean samples of a question in each cell at prices of a sample, (P, C)."""
        # Single precision halves the time, and is what the table of the rule has.
        rule: Any = self.break_even_price
        mass = self.measure.mass / np.maximum(self.measure.mass[0], np.finfo(float).tiny)
        mass, found = mass.astype(rule.dtype), []
        for start in range(0, len(prices), PRICES_AT_ONCE):
            _, go = occupancy(rule, prices[start : start + PRICES_AT_ONCE].astype(rule.dtype))
            found.append(np.einsum("sc,scp->pc", mass, go, optimize=True))
        return np.concatenate(found).astype(np.float64)

    def advantages(self, prices: FloatArray) -> Float32Array:
        """Return what one more sample adds at prices of a sample, (states, cells, prices)."""
        if prices.tobytes() not in self._advantages:
            self._advantages.clear()
            found = advantages(self.measure, prices).astype(np.float32)
            self._advantages[prices.tobytes()] = found
        return self._advantages[prices.tobytes()]

    def continue_price(self, vote_states: IntArray, cell: IntArray, key: KeyArray) -> FloatArray:
        """Return the price of a sample below which another one is drawn in vote states, (M, n)."""
        found = self.break_even_price[vote_states, cell[:, None]]
        return np.asarray(found / price_jitter(key)[:, None])

    def decide(self, state: State, price: float) -> IntArray:
        """Add one sample (or several if rounds matter), or stop; one sample is always drawn."""
        can_go_on = state.observed.n_samples < self.n_samples
        if can_go_on.all():
            return self._decide(state, price)
        level, rows = state.level.copy(), np.flatnonzero(can_go_on)
        level[rows] = self._decide(state.take(rows), price)
        return level

    def _decide(self, state: State, price: float) -> IntArray:
        """Decide for questions that can be sampled again."""
        n_samples, cell = state.observed.n_samples, state.features[:, 0].astype(np.int64)
        # The next level costs one sample more.
        sample_price = price * state.cost[np.arange(len(n_samples)), n_samples]
        is_first = state.level == NO_LEVEL
        enough_rounds = bool((state.rounds_left >= self.n_samples - n_samples).all())
        if self.round_cost == 0 and enough_rounds:
            limit = self.continue_price(state.observed.states[:, None], cell, state.key)
            goes_on = limit[:, 0] > sample_price
            return np.where(goes_on | is_first, n_samples, state.level)
        request = self._request(state, cell, sample_price * price_jitter(state.key))
        request = np.where(is_first & (request == 0), 1, request)
        return np.where(request > 0, n_samples + request - 1, state.level)

    def _request(self, state: State, cell: IntArray, price: FloatArray) -> IntArray:
        """Return the samples to request for each question, by the plan of the nearest price."""
        step = np.rint(np.log(np.maximum(price, MIN_PRICE)) / LOG_PRICE_STEP).astype(np.int64)
        left = np.minimum(state.rounds_left, self.n_samples)
        vote_state, request = state.observed.states, np.zeros(len(state), dtype=np.int64)
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


class TableLookup:
    """Decides about one question at a time as a table without rounds does in blocks."""

    def __init__(self, table: VoteTable) -> None:
        self._price: list[list[float]] = table.break_even_price.tolist()
        self._n_samples = table.n_samples

    def decide(
        self,
        answers: tuple[int, ...],
        level: int,
        *,
        price: float,
        key: int,
        feature: float,
        next_cost: float,
    ) -> int:
        """Add one sample while the break-even price is above the price of a sample."""
        n_samples = len(answers)
        if n_samples >= self._n_samples:
            return level
        if level == NO_LEVEL:
            return n_samples
        limit = self._price[find_state(answers)][int(feature)] / price_jitter_of(key)
        return n_samples if limit > price * next_cost else level


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
