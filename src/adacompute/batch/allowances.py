"""Allowances: how much each question of a batch may spend, so that a total is never exceeded.

Questions start in their order. Each gets an allowance, the maximum that it may spend. What has
been spent and what running questions may still spend never add up to more than the total.

An allowance depends only on what was spent by questions that lie at a fixed distance before it or
further, the *lag*. So it does not depend on how fast the upstream answers which question, and a
batch that is stopped and resumed ends like one that was not. Where the total gets short, the lag
is halved, as often as needed, and fewer questions run at a time.

Amounts are integers, in the smallest part of the unit. This module does no I/O and knows nothing of
samples, prices or models.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

SHARE = 4
"""A question may get as much of what is free as if only a quarter of the lag ran at a time."""


@dataclass(frozen=True)
class Demand:
    """What a question may cost: its first sample, a usual number of samples, and all samples.

    ``first`` and ``maximum`` are upper bounds of the cost, ``typical`` is between the two.
    """

    first: int
    typical: int
    maximum: int


class Allowances:
    """Allowances of the questions of one pass over a batch.

    ``kept`` is what is set aside for each question that has not started. ``lag`` is the largest
    number of questions that run at a time.

    >>> allowances = Allowances(14, 3, lag=2, kept=1)
    >>> demand = Demand(first=1, typical=4, maximum=6)
    >>> allowances.start(demand), allowances.start(demand)
    (6, 6)
    >>> allowances.start(demand) is None  # the first question has not ended
    True
    >>> allowances.settle(0, 2)
    >>> allowances.start(demand)
    6
    """

    def __init__(self, total: int, n_questions: int, *, lag: int, kept: int) -> None:
        self.total = total
        self._n_questions = n_questions
        self._kept = kept
        self._lags = [lag]
        while self._lags[-1] > 1:
            self._lags.append(self._lags[-1] // 2)
        self._n_started = 0
        self._n_settled = 0
        self._spent: dict[int, int] = {}
        # Sums over all questions before a position, for the positions of the largest lag.
        self._allowed_before: deque[int] = deque([0], maxlen=lag + 1)
        self._spent_before: deque[int] = deque([0])
        self._first_known = 0

    @property
    def n_started(self) -> int:
        """Questions that have an allowance."""
        return self._n_started

    @property
    def n_settled(self) -> int:
        """Questions that have ended, with all before them."""
        return self._n_settled

    @property
    def spent(self) -> int:
        """What the questions spent that have ended, with all before them."""
        return self._spent_before[-1]

    def spent_at_lag(self) -> tuple[int, int] | None:
        """Return how many questions have ended at the lag of the next one, and what they spent.

        None if one of them has not ended yet. Both numbers depend on the position of the next
        question only, not on what else has ended.
        """
        n = max(0, self._n_started - self._lags[0] + 1)
        return None if n > self._n_settled else (n, self._spent_until(n))

    def start(self, demand: Demand) -> int | None:
        """Return the allowance of the next question; None if earlier ones must end first.

        It is 0 if the total is used up.
        """
        position = self._n_started
        for lag in self._lags:
            n_ended = max(0, position - lag + 1)
            if n_ended > self._n_settled:
                return None
            outstanding = self._outstanding(position - n_ended)
            free = self.total - self._spent_until(n_ended) - outstanding
            spare = free - self._kept * (self._n_questions - position - 1)
            if spare >= demand.first:
                share = max(demand.typical, spare // max(1, lag // SHARE))
                return self._grant(min(demand.maximum, share, spare))
        return self._grant(demand.first if free >= demand.first else 0)

    def settle(self, position: int, spent: int) -> None:
        """Record that a question has ended, and what it spent."""
        self._spent[position] = spent
        while (amount := self._spent.pop(self._n_settled, None)) is not None:
            self._spent_before.append(self._spent_before[-1] + amount)
            self._n_settled += 1
        self._drop_old()

    def skip(self, n_questions: int, spent: int, last: Sequence[tuple[int, int]] = ()) -> None:
        """Take the first questions as ended, with what they spent together.

        ``last`` are the allowances and the costs of the last of them, at least as many as the lag:
        they make the next allowances equal to those of a pass that was not stopped.
        """
        self._n_started = self._n_settled = n_questions
        self._first_known = n_questions - len(last)
        self._allowed_before.clear()
        self._spent_before.clear()
        self._allowed_before.append(0)
        self._spent_before.append(spent - sum(cost for _, cost in last))
        for allowance, cost in last:
            self._allowed_before.append(self._allowed_before[-1] + allowance)
            self._spent_before.append(self._spent_before[-1] + cost)
        self._drop_old()

    def _grant(self, amount: int) -> int:
        self._allowed_before.append(self._allowed_before[-1] + amount)
        self._n_started += 1
        self._drop_old()
        return amount

    def _outstanding(self, count: int) -> int:
        """Sum of the allowances of the last questions that have started."""
        return self._allowed_before[-1] - self._allowed_before[-1 - count]

    def _spent_until(self, n: int) -> int:
        return self._spent_before[n - self._first_known]

    def _drop_old(self) -> None:
        """Drop sums that no later question needs."""
        keep_from = min(self._n_settled, self._n_started - self._lags[0] + 1)
        while self._first_known < keep_from:
            self._spent_before.popleft()
            self._first_known += 1
