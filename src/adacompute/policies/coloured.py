"""Coloured policy: decide about every sample, of any arm, by votes, confidence and text.

After each sample the policy knows the coloured state of the question: which arm and which
confidence bin voted for each answer. The question's text gives its cell of the prior. For each
price of a grid, a plan says what to do in each state and cell: stop, or sample an arm. Between two
prices, questions are mixed by their key, so the mean cost changes smoothly.

The answer is the class with the largest total weight; a sample's weight is learned from its arm and
its confidence. Plans are made when the policy is fitted, none while it serves.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from adacompute.core.answers import UNPARSED
from adacompute.core.coloured_states import ColouredStates, Colours, coloured_states
from adacompute.core.positions import class_salt
from adacompute.policies.plans import STOP
from adacompute.policies.policy import State, decide_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from adacompute.core.types import Float32Array, IntArray, Level
    from adacompute.policies.confidence import Confidence
    from adacompute.policies.price_schedule import PriceSchedule
    from adacompute.policies.prior import Prior

_MASK = (1 << 64) - 1


@dataclass(frozen=True, eq=False)
class ColouredPolicy:
    """Follow the plan of the price in the coloured state of each question.

    ``arms`` are names, ``levels`` the numbers of samples of each arm that can be reached.
    ``action`` is (prices, states, cells): 0 stops and a + 1 samples arm a. ``sample_cost`` is the
    mean cost of a sample of each arm.
    """

    name = "sequential"
    arms: tuple[str, ...]
    levels: tuple[Level, ...]
    colours: Colours
    confidence: Confidence
    prior: Prior
    schedule: PriceSchedule
    action: IntArray
    sample_cost: tuple[float, ...]
    pooled: ColouredPolicy | None = None

    @property
    def states(self) -> ColouredStates:
        """The states of the plans."""
        return coloured_states(self.colours)

    def prepare_features(self, features: Float32Array) -> Float32Array:
        """Return the cell of each question."""
        return self.prior.find_cell(features)[:, None].astype(np.float32)

    @cached_property
    def _state_of_key(self) -> dict[int, int]:
        table = self.states
        return dict(zip(table.key.tolist(), table.order.tolist(), strict=True))

    @cached_property
    def _class_salt(self) -> tuple[list[int], list[int], list[int]]:
        """Salts by class code, what a colour adds to a code, and salts of unparsed samples."""
        salt, radix = class_salt(self.colours)
        return salt.tolist(), radix.tolist(), self.states.unparsed_salt.tolist()

    def find_state(
        self, arm: Sequence[int], answer: Sequence[int], bins: Sequence[int]
    ) -> int | None:
        """Return the state of one question from its samples; None if an arm has too many."""
        salt, radix, unparsed = self._class_salt
        first, caps = self._first_colour, self.colours.max_samples
        codes: dict[int, int] = {}
        counts, key = [0] * len(caps), 0
        for number, label, one in zip(arm, answer, bins, strict=True):
            counts[number] += 1
            if counts[number] > caps[number]:
                return None
            if label == UNPARSED:
                key += unparsed[number]
            else:
                codes[label] = codes.get(label, 0) + radix[first[number] + one]
        key += sum(salt[code] for code in codes.values())
        return self._state_of_key[key & _MASK]

    def next_level(
        self,
        arm: Sequence[int],
        answer: Sequence[int],
        bins: Sequence[int],
        *,
        price: float,
        key: int,
        cell: int,
    ) -> tuple[int, int] | None:
        """Return the level to reach next and the samples it needs in total; None means stop."""
        state = self.find_state(arm, answer, bins)
        if state is None:
            return None
        row = self.schedule.select_one(price, key)
        action = int(self.action[row, state, cell])
        if action == STOP:
            return None
        chosen = action - 1
        level = sum(self.colours.max_samples[:chosen]) + sum(one == chosen for one in arm)
        return level, len(arm) + 1

    def decide(self, state: State, price: float) -> IntArray:
        """Return the next level of each question; the current level means stop."""
        return decide_rows(self.next_level, state, price)

    @cached_property
    def _first_colour(self) -> list[int]:
        found: list[int] = self.colours.first_colour.tolist()
        return found

    def arm_of_level(self, level: int) -> int:
        """Return the arm that a level samples."""
        ends = np.cumsum(self.colours.max_samples)
        return int(np.searchsorted(ends, level, side="right"))
