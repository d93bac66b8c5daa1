"""Several replicas hold one mean cost: with a register, with a lost one, and with none."""

from __future__ import annotations

import asyncio
import heapq
import random

import pytest

from adacompute.core.errors import DataError
from adacompute.spending.pacing import Pacer, PriceCurve
from adacompute.spending.registers import RegisterError, update
from adacompute.spending.shared_pacing import SharedPacer
from test_support.memory_register import EMPTY, MemoryRegister

CURVE = PriceCurve((1.0, 2.0, 4.0, 8.0), (0.8, 0.2, 0.05, 0.01))


def make_pacer(replica: str, budget: float = 2.0) -> SharedPacer:
    return SharedPacer("mean", replica, Pacer(CURVE, max_cost=16.0), budget)


def serve(pacer: SharedPacer, rng: random.Random, hardness: float) -> float:
    """Serve one question, which costs ``hardness`` times what was asked for, on average."""
    asked = pacer.budget()
    pacer.begin()
    cost = max(1.0, min(16.0, rng.expovariate(1.0) * asked * hardness))
    pacer.settle(cost)
    return cost


def run(pacers: list[SharedPacer], register: MemoryRegister, n: int, hardness: float) -> float:
    """Serve questions in turn with an exchange every ten, and return the mean cost."""
    rng, costs = random.Random(1), list[float]()

    async def serve_all() -> None:
        for i in range(n):
            pacer = pacers[i % len(pacers)]
            costs.append(serve(pacer, rng, hardness))
            if i % 10 == 0:
                await pacer.exchange(register)

    asyncio.run(serve_all())
    return sum(costs) / len(costs)


def test_replicas_hold_one_mean_together_while_the_questions_are_hard() -> None:
    pacers = [make_pacer(str(i)) for i in range(8)]
    mean = run(pacers, MemoryRegister(), 20_000, hardness=1.5)
    assert mean == pytest.approx(2.0, rel=0.01)
    assert {round(pacer.mean_cost, 1) for pacer in pacers} == {2.0}


@pytest.mark.parametrize(
    "value", ["{}", "null", "not json", '{"rows": {}, "state": {"spent": ""}}']
)
def test_a_value_of_another_form_is_an_error(value: str) -> None:
    register = MemoryRegister()
    asyncio.run(update(register, "mean", lambda _: (value, None)))
    with pytest.raises(DataError, match="a shared pacer cannot be read"):
        asyncio.run(make_pacer("a").exchange(register))


def test_without_pacing_hard_questions_cost_more() -> None:
    rng = random.Random(1)
    fixed = [max(1.0, min(16.0, rng.expovariate(1.0) * 2.0 * 1.5)) for _ in range(20_000)]
    assert sum(fixed) / len(fixed) > 2.5  # otherwise the test above shows nothing


def test_a_new_budget_is_held_from_then_on() -> None:
    pacers, register = [make_pacer(str(i)) for i in range(2)], MemoryRegister()
    run(pacers, register, 4_000, hardness=1.0)
    before = pacers[0].state
    for pacer in pacers:
        pacer.target = 4.0
    mean = run(pacers, register, 10_000, hardness=1.0)
    assert mean == pytest.approx(4.0, rel=0.02)
    assert pacers[0].state.planned > before.planned


def test_a_replica_that_joins_takes_over_the_state() -> None:
    first, register = make_pacer("a"), MemoryRegister()
    run([first], register, 2_000, hardness=1.6)
    asyncio.run(first.exchange(register))
    second = make_pacer("b")
    asyncio.run(second.exchange(register))
    assert second.budget() == pytest.approx(first.budget())
    assert second.mean_cost == pytest.approx(first.mean_cost)


def test_a_process_that_takes_the_place_of_another_continues_its_counts() -> None:
    first, register = make_pacer("a"), MemoryRegister()
    run([first], register, 1_001, hardness=1.0)
    again = make_pacer("a")
    asyncio.run(again.exchange(register))
    assert again.state.settled == 1_001
    again.begin()
    again.settle(3.0)
    asyncio.run(again.exchange(register))
    asyncio.run(again.exchange(register))
    assert again.state.settled == 1_002


def test_a_register_that_lost_everything_gets_it_again() -> None:
    pacers, register = [make_pacer(str(i)) for i in range(3)], MemoryRegister()
    run(pacers, register, 3_000, hardness=1.3)
    total = max(pacer.state.settled for pacer in pacers)
    register.restart(EMPTY)
    mean = run(pacers, register, 6_000, hardness=1.3)
    assert mean == pytest.approx(2.0, rel=0.02)
    fresh = make_pacer("new")
    asyncio.run(fresh.exchange(register))
    assert fresh.state.settled >= total


def test_without_a_register_a_replica_paces_alone() -> None:
    pacer, rng, register = make_pacer("a"), random.Random(1), MemoryRegister()
    register.is_away = True
    with pytest.raises(RegisterError):
        asyncio.run(pacer.exchange(register))
    costs = [serve(pacer, rng, 1.5) for _ in range(10_000)]
    assert sum(costs) / len(costs) == pytest.approx(2.0, rel=0.01)


def test_many_questions_in_flight_make_the_pacer_slower() -> None:
    calm, busy, register = make_pacer("a"), make_pacer("b"), MemoryRegister()
    for pacer, n in ((calm, 1), (busy, 400)):
        for _ in range(n):
            pacer.begin()
        asyncio.run(pacer.exchange(register))
        pacer.settle(16.0)
    assert busy.budget() > calm.budget()


async def serve_concurrently(pacers: list[SharedPacer], n: int, period: int) -> float:
    """Serve easy and hard questions in turns with 64 in flight, and return the mean cost.

    A question takes as many seconds as it costs, and each replica exchanges five times per second.
    """
    rng, register, costs, n_begun = random.Random(1), MemoryRegister(), list[float](), 0
    events = [(rng.random() / 5, "exchange", i, 0.0) for i in range(len(pacers))]
    events += [(0.0, "begin", i % len(pacers), 0.0) for i in range(64)]
    heapq.heapify(events)
    while len(costs) < n:
        now, kind, i, cost = heapq.heappop(events)
        if kind == "exchange":
            await pacers[i].exchange(register)
            heapq.heappush(events, (now + 0.2, "exchange", i, 0.0))
            continue
        if kind == "settle":
            pacers[i].settle(cost)
            costs.append(cost)
            i = rng.randrange(len(pacers))
        hardness = (0.6, 1.6)[n_begun // period % 2]
        n_begun += 1
        cost = max(1.0, min(16.0, rng.expovariate(1.0) * pacers[i].budget() * hardness))
        pacers[i].begin()
        heapq.heappush(events, (now + cost, "settle", i, cost))
    return sum(costs) / n


@pytest.mark.parametrize("period", [250, 500])
def test_questions_that_alternate_do_not_change_the_mean(period: int) -> None:
    pacers = [make_pacer(str(i)) for i in range(8)]
    mean = asyncio.run(serve_concurrently(pacers, 10_000, period))
    assert mean == pytest.approx(2.0, rel=0.01)
