from __future__ import annotations

import asyncio

from adacompute.collection.limits import AdaptiveLimiter


def test_it_doubles_while_nothing_is_refused() -> None:
    assert [AdaptiveLimiter(most=most).limit for most in (4, 40, 64, 256)] == [4, 16, 16, 64]
    places = AdaptiveLimiter(most=256)
    for _ in range(300):
        places.running += 1
        places.leave(0.1)
    assert places.limit == 256


def test_a_refusal_takes_a_third_at_most_once_a_second() -> None:
    places = AdaptiveLimiter(most=300, limit=300.0)
    places.trouble()
    places.trouble()
    assert 200 <= places.limit <= 202
    assert not places.growing


def test_it_recovers_slowly_after_a_refusal() -> None:
    places = AdaptiveLimiter(most=300, limit=300.0)
    places.trouble()
    before = places.limit
    for _ in range(200):
        places.running += 1
        places.leave(0.1)
    assert before + 5 < places.limit < before + 30


def test_calls_that_queue_let_it_shrink() -> None:
    places = AdaptiveLimiter(most=64, limit=64.0)
    for seconds in [0.1] * 200 + [1.0] * 2000:
        places.running += 1
        places.leave(seconds)
    assert places.limit < 64


def test_no_more_than_the_limit_are_inside_and_all_come_through() -> None:
    async def main() -> int:
        places = AdaptiveLimiter(most=5, limit=5.0)
        peak = 0

        async def one() -> None:
            nonlocal peak
            await places.enter()
            peak = max(peak, places.running)
            await asyncio.sleep(0)
            places.leave(0.01)

        await asyncio.gather(*(one() for _ in range(200)))
        assert places.running == 0
        return peak

    assert asyncio.run(main()) == 5


def test_one_that_gives_up_waiting_does_not_take_a_place() -> None:
    async def main() -> None:
        places = AdaptiveLimiter(most=1, limit=1.0)
        await places.enter()
        waiting = asyncio.create_task(places.enter())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        places.leave(0.1)
        await asyncio.wait_for(places.enter(), 1.0)
        assert places.running == 1

    asyncio.run(main())
