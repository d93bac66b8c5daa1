"""Progress: how far a step is, reported to the same function as the names of steps.

Whoever shows steps by their names can leave these out, or show them as a bar.
"""

from __future__ import annotations

from typing import Self


class StepProgress(str):  # noqa: SLOT000 - a text cannot have slots
    """How much of the current step is done; as a text, "3 of 30"."""

    done: float
    total: float

    def __new__(cls, done: float, total: float) -> Self:
        """Return the progress of a step.

        >>> StepProgress(3, 30)
        '3 of 30'
        """
        made = super().__new__(cls, f"{done:g} of {total:g}")
        made.done, made.total = done, total
        return made


def no_progress(_: str) -> None:
    """Report nothing."""
