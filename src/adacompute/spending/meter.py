"""Meter: a total that is never exceeded, by reserving the worst case and settling what it was.

Checking what was spent and then spending is a race; reserving is not. Amounts are whole numbers of
the smallest unit. It knows nothing of what is paid for, and lives in one process.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Meter:
    """Spending under a limit; None is no limit.

    >>> meter = Meter(limit=10)
    >>> meter.reserve(6), meter.reserve(6)
    (True, False)
    >>> meter.settle(6, actual=2); meter.reserve(6), meter.spent
    (True, 2)
    """

    limit: int | None = None
    spent: int = 0
    reserved: int = 0

    def reserve(self, most: int) -> bool:
        """Set aside what something may cost at most; False, and nothing set aside, if too much."""
        if self.limit is not None and self.spent + self.reserved + most > self.limit:
            return False
        self.reserved += most
        return True

    def settle(self, most: int, *, actual: int) -> None:
        """Replace a reservation by what it really cost."""
        self.reserved -= most
        self.spent += actual
