from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adacompute.core.errors import DataError, InfeasibleBudget
from adacompute.core.oracle import find_cutoff, solve
from adacompute.core.types import UtilityTable, hash_keys
from adacompute.core.upgrades import (
    Cutoff,
    Scan,
    apply_cutoff,
    choose,
    envelope,
    locate_cutoff,
    scan,
)

BudgetAt: TypeAlias = Callable[[UtilityTable, float], float]

tables = st.from_type(UtilityTable)
shares = st.one_of(st.floats(0, 1.2), st.integers(0, 12).map(lambda n: n / 12))


def scale(table: UtilityTable) -> float:
    return max(1.0, float(np.abs(table.utility).max()))


def tied_table(seed: int, questions: int, *, own: bool) -> UtilityTable:
    """Return utilities with few distinct values, so that many upgrades have the same price."""
    rng = np.random.default_rng(seed)
    utility = np.cumsum(rng.integers(0, 3, (questions, 4)), axis=1) / 8
    cost = np.array([1.0, 2.0, 4.0, 8.0])
    key = rng.permutation(questions).astype(np.uint64)
    return UtilityTable(utility, cost * rng.integers(1, 3, (questions, 1)) if own else cost, key)


def partition(table: UtilityTable, seed: int, blocks: int) -> list[UtilityTable]:
    """Split a table into blocks of any size, with rows and blocks in any order."""
    rng = np.random.default_rng(seed)
    owner = rng.integers(0, blocks, len(table))
    rows = [rng.permutation(np.flatnonzero(owner == b)) for b in rng.permutation(blocks)]
    return [table.take(own) for own in rows]


def by_key(table: UtilityTable, choice: list[int]) -> dict[int, int]:
    return dict(zip(table.key.tolist(), choice, strict=True))


# Blocks in any order.


@given(tables, shares, st.integers(0, 999), st.integers(1, 4), st.floats(0, 1), st.floats(1, 4))
def test_blocks_in_any_order_give_the_same_allocation(
    budget_at: BudgetAt,
    table: UtilityTable,
    share: float,
    seed: int,
    blocks: int,
    below: float,
    above: float,
) -> None:
    budget = budget_at(table, share)
    whole = solve(table, budget)
    for low, high in (
        (whole.price * below, whole.price * above),
        (whole.price * below, np.inf),
        (0.0, whole.price * above),
        (0.0, np.inf),
    ):
        parts = partition(table, seed, blocks)
        merged = Scan.merge(scan(part, low=low, high=high) for part in parts)
        at = locate_cutoff(merged, budget=budget, low=low, high=high)
        assert at is not None
        assert at.price == whole.price
        chosen: dict[int, int] = {}
        for part in parts:
            chosen |= by_key(part, apply_cutoff(part, at).tolist())
        assert chosen == by_key(table, whole.choice.tolist())
        if len(whole.split):
            assert at.key == int(table.key[whole.split.question[0]])
            assert (at.level, at.probability) == (
                int(whole.split.level[0]),
                float(whole.split.probability[0]),
            )


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("blocks", [1, 7, 60])
def test_ties_at_the_price_do_not_depend_on_blocks(blocks: int, *, own: bool) -> None:
    table = tied_table(3, 2000, own=own)
    whole = solve(table, 3.3)
    ratios = envelope(table)[1].ratio
    assert (ratios == whole.price).sum() > 50
    parts = partition(table, 5, blocks)
    low, high = whole.price / 1.1, whole.price * 1.1
    at = locate_cutoff(
        Scan.merge(scan(part, low=low, high=high) for part in parts),
        budget=3.3,
        low=low,
        high=high,
    )
    assert at == find_cutoff(table, 3.3)
    chosen: dict[int, int] = {}
    for part in parts:
        chosen |= by_key(part, apply_cutoff(part, at).tolist())
    assert chosen == by_key(table, whole.choice.tolist())


@given(tables, shares, st.floats(0, 2), st.floats(0, 2))
def test_a_bracket_gives_the_right_cutoff_or_none(
    budget_at: BudgetAt, table: UtilityTable, share: float, one: float, other: float
) -> None:
    budget = budget_at(table, share)
    low, high = sorted((one, other))
    at = locate_cutoff(scan(table, low=low, high=high), budget=budget, low=low, high=high)
    price = find_cutoff(table, budget).price
    assert at is None or at == find_cutoff(table, budget)
    assert (at is not None) == (low <= price <= high)


def test_a_scan_keeps_only_undecided_questions() -> None:
    table = UtilityTable(np.array([[0.0, 0.9], [0.0, 0.5], [0.0, 0.1]]), np.array([1.0, 2.0]))
    found = scan(table, low=0.4, high=0.6)
    assert found.n_questions == 3
    assert found.undecided.key.tolist() == [1]
    assert found.decided_cost == 3


def test_blocks_with_different_costs_merge() -> None:
    one = UtilityTable(np.array([[0.0, 1.0]]), np.array([1.0, 2.0]))
    two = UtilityTable(np.array([[0.0, 1.0]]), np.array([1.0, 3.0]), np.array([1]))
    three = UtilityTable(np.array([[0.0, 1.0]]), np.array([[1.0, 5.0]]), np.array([2]))
    merged = Scan.merge(scan(part, low=0.0, high=np.inf) for part in (one, two, three))
    assert merged.undecided.cost.tolist() == [[1.0, 2.0], [1.0, 3.0], [1.0, 5.0]]
    at = locate_cutoff(merged, budget=1.75, low=0.0, high=np.inf)
    assert at is not None
    assert (at.price, at.key, at.level, at.probability) == (0.5, 1, 1, 0.625)


def test_without_undecided_questions_the_cutoff_is_zero_or_none() -> None:
    table = UtilityTable(np.array([[0.5]]), np.array([1.0]))
    assert locate_cutoff(scan(table, low=0.0, high=1.0), budget=1.0, low=0.0, high=1.0) == Cutoff(
        0.0
    )
    assert locate_cutoff(scan(table, low=0.5, high=1.0), budget=1.0, low=0.5, high=1.0) is None


def test_a_bracket_below_the_price_gives_none() -> None:
    table = UtilityTable(np.array([[0.0, 1.0]]), np.array([1.0, 2.0]))
    assert locate_cutoff(scan(table, low=0.1, high=0.2), budget=1.5, low=0.1, high=0.2) is None


def test_a_budget_below_the_cheapest_levels_is_infeasible() -> None:
    table = UtilityTable(np.array([[0.0, 1.0]]), np.array([1.25, 2.0]))
    with pytest.raises(InfeasibleBudget, match=r"1 is below 1\.25"):
        locate_cutoff(scan(table, low=0.0, high=np.inf), budget=1.0, low=0.0, high=np.inf)


def test_equal_keys_at_the_cutoff_are_rejected() -> None:
    twins = UtilityTable(
        np.array([[0.0, 1.0], [0.0, 1.0]]), np.array([1.0, 2.0]), np.array([4, 4], dtype=np.uint64)
    )
    for budget in (1.25, 1.75):
        with pytest.raises(DataError, match="its own key"):
            solve(twins, budget)
    assert solve(twins, 2.0).choice.tolist() == [1, 1]


def test_ties_between_questions_break_by_the_hash_of_their_keys() -> None:
    key = np.arange(40, dtype=np.uint64)
    table = UtilityTable(np.tile([0.0, 1.0], (40, 1)), np.array([1.0, 2.0]), key)
    bought = np.flatnonzero(solve(table, 1.5).choice)
    assert sorted(bought) == sorted(np.argsort(hash_keys(key))[:20])
    assert set(bought) != set(range(20))


# Envelopes and choices.


@given(tables)
def test_ratios_of_an_envelope_decrease(
    table: UtilityTable,
) -> None:
    start, upgrades = envelope(table)
    for row in range(len(table)):
        cost, utility = table.costs[row], table.utility[row]
        cheapest = cost == cost.min()
        assert cost[start[row]] == cost.min()
        assert utility[start[row]] == utility[cheapest].max()
        own = np.flatnonzero(upgrades.question == row)
        assert upgrades.step[own].tolist() == list(range(len(own)))
        path = [int(start[row]), *upgrades.level[own].tolist()]
        assert (np.diff(cost[path]) == upgrades.extra_cost[own]).all()
        assert (np.diff(utility[path]) == upgrades.gain[own]).all()
        assert (upgrades.extra_cost[own] > 0).all()
        assert (upgrades.gain[own] > 0).all()
        assert (np.diff(upgrades.ratio[own]) <= 0).all()
        assert utility[path[-1]] == utility.max()
        order = np.argsort(cost[path])
        hull = np.interp(cost, cost[path][order], utility[path][order])
        assert (utility <= hull + 1e-9 * scale(table)).all()


def test_levels_on_a_straight_line_are_separate_upgrades() -> None:
    _, upgrades = envelope(
        UtilityTable(np.array([[0.0, 0.25, 0.5, 0.75]]), np.array([1.0, 2.0, 3.0, 4.0]))
    )
    assert upgrades.level.tolist() == [1, 2, 3]
    assert upgrades.ratio.tolist() == [0.25, 0.25, 0.25]


@given(tables, st.floats(0, 2))
def test_a_choice_has_the_largest_net_value(table: UtilityTable, price: float) -> None:
    net = table.utility - price * table.costs
    chosen = net[np.arange(len(table)), choose(table, price)]
    fuzz = 1e-12 * (scale(table) + price * float(table.cost.max()))
    assert (chosen >= net.max(axis=1) - fuzz).all()


@given(tables)
def test_a_choice_at_the_price_of_an_upgrade_does_not_buy_it(table: UtilityTable) -> None:
    start, upgrades = envelope(table)
    path = start.copy()
    for q, level, ratio in zip(
        upgrades.question.tolist(), upgrades.level.tolist(), upgrades.ratio.tolist(), strict=True
    ):
        at, below = choose(table, ratio), choose(table, float(np.nextafter(ratio, 0)))
        assert table.cost_of(at)[q] <= table.cost_of(path)[q]
        path[q] = level
        assert table.cost_of(below)[q] >= table.cost_of(path)[q]


@given(tables)
def test_choices_at_price_zero_and_infinity(
    table: UtilityTable,
) -> None:
    free, cheapest = choose(table, 0.0), choose(table, np.inf)
    for row in range(len(table)):
        levels = list(zip(table.utility[row].tolist(), table.costs[row].tolist(), strict=True))
        assert levels[free[row]] == max(levels, key=lambda level: (level[0], -level[1]))
        assert levels[cheapest[row]] == max(levels, key=lambda level: (-level[1], level[0]))


def test_more_than_127_levels() -> None:
    levels = 300
    utility = np.sqrt(np.arange(levels, dtype=np.float64))[None, :]
    table = UtilityTable(utility, np.arange(levels, dtype=np.float64))
    for level in (0, 100, 200, 299):
        slope = 0.5 / np.sqrt(max(level, 0.1))
        assert abs(int(choose(table, slope)[0]) - level) <= 1
    assert solve(table, 250.0).choice.tolist() == [250]


@pytest.mark.parametrize("own", [False, True])
def test_levels_of_equal_cost_and_utility_are_decided(*, own: bool) -> None:
    shape = (3, 3)
    utility = np.array([[0.1, 0.9, 0.9], [0.1, 0.9, 0.9], [0.3, 0.2, 0.2]])
    cost = np.array([1.0, 2.0, 2.0])
    table = UtilityTable(utility, np.broadcast_to(cost, shape).copy() if own else cost)
    assert len(scan(table, low=0.1, high=0.2).undecided) == 0
    assert choose(table, 0.1).tolist() == [1, 1, 0]


@pytest.mark.parametrize("own", [False, True])
def test_a_choice_within_rounding_error_is_undecided(*, own: bool) -> None:
    cost = np.array([1.0, 2.0])
    table = UtilityTable(
        np.array([[0.5, 0.5 + 1e-15], [0.5, 0.6]]), np.tile(cost, (2, 1)) if own else cost
    )
    undecided = scan(table, low=3e-15, high=4e-15).undecided
    assert undecided.key.tolist() == [0]
