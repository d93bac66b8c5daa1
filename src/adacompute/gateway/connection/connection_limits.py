"""Connection limits: how much a client may send before its body, and how many connections it has.

It counts connections and opens none.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

EXEMPT_ADDRESSES = ("127.0.0.1", "::1")
"""Addresses without a limit: proxies and probes on the same machine."""


@dataclass(eq=False)
class ConnectionLimits:
    """Limits on the clients of one process, and the number of connections of each address.

    Loopback addresses and trusted proxies may open any number of connections. ``on_rejected`` is
    called with the reason of each rejection. Idle connections stay open for ``idle_linger_s`` when
    the server stops, so that a request that is on its way is answered. With ``is_closing``, every
    reply says that its connection closes.
    """

    max_request_line_bytes: int = 8_192
    max_header_bytes: int = 32_768
    max_headers: int = 100
    max_connections_per_address: int = 100
    trusted_proxies: Sequence[str] = ()
    on_rejected: Callable[[str], None] = lambda _: None
    idle_linger_s: float = 0.0
    is_closing: bool = False
    n_connections: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._trusted = [
            ipaddress.ip_network(one) for one in (*EXEMPT_ADDRESSES, *self.trusted_proxies)
        ]

    def add(self, address: str) -> bool:
        """Count a new connection; return whether the address may open it."""
        self.n_connections[address] += 1
        is_over = self.n_connections[address] > self.max_connections_per_address
        return not is_over or self._is_trusted(address)

    def remove(self, address: str) -> None:
        """Count a connection that is closed."""
        self.n_connections[address] -= 1
        if self.n_connections[address] <= 0:
            del self.n_connections[address]

    def _is_trusted(self, address: str) -> bool:
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:  # a Unix socket has no address
            return True
        mapped = getattr(parsed, "ipv4_mapped", None)
        return any((mapped or parsed) in network for network in self._trusted)
