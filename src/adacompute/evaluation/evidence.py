"""Evidence: policies that see arms and confidence, fitted and replayed on recorded samples.

In each order of the samples, the vote after every number of samples of every arm is tabulated once.
A static level (a number of samples of one arm) and a plan over coloured states are then replayed by
looking up where they stop. Votes are weighted as they were learned on the training questions, for
the mixture and for the policy alike, so a gain over the mixture is due to allocation alone.

This module does not judge policies.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from adacompute.core.coloured_measure import KnownMeasures
from adacompute.core.positions import Grid, VoteTable
from adacompute.evaluation.replay import ReplayResult
from adacompute.evaluation.running_votes import OrderedVotes, label_orders, weighted_accuracies
from adacompute.policies.coloured_fit import (
    ArmSamples,
    FittedVotes,
    fit_votes,
    measure_arms,
    order_votes,
)
from adacompute.policies.plans import STOP

if TYPE_CHECKING:
    from adacompute.core.coloured_measure import ColouredMeasure
    from adacompute.core.types import Float32Array, FloatArray, IntArray
    from adacompute.evaluation.pool import Pool
    from adacompute.policies.coloured import ColouredPolicy

T = TypeVar("T")

MAX_MEASURES = 16
"""Measures of training questions that are kept."""

MAX_BYTES = 256_000_000
"""Memory for the measures of single questions."""

MAX_TABLE = 1_000_000
"""Votes of orders at positions, up to which they are kept for all training questions."""

PRICE_BLOCK = 8
"""Prices that are replayed at once."""


def arm_samples(pool: Pool) -> ArmSamples:
    """Return the samples of a pool with their arms and signals."""
    size = len(pool.answers.answer)
    arm = np.zeros(size, dtype=np.int64) if pool.arm is None else pool.arm
    values = np.empty((size, 0)) if pool.signals is None else pool.signals
    return ArmSamples(
        answers=pool.answers,
        key=pool.key,
        arm=arm,
        n_arms=max(1, len(pool.arms)),
        cost=pool.sample_cost,
        signals=pool.signal_names,
        values=values,
        latency_s=pool.latency_s,
    )


@dataclass(frozen=True, eq=False)
class Evidence:
    """Samples of a pool in random orders, and what was learned of votes on training questions.

    ``max_samples`` is the largest number of samples of each arm, and ``needed`` the number that
    states should count at least. Without ``use_confidence`` every sample counts once.
    ``round_cost`` (N,) is what a level costs besides its samples; policies over arms ignore it.
    """

    samples: ArmSamples
    max_samples: tuple[int, ...]
    n_permutations: int
    seed: int
    use_confidence: bool
    round_cost: FloatArray
    needed: tuple[int, ...] | None = None
    _votes: dict[bytes, FittedVotes] = field(default_factory=dict, repr=False)
    _selected: dict[Any, Evidence] = field(default_factory=dict, repr=False)
    _measures: dict[bytes, ColouredMeasure] = field(default_factory=dict, repr=False)
    _known: KnownMeasures = field(default_factory=lambda: KnownMeasures(MAX_BYTES), repr=False)
    _tables: dict[Hashable, Any] = field(default_factory=dict, repr=False)

    @cached_property
    def order(self) -> list[IntArray]:
        """Indices of the samples of each arm in each order, (N · permutations, cap)."""
        return self.samples.order(self.max_samples, self.n_permutations, self.seed)

    def votes(self, train: IntArray, *, joint: bool) -> FittedVotes:
        """Return what was learned of votes on training questions; it is computed once.

        With several arms it differs whether they vote together (``joint``) or each alone.
        """
        joint = joint or self.samples.n_arms == 1
        key = train.tobytes() + bytes([joint])
        if key not in self._votes:
            known: dict[str, Any] = {"use": self.use_confidence, "joint": joint}
            known |= {"needed": self.needed, "seed": self.seed}
            self._votes[key] = fit_votes(self.samples, train, self.max_samples, **known)
        return self._votes[key]

    def counts_votes_alike(self, train: IntArray) -> bool:
        """Whether there is one arm, and training questions show no use of confidence in its votes.

        A policy that sees the votes alone is then as good as one that sees the confidence as well.
        """
        return self.samples.n_arms == 1 and not self.votes(train, joint=True).confidence.signals

    def select(self, arms: tuple[int, ...], needed: tuple[int, ...] | None = None) -> Evidence:
        """Return the evidence of some arms, which are numbered in this order.

        ``needed`` are the samples of each arm that states must count, if there are not too many.
        """
        if arms == tuple(range(self.samples.n_arms)) and needed in (None, self.max_samples):
            return self
        key = (arms, needed)
        if key not in self._selected:
            self._selected[key] = replace(
                self,
                samples=self.samples.select(arms),
                max_samples=tuple(self.max_samples[arm] for arm in arms),
                needed=needed,
                _votes={},
                _selected={},
                _measures={},
                _tables={},
            )
        return self._selected[key]

    def measure(self, votes: FittedVotes, train: IntArray) -> ColouredMeasure:
        """Return the exact measure of the states of training questions; the last ones are kept."""
        key = train.tobytes()
        if key not in self._measures:
            while len(self._measures) >= MAX_MEASURES:
                self._measures.pop(next(iter(self._measures)))
            self._measures[key] = measure_arms(self.samples, votes, train, self._known)
        return self._measures[key]

    def remember(self, key: Hashable, compute: Callable[[Evidence], T]) -> T:
        """Return a table that does not depend on training questions; it is computed once."""
        if key not in self._tables:
            self._tables[key] = compute(self)
        found: T = self._tables[key]
        return found

    def table(self, votes: FittedVotes) -> VoteTable:
        """Return the votes of all orders at the positions of the fitted states."""
        caps = votes.colours.max_samples

        def tabulate(_: Evidence) -> VoteTable:
            index = [one[:, :cap] for one, cap in zip(self.order, caps, strict=True)]
            return order_votes(self.samples, index, votes.confidence, votes.colours)

        if len(self.order[0]) * len(Grid(caps)) > MAX_TABLE:
            return tabulate(self)
        return self.remember(("votes", votes), tabulate)

    def totals(self, values: FloatArray, max_samples: Sequence[int]) -> FloatArray:
        """Return the sum of a value over the samples of every position and order.

        ``values`` is (S,) and the result (N · permutations, P): costs, for example.
        """
        grid = Grid(tuple(max_samples))
        total = np.zeros((len(self.order[0]), len(grid)))
        for index, counts in zip(self.order, grid.counts.T, strict=True):
            running = np.cumsum(values[index], axis=1)
            total += np.pad(running, ((0, 0), (1, 0)))[:, counts]
        return total

    def measure_latency(
        self, policy: ColouredPolicy, price: float, features: Float32Array
    ) -> FloatArray | None:
        """Return how long each order takes, in seconds: its samples come one after another.

        The arms are those of the policy. None if it was not recorded.
        """
        latency_s = self.samples.latency_s
        if latency_s is None:
            return None
        votes = FittedVotes(policy.confidence, policy.colours)
        cell = policy.prepare_features(features)[:, 0].astype(np.int64)
        first, _ = policy.schedule.position(price)
        last = follow_plans(
            self.table(votes).state,
            policy.action[first : first + 1],
            np.repeat(cell, self.n_permutations),
            policy.colours.max_samples,
        )
        taken = self.totals(latency_s, policy.colours.max_samples)
        return np.take_along_axis(taken, last, axis=1)[:, 0]

    def run_levels(self, votes: FittedVotes | None) -> ReplayResult:
        """Return the results of every number of samples of every arm, (N, levels).

        Levels are those of the first arm, 1, 2, …, then those of the second. Without ``votes``
        every sample counts once.
        """
        if votes is None:
            return self._plain_levels
        return ReplayResult.side_by_side(
            [self.run_arm(arm, votes) for arm in range(len(self.max_samples))]
        )

    @cached_property
    def _plain_levels(self) -> ReplayResult:
        """The results of every level where each sample counts once."""
        arms = range(len(self.max_samples))
        return ReplayResult.side_by_side([self.run_arm(arm, None) for arm in arms])

    def run_arm(self, arm: int, votes: FittedVotes | None) -> ReplayResult:
        """Return the results of every number of samples of one arm, (N, levels)."""
        order, weight = self.order[arm], None
        if votes is not None:
            confidence = votes.confidence.of_arm(arm)
            own = np.zeros(len(self.samples.arm), dtype=np.int64)
            log_odds = confidence.log_odds(own, self.samples.column(confidence.signals))
            weight = confidence.weight(log_odds)[order]
        correct = weighted_accuracies(self.labels(arm), weight)
        per_round = np.repeat(self.round_cost, self.n_permutations)[:, None]
        cost = np.cumsum(self.samples.cost[order], axis=1) + per_round
        n_samples = np.broadcast_to(np.arange(1.0, order.shape[1] + 1), cost.shape)
        return self.summarise(cost, correct, n_samples, n_samples * 0 + 1)

    def labels(self, arm: int) -> OrderedVotes:
        """Return the numbered answers of the orders of one arm; they are numbered once."""
        return self.remember(
            ("labels", arm), lambda one: label_orders(one.samples.answers, one.order[arm])
        )

    def run_plans(
        self, votes: FittedVotes, action: IntArray, cell: IntArray, table: VoteTable | None = None
    ) -> ReplayResult:
        """Return the results of plans (prices, states, cells) on every question, (N, prices)."""
        table = self.table(votes) if table is None else table
        caps = votes.colours.max_samples
        cost = self.remember(("cost", caps), lambda one: one.totals(one.samples.cost, caps))
        counts = Grid(caps).counts.sum(axis=1).astype(np.float64)
        cells = np.repeat(cell, self.n_permutations)
        parts = []
        for start in range(0, len(action), PRICE_BLOCK):
            last = follow_plans(table.state, action[start : start + PRICE_BLOCK], cells, caps)
            row = np.arange(len(last))[:, None]
            n_samples = counts[last]
            parts.append(
                self.summarise(cost[row, last], table.correct[row, last], n_samples, n_samples)
            )
        return ReplayResult.side_by_side(parts)

    def summarise(
        self, cost: FloatArray, correct: FloatArray, n_samples: FloatArray, n_rounds: FloatArray
    ) -> ReplayResult:
        """Return means and variances over the orders of each question."""
        shape = (len(self.samples.answers), self.n_permutations, -1)
        cost, correct, n_samples, n_rounds = (
            one.reshape(shape) for one in (cost, correct, n_samples, n_rounds)
        )
        return ReplayResult(
            cost=cost.mean(axis=1),
            accuracy=correct.mean(axis=1),
            n_samples=n_samples.mean(axis=1),
            n_rounds=n_rounds.mean(axis=1),
            cost_variance=cost.var(axis=1),
            accuracy_variance=correct.var(axis=1),
        )


def follow_plans(
    state: IntArray, action: IntArray, cell: IntArray, max_samples: Sequence[int]
) -> IntArray:
    """Return the position at which each plan stops in each order, (M, prices)."""
    stride, (n_prices, n_states, n_cells) = Grid(tuple(max_samples)).stride, action.shape
    size = len(state) * n_prices
    order, price = np.divmod(np.arange(size), n_prices)
    start = order * state.shape[1]
    # Those that go on: their number, where they are in the states, and their plan in the actions.
    active, place, plan = np.arange(size), start.copy(), price * (n_states * n_cells) + cell[order]
    end, where, actions = start.copy(), state.ravel() * n_cells, action.ravel()
    while len(active):
        step = actions[plan + where[place]]
        goes_on = step != STOP
        active, place, plan = active[goes_on], place[goes_on], plan[goes_on]
        place += stride[step[goes_on].astype(np.int64) - 1]
        end[active] = place
    return np.asarray(end - start).reshape(len(state), n_prices)
