"""Sequential policy: decide about every sample, of any arm, by votes, confidence and text.

After each sample the policy knows the votes, what each sample says of itself, and the cell of the
question's text. It goes on while the advantage of another sample is positive. For one arm, the
exact table of vote states says what one more sample is worth as far as votes and text tell; where
samples say something of themselves, a fitted correction adds to it. With several arms, with more
samples than the table has, and where rounds are limited, all advantages are fitted.

Fitted values have a grid of prices. Between two of them, questions are mixed by their key, so the
mean cost changes smoothly. At prices where a uniform number of samples of one arm was clearly
better on training questions, it is used. Nothing is fitted while the policy serves.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from adacompute.core.states import MAX_SAMPLES, find_state, states, vote_keys
from adacompute.policies.policy import (
    Policy,
    PreparedKind,
    SeenSamples,
    State,
    mixing_uniform,
)
from adacompute.policies.sequential.description import describe_one
from adacompute.policies.sequential.vote_table import TableLookup

if TYPE_CHECKING:
    from collections.abc import Sequence

    from adacompute.core.types import Float32Array, FloatArray, IntArray, KeyArray, Level
    from adacompute.policies.confidence import Confidence
    from adacompute.policies.lookup import Lookup
    from adacompute.policies.price_schedule import PriceSchedule
    from adacompute.policies.sequential.arm_samples import OrderedSamples
    from adacompute.policies.sequential.fitted_values import FittedValues
    from adacompute.policies.sequential.prior import Prior
    from adacompute.policies.sequential.vote_table import VoteTable

STOP = -1
"""Action of a decision to stop."""


class Ends(NamedTuple):
    """Where orders end at each price, (M, K): their position, rounds and, if known, seconds."""

    position: IntArray
    n_rounds: IntArray
    latency_s: FloatArray | None


@dataclass(frozen=True, eq=False)
class SequentialPolicy(Policy):
    """Go on while the advantage of another sample is positive.

    ``levels`` are the numbers of samples of each arm that can be reached. ``table`` decides by
    votes and text; it is None with several arms. Without ``values`` it decides alone. With them,
    ``arms`` are names, ``sample_cost`` is the mean cost of a sample of each arm, and ``uniform``
    (K, 2) holds, for each price of the schedule, an arm and the number of its samples that every
    question gets; 0 samples mean that the values decide. ``pooled`` is for questions whose text is
    not known.
    """

    name = "sequential"
    prepared = PreparedKind.CELL
    levels: tuple[Level, ...]
    prior: Prior
    table: VoteTable | None = None
    values: FittedValues | None = None
    arms: tuple[str, ...] = field(default=())
    confidence: Confidence | None = field(default=None)
    schedule: PriceSchedule | None = field(default=None)
    uniform: IntArray | None = None
    sample_cost: tuple[float, ...] = field(default=())
    pooled: SequentialPolicy | None = None

    @property
    def votes(self) -> VoteTable:
        """The table of vote states of a policy that has one."""
        if self.table is None:
            raise AssertionError
        return self.table

    @property
    def fitted(self) -> FittedValues:
        """The values of a policy that has them."""
        if self.values is None:
            raise AssertionError
        return self.values

    @property
    def is_index_rule(self) -> bool:
        """Whether, with enough rounds, a decision compares the price with ``continue_price``."""
        return self.values is None and self.votes.round_cost == 0

    @property
    def highest_price(self) -> float:
        """Price of a sample above which one sample is drawn."""
        return float(self.votes.break_even_price[1:].max(initial=0.0))

    @property
    def max_by_arm(self) -> tuple[int, ...]:
        """Largest number of samples of each arm; empty if votes decide alone."""
        return () if self.values is None else self.values.max_samples

    @property
    def max_samples(self) -> int:
        """Largest number of samples of a question, of all arms together."""
        return len(self.levels) if self.values is None else sum(self.max_by_arm)

    @property
    def n_cells(self) -> int:
        """Cells that the text puts questions into."""
        return len(self.prior.cell_centre)

    def plans_for(self, max_rounds: int | None) -> bool:
        """Whether decisions are meant for so many rounds: values are fitted for a limit."""
        if max_rounds is not None and max_rounds >= self.max_samples:
            max_rounds = None
        return self.values is None or self.values.rounds.limit == max_rounds

    def make_lookup(self) -> Lookup | None:
        """Return a lookup of break-even prices, None if something else decides."""
        return TableLookup(self.votes) if self.is_index_rule else None

    def mean_samples(self, prices: FloatArray) -> FloatArray | None:
        """Return the mean samples of a question in each cell at prices of a sample, (P, C)."""
        return self.votes.mean_samples(prices) if self.is_index_rule else None

    def continue_price(
        self, vote_states: IntArray, features: Float32Array, key: KeyArray
    ) -> FloatArray:
        """Return the price of a sample below which another one is drawn in vote states, (M, n)."""
        return self.votes.continue_price(vote_states, features[:, 0].astype(np.int64), key)

    def prepare_features(self, features: Float32Array) -> Float32Array:
        """Return the cell of each question."""
        return self.prior.find_cell(features)[:, None].astype(np.float32)

    def describe_text(self, prepared: Float32Array) -> FloatArray:
        """Return the predicted response profile of the cell of each question, (N, D)."""
        return self._text[prepared[:, 0].astype(np.int64)]

    def decide(self, state: State, price: float) -> IntArray:
        """Return the next level of each question by votes; the current level means stop."""
        if self.values is not None:
            return super().decide(state, price)
        return self.votes.decide(state, price)

    @cached_property
    def _text(self) -> FloatArray:
        """What the text of questions in each cell says, (C, D)."""
        return self.prior.cell_centre.astype(np.float64)

    @cached_property
    def _text_of_cells(self) -> list[list[float]]:
        """What the text of questions in each cell says, without arrays."""
        return [list(map(float, one)) for one in self._text]

    @cached_property
    def _exact(self) -> Float32Array | None:
        """Exact advantages of one more sample by votes and text, (states, cells, K)."""
        if self.table is None or self.schedule is None:
            return None
        return self.table.advantages(np.array(self.schedule.prices) * self.sample_cost[0])

    def exact_rows(self, state: IntArray, cell: IntArray, n_samples: int) -> FloatArray | float:
        """Return the exact advantages in vote states and cells, (M, K); 0 where none are known."""
        if self._exact is None or n_samples >= self.votes.n_samples:
            return 0.0
        return np.asarray(self._exact[state, cell])

    @cached_property
    def _ends_of_arms(self) -> list[int]:
        """The level after the last one of each arm."""
        return list(itertools.accumulate(len(counts) - 1 for counts in self.fitted.grid.by_arm))

    def arm_of_level(self, level: int) -> int:
        """Return the arm that a level samples."""
        ends = self._ends_of_arms if self.values is not None else [len(self.levels)]
        return next(arm for arm, end in enumerate(ends) if level < end)

    def _find_level(self, arm: int, n_samples: int) -> int:
        """Return the level of so many samples of an arm."""
        first = self._ends_of_arms[arm - 1] if arm else 0
        return first + self.fitted.grid.by_arm[arm].index(n_samples) - 1

    def first_levels(
        self, price: float, prepared: npt.NDArray[Any], keys: KeyArray
    ) -> IntArray | None:
        """Return the level that the first samples of each question reach."""
        if self.schedule is None or self.uniform is None:
            return None
        setting = self.schedule.select(price, mixing_uniform(keys))
        chosen = self._first_actions[prepared[:, 0].astype(np.int64), setting]
        levels = [
            self._find_level(arm, self.fitted.grid.by_arm[arm][steps])
            for arm, steps in self.fitted.actions
        ]
        own = [self._find_level(arm, max(1, n)) for arm, n in self.uniform.tolist()]
        is_uniform = self.uniform[setting, 1] > 0
        return np.where(is_uniform, np.array(own)[setting], np.array(levels)[chosen])

    @cached_property
    def _first_actions(self) -> IntArray:
        """The action that questions of each cell begin with, at each price, (C, K)."""
        start = describe_one([], [], [], [], [0] * len(self.arms))
        vector = np.repeat(np.array([start]), self.n_cells, axis=0)
        found = self.fitted.advantages(0, vector, self._text, len(self.fitted.advantage) - 1)
        return np.asarray(found.argmax(axis=0))

    def next_level(
        self, seen: SeenSamples, *, price: float, key: int, cell: int, rounds_left: int
    ) -> tuple[int, int] | None:
        """Return the level to reach next and the samples it needs in total; None means stop."""
        if self.schedule is None or self.uniform is None:
            raise AssertionError
        arm, setting = seen.arm, self.schedule.select_one(price, key)
        own, wanted = self._uniform[setting]
        n_arms = len(self.arms)
        counts = [len(arm)] if n_arms == 1 else [arm.count(a) for a in range(n_arms)]
        if not wanted:
            known = {"setting": setting, "cell": cell, "rounds_left": rounds_left}
            chosen = self._choose(seen, counts, **known)
            if chosen == STOP:
                return None
            own, steps = self.fitted.actions[chosen]
            by_arm = self.fitted.grid.by_arm[own]
            wanted = by_arm[by_arm.index(counts[own]) + steps]
        more = wanted - counts[own]
        return (self._find_level(own, wanted), len(arm) + more) if more > 0 else None

    @cached_property
    def _uniform(self) -> list[tuple[int, int]]:
        return [] if self.uniform is None else [(arm, n) for arm, n in self.uniform.tolist()]

    def _choose(
        self,
        seen: SeenSamples,
        counts: Sequence[int],
        *,
        setting: int,
        cell: int,
        rounds_left: int,
    ) -> int:
        """Return the action of the largest advantage, ``STOP`` if none is positive."""
        values, answer, evidence = self.fitted, seen.answer, seen.evidence
        vector = describe_one(answer, evidence.log_odds, evidence.weight, seen.arm, counts)
        known = setting, values.rounds.find_table(rounds_left)
        text = self._text_of_cells[cell]
        found = values.advantages_of_one(values.grid.find(counts), vector, text, *known)
        largest = max(found)
        chosen = found.index(largest)
        if answer and self._exact is not None and len(answer) < self.votes.n_samples:
            largest += self._exact[find_state(answer), cell, setting]
        return chosen if largest > 0 or not answer else STOP

    def find_ends(
        self, samples: OrderedSamples, cell: IntArray, latency_s: FloatArray | None = None
    ) -> Ends:
        """Return where each order ends at each price.

        It makes the decisions of ``next_level`` for all orders and all prices at once.
        ``latency_s`` (M, W) is how long each sample takes.
        """
        replay = _Ends(self, samples, cell, latency_s)
        for position in range(len(self.fitted.grid)):
            for table in range(len(self.fitted.advantage) - 1, -1, -1):
                replay.move(position, table)
        return replay.finish(self._uniform)


class _Ends:
    """Orders on their way to their ends: for each table and position, who is there, (M, K)."""

    def __init__(
        self,
        policy: SequentialPolicy,
        samples: OrderedSamples,
        cell: IntArray,
        latency_s: FloatArray | None,
    ) -> None:
        self.policy, self.samples, self.cell, self.latency_s = policy, samples, cell, latency_s
        self.values = policy.fitted
        self.shape = len(samples.label), self.values.advantage.shape[-1]
        self.text = policy.prior.cell_centre.astype(np.float64)[cell]
        self.vote_state: IntArray | None = None
        if policy.table is not None:
            self.vote_state = states().find(vote_keys(samples.label[:, :MAX_SAMPLES]))
        last = len(self.values.advantage) - 1
        self.here = {(last, 0): np.ones(self.shape, dtype=np.bool_)}
        self.position = np.zeros(self.shape, dtype=np.int64)
        self.n_rounds = np.zeros(self.shape, dtype=np.int64)
        self.taken_s = np.zeros(self.shape)

    def move(self, position: int, table: int) -> None:
        """Decide about the orders at a position, with the rounds left of a table."""
        here = self.here.pop((table, position), None)
        if here is None:
            return
        rows = np.flatnonzero(here.any(axis=1))
        here, counts = here[rows], self.values.grid.counts[position].tolist()
        vector = self.samples.describe(counts, rows).vector
        found = self.values.advantages(position, vector, self.text[rows], table)
        if self.vote_state is not None and position:
            state = self.vote_state[rows, min(sum(counts), MAX_SAMPLES)]
            found = found + self.policy.exact_rows(state, self.cell[rows], sum(counts))
        chosen = found.argmax(axis=0)
        if position:
            chosen = np.where(found.max(axis=0) > 0, chosen, STOP)
        for action in np.unique(chosen[here]).tolist():
            if action != STOP:
                self._follow(position, table, action, rows, here & (chosen == action))

    def _follow(
        self, position: int, table: int, action: int, rows: IntArray, moved: npt.NDArray[np.bool_]
    ) -> None:
        """Move orders on to where an action leads."""
        grid, (arm, steps) = self.values.grid, self.values.actions[action]
        later = position + steps * int(grid.stride[arm])
        self.n_rounds[rows] += moved
        self.position[rows] = np.where(moved, later, self.position[rows])
        if self.latency_s is not None:
            before, after = (set(self.samples.columns(grid.counts[p])) for p in (position, later))
            slowest = self.latency_s[np.ix_(rows, sorted(after - before))].max(axis=1)
            self.taken_s[rows] += moved * slowest[:, None]
        left = table if self.values.rounds.limit is None else table - 1
        if left >= 0:
            if (left, later) not in self.here:
                self.here[left, later] = np.zeros(self.shape, dtype=np.bool_)
            self.here[left, later][rows] |= moved

    def finish(self, uniform: Sequence[tuple[int, int]]) -> Ends:
        """Return the ends, with uniform numbers of samples where there are."""
        grid = self.values.grid
        for setting, (arm, count) in enumerate(uniform):
            if count:
                counts = [count if a == arm else 0 for a in range(len(grid.max_samples))]
                self.position[:, setting], self.n_rounds[:, setting] = grid.find(counts), 1
                if self.latency_s is not None:
                    own = self.latency_s[:, self.samples.columns(counts)]
                    self.taken_s[:, setting] = own.max(axis=1)
        taken_s = None if self.latency_s is None else self.taken_s
        return Ends(self.position, self.n_rounds, taken_s)
