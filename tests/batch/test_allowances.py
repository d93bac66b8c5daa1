"""Allowances: never more than the total, whatever ends when, and the same in any order of ends."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adacompute.batch.allowances import Allowances, Demand


def _run(
    total: int, demands: list[Demand], spends: list[float], *, lag: int, kept: int, seed: int
) -> tuple[list[int], list[int]]:
    """Run questions that end in a random order; return allowances and what was spent."""
    rng = random.Random(seed)
    allowances = Allowances(total, len(demands), lag=lag, kept=kept)
    allowed: list[int] = []
    spent: list[int] = []
    running: list[int] = []
    while allowances.n_settled < len(demands):
        while len(allowed) < len(demands):
            amount = allowances.start(demands[len(allowed)])
            if amount is None:
                break
            running.append(len(allowed))
            allowed.append(amount)
            spent.append(int(amount * spends[len(spent)]))
            ended = sum(spent[i] for i in range(len(spent)) if i not in running)
            assert ended + sum(allowed[i] for i in running) <= total
        assert len(running) <= lag
        done = running.pop(rng.randrange(len(running)))
        allowances.settle(done, spent[done])
    assert allowances.spent == sum(spent)
    return allowed, spent


_DEMANDS = st.tuples(st.integers(1, 5), st.integers(0, 8), st.integers(0, 30)).map(
    lambda x: Demand(x[0], x[0] + x[1], x[0] + x[1] + x[2])
)


@given(
    questions=st.lists(st.tuples(_DEMANDS, st.floats(0, 1)), min_size=1, max_size=40),
    total=st.integers(0, 400),
    lag=st.integers(1, 16),
    kept=st.integers(0, 3),
)
def test_allowances_keep_the_total_and_do_not_depend_on_the_order_of_ends(
    questions: list[tuple[Demand, float]], total: int, lag: int, kept: int
) -> None:
    demands, spends = (list(column) for column in zip(*questions, strict=True))
    runs = [_run(total, demands, spends, lag=lag, kept=kept, seed=seed) for seed in range(3)]
    assert runs[0] == runs[1] == runs[2]
    for amount, demand in zip(runs[0][0], demands, strict=True):
        assert amount == 0 or demand.first <= amount <= demand.maximum


@given(
    spends=st.lists(st.floats(0, 1), min_size=12, max_size=40),
    total=st.integers(40, 300),
    lag=st.integers(1, 8),
    first=st.integers(1, 11),
)
def test_a_resumed_pass_gives_the_allowances_of_one_that_was_not_stopped(
    spends: list[float], total: int, lag: int, first: int
) -> None:
    demands = [Demand(1, 3, 12)] * len(spends)
    allowed, spent = _run(total, demands, spends, lag=lag, kept=1, seed=0)
    resumed = Allowances(total, len(spends), lag=lag, kept=1)
    known = list(zip(allowed, spent, strict=True))[max(0, first - lag) : first]
    resumed.skip(first, sum(spent[:first]), known)
    for i in range(first, len(spends)):
        assert resumed.start(demands[i]) == allowed[i]
        resumed.settle(i, spent[i])
    assert resumed.spent == sum(spent)


def test_every_question_gets_a_sample_where_the_total_is_just_enough() -> None:
    allowed, _ = _run(50, [Demand(1, 3, 8)] * 50, [1.0] * 50, lag=16, kept=1, seed=1)
    assert allowed == [1] * 50


def test_nothing_is_left_for_the_last_questions_of_a_total_that_is_used_up() -> None:
    allowed, _ = _run(25, [Demand(10, 10, 10)] * 4, [1.0] * 4, lag=4, kept=0, seed=0)
    assert allowed == [10, 10, 0, 0]


def test_a_short_total_leaves_fewer_questions_running_but_loses_nothing() -> None:
    demands = [Demand(100, 120, 600)] * 60
    allowed, spent = _run(60 * 10 + 100, demands, [0.1] * 60, lag=32, kept=10, seed=3)
    assert min(allowed) >= 100
    assert sum(spent) <= 700


@pytest.mark.parametrize("lag", [1, 3])
def test_the_price_of_a_block_waits_for_the_questions_at_the_lag(lag: int) -> None:
    allowances = Allowances(100, 10, lag=lag, kept=0)
    demand = Demand(1, 2, 3)
    for i in range(lag):
        assert allowances.spent_at_lag() == (max(0, i - lag + 1), 0)
        allowances.start(demand)
    assert allowances.spent_at_lag() is None
    allowances.settle(0, 2)
    assert allowances.spent_at_lag() == (1, 2)
