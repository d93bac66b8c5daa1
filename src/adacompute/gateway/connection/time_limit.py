"""Time limit: end a block of code that takes too long.

It does what ``asyncio.timeout`` does, for a limit that does not change, in a third of its time:
each request needs two. It knows nothing of requests.
"""

from __future__ import annotations

import asyncio
from typing import Self


class TimeLimit:
    """A context manager that cancels its block after a time, and then raises TimeoutError.

    ``has_expired`` tells its own TimeoutError from others that the block raises.
    """

    __slots__ = ("_seconds", "_task", "_timer", "has_expired")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.has_expired = False

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a time limit needs a task to cancel")
        self._task = task
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._expire)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._timer.cancel()
        if self.has_expired and self._task.uncancel() == 0 and kind is asyncio.CancelledError:
            raise TimeoutError

    def _expire(self) -> None:
        self.has_expired = True
        self._task.cancel()
