"""Corrected policy: decide about every sample, of any arm, by votes, confidence and text.

After each sample the policy knows the votes, what each sample says of itself, and the cell of the
question's text. With one arm, the exact table of vote states says what one more sample is worth as
far as votes and text tell, and a fitted correction adds what confidence tells. With several arms
all advantages are fitted. The policy goes on while the advantage of some arm is positive.

Between two prices of a grid, questions are mixed by their key, so the mean cost changes smoothly.
At prices where a uniform number of samples of one arm was clearly better on training questions, it
is used. Nothing is fitted while the policy serves.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from adacompute.core.answers import UNPARSED, number_classes
from adacompute.core.states import MAX_SAMPLES, states, vote_keys
from adacompute.policies.description import describe
from adacompute.policies.induction import advantages
from adacompute.policies.policy import (
    Policy,
    PreparedKind,
    SampleEvidence,
    State,
    decide_rows,
    mixing_uniform,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from adacompute.core.types import Float32Array, FloatArray, IntArray, KeyArray, Level
    from adacompute.policies.arm_samples import OrderedSamples
    from adacompute.policies.confidence import Confidence
    from adacompute.policies.fitted_values import FittedValues
    from adacompute.policies.price_schedule import PriceSchedule
    from adacompute.policies.prior import Prior
    from adacompute.policies.sequential import SequentialPolicy

NO_ARM = -1
"""Arm of a decision to stop."""


@dataclass(frozen=True, eq=False)
class CorrectedPolicy(Policy):
    """Go on while the advantage of one more sample is positive.

    ``arms`` are names, ``levels`` the numbers of samples of each arm that can be reached, and
    ``sample_cost`` is the mean cost of a sample of each arm. ``table`` decides by votes and text
    alone; it is None with several arms. ``uniform`` (K, 2) holds, for each price of the schedule,
    an arm and the number of its samples that every question gets; 0 samples mean that the fitted
    values decide. ``pooled`` is for questions whose text is not known.
    """

    name = "sequential"
    prepared = PreparedKind.CELL
    can_limit_rounds = False
    arms: tuple[str, ...] = field()
    levels: tuple[Level, ...]
    confidence: Confidence = field()
    prior: Prior
    schedule: PriceSchedule = field()
    values: FittedValues
    uniform: IntArray
    sample_cost: tuple[float, ...] = field()
    table: SequentialPolicy | None = None
    pooled: CorrectedPolicy | None = None

    @property
    def max_by_arm(self) -> tuple[int, ...]:
        """Largest number of samples of each arm."""
        return self.values.max_samples

    @property
    def uniform_samples(self) -> IntArray:
        """Samples that every question gets in one round at each price; 0 where it decides."""
        return np.asarray(self.uniform[:, 1])

    @property
    def max_samples(self) -> int:
        """Largest number of samples of a question, of all arms together."""
        return sum(self.max_by_arm)

    @property
    def n_cells(self) -> int:
        """Cells that the text puts questions into."""
        return len(self.prior.cell_centre)

    def prepare_features(self, features: Float32Array) -> Float32Array:
        """Return the cell of each question."""
        return self.prior.find_cell(features)[:, None].astype(np.float32)

    def text_of(self, cell: IntArray) -> FloatArray:
        """Return what the text of questions in these cells says, (M, D)."""
        return self.prior.cell_centre[cell].astype(np.float64)

    @cached_property
    def _exact(self) -> FloatArray:
        """Exact advantages of one more sample by votes and text, (states, cells, K)."""
        if self.table is None:
            raise AssertionError
        return exact_advantages(self.table, np.array(self.schedule.prices), self.sample_cost[0])

    def exact_rows(self, state: IntArray, cell: IntArray, n_samples: int) -> FloatArray | float:
        """Return the exact advantages in vote states and cells, (M, K); 0 where none are known."""
        if self.table is None or n_samples >= len(self.table.levels):
            return 0.0
        return np.asarray(self._exact[state, cell])

    def first_arms(self, cell: IntArray, setting: IntArray) -> IntArray:
        """Return the arm that each question is sampled from first, at a setting of each."""
        arm, count = self.uniform[setting].T
        none, counts = np.empty((len(cell), 0)), (0,) * len(self.arms)
        vector = describe(none.astype(np.int64), none, none, counts).vector
        found = self.values.advantages(0, vector, self.text_of(cell))
        best = found[:, np.arange(len(cell)), setting].argmax(axis=0)
        return np.asarray(np.where(count > 0, arm, best), dtype=np.int64)

    def first_levels(self, price: float, prepared: npt.NDArray[Any], keys: KeyArray) -> IntArray:
        """Return the level that the first samples of each question reach."""
        setting = self.schedule.select(price, mixing_uniform(keys))
        arm = self.first_arms(prepared[:, 0].astype(np.int64), setting)
        first = np.concatenate([[0], np.cumsum(self.max_by_arm)[:-1]])
        wanted = np.maximum(self.uniform[setting, 1], 1)
        return np.asarray(first[arm] + wanted - 1)

    def next_level(
        self,
        arm: Sequence[int],
        answer: Sequence[int],
        evidence: SampleEvidence,
        *,
        price: float,
        key: int,
        cell: int,
    ) -> tuple[int, int] | None:
        """Return the level to reach next and the samples it needs in total; None means stop."""
        setting = self.schedule.select_one(price, key)
        own, wanted = self.uniform[setting].tolist()
        counts = [list(arm).count(a) for a in range(len(self.arms))]
        if wanted:
            more = wanted - counts[own]
            return (self._level(own, wanted), len(arm) + more) if more > 0 else None
        chosen = self._choose(arm, answer, evidence, counts, setting=setting, cell=cell)
        if chosen == NO_ARM:
            return None
        return self._level(chosen, counts[chosen] + 1), len(arm) + 1

    def _level(self, arm: int, count: int) -> int:
        return sum(self.max_by_arm[:arm]) + count - 1

    def _choose(
        self,
        arm: Sequence[int],
        answer: Sequence[int],
        evidence: SampleEvidence,
        counts: Sequence[int],
        *,
        setting: int,
        cell: int,
    ) -> int:
        """Return the arm of the largest advantage, ``NO_ARM`` if none is positive."""
        if not arm:
            return int(self.first_arms(np.array([cell]), np.array([setting]))[0])
        is_open = [n < cap for n, cap in zip(counts, self.max_by_arm, strict=True)]
        if not any(is_open):
            return NO_ARM
        order = sorted(range(len(arm)), key=arm.__getitem__)  # arm by arm
        label = number_classes(None if a == UNPARSED else a for a in (answer[i] for i in order))
        columns = ([evidence.log_odds[i] for i in order], [evidence.weight[i] for i in order])
        log_odds, weight = (np.array([one]) for one in columns)
        vector = describe(np.array([label]), log_odds, weight, counts).vector
        position = self.values.grid.find(counts)
        found = self.values.advantages_at(position, vector, self.text_of(np.array([cell])), setting)
        best = np.where(is_open, found[:, 0], -np.inf)
        if self.table is not None and len(arm) < len(self.table.levels):
            state = states().find(vote_keys(np.array([answer])))[0, -1]
            best = best + self._exact[state, cell, setting]
        chosen = int(best.argmax())
        return chosen if best[chosen] > 0 else NO_ARM

    def decide(self, state: State, price: float) -> IntArray:
        """Return the next level of each question; the current level means stop."""
        return decide_rows(self, state, price)

    def arm_of_level(self, level: int) -> int:
        """Return the arm that a level samples."""
        ends = np.cumsum(self.max_by_arm)
        return int(np.searchsorted(ends, level, side="right"))

    def find_ends(self, samples: OrderedSamples, cell: IntArray) -> IntArray:
        """Return the position at which each order ends at each price, (M, K).

        It makes the decisions of ``next_level`` for all orders and all prices at once.
        """
        grid, n_prices = self.values.grid, len(self.schedule.prices)
        n_rows = len(samples.label)
        end = np.zeros((n_rows, n_prices), dtype=np.int64)
        is_here = [np.zeros((0, n_prices), dtype=np.bool_)] * len(grid)
        is_here[0] = np.ones((n_rows, n_prices), dtype=np.bool_)
        text = self.text_of(cell)
        vote_state = None
        if self.table is not None:
            vote_state = states().find(vote_keys(samples.label[:, :MAX_SAMPLES]))
        for position, counts in enumerate(grid.counts.tolist()):
            if not len(is_here[position]):
                continue
            rows = np.flatnonzero(is_here[position].any(axis=1))
            if not len(rows):
                continue
            vector = samples.describe(counts, rows).vector
            found = self.values.advantages(position, vector, text[rows])
            if vote_state is not None and 0 < position < self.max_by_arm[0]:
                state = vote_state[rows, min(position, MAX_SAMPLES)]
                found = found + self.exact_rows(state, cell[rows], position)
            goes = self._best(found, counts, is_first=position == 0)
            here = is_here[position][rows]
            end[rows] = np.where(here & (goes == NO_ARM), position, end[rows])
            for arm, stride in enumerate(grid.stride.tolist()):
                moved = here & (goes == arm)
                if moved.any():
                    later = position + stride
                    if not len(is_here[later]):
                        is_here[later] = np.zeros((n_rows, n_prices), dtype=np.bool_)
                    is_here[later][rows] |= moved
            is_here[position] = is_here[position][:0]
        for setting, (arm, count) in enumerate(self.uniform.tolist()):
            if count:
                end[:, setting] = count * grid.stride[arm]
        return end

    def _best(self, found: FloatArray, counts: Sequence[int], *, is_first: bool) -> IntArray:
        """Return the arm of the largest advantage, (rows, K); the first sample is always drawn."""
        is_open = np.array(counts) < self.max_by_arm
        found = np.where(is_open[:, None, None], found, -np.inf)
        best = found.argmax(axis=0)
        if is_first:
            return np.asarray(best)
        return np.where(found.max(axis=0) > 0, best, NO_ARM)


def exact_advantages(table: SequentialPolicy, prices: FloatArray, sample_cost: float) -> FloatArray:
    """Return the advantages of one more sample by a table of vote states, (states, cells, K)."""
    return advantages(table.measure, prices * sample_cost).astype(np.float32)
