"""Arm samples: recorded samples of several arms, and many orders of them.

An *order* is one sequence in which the samples of a question could have come, arm by arm. A
*position* is a number of samples of each arm: what a policy sees there are the first samples of
each arm in an order. This module does not know policies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from adacompute.core.answers import Answers, order_samples
from adacompute.policies.sequential.description import Description, describe

if TYPE_CHECKING:
    from adacompute.core.types import BoolArray, FloatArray, IntArray, KeyArray


N_SINGLE = 16
"""Samples of an arm up to which a policy can decide after every one."""


@dataclass(frozen=True, eq=False)
class ArmSamples:
    """Recorded samples of N questions from several arms, with everything that is learned from.

    ``arm`` (S,) is the arm of each sample, ``cost`` (S,) its cost, and ``values`` (S, signals) what
    was recorded about it, under the names in ``signals``; NaN is unknown. ``latency_s`` (S,) is how
    long it took, if that is known.
    """

    answers: Answers
    key: KeyArray
    arm: IntArray
    n_arms: int
    cost: FloatArray
    signals: tuple[str, ...]
    values: FloatArray
    latency_s: FloatArray | None = None

    def order(self, max_samples: Sequence[int], n_orders: int, seed: int) -> list[IntArray]:
        """Return random orders of the samples of each arm, one array (N · orders, cap) per arm."""
        found = []
        for arm, cap in enumerate(max_samples):
            rows = np.flatnonzero(self.arm == arm)
            own = self.answers.keep(self.arm == arm)
            index = order_samples(own, self.key, n_orders=n_orders, length=cap, seed=seed + arm)
            found.append(rows[index.reshape(-1, cap)])
        return found

    def column(self, signals: Sequence[str]) -> FloatArray:
        """Return the values of some signals, (S, signals)."""
        return self.values[:, [self.signals.index(name) for name in signals]]

    def select(self, arms: Sequence[int]) -> ArmSamples:
        """Return the samples of some arms, which are numbered in this order."""
        number = np.full(self.n_arms, -1)
        number[list(arms)] = np.arange(len(arms))
        kept = number[self.arm] >= 0
        return replace(
            self,
            answers=self.answers.keep(kept),
            arm=number[self.arm[kept]],
            n_arms=len(arms),
            cost=self.cost[kept],
            values=self.values[kept],
            latency_s=None if self.latency_s is None else self.latency_s[kept],
        )

    def in_rows(self, rows: IntArray) -> BoolArray:
        """Return which samples belong to some questions."""
        mask = np.zeros(len(self.answers), dtype=np.bool_)
        mask[rows] = True
        return np.asarray(mask[self.answers.question])


def list_counts(max_samples: int) -> list[int]:
    """Return the numbers of samples of an arm after which a policy decides, from 0.

    Up to 16 these are all numbers; then they grow by an eighth, because one sample among many
    changes little.

    >>> list_counts(25)[15:]
    [15, 16, 18, 20, 22, 24, 25]
    """
    counts = list(range(min(max_samples, N_SINGLE) + 1))
    while counts[-1] < max_samples:
        counts.append(min(max_samples, counts[-1] + counts[-1] // 8))
    return counts


@dataclass(frozen=True)
class Grid:
    """All positions of up to so many samples of each arm, numbered with the last arm fastest."""

    max_samples: tuple[int, ...]

    @cached_property
    def by_arm(self) -> list[list[int]]:
        """Numbers of samples of each arm."""
        return [list_counts(cap) for cap in self.max_samples]

    @cached_property
    def steps(self) -> IntArray:
        """How many numbers of samples of each arm are below that of each position, (P, arms)."""
        sizes = [len(counts) for counts in self.by_arm]
        return np.indices(sizes).reshape(len(sizes), -1).T.copy()

    @cached_property
    def counts(self) -> IntArray:
        """Samples of each arm at each position, (P, arms)."""
        columns = zip(self.by_arm, self.steps.T, strict=True)
        return np.stack([np.array(counts)[steps] for counts, steps in columns], axis=1)

    @cached_property
    def stride(self) -> IntArray:
        """How far one more step of each arm moves the position."""
        sizes = np.array([len(counts) for counts in self.by_arm[1:]] + [1])
        return np.cumprod(sizes[::-1])[::-1].copy()

    @cached_property
    def _number(self) -> dict[tuple[int, ...], int]:
        return {tuple(counts): i for i, counts in enumerate(self.counts.tolist())}

    def find(self, counts: Sequence[int]) -> int:
        """Return the position with these numbers of samples."""
        return self._number[tuple(counts)]

    def __len__(self) -> int:
        return math.prod(len(counts) for counts in self.by_arm)


@dataclass(frozen=True, eq=False)
class OrderedSamples:
    """Samples of M orders, (M, W): those of the first arm, then those of the second, and so on.

    ``label`` numbers the answers of an order, −1 if unparsed, and ``accuracy`` (M, answers) is how
    often each answer is correct. ``log_odds`` and ``weight`` are those of the confidence of each
    sample. ``max_samples`` is the number of samples of each arm.
    """

    label: IntArray
    accuracy: FloatArray
    log_odds: FloatArray
    weight: FloatArray
    cost: FloatArray
    max_samples: tuple[int, ...]

    def take(self, rows: IntArray) -> OrderedSamples:
        """Return these orders."""
        return OrderedSamples(
            label=self.label[rows],
            accuracy=self.accuracy[rows],
            log_odds=self.log_odds[rows],
            weight=self.weight[rows],
            cost=self.cost[rows],
            max_samples=self.max_samples,
        )

    def describe(self, counts: Sequence[int], rows: IntArray | slice = slice(None)) -> Description:
        """Describe some orders after the first samples of each arm."""
        columns = self.columns(counts)
        label, log_odds, weight = self.label[rows], self.log_odds[rows], self.weight[rows]
        return describe(label[:, columns], log_odds[:, columns], weight[:, columns], counts)

    def columns(self, counts: Sequence[int]) -> IntArray:
        """Return the columns of the first samples of each arm."""
        first = np.concatenate([[0], np.cumsum(self.max_samples)[:-1]])
        parts = [start + np.arange(n) for start, n in zip(first, counts, strict=True)]
        return np.concatenate(parts).astype(np.int64)
