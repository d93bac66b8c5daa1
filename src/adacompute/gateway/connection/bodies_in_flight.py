"""Bodies in flight: the bytes of request bodies that a worker holds, in total and per client.

Bytes count from their arrival until their request has ended. Beyond a limit the body that grows is
refused, and its bytes are given back at once. It reads nothing and sends nothing.
"""

from __future__ import annotations

import math
from collections import Counter

from adacompute.gateway.connection.browser_checks import Rejection

COUNTED_BODY = "adacompute.counted_body"
"""Member of the scope of a request whose body is counted on arrival."""

SMALL_BODY_BYTES = 262_144
"""Size up to which a body may use the last part of the total, so that large ones leave room."""

LARGE_SHARE = 0.75
"""Share of the total that bodies above that size may take together."""

CLIENT_SHARE = 0.25
"""Share of the total that the bodies of one client may take."""

BODIES_IN_FLIGHT = 8
"""Bodies of the largest size that a worker holds."""

FREED_BYTES = 8_000_000
"""Bytes by which what is held must shrink before their memory is worth giving back."""


class TooManyBytes(Exception):  # noqa: N818 - it names the state
    """A body that was refused because of others in flight."""

    def __init__(self, rejection: Rejection) -> None:
        self.status, message, self.code = rejection
        super().__init__(message)


class BodiesInFlight:
    """What all requests of a worker hold; ``max_client_bytes`` is the limit of one client."""

    def __init__(self, max_bytes: float = math.inf, max_client_bytes: float = math.inf) -> None:
        self.max_bytes = max_bytes
        self.max_client_bytes = max_client_bytes
        self.n_bytes = 0
        self.peak_bytes = 0
        self.by_client: Counter[str] = Counter()

    def rejection(self, client: str | None, size: int) -> Rejection | None:
        """Return why a body that has grown to this size is refused, None if it is not."""
        if client is not None and self.by_client[client] > self.max_client_bytes:
            limit = f"{self.max_client_bytes / 1e6:g} MB"
            message = f"the client's requests in flight have bodies of more than {limit}"
            return 429, message, "client_body_bytes_in_flight"
        if self.n_bytes > self.max_bytes * (LARGE_SHARE if size > SMALL_BODY_BYTES else 1.0):
            message = "the requests in flight have bodies of more bytes than can be held"
            return 503, message, "body_bytes_in_flight"
        return None

    def has_shrunk(self) -> bool:
        """Whether much was given back since this was last true."""
        is_smaller = self.peak_bytes - self.n_bytes > FREED_BYTES
        if is_smaller:
            self.peak_bytes = self.n_bytes
        return is_smaller


class CountedBody:
    """What one request holds; its client is known once it is authorised.

    ``rejection`` says why the body is refused. An exception in its place would keep the body.
    """

    __slots__ = ("_bodies", "_client", "_n_bytes", "rejection")

    def __init__(self, bodies: BodiesInFlight) -> None:
        self._bodies = bodies
        self._client: str | None = None
        self._n_bytes = 0
        self.rejection: Rejection | None = None

    def add(self, n_bytes: int) -> bool:
        """Count bytes that arrived; return whether they may be kept."""
        if self.rejection is not None:
            return False
        self._count(n_bytes)
        self.rejection = self._bodies.rejection(self._client, self._n_bytes)
        if self.rejection is not None:
            self.release()
        return self.rejection is None

    def assign(self, client: str) -> None:
        """Count the body as one of a client, if clients have a limit."""
        if self._bodies.max_client_bytes < math.inf:
            n_bytes = self._n_bytes
            self.release()
            self._client = client
            self.add(n_bytes)

    def release(self) -> None:
        """Give the bytes back, when the request has ended."""
        if self._n_bytes:
            self._count(-self._n_bytes)

    def _count(self, n_bytes: int) -> None:
        self._n_bytes += n_bytes
        bodies = self._bodies
        bodies.n_bytes += n_bytes
        if bodies.n_bytes > bodies.peak_bytes:  # noqa: PLR1730 - faster than max
            bodies.peak_bytes = bodies.n_bytes
        if self._client is not None:
            bodies.by_client[self._client] += n_bytes
            if bodies.by_client[self._client] == 0:
                del bodies.by_client[self._client]
