"""Cost meter: a spending limit that is never exceeded, by reserving each call's maximum cost first.

Checking the total before each call would be a race between concurrent calls; reserving is not.
Amounts are integers in the smallest unit. The meter knows nothing of what is paid for and lives in
one process.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class CostMeter:
    """Spending under a limit; None means no limit.

    >>> meter = CostMeter(limit=10)
    >>> meter.reserve(6), meter.reserve(6)
    (True, False)
    >>> meter.settle(6, actual=2); meter.reserve(6), meter.spent
    (True, 2)
    """

    limit: int | None = None
    spent: int = 0
    reserved: int = 0

    def reserve(self, max_cost: int) -> bool:
        """Reserve a call's maximum cost; False, reserving nothing, if it could exceed the limit."""
        if self.limit is not None and self.spent + self.reserved + max_cost > self.limit:
            return False
        self.reserved += max_cost
        return True

    def settle(self, max_cost: int, *, actual: int) -> None:
        """Replace a reservation by the actual cost."""
        self.reserved -= max_cost
        self.spent += actual
