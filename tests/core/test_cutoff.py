"""The cutoff of blocks is that of the whole table, whatever the sample says."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from adacompute.core.allocation.cutoff import (
    EVERYTHING,
    NOTHING,
    Bracket,
    Cutoff,
    apply_cutoff,
    estimate_bracket,
    find_cutoff,
    is_sampled,
    locate_cutoff,
    scan,
)
from adacompute.core.allocation.oracle import solve
from adacompute.core.allocation.upgrades import envelope
from adacompute.core.errors import InfeasibleBudget
from adacompute.core.types import UtilityTable, hash_keys, sum_cost

BudgetAt: TypeAlias = Callable[[UtilityTable, float], float]

tables = st.from_type(UtilityTable)
shares = st.one_of(st.floats(0, 1.2), st.integers(0, 12).map(lambda n: n / 12))
COST = np.array([1.0, 2.0, 4.0, 8.0, 16.0])


def cutoff_of(table: UtilityTable, budget: float) -> Cutoff:
    """Find the cutoff of a table as a whole."""
    return find_cutoff(lambda: [table], None, budget).cutoff


def between(low: float, high: float) -> Bracket:
    """Return the bracket of two prices."""
    return Bracket(Cutoff(high), Cutoff(low))


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


def make_table(n: int, *, grid: int | None, seed: int = 0) -> UtilityTable:
    rng = np.random.default_rng(seed)
    utility = np.clip(rng.random((n, 1)) + rng.normal(0, 0.15, (n, 5)) * np.arange(5) / 4, 0, 1)
    return UtilityTable(utility if grid is None else np.rint(utility * grid) / grid, COST)


@given(tables, st.floats(0, 1), st.integers(1, 9), st.data())
def test_any_blocks_and_samples_give_the_cutoff_of_the_table(
    budget_at: BudgetAt, table: UtilityTable, share: float, size: int, data: st.DataObject
) -> None:
    assume(len(table) and len(np.unique(table.key)) == len(table))
    budget = budget_at(table, share)
    rows = data.draw(st.sets(st.integers(0, len(table) - 1), min_size=1))
    blocks = data.draw(st.permutations(list(table.blocks(size))))
    sample = table.take(np.array(sorted(rows)))
    found = find_cutoff(lambda: blocks, sample, budget)
    assert found.cutoff == cutoff_of(table, budget)
    assert found.cost == sum_cost(table.cost_of(apply_cutoff(table, found.cutoff)))


@pytest.mark.parametrize("grid", [None, 16])
@pytest.mark.parametrize("budget", [1.2, 3.0, 9.0])
def test_few_questions_are_kept_even_if_upgrades_are_tied(grid: int | None, budget: float) -> None:
    table = make_table(60_000, grid=grid)
    sample = table.take(slice(None, None, 4))
    bracket = estimate_bracket(sample, budget, 4.0)
    kept = scan([table], bracket).undecided
    assert len(kept) < 0.1 * len(table)
    passes = []

    def read() -> list[UtilityTable]:
        passes.append(1)
        return list(table.blocks(7_000))

    assert find_cutoff(read, sample, budget).cutoff == cutoff_of(table, budget)
    assert len(passes) == 1


def test_a_misleading_sample_costs_further_passes_only() -> None:
    table = make_table(4_000, grid=None)
    easy = UtilityTable(np.tile(np.arange(5.0), (50, 1)), COST)
    passes = []

    def read() -> list[UtilityTable]:
        passes.append(1)
        return [table]

    assert find_cutoff(read, easy, 3.0).cutoff == cutoff_of(table, 3.0)
    assert len(passes) == 3


def test_a_cutoff_beyond_the_bracket_at_the_same_price_is_not_taken() -> None:
    # Questions with one upgrade of ratio 1, and one with upgrades of ratios 2 and 1.
    tie = hash_keys(np.arange(8, dtype=np.uint64))
    order = np.argsort(tie)
    utility = np.tile([0.0, 1.0, 1.0], (8, 1))
    utility[order[-1]] = [0.0, 2.0, 7.0]
    table = UtilityTable(utility, np.array([1.0, 2.0, 7.0]))
    bracket = Bracket(Cutoff(3.0), Cutoff(1.0, int(tie[order[1]]), 0))
    budget = 1.5
    exact = cutoff_of(table, budget)
    assert exact.key == order[3]
    assert locate_cutoff(scan([table], bracket), budget, bracket) is None


def test_budgets_beyond_both_ends() -> None:
    table = make_table(500, grid=16)
    assert find_cutoff(lambda: [table], table, 99.0).cutoff == EVERYTHING
    assert find_cutoff(lambda: [table], table, 1.0).cutoff == cutoff_of(table, 1.0)
    with pytest.raises(InfeasibleBudget):
        find_cutoff(lambda: [table], table, 0.9)


def test_brackets_are_ordered_by_ratio_then_tie_then_step() -> None:
    bracket = Bracket(Cutoff(0.5, 7, 0), Cutoff(0.5, 9, 2))
    assert bracket.contains(Cutoff(0.5, 8, 5))
    assert bracket.contains(Cutoff(0.5, 9, 2))
    assert not bracket.contains(Cutoff(0.5, 9, 3))
    assert not bracket.contains(Cutoff(0.5, 6, 9))
    assert not bracket.contains(Cutoff(0.4, 8, 0))
    assert Bracket().contains(NOTHING)
    assert Bracket().contains(EVERYTHING)


def test_samples_have_about_the_given_size(monkeypatch: pytest.MonkeyPatch) -> None:
    key = np.arange(200_000, dtype=np.uint64)
    assert is_sampled(key[:1000], 1000).all()
    monkeypatch.setattr("adacompute.core.allocation.cutoff.SAMPLE_SIZE", 10_000)
    chosen = is_sampled(key, len(key))
    assert 9_500 < chosen.sum() < 10_500
    assert (is_sampled(key[500:900], len(key)) == chosen[500:900]).all()


# Blocks in any order.


@given(tables, shares, st.integers(0, 999), st.integers(1, 4), st.floats(0, 0.5), st.floats(1.5, 4))
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
        bracket = between(low, high)
        at = locate_cutoff(scan(parts, bracket), budget, bracket)
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
    bracket = between(whole.price / 1.1, whole.price * 1.1)
    at = locate_cutoff(scan(parts, bracket), 3.3, bracket)
    assert at == cutoff_of(table, 3.3)
    chosen: dict[int, int] = {}
    for part in parts:
        chosen |= by_key(part, apply_cutoff(part, at).tolist())
    assert chosen == by_key(table, whole.choice.tolist())


@given(tables, shares, st.floats(0, 2), st.floats(0, 2))
def test_a_bracket_gives_the_right_cutoff_or_none(
    budget_at: BudgetAt, table: UtilityTable, share: float, one: float, other: float
) -> None:
    budget = budget_at(table, share)
    bracket = between(*sorted((one, other)))
    at = locate_cutoff(scan([table], bracket), budget, bracket)
    exact = cutoff_of(table, budget)
    assert at is None or at == exact
    assert (at is not None) == bracket.contains(exact)


def test_a_scan_keeps_only_undecided_questions() -> None:
    table = UtilityTable(np.array([[0.0, 0.9], [0.0, 0.5], [0.0, 0.1]]), np.array([1.0, 2.0]))
    found = scan([table], between(0.4, 0.6))
    assert found.n_questions == 3
    assert found.undecided.key.tolist() == [1]
    assert found.decided_cost == 3


def test_blocks_with_different_costs_merge() -> None:
    one = UtilityTable(np.array([[0.0, 1.0]]), np.array([1.0, 2.0]))
    two = UtilityTable(np.array([[0.0, 1.0]]), np.array([1.0, 3.0]), np.array([1]))
    three = UtilityTable(np.array([[0.0, 1.0]]), np.array([[1.0, 5.0]]), np.array([2]))
    merged = scan((one, two, three), Bracket())
    assert merged.undecided.cost.tolist() == [[1.0, 2.0], [1.0, 3.0], [1.0, 5.0]]
    at = locate_cutoff(merged, 1.75, Bracket())
    assert at is not None
    assert (at.price, at.key, at.level, at.probability) == (0.5, 1, 1, 0.625)


def test_without_undecided_questions_the_cutoff_is_zero_or_none() -> None:
    table = UtilityTable(np.array([[0.5]]), np.array([1.0]))
    for bracket, expected in ((between(0.0, 1.0), EVERYTHING), (between(0.5, 1.0), None)):
        assert locate_cutoff(scan([table], bracket), 1.0, bracket) == expected


def test_a_bracket_below_the_price_gives_none() -> None:
    table = UtilityTable(np.array([[0.0, 1.0]]), np.array([1.0, 2.0]))
    bracket = between(0.1, 0.2)
    assert locate_cutoff(scan([table], bracket), 1.5, bracket) is None


def test_a_budget_below_the_cheapest_levels_is_infeasible() -> None:
    table = UtilityTable(np.array([[0.0, 1.0]]), np.array([1.25, 2.0]))
    with pytest.raises(InfeasibleBudget, match=r"1 is below 1\.25"):
        cutoff_of(table, 1.0)
