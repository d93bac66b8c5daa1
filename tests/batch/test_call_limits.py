from __future__ import annotations

import asyncio

from adacompute.batch.call_limits import AdaptiveLimiter


def test_limit_doubles_while_no_call_is_refused() -> None:
    assert [AdaptiveLimiter(max_calls=max_calls).limit for max_calls in (4, 40, 64, 256)] == [
        4,
        16,
        16,
        64,
    ]
    limiter = AdaptiveLimiter(max_calls=256)
    for _ in range(300):
        limiter.running += 1
        limiter.release(0.1)
    assert limiter.limit == 256


def test_refusal_cuts_a_third_at_most_once_per_second() -> None:
    limiter = AdaptiveLimiter(max_calls=300, limit=300.0)
    limiter.back_off()
    limiter.back_off()
    assert 200 <= limiter.limit <= 202
    assert not limiter.growing


def test_limit_recovers_slowly_after_a_refusal() -> None:
    limiter = AdaptiveLimiter(max_calls=300, limit=300.0)
    limiter.back_off()
    before = limiter.limit
    for _ in range(200):
        limiter.running += 1
        limiter.release(0.1)
    assert before + 5 < limiter.limit < before + 30


def test_slow_calls_lower_the_limit() -> None:
    limiter = AdaptiveLimiter(max_calls=64, limit=64.0)
    for seconds in [0.1] * 200 + [1.0] * 2000:
        limiter.running += 1
        limiter.release(seconds)
    assert limiter.limit < 64


def test_running_calls_stay_within_the_limit_and_all_finish() -> None:
    async def main() -> int:
        limiter = AdaptiveLimiter(max_calls=5, limit=5.0)
        peak = 0

        async def one() -> None:
            nonlocal peak
            await limiter.acquire()
            peak = max(peak, limiter.running)
            await asyncio.sleep(0)
            limiter.release(0.01)

        await asyncio.gather(*(one() for _ in range(200)))
        assert limiter.running == 0
        return peak

    assert asyncio.run(main()) == 5


def test_cancelled_waiter_takes_no_slot() -> None:
    async def main() -> None:
        limiter = AdaptiveLimiter(max_calls=1, limit=1.0)
        await limiter.acquire()
        waiting = asyncio.create_task(limiter.acquire())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        limiter.release(0.1)
        await asyncio.wait_for(limiter.acquire(), 1.0)
        assert limiter.running == 1

    asyncio.run(main())
