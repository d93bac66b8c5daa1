"""Progress: how far paid work is, from what its store holds, on one machine or on many.

What was paid in earlier processes counts as done, and not for the speed. The time that is left
follows from the part of the expected cost that is not paid yet, because questions that end first
are short ones. It reads no files.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from adacompute.storage.paid_samples import FAILED, PaidTotals


@dataclass(frozen=True)
class Progress:
    """How far paid work is: ``done`` of ``planned`` questions or samples, by their name.

    Samples, the cost in ``unit``, and what was lost or failed are those of all processes together;
    ``rate`` is in samples per second of this one. ``seconds_left`` is None if it is not known.
    """

    done: int
    planned: int
    noun: str
    samples: int
    spent: float
    lost: float
    failed: int
    unit: str
    rate: float = 0.0
    seconds_left: float | None = None
    stage: str = ""

    def __str__(self) -> str:
        """Describe it in one line."""
        parts = [f"{self.done:,} of {self.planned:,} {self.noun}{self.stage}"]
        parts.append(f"{self.samples:,} samples ({self.rate:,.0f}/s)")
        if self.spent and self.unit != "samples":
            parts.append(f"spent {self.spent:,.6g} {self.unit}")
        if self.lost:
            parts.append(f"lost {self.lost:,.6g} {self.unit}")
        if self.failed:
            parts.append(f"{self.failed:,} failed attempts")
        if self.seconds_left is not None:
            parts.append(f"{self.seconds_left:,.0f} s left")
        return ", ".join(parts)


class ProgressClock:
    """Makes records of progress from sums over the store, from now on.

    ``expected`` is what the work is expected to cost, as an amount; None to go by what is done.
    """

    def __init__(
        self, totals: PaidTotals, *, noun: str, planned: int, unit: str, per_unit: int = 1
    ) -> None:
        self.planned = planned
        self.expected: float | None = None
        self._noun = noun
        self._unit = unit
        self._per_unit = per_unit
        self._first_samples, self._first_spent = totals.samples, totals.spent
        self._first_done: int | None = None
        self._started = time.monotonic()

    def record(self, totals: PaidTotals, done: int, *, stage: str = "") -> Progress:
        """Return how far the work is."""
        if self._first_done is None:
            self._first_done = done
        elapsed_s = max(time.monotonic() - self._started, 1e-9)
        gained: float = done - self._first_done
        missing: float = self.planned - done
        if self.expected is not None:
            gained, missing = totals.spent - self._first_spent, self.expected - totals.spent
        return Progress(
            done=done,
            planned=self.planned,
            noun=self._noun,
            samples=totals.samples,
            spent=totals.spent / self._per_unit,
            lost=totals.lost / self._per_unit,
            failed=totals.counts.get(FAILED, 0),
            unit=self._unit,
            rate=(totals.samples - self._first_samples) / elapsed_s,
            seconds_left=max(0.0, missing) * elapsed_s / gained if gained > 0 else None,
            stage=stage,
        )
