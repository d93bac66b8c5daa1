"""Browser checks: whether a request may come from a web page that its user did not mean to trust.

A gateway without client keys serves whoever reaches it, and every page in a browser on the same
machine can. So such a gateway answers only to loopback names, which stops pages that point a name
of their own at this machine, refuses requests of foreign origins, and takes only JSON, which a page
cannot send to another origin without asking first. It reads headers only.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import urlsplit

Headers = Iterable[tuple[bytes, bytes]]
Rejection = tuple[int, str, str]
"""Why a request is rejected: a status, a message and a code."""

_READ = frozenset(
    {
        b"host",
        b"origin",
        b"sec-fetch-site",
        b"content-length",
        b"content-type",
        b"transfer-encoding",
    }
)
_FOREIGN_SITES = ("cross-site", "same-site")


@dataclass(frozen=True)
class BrowserChecks:
    """Checks of the headers of a request; ``has_keys`` says that every request needs a key.

    ``allowed_hosts`` are host names that the gateway answers to, besides those of this machine if
    it has no keys. ``allowed_origins`` are origins whose pages may send requests.
    """

    has_keys: bool
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()

    def rejection(self, headers: Headers) -> Rejection | None:
        """Return why a request is rejected, None if it is not."""
        if self.has_keys and not self.allowed_hosts:
            return None
        values = {name: value.decode("latin-1") for name, value in headers if name in _READ}
        host = values.get(b"host", "")
        if not self._is_allowed_host(host):
            message = "the gateway does not answer to this Host"
            return 403, message, "invalid_host"
        if self.has_keys:
            return None
        if not self._is_allowed_origin(values, host):
            message = "requests of other origins are refused"
            return 403, message, "invalid_origin"
        has_body = values.get(b"content-length", "0") != "0" or b"transfer-encoding" in values
        kind = values.get(b"content-type", "").partition(";")[0].strip().lower()
        if has_body and kind != "application/json":
            message = "the content type must be application/json"
            return 415, message, "invalid_content_type"
        return None

    def _is_allowed_host(self, host: str) -> bool:
        name = _host_name(host)
        if name is None:
            return False
        return name in self.allowed_hosts or (not self.has_keys and is_loopback(name))

    def _is_allowed_origin(self, values: dict[bytes, str], host: str) -> bool:
        origin = values.get(b"origin")
        if origin is None:
            return values.get(b"sec-fetch-site") not in _FOREIGN_SITES
        return origin in self.allowed_origins or origin.partition("://")[2] == host


@lru_cache(maxsize=64)
def _host_name(host: str) -> str | None:
    """Return the name in a Host header without its port; None if it cannot be parsed."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return None


@lru_cache(maxsize=64)
def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
