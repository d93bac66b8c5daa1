"""Escalation: sample one arm and, where its vote is not sure, ask another arm once.

The price selects one of several choices: how many samples of the first arm, how sure their vote
must be, and which arm is asked where it is less sure. All samples vote together. How sure a vote is
says a model that was fitted to training questions; a policy that decides after every sample can do
the same and more, but this one is said in one sentence.

It does not know how choices are found.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from adacompute.policies.correctness import describe_answers
from adacompute.policies.policy import Policy, PreparedKind, SeenSamples, mixing_uniform
from adacompute.policies.sequential.arm_samples import Grid
from adacompute.policies.sequential.policy import Ends

if TYPE_CHECKING:
    import numpy.typing as npt

    from adacompute.core.types import Float32Array, FloatArray, IntArray, KeyArray, Level
    from adacompute.policies.confidence import Confidence
    from adacompute.policies.correctness import Correctness
    from adacompute.policies.price_schedule import PriceSchedule
    from adacompute.policies.sequential.arm_samples import OrderedSamples

MIN_ROUNDS = 2
"""Rounds of a question that another arm is asked about."""


class EscalationRule(NamedTuple):
    """Samples of one arm, and the arm that is asked once if they are right with less than ``sure``.

    With ``sure`` 0 none is asked.
    """

    arm: int
    n_samples: int
    sure: float = 0.0
    later: int = 0


@dataclass(frozen=True, eq=False)
class EscalatingPolicy(Policy):
    """Ask another arm once where the vote of the first one is not sure.

    ``levels`` are the numbers of samples of each arm. ``choices`` has an entry per price of the
    schedule, and ``judge`` says how likely a vote is right.
    """

    name = "escalate"
    prepared = PreparedKind.CELL
    n_cells = 1
    levels: tuple[Level, ...]
    choices: tuple[EscalationRule, ...]
    judge: Correctness
    arms: tuple[str, ...] = field()
    schedule: PriceSchedule = field()
    confidence: Confidence = field()
    sample_cost: tuple[float, ...] = field()

    @cached_property
    def max_by_arm(self) -> tuple[int, ...]:
        """Largest number of samples of each arm."""
        return tuple(max(n for model, n in self._number if model == arm) for arm in self.arms)

    @property
    def max_samples(self) -> int:
        """Largest number of samples of a question, of all arms together."""
        return max(choice.n_samples + (choice.sure > 0) for choice in self.choices)

    def plans_for(self, max_rounds: int | None) -> bool:
        """Whether decisions are meant for so many rounds: asking another arm takes a second one."""
        return max_rounds is None or max_rounds >= MIN_ROUNDS

    def prepare_features(self, features: Float32Array) -> Float32Array:
        """Return the cell of each question, which is the same for all."""
        return np.zeros((len(features), 1), dtype=np.float32)

    @cached_property
    def _number(self) -> dict[tuple[str | None, int], int]:
        """The level of so many samples of an arm."""
        return {(level.model, level.n_samples): i for i, level in enumerate(self.levels)}

    def _find_level(self, arm: int, n_samples: int) -> int:
        return self._number[self.arms[arm], n_samples]

    def arm_of_level(self, level: int) -> int:
        """Return the arm that a level samples."""
        return self.arms.index(str(self.levels[level].model))

    def first_levels(self, price: float, prepared: npt.NDArray[Any], keys: KeyArray) -> IntArray:
        """Return the level that the first samples of each question reach."""
        del prepared
        first = np.array([self._find_level(one.arm, one.n_samples) for one in self.choices])
        return np.asarray(first[self.schedule.select(price, mixing_uniform(keys))])

    def next_level(
        self, seen: SeenSamples, *, price: float, key: int, **_: int
    ) -> tuple[int, int] | None:
        """Return the level to reach next and the samples it needs in total; None means stop."""
        arm, n_samples, sure, later = self.choices[self.schedule.select_one(price, key)]
        if len(seen.arm) < n_samples:
            return self._find_level(arm, n_samples), n_samples
        if len(seen.arm) > n_samples or not sure:
            return None
        chance = self.judge.predict_one(seen.answer, seen.evidence, seen.arm, ())
        return (self._find_level(later, 1), n_samples + 1) if chance < sure else None

    def find_ends(
        self, samples: OrderedSamples, cell: IntArray, latency_s: FloatArray | None = None
    ) -> Ends:
        """Return where each order ends at each price.

        It makes the decisions of ``next_level`` for all orders and all prices at once.
        ``latency_s`` (M, W) is how long each sample takes.
        """
        del cell
        grid, shape = Grid(self.max_by_arm), (len(samples.label), len(self.choices))
        position, n_rounds = np.zeros((2, *shape), dtype=np.int64)
        taken_s = None if latency_s is None else np.zeros(shape)
        chances: dict[tuple[int, int], FloatArray] = {}
        for setting, (arm, n, sure, later) in enumerate(self.choices):
            counts = count_samples(len(self.arms), arm, n)
            chance = chances.get((arm, n)) if sure else np.ones(shape[0])
            if chance is None:
                chance = chances[arm, n] = self.judge.predict(
                    describe_answers(samples.describe(counts).vector, n)
                )
            goes_on = chance < sure
            ends = grid.find(counts), grid.find(count_samples(len(self.arms), arm, n, later))
            position[:, setting] = np.where(goes_on, ends[1], ends[0])
            n_rounds[:, setting] = 1 + goes_on
            if latency_s is not None and taken_s is not None:
                (last,) = samples.columns(count_samples(len(self.arms), later, 1))
                slowest = latency_s[:, samples.columns(counts)].max(axis=1)
                taken_s[:, setting] = slowest + goes_on * latency_s[:, last]
        return Ends(position, n_rounds, taken_s)


def count_samples(n_arms: int, arm: int, n_samples: int, later: int | None = None) -> list[int]:
    """Return the samples of each arm: so many of one arm, and one of a later arm."""
    return [n_samples * (one == arm) + (one == later) for one in range(n_arms)]
