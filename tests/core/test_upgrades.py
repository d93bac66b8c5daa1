from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adacompute.core.allocation.cutoff import choose
from adacompute.core.allocation.oracle import solve
from adacompute.core.allocation.upgrades import envelope
from adacompute.core.errors import DataError
from adacompute.core.types import UtilityTable, hash_keys

tables = st.from_type(UtilityTable)
shares = st.one_of(st.floats(0, 1.2), st.integers(0, 12).map(lambda n: n / 12))


def scale(table: UtilityTable) -> float:
    return max(1.0, float(np.abs(table.utility).max()))


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
def test_levels_of_equal_cost_and_utility(*, own: bool) -> None:
    shape = (3, 3)
    utility = np.array([[0.1, 0.9, 0.9], [0.1, 0.9, 0.9], [0.3, 0.2, 0.2]])
    cost = np.array([1.0, 2.0, 2.0])
    table = UtilityTable(utility, np.broadcast_to(cost, shape).copy() if own else cost)
    assert choose(table, 0.1).tolist() == [1, 1, 0]
