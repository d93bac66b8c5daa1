"""Counters: caps in one period, and amounts that count against them."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from adacompute.core.errors import ConfigError
from adacompute.spending.token_prices import NANO

Unit = Literal["samples", "tokens", "money"]
UNITS: tuple[Unit, ...] = get_args(Unit)

Charge = Mapping[Unit, int]
"""Amounts by unit; money is in billionths (``token_prices.NANO``)."""

_KINDS = {len("2026-11-16"): "day", len("2026-11"): "month"}
"""Kinds of periods by the length of their names."""

MAX_LIMIT = 2**62
MAX_NAME_BYTES = 440


@dataclass(frozen=True)
class Counter:
    """One cap in one period.

    The name says the period too, such as ``client=alice/tokens/2026-11-16``, and is the same on all
    replicas. ``starts_at`` and ``ends_at`` are the Unix times of the period.

    >>> Counter("total/samples", "samples", 100).ends_at
    inf
    """

    name: str
    unit: Unit
    limit: int
    ends_at: float = math.inf
    starts_at: float = -math.inf

    @property
    def cap(self) -> str:
        """The name with the kind of the period instead of the period.

        >>> Counter("total/samples/2026-11-16", "samples", 100).cap
        'total/samples/day'
        """
        name, _, period = self.name.rpartition("/")
        return f"{name}/{_KINDS.get(len(period), period)}"

    @property
    def scale(self) -> int:
        """How many of its numbers are one of the unit."""
        return NANO if self.unit == "money" else 1

    def __post_init__(self) -> None:
        if not 0 <= self.limit <= MAX_LIMIT:
            raise ConfigError(
                f"the cap {self.name!r} must be between 0 and {MAX_LIMIT}, not {self.limit}"
            )
        if not 0 < len(self.name.encode()) <= MAX_NAME_BYTES:
            raise ConfigError(
                f"the name of a cap must have 1 to {MAX_NAME_BYTES} bytes, not {self.name!r}"
            )


def has_ended(name: str, now: float) -> bool:
    """Whether the period of a counter was over a day ago, by its name.

    >>> [has_ended(f"total/samples/{period}", 1_795_000_000) for period in ("2026-11-16", "all")]
    [True, False]
    """
    period = name.rpartition("/")[2]
    a_day_ago = time.strftime("%Y-%m-%d", time.gmtime(now - 86_400))
    return len(period) in _KINDS and period < a_day_ago[: len(period)]
