"""Access: who may ask the gateway, and for which paths.

One bearer token opens the whole service; while it is being replaced there are two. Tokens are kept
and compared as digests, in constant time. Without a token, only names of this machine are answered,
so that no web page can point a name of its own at it. It reads headers only.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Iterable, Sequence
from functools import lru_cache
from urllib.parse import urlsplit

from adacompute.core.errors import ConfigError

ALLOWED_PATHS = (
    "POST /v1/chat/completions",
    "POST /v1/completions",
    "POST /v1/responses",
    "POST /v1/embeddings",
    "GET /v1/models",
    "GET /v1/models/*",
)
"""Requests that clients may send if nothing else is configured."""

MAX_BEARER_TOKENS, MIN_TOKEN_CHARS = 2, 20


class BearerTokens:
    """The tokens of which a request needs one; without any, every request is accepted."""

    def __init__(self, tokens: Iterable[str]) -> None:
        self._digests = [_digest(token) for token in tokens]

    def accept(self, authorization: str | None) -> bool:
        """Whether the header Authorization has one of the tokens."""
        if not self._digests:
            return True
        kind, _, given = (authorization or "").partition(" ")
        digest = _digest(given.strip())
        is_known = [hmac.compare_digest(digest, known) for known in self._digests]
        return any(is_known) and kind.lower() == "bearer"


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("latin-1", "replace")).digest()


def check_tokens(tokens: Sequence[str], setting: str) -> None:
    """Raise ConfigError if tokens are too many, easy to guess or no value of a header.

    Tokens are not shown.
    """
    if len(tokens) > MAX_BEARER_TOKENS:
        raise ConfigError(
            f"{setting} may have {MAX_BEARER_TOKENS} tokens: the new one and the old one"
        )
    for token in tokens:
        if len(token) < MIN_TOKEN_CHARS or len(set(token)) < MIN_TOKEN_CHARS // 4:
            raise ConfigError(
                f"{setting} must have {MIN_TOKEN_CHARS} characters or more that nobody can guess: "
                "make it with `openssl rand -hex 32`"
            )
        if not (token.isascii() and token.isprintable() and " " not in token):
            raise ConfigError(
                f"{setting} has characters that no header can carry: see whether it has a line "
                "break or a space"
            )


def check_paths(patterns: Sequence[str]) -> None:
    """Raise ConfigError if a pattern of paths is not a method and a path."""
    for pattern in patterns:
        method, _, path = pattern.partition(" ")
        if not method or not path.startswith("/v1/") or "*" in path[:-1] or " " in path:
            raise ConfigError(
                "allowed_paths must be like 'POST /v1/embeddings', 'GET /v1/files/*' or "
                f"'* /v1/*', not {pattern!r}"
            )


def allows_path(allowed: Sequence[str], method: str, path: str) -> bool:
    """Whether a request matches one of the patterns; a path may end in ``*``.

    >>> patterns = ["GET /v1/files/*", "* /v1/x"]
    >>> allows_path(patterns, "GET", "/v1/files/a"), allows_path(patterns, "PUT", "/v1/xy")
    (True, False)
    """
    is_listed = f"{method} {path}" in allowed  # faster than to compare each pattern
    return is_listed or any(_matches(one, method, path) for one in allowed)


def _matches(pattern: str, method: str, path: str) -> bool:
    wanted, _, target = pattern.partition(" ")
    if wanted not in {"*", method}:
        return False
    return path.startswith(target[:-1]) if target.endswith("*") else path == target


def names_this_machine(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether the header Host is a name that can only mean this machine."""
    hosts = [value.decode("latin-1") for name, value in headers if name == b"host"]
    return all(map(_is_loopback_host, hosts)) and len(hosts) == 1


@lru_cache(maxsize=64)
def _is_loopback_host(host: str) -> bool:
    """Whether the name in a Host header, without its port, is a loopback name."""
    try:
        return is_loopback(urlsplit(f"//{host}").hostname or "")
    except ValueError:
        return False


@lru_cache(maxsize=64)
def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
