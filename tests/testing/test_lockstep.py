"""Lockstep of the fake upstream: calls of a script are answered in groups, the others at once."""

from __future__ import annotations

import asyncio
import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("aiohttp", reason="the extra 'serve' is not installed")

from adacompute.testing.fake_openai import FakeSettings, FakeUpstream, serve_fake
from adacompute.testing.lockstep import Lockstep
from test_support.gateways import send

BODY = json.dumps({"messages": [{"role": "user", "content": "2 + 2?"}]}).encode()


def call(fake: FakeUpstream) -> int:
    return send(fake.port, "POST", "/v1/chat/completions", body=BODY).status


def test_no_call_of_a_group_is_answered_before_the_last_has_arrived() -> None:
    with serve_fake(FakeSettings(fault_script=("ok", "ok", "500"), lockstep=3)) as fake:
        with ThreadPoolExecutor(3) as pool:
            first = [pool.submit(call, fake) for _ in range(2)]
            while fake.stats()["open"] < 2:
                time.sleep(0.01)
            time.sleep(0.1)
            assert fake.stats()["answered"] == 0
            assert call(fake) == 500
            assert [one.result(10) for one in first] == [200, 200]
        assert call(fake) == 200  # it is not part of the script
        assert fake.stats()["answered"] == 3


def test_a_smaller_group_goes_on_when_no_other_call_arrives() -> None:
    with serve_fake(FakeSettings(fault_script=("ok",), lockstep=3, lockstep_s=0.1)) as fake:
        assert call(fake) == 200


def test_groups_go_on_in_order_of_arrival_without_calls_that_were_cancelled() -> None:
    async def run() -> list[int]:
        lockstep, order = Lockstep(3, quiet_s=60.0), []

        async def arrive(number: int) -> None:
            await lockstep.wait()
            order.append(number)

        tasks = []
        for number in range(4):
            tasks.append(asyncio.create_task(arrive(number)))
            await asyncio.sleep(0)
            if number == 1:
                tasks[0].cancel()
                await asyncio.wait(tasks[:1])
        await asyncio.gather(*tasks, return_exceptions=True)
        return order

    assert asyncio.run(run()) == [1, 2, 3]
