"""Admission: whether a request may be served now, by the limits of its client and of its model.

It rejects and counts; it reads no bodies and sends nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from adacompute.gateway.requests.throttles import SharedCounts, Throttle, ThrottleLimits
from adacompute.gateway.settings.config import Config

MESSAGES = {
    "max_concurrency": "too many requests of this {kind} are in flight",
    "requests_per_minute": "too many requests of this {kind} in a minute",
}
"""Messages for clients by the setting that rejects a request."""

Rejection = tuple[int, str, str]
_ADMITTED = nullcontext(None)


class Admission:
    """The throttles of all clients and models of one worker.

    ``counts`` is the file in which the workers count together, ``slot`` this worker's row in it.
    """

    def __init__(self, config: Config, counts: Path | None = None, slot: int = 0) -> None:
        limits = _throttle_limits(config)
        shared = SharedCounts(len(limits), counts, slot=slot)
        self._throttles = {
            key: Throttle(one, shared, index) for index, (key, one) in enumerate(limits.items())
        }

    def admit(self, kind: str, name: str) -> AbstractContextManager[Rejection | None]:
        """Count a request of a client or for a model; gives a rejection if it must wait."""
        throttle = self._throttles.get((kind, name))
        if throttle is None or throttle.limits.is_unlimited:
            return _ADMITTED
        return self._admit_counted(throttle, kind)

    @contextmanager
    def _admit_counted(self, throttle: Throttle, kind: str) -> Iterator[Rejection | None]:
        if (setting := throttle.rejection()) is not None:
            yield 429, MESSAGES[setting].format(kind=kind), f"{kind}_{setting}"
        else:
            with throttle.in_flight():
                yield None


def count_throttles(config: Config) -> int:
    """Return how many throttles a configuration needs."""
    return len(_throttle_limits(config))


def _throttle_limits(config: Config) -> dict[tuple[str, str], ThrottleLimits]:
    limits = {("client", name): config.client_limits.get(name) for name in config.client_keys}
    settings = limits | {("model", name): model for name, model in config.models.items()}
    return {
        key: ThrottleLimits()
        if one is None
        else ThrottleLimits(one.max_concurrency, one.requests_per_minute)
        for key, one in settings.items()
    }
