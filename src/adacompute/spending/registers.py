"""Registers: values that several processes change one after another, never at the same time.

A register holds a text per key. A value is replaced only if nobody has replaced it since it was
read, which is all that accounts and pacing need of a server. Each change gets a number that only
grows, so a process can read what has changed since it looked last, and a server whose number has
fallen has lost data. This module has the protocol; ``sqlite_register`` and ``redis_register``
implement it. It does not know what the values mean.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

from adacompute.core.errors import AdaComputeError, DataError

T = TypeVar("T")

MAX_TRIES = 100

PAGE_SIZE = 1_000
"""Changes that are read in one step."""


class RegisterError(AdaComputeError):
    """A register that cannot be reached or written, or that is too slow."""


class Reading(NamedTuple):
    """A value, None if there is none yet, and the identity and the clock of its server."""

    value: str | None
    server: str
    now: float


class Changes(NamedTuple):
    """Values that have changed, by key, and the number of the last of these changes.

    ``is_last`` says that there are no more.
    """

    values: Mapping[str, str]
    number: int
    server: str
    now: float
    is_last: bool


class Register(Protocol):
    """A server that keeps values; ``RegisterError`` says that it does not answer in time.

    The identity of a server is another one after a restart, on another machine, after its data
    were deleted, and after ``renew``. ``is_local`` says that only processes of one machine use it.
    """

    is_local: bool

    async def read(self, key: str) -> Reading:
        """Return the value of a key."""
        ...

    async def replace(
        self,
        key: str,
        old: Reading,
        new: str,
        *,
        durable: bool = True,
        expires_at: float = math.inf,
    ) -> bool:
        """Replace a value, unless it or its server has changed since it was read.

        A durable value survives a crash of the machine, if the server is configured so. Values that
        have expired are deleted.
        """
        ...

    async def changes(self, after: int) -> Changes:
        """Return values whose last change has a number above ``after``, in this order, one page."""
        ...

    async def renew(self, server: str) -> None:
        """Give the server another identity, if it still has this one."""
        ...

    async def check(self) -> str | None:
        """Return what is wrong with the configuration of the server; None if nothing is known."""
        ...

    async def close(self) -> None:
        """Close connections."""
        ...


def read_value(text: str, build: Callable[[Any], T], what: str) -> T:
    """Build something from a value that others wrote; DataError if it is of another form."""
    try:
        return build(json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as why:
        raise DataError(f"{what} cannot be read: {why!r}") from None


async def update(
    register: Register,
    key: str,
    change: Callable[[Reading], tuple[str | None, T]],
    *,
    durable: bool = True,
    expires_at: float = math.inf,
) -> T:
    """Change a value; ``change`` may be called again, if another process was faster.

    It returns the new value, or None to leave it as it is, and the result.
    """
    for _ in range(MAX_TRIES):
        reading = await register.read(key)
        new, result = change(reading)
        if new is None or new == reading.value:
            return result
        if await register.replace(key, reading, new, durable=durable, expires_at=expires_at):
            return result
    raise RegisterError(f"{key} was changed {MAX_TRIES} times by others: too many replicas")
