"""Registers: values that several processes change one after another, never at the same time.

A register holds a text per key. A value is replaced only if nobody has replaced it since it was
read, which is all that accounts and pacing need of a server. This module has the protocol and the
register of a single process; others are in ``sqlite_register`` and ``redis_register``. It does not
know what the values mean.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeVar

from adacompute.core.errors import AdaComputeError

T = TypeVar("T")

MAX_TRIES = 100


class RegisterError(AdaComputeError):
    """A register that cannot be reached or written, or that is too slow."""


class Reading(NamedTuple):
    """A value, None if there is none yet, and the identity and the clock of its server."""

    value: str | None
    server: str
    now: float


class Register(Protocol):
    """A server that keeps values.

    All methods raise ``RegisterError`` if it does not answer in time. ``recovery_s`` is how
    long to wait for other replicas where the server has lost values.
    """

    recovery_s: float

    async def read(self, key: str) -> Reading:
        """Return the value of a key."""
        ...

    async def replace(self, key: str, old: Reading, new: str, *, durable: bool = True) -> bool:
        """Replace a value, unless it or its server has changed since it was read.

        A durable value survives a crash of the machine, if the server is configured so.
        """
        ...

    async def keys(self, prefix: str) -> list[str]:
        """Return all keys that begin with a prefix, sorted."""
        ...

    async def close(self) -> None:
        """Close connections."""
        ...


async def update(
    register: Register,
    key: str,
    change: Callable[[Reading], tuple[str | None, T]],
    *,
    durable: bool = True,
) -> T:
    """Change a value; ``change`` may be called again, if another process was faster.

    It returns the new value, or None to leave it as it is, and the result.
    """
    for _ in range(MAX_TRIES):
        reading = await register.read(key)
        new, result = change(reading)
        if new is None or new == reading.value:
            return result
        if await register.replace(key, reading, new, durable=durable):
            return result
    raise RegisterError(f"{key} was changed {MAX_TRIES} times by others: too many replicas")


class MemoryRegister:
    """The register of one process; nobody else needs to be waited for."""

    recovery_s = 0.0

    def __init__(self) -> None:
        self._values: dict[str, str] = {}

    async def read(self, key: str) -> Reading:
        """Return the value of a key."""
        return Reading(self._values.get(key), "process", time.time())

    async def replace(self, key: str, old: Reading, new: str, *, durable: bool = True) -> bool:
        """Replace a value, unless it has changed since it was read."""
        del durable  # replicas have their own file
        if self._values.get(key) != old.value:
            return False
        self._values[key] = new
        return True

    async def keys(self, prefix: str) -> list[str]:
        """Return all keys that begin with a prefix, sorted."""
        return sorted(key for key in self._values if key.startswith(prefix))

    async def close(self) -> None:
        """Do nothing."""
