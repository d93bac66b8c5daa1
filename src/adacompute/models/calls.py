"""Calls: how every attempt to call an upstream reports its start and its end.

An attempt is one HTTP request, so a call that is retried reports several. A tracker is called
before the request is sent, and again when it is over: with the usage that the server reported, with
None if a reply may have been generated whose usage never arrived, or with ``NO_USAGE`` if the
server refused the request. This module sends nothing and writes nothing.
"""

from __future__ import annotations

from typing import Final, Protocol

from adacompute.models.model import CallUsage

NO_USAGE: Final = CallUsage()
"""Usage of an attempt that the server refused, or that never reached it."""


class StartedCall(Protocol):
    """An attempt in progress."""

    def end(self, usage: CallUsage | None) -> None:
        """Report the end: what was used, or None if that is not known."""
        ...


class CallTracker(Protocol):
    """Something that is notified of every attempt."""

    async def start(self, path: str, payload: bytes, attempt: int) -> StartedCall:
        """Report the start of an attempt; the first of a call is number 1.

        A tracker that raises an error forbids the attempt.
        """
        ...


class _Untracked:
    """A tracker that does nothing."""

    async def start(self, path: str, payload: bytes, attempt: int) -> StartedCall:
        del path, payload, attempt
        return self

    def end(self, usage: CallUsage | None) -> None:
        del usage


UNTRACKED: Final[CallTracker] = _Untracked()
"""A tracker for calls of which no account is kept."""
