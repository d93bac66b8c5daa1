"""Clients: which client a request is from, and what that client may ask for.

A key is compared with the digests of all keys in constant time. The name of the client that it
belongs to, never the key, is what the rest of the gateway knows. It reads no bodies.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

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

ANONYMOUS = "-"
"""Name of the client of a gateway without client keys."""

_POSITIVE = ("budget", "max_budget", "max_samples", "max_concurrency", "requests_per_minute")
MIN_KEY_CHARS = 20
_WELL_KNOWN_KEYS = (
    "",
    "admin",
    "api-key",
    "apikey",
    "change-me",
    "changeme",
    "default",
    "demo",
    "dummy",
    "example",
    "foo",
    "foobar",
    "key",
    "none",
    "password",
    "secret",
    "sk-1234",
    "sk-test",
    "test",
    "token",
    "your-api-key",
)
_WELL_KNOWN = {
    hashlib.sha256((key + end).encode()).hexdigest(): key
    for key in _WELL_KNOWN_KEYS
    for end in ("", "\n")  # as echo writes it
}
_N_DIGITS = 64
_DIGEST = re.compile(rf"[0-9a-f]{{{_N_DIGITS}}}")
_PREFIX = re.compile(r"\{?sha-?(\d+)\}?[:=$-]?(?=[0-9a-f])")
_OTHER_KINDS = {32: "MD5", 40: "SHA-1", 56: "SHA-224", 96: "SHA-384", 128: "SHA-512"}
_MAX_WRONG = 4
"""A text with more characters that are no hexadecimal digits does not look like a digest."""


@dataclass(frozen=True)
class ClientLimits:
    """What one client may ask for; empty lists and None mean what all clients may."""

    allowed_paths: Sequence[str] = ()
    """Requests that it may send, instead of the gateway's list."""
    models: Sequence[str] = ()
    """Models that it may ask for (403). Default: all. Its requests must then be JSON objects."""
    budget: float | None = None
    """Mean cost of its own requests, held apart from those of others. Default: the model's."""
    max_budget: float | None = None
    """Largest budget that a request may set for itself (403)."""
    max_samples: int | None = None
    """Samples that one request may draw, prompts × ``n`` (403)."""
    isolated: bool = False
    """Whether it may neither touch what the upstream stores nor choose who pays: paths other than
    completions, embeddings and models, and fields that do so, get 403."""
    max_concurrency: int | None = None
    """Its requests in flight, of all workers together (429)."""
    requests_per_minute: int | None = None
    """Its requests in the last minute, of all workers together (429)."""

    def __post_init__(self) -> None:
        check_paths(self.allowed_paths)
        for name in _POSITIVE:
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"{name} must be a number above 0, not {value}")


@dataclass(eq=False)
class Clients:
    """All clients of a gateway: ``digests`` of their keys, and limits, by name."""

    digests: Mapping[str, str]
    limits: Mapping[str, ClientLimits] = field(default_factory=dict)
    allowed_paths: Sequence[str] = ALLOWED_PATHS

    def __post_init__(self) -> None:
        self._keys = [(name, bytes.fromhex(digest)) for name, digest in self.digests.items()]

    def identify(self, authorization: str | None) -> str | None:
        """Return the name of the client that a header belongs to; None if it has no valid key."""
        if not self._keys:
            return ANONYMOUS
        kind, _, given = (authorization or "").partition(" ")
        key = given.strip()
        digest = hashlib.sha256(key.encode("latin-1", "replace")).digest()
        names = [name for name, known in self._keys if hmac.compare_digest(digest, known)]
        is_valid = kind.lower() == "bearer" and len(key) >= MIN_KEY_CHARS
        return names[0] if names and is_valid else None

    def limits_of(self, client: str) -> ClientLimits:
        """Return the limits of a client."""
        return self.limits.get(client, NO_LIMITS)

    def allows_path(self, client: str, method: str, path: str) -> bool:
        """Whether a client may send a request to a path."""
        allowed = self.limits_of(client).allowed_paths or self.allowed_paths
        is_listed = f"{method} {path}" in allowed  # faster than to compare each pattern
        return is_listed or any(_matches(one, method, path) for one in allowed)

    def allows_model(self, client: str, model: str) -> bool:
        """Whether a client may ask for a model."""
        allowed = self.limits_of(client).models
        return not allowed or model in allowed


def check_key(name: str, digest: str) -> None:
    """Raise ConfigError if a value is not the SHA-256 of a key that is hard to guess.

    A value that is none is not shown: it may be the key.
    """
    digest = digest.lower()
    if not _DIGEST.fullmatch(digest):
        raise ConfigError(
            f"the key of {name!r} must be its SHA-256 in {_N_DIGITS} hexadecimal digits, as `"
            f"printf %s KEY | sha256sum` prints it, and {_find_fault(digest)}"
        )
    if len(set(digest)) == 1:
        raise ConfigError(
            f"the key of {name!r} is {digest[0]!r} repeated, which is the digest of no key: set "
            "it to what `printf %s KEY | sha256sum` prints"
        )
    if digest in _WELL_KNOWN:
        raise ConfigError(
            f"the key of {name!r} is {_WELL_KNOWN[digest]!r}, which everyone can guess: make one "
            "with `openssl rand -hex 32`"
        )


def _find_fault(digest: str) -> str:
    """Say why a text is no digest, without showing it."""
    if (prefix := _PREFIX.match(digest)) is not None:
        return f"it begins with {prefix.group()!r}: leave that out"
    if digest != digest.strip() or re.match(r"[0-9a-f]+\s", digest):
        return "it has spaces, or what sha256sum prints after the digits: leave that out"
    wrong = [index for index, one in enumerate(digest) if one not in "0123456789abcdef"]
    if digest and not wrong:
        kind = (
            f", as a digest by {_OTHER_KINDS[len(digest)]}" if len(digest) in _OTHER_KINDS else ""
        )
        return f"it has {len(digest)} digits{kind}"
    if len(digest) == _N_DIGITS and len(wrong) <= _MAX_WRONG:
        return f"character {wrong[0] + 1} is {digest[wrong[0]]!r}"
    return "it is no digest: is it the key itself?"


def check_paths(patterns: Sequence[str]) -> None:
    """Raise ConfigError if a pattern of paths is not a method and a path."""
    for pattern in patterns:
        method, _, path = pattern.partition(" ")
        if not method or not path.startswith("/v1/") or "*" in path[:-1] or " " in path:
            raise ConfigError(
                "allowed_paths must be like 'POST /v1/embeddings', 'GET /v1/files/*' or "
                f"'* /v1/*', not {pattern!r}"
            )


def _matches(pattern: str, method: str, path: str) -> bool:
    """Whether a request matches a pattern; a path may end in ``*``.

    >>> _matches("GET /v1/files/*", "GET", "/v1/files/a"), _matches("* /v1/x", "PUT", "/v1/xy")
    (True, False)
    """
    wanted, _, target = pattern.partition(" ")
    if wanted not in {"*", method}:
        return False
    return path.startswith(target[:-1]) if target.endswith("*") else path == target


NO_LIMITS = ClientLimits()
