"""A time limit ends what takes too long, and nothing else."""

from __future__ import annotations

import asyncio

import pytest

from adacompute.gateway.connection.time_limit import TimeLimit


def test_a_block_that_takes_too_long_is_ended() -> None:
    async def main() -> int:
        with pytest.raises(TimeoutError), TimeLimit(0.01) as limit:
            await asyncio.sleep(30)
        assert limit.has_expired
        await asyncio.sleep(0)  # the task can go on
        task = asyncio.current_task()
        return 0 if task is None else task.cancelling()

    assert asyncio.run(main()) == 0


def test_a_block_that_ends_in_time_is_left_alone() -> None:
    async def main() -> bool:
        with TimeLimit(0.05) as limit:
            await asyncio.sleep(0)
        await asyncio.sleep(0.1)
        return limit.has_expired

    assert asyncio.run(main()) is False


def test_other_exceptions_are_raised_as_they_are() -> None:
    async def main() -> None:
        with TimeLimit(30):
            raise TimeoutError("of the block")

    with pytest.raises(TimeoutError, match="of the block"):
        asyncio.run(main())


@pytest.mark.parametrize("first", ["inner", "outer"])
def test_limits_can_be_nested(first: str) -> None:
    async def main() -> str:
        inner = TimeLimit(0.01 if first == "inner" else 30)
        outer = TimeLimit(0.01 if first == "outer" else 30)
        try:
            with outer, inner:
                await asyncio.sleep(30)
        except TimeoutError:
            return "inner" if inner.has_expired else "outer"
        return "none"

    assert asyncio.run(main()) == first


def test_a_task_that_is_cancelled_stays_cancelled() -> None:
    async def wait() -> None:
        with TimeLimit(30):
            await asyncio.sleep(30)

    async def main() -> bool:
        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        return task.cancelled()

    assert asyncio.run(main())
