"""Fan-out: the samples of one request from several calls at once, as they arrive.

It makes up for calls that return fewer samples than they should, yields what came before it raises
a failure, and cancels what is still open when it is closed. It knows nothing of servers or usage.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

from adacompute.core.errors import ModelError, RateLimited, RequestRejected
from adacompute.models.messages import Sample

Call = Callable[[int, int], Coroutine[Any, Any, list[Sample]]]
"""Makes one call for so many samples; the second number counts the samples of calls before it."""


async def fan_out(
    call: Call, n: int, *, per_call: int = 1, start: int = 0
) -> AsyncGenerator[Sample, None]:
    """Yield ``n`` samples, or a few more where calls return more, from concurrent calls.

    A call asks for up to ``per_call`` samples; what it lacks is asked for again one by one. A
    failure is raised after the samples of the other calls were yielded, because they are paid for.
    """
    sizes: dict[asyncio.Task[list[Sample]], int] = {}
    sent = start

    def begin(size: int) -> asyncio.Task[list[Sample]]:
        nonlocal sent
        task = asyncio.ensure_future(call(size, sent))
        sent += size
        sizes[task] = size
        return task

    pending = {begin(min(per_call, n - first)) for first in range(0, n, per_call)}
    failures: list[BaseException] = []
    try:
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if (error := task.exception()) is not None:
                    failures.append(error)
                    continue
                samples = task.result()
                pending |= {begin(1) for _ in range(sizes[task] - len(samples))}
                for sample in samples:
                    yield sample
        if failures:
            raise max(failures, key=_weight)
    finally:
        for task in sizes:
            task.cancel()
        await asyncio.gather(*sizes, return_exceptions=True)


def _weight(error: BaseException) -> tuple[bool, bool, float]:
    """Which of several failures is raised: our own, then a rejection, then the longest wait."""
    wait = error.retry_after_s if isinstance(error, RateLimited) else -1.0
    return not isinstance(error, ModelError), isinstance(error, RequestRejected), wait
