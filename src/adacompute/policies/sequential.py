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
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from adacompute.policies.induction import occupancy, plan
from adacompute.policies.lookup import MAX_REMEMBERED, Lookup, observe
from adacompute.policies.policy import NO_LEVEL, Policy, PreparedKind, State

if TYPE_CHECKING:
    from adacompute.core.states import StateMeasure
    from adacompute.core.types import Float32Array, FloatArray, IntArray, KeyArray, Level
    from adacompute.policies.prior import Prior

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
class SequentialPolicy(Policy):
    """Draw one sample at a time while the break-even price is above the price of a sample.

    ``levels`` are 1, 2, … samples. ``break_even_price`` is (states, cells), in utility per sample,
    computed from the ``measure`` of each cell. ``round_cost`` is the cost of a round besides its
    samples, in samples; if it is not 0, or rounds are limited, several samples are requested at a
    time. ``pooled`` decides by the votes alone, for questions whose text is not known; None if this
    policy does so itself.
    """

    name = "sequential"
    prepared = PreparedKind.CELL
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

    @property
    def n_cells(self) -> int:
        """Cells that the text puts questions into."""
        return len(self.prior.cell_centre)

    @property
    def highest_price(self) -> float:
        """Price of a sample above which one sample is drawn."""
        return float(self.break_even_price[1:].max(initial=0.0))

    def make_lookup(self) -> Lookup | None:
        """Return a lookup of break-even prices, None if rounds have a price."""
        return SequentialLookup(self) if self.is_index_rule else None

    def mean_samples(self, prices: FloatArray) -> FloatArray | None:
        """Return the mean samples of a question in each cell at prices of a sample, (P, C)."""
        if not self.is_index_rule:
            return None
        # Single precision halves the time, and is what the table of the rule has.
        rule: Any = self.break_even_price
        mass = self.measure.mass / np.maximum(self.measure.mass[0], np.finfo(float).tiny)
        mass, found = mass.astype(rule.dtype), []
        for start in range(0, len(prices), PRICES_AT_ONCE):
            _, go = occupancy(rule, prices[start : start + PRICES_AT_ONCE].astype(rule.dtype))
            found.append(np.einsum("sc,scp->pc", mass, go, optimize=True))
        return np.concatenate(found).astype(np.float64)

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


class SequentialLookup:
    """Break-even prices of each state, for all cells."""

    def __init__(self, policy: SequentialPolicy) -> None:
        self._policy = policy
        self._n_levels = len(policy.levels)
        self._break_even = lru_cache(MAX_REMEMBERED)(self._break_even_prices)

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
        if n_samples >= self._n_levels:
            return level
        if level == NO_LEVEL:
            return n_samples
        limit = self._break_even(answers)[int(feature)] / price_jitter_of(key)
        return n_samples if limit > price * next_cost else level

    def _break_even_prices(self, answers: tuple[int, ...]) -> list[float]:
        """Return the break-even price of a state in every cell."""
        prices: list[float] = self._policy.break_even_price[observe(answers).states[0]].tolist()
        return prices


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
