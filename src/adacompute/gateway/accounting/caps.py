"""Caps: which limits on spending a call counts against, and its largest possible charge.

A cap limits what is spent in a day, a month or altogether, by all calls or by those for a model.
The meter does the counting; this module names the counters of a call and says what the call can
cost at most. Periods are in UTC, and a call belongs to the one in which it was reserved. It makes
no calls.
"""

from __future__ import annotations

import calendar
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from adacompute.core.errors import ConfigError, ModelError
from adacompute.spending.caps.counters import UNITS, Charge, Counter, Unit
from adacompute.spending.caps.meter import CapReached, Meter, Reservation
from adacompute.spending.token_prices import NANO

if TYPE_CHECKING:
    from adacompute.gateway.accounting.call_log import CallOrigin
    from adacompute.gateway.settings.config import Config

PERIODS = ("day", "month", "all")
EACH = "*"
"""Stands for every model, each with a counter of its own."""

WHEN_SPENT = ("reject", "cheapest")
"""What a request gets that has no sample when a cap is reached: an error, or one cheap sample."""

DAY_S = 86_400


@dataclass(frozen=True)
class CapConfig:
    """A limit on what is spent in a period."""

    amount: float
    """The most that may be spent in a period."""
    unit: str = "money"
    """``samples``, ``tokens`` (of prompts and completions) or ``money``."""
    period: str = "day"
    """``day``, ``month`` or ``all``, in UTC. A call belongs to the period in which it starts."""
    model: str | None = None
    """Only the calls for this virtual model; ``*`` gives each model a cap of its own. Default: all
    calls."""

    def __post_init__(self) -> None:
        if not 0 <= self.amount < math.inf:
            raise ConfigError(f"amount must be a number of 0 or more, not {self.amount}")
        for name, known in (("unit", UNITS), ("period", PERIODS)):
            if (value := getattr(self, name)) not in known:
                raise ConfigError(f"{name} must be one of {', '.join(known)}, not {value!r}")

    @property
    def limit(self) -> int:
        """The amount as the meter counts it."""
        return int(self.amount * (NANO if self.unit == "money" else 1))

    @property
    def needs_output_limit(self) -> bool:
        """Whether the charge of a call is known only if its output is limited."""
        return self.unit != "samples"

    @property
    def is_of_all(self) -> bool:
        """Whether all requests count against this cap, or one like it."""
        return self.model in {None, EACH}

    def counter(self, model: str, now: float) -> Counter | None:
        """Return the counter of a call now; None if the call does not count."""
        if self.model not in {None, EACH, model}:
            return None
        what = "" if self.model is None else f"/model={model}"
        unit: Unit = self.unit  # type: ignore[assignment]  # checked above
        period, *times = find_period(self.period, int(now // DAY_S))
        return Counter(f"total{what}/{self.unit}/{period}", unit, self.limit, *times)


class NotPriced(ModelError):  # noqa: N818 - it names the state, not a fault
    """A call of a model without token prices, which counts against a cap in money."""


def check_caps(config: Config) -> None:
    """Raise ConfigError if a cap names nobody, or limits what cannot be bounded."""
    kinds = [(cap.model, cap.unit, cap.period) for cap in config.caps]
    if len(set(kinds)) < len(kinds):
        raise ConfigError("two caps have the same model, unit and period: give one amount")
    for cap in config.caps:
        own = [one.token_prices for one in config.models.values()]
        if cap.unit == "money" and config.token_prices is None and not any(own):
            raise ConfigError("a cap in money needs token_prices")
        if cap.model not in {None, EACH, *config.models}:
            raise ConfigError(f"caps names {cap.model!r}, which is no model of this gateway")
        names = config.models if cap.model in {None, EACH} else [cap.model]
        unlimited = [one for one in names if config.models[one].max_output_tokens is None]
        is_bounded = config.max_output_tokens is not None
        is_of_any = cap.model in {None, EACH}  # forwarded requests count too
        if cap.needs_output_limit and not is_bounded and (unlimited or is_of_any):
            raise ConfigError(
                f"a cap in {cap.unit} needs max_output_tokens: without it, a sample can be of any "
                "length, and only samples can be capped"
            )


@lru_cache(maxsize=64)
def find_period(period: str, day: int) -> tuple[str, float, float]:
    """Return the name of a period, its end and its start, by the number of a day since 1970.

    >>> find_period("month", 20_773)
    ('2026-11', 1796083200.0, 1793491200.0)
    """
    now = time.gmtime(day * DAY_S)
    if period == "day":
        return time.strftime("%Y-%m-%d", now), float((day + 1) * DAY_S), float(day * DAY_S)
    if period == "month":
        n_days, first = calendar.monthrange(now.tm_year, now.tm_mon)[1], day + 1 - now.tm_mday
        return time.strftime("%Y-%m", now), float((first + n_days) * DAY_S), float(first * DAY_S)
    return "all", math.inf, -math.inf


class Caps:
    """The caps of a gateway, over a meter that has been started."""

    def __init__(self, caps: Sequence[CapConfig], meter: Meter) -> None:
        self._caps = caps
        self.meter = meter

    async def reserve(self, origin: CallOrigin, worst: Charge) -> Reservation | None:
        """Reserve the largest charge of a call; CapReached if it does not fit.

        A charge without money, because there are no token prices, fits under no cap in money.
        """
        counters = self._counters(origin)
        if not counters:
            return None
        if "money" not in worst and any(counter.unit == "money" for counter in counters):
            raise NotPriced(
                "this model has no token prices, so it cannot be counted against a cap in money"
            )
        found = self.meter.try_reserve(counters, worst)
        return found if found is not None else await self.meter.reserve(counters, worst)

    def _counters(self, origin: CallOrigin) -> list[Counter]:
        now = time.time()
        found = [cap.counter(origin.model, now) for cap in self._caps]
        return [counter for counter in found if counter is not None]


__all__ = [
    "WHEN_SPENT",
    "CapConfig",
    "CapReached",
    "Caps",
    "NotPriced",
    "check_caps",
    "find_period",
]
