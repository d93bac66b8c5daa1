"""Addresses: several servers with the same models, and which of them gets a request.

A request goes to the address that the beginning of its prompt hashes to, so that the prefix cache
there knows it. The hash is a rendezvous: each address has a weight for each prompt and the largest
wins, so that the loss of an address moves only its own share. One that fails is passed over for
some seconds and then tried again, and so is one with many more open requests than the others. The
next in the order of the weights takes its place. It sends nothing, and it knows only the requests
of this process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import Literal
from urllib.parse import urlsplit

from adacompute.core.errors import ConfigError
from adacompute.core.types import hash_bytes, hash_text
from adacompute.models.connection.circuit_breaker import CircuitBreaker
from adacompute.models.formats.body import count_elements, read_elements, read_members
from adacompute.models.formats.openai_format import check_url

MAX_FAILURES = 3
"""Failures in a row after which an address is passed over. One that cannot be connected to is
passed over at once, because nothing was lost by asking."""

PAUSE_S, MAX_PAUSE_S = 2.0, 16.0
"""How long an address is passed over, doubled each time that the request after it fails too."""

LOAD_FACTOR, SPARE_LOAD = 1.25, 8
"""An address has too many open requests above this multiple of the mean, and so many more."""

PREFIX_BYTES = 8192
"""Bytes of a prompt that say where it goes."""

MAX_PARSED_BYTES = 1_000_000
MAX_MESSAGES, MAX_MESSAGE_ELEMENTS = 16, 10_000
"""Bodies whose prompt is looked for, and messages that are looked through for the first of the
user, with their brackets and commas; of larger ones, the first bytes count."""

Event = Literal["failed", "skipped", "back"]
OnAddress = Callable[[Event, str], None]
"""Called when an address fails, begins to be passed over, and answers again, with its name."""

_PROMPTS = ("messages", "prompt", "input")


class Address:
    """One address: what is open there, and whether it works; enter it for each request."""

    def __init__(self, url: str, on_event: OnAddress | None, clock: Callable[[], float]) -> None:
        self.url = url
        self.n_open = 0
        self.breaker = CircuitBreaker(
            max_failures=MAX_FAILURES, pause_s=PAUSE_S, max_pause_s=MAX_PAUSE_S, clock=clock
        )
        self._on_event = on_event

    @property
    def name(self) -> str:
        """The host and port."""
        return urlsplit(self.url).netloc

    def __enter__(self) -> None:
        self.n_open += 1

    def __exit__(self, *_: object) -> None:
        self.n_open -= 1

    def record_answer(self) -> None:
        """Note that a request was answered; an old one says nothing of new ones."""
        if not self.breaker.is_open:
            self.breaker.record(is_failure=False)
        elif self.breaker.is_probing and self.breaker.end_probe(is_failure=False):
            self.report("back")

    def record_failure(self, *, is_unsent: bool) -> None:
        """Note that a request failed; ``is_unsent`` says that there was no connection.

        One that was sent before the address was passed over does not count.
        """
        if self.breaker.is_probing:
            self.breaker.end_probe(is_failure=True)
        elif not self.breaker.is_open and self.breaker.record(
            is_failure=True, is_certain=is_unsent
        ):
            self.report("skipped")

    def report(self, event: Event) -> None:
        """Say what happened, to whoever wants to know."""
        if self._on_event is not None:
            self._on_event(event, self.name)


class Addresses:
    """The addresses of one upstream; all clients of it in a process share them.

    >>> several = Addresses(["http://a/v1", "http://b/v1", "http://c/v1"])
    >>> first = several.choose(7)
    >>> several.choose(7) is first, several.choose(7, tried=[first]) is first
    (True, False)
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        on_event: OnAddress | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.all = tuple(Address(url, on_event, clock) for url in check_addresses(urls))
        self._only = self.all[0] if len(self.all) == 1 else None

    def __str__(self) -> str:
        return ", ".join(self.urls)

    @property
    def urls(self) -> tuple[str, ...]:
        """The URLs in the order in which they were given."""
        return tuple(one.url for one in self.all)

    def key_of(self, body: bytes) -> int:
        """Return what decides where a request goes; 0 if there is nothing to decide."""
        return 0 if self._only is not None else prompt_key(body)

    def choose(self, key: int, tried: Collection[Address] = ()) -> Address:
        """Return the address of a request, one that it has not tried if there is any."""
        if self._only is not None:
            return self._only
        order = self.order(key)
        left = [one for one in order if one not in tried] or order
        usable = [one for one in left if one.breaker.admits]
        if not usable:
            return left[0]
        limit = LOAD_FACTOR * sum(one.n_open for one in usable) / len(usable) + SPARE_LOAD
        chosen = next(one for one in usable if one.n_open <= limit)
        chosen.breaker.start_probe()
        return chosen

    def order(self, key: int) -> list[Address]:
        """Return the addresses by their weights for a key, the largest first."""
        return sorted(self.all, key=lambda one: hash_text(f"{one.url} {key}"), reverse=True)

    def has_another(self, tried: Collection[Address]) -> bool:
        """Whether there is an address that a request has not tried."""
        return len(set(tried)) < len(self.all)

    def record_failure(self, address: Address, *, is_unsent: bool = False) -> None:
        """Note that a request to an address failed; the only one is never passed over."""
        address.report("failed")
        if self._only is None:
            address.record_failure(is_unsent=is_unsent)


def as_addresses(given: str | Addresses) -> Addresses:
    """Return addresses that clients share, or those of the one URL of a client."""
    return given if isinstance(given, Addresses) else Addresses([given])


def check_addresses(urls: Sequence[str]) -> list[str]:
    """Return base URLs without trailing slashes; ConfigError if there is none, or one twice."""
    if not urls:
        raise ConfigError("base_urls is empty: give at least one address")
    known = [check_url(url) for url in urls]
    if twice := [url for url in known if known.count(url) > 1]:
        raise ConfigError(f"base_urls has {twice[0]} twice: give each address once")
    return known


def prompt_key(body: bytes) -> int:
    """Return a number of the beginning of a prompt, the same for every turn of a conversation.

    Of messages it is everything up to the first of the user, and of a text its first bytes.
    """
    found = read_members(body, _PROMPTS) if len(body) <= MAX_PARSED_BYTES else {}
    text = next((found[name] for name in _PROMPTS if name in found), body)
    if text.startswith(b"[") and count_elements(text) <= MAX_MESSAGE_ELEMENTS:
        text = _first_turn(text)
    return hash_bytes(text[:PREFIX_BYTES])


def _first_turn(messages: bytes) -> bytes:
    """Return the messages up to the first of the user; everything if there is none."""
    turn: list[bytes] = []
    for message in read_elements(messages)[:MAX_MESSAGES]:
        turn.append(message)
        if read_members(message, ("role",)).get("role") == b'"user"':
            return b",".join(turn)
    return messages
