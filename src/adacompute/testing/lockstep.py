"""Lockstep: lets calls of the fake upstream go on in groups, in order of arrival.

Clients with several calls at a time send them in an order that varies a little. If all of them have
arrived before one is answered, the same calls are under way at each call number, in every run. It
knows nothing of what calls ask for.
"""

from __future__ import annotations

import asyncio

__all__ = ["Lockstep"]


class Lockstep:
    """Groups of ``size`` calls; fewer when no other call arrives for ``quiet_s``."""

    def __init__(self, size: int, quiet_s: float) -> None:
        self._size = size
        self._quiet_s = quiet_s
        self._arrived: list[asyncio.Future[None]] = []

    async def wait(self) -> None:
        """Wait until the group of this call is complete; a call that is cancelled leaves it."""
        if not self._size:
            return
        loop = asyncio.get_running_loop()
        one = loop.create_future()
        self._arrived.append(one)
        if len(self._arrived) == self._size:
            self._release(one)
            await asyncio.sleep(0)  # after the others
        else:
            loop.call_later(self._quiet_s, self._release, one)
        try:
            await one
        finally:
            if one in self._arrived:
                self._arrived.remove(one)

    def _release(self, last: asyncio.Future[None]) -> None:
        """Let the group go on if this call is the last of it."""
        if self._arrived[-1:] == [last]:
            group, self._arrived = self._arrived, []
            for one in group:
                if not one.done():
                    one.set_result(None)
