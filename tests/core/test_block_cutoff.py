"""The cutoff of blocks is that of the whole table, whatever the sample says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from adacompute.core import block_cutoff
from adacompute.core.block_cutoff import (
    EVERYTHING,
    NOTHING,
    Bracket,
    estimate_bracket,
    find_block_cutoff,
    is_sampled,
    scan_bracket,
)
from adacompute.core.errors import InfeasibleBudget
from adacompute.core.oracle import find_cutoff
from adacompute.core.types import UtilityTable, hash_keys, sum_cost
from adacompute.core.upgrades import Cutoff, apply_cutoff

tables = st.from_type(UtilityTable)
COST = np.array([1.0, 2.0, 4.0, 8.0, 16.0])


def budget_at(table: UtilityTable, share: float) -> float:
    low, high = table.costs.min(axis=1).mean(), table.costs.max(axis=1).mean()
    return float(low + share * (high - low)) * (1 + 1e-12) + 1e-9


def make_table(n: int, *, grid: int | None, seed: int = 0) -> UtilityTable:
    rng = np.random.default_rng(seed)
    utility = np.clip(rng.random((n, 1)) + rng.normal(0, 0.15, (n, 5)) * np.arange(5) / 4, 0, 1)
    return UtilityTable(utility if grid is None else np.rint(utility * grid) / grid, COST)


@given(tables, st.floats(0, 1), st.integers(1, 9), st.data())
def test_any_blocks_and_samples_give_the_cutoff_of_the_table(
    table: UtilityTable, share: float, size: int, data: st.DataObject
) -> None:
    assume(len(table) and len(np.unique(table.key)) == len(table))
    budget = budget_at(table, share)
    rows = data.draw(st.sets(st.integers(0, len(table) - 1), min_size=1))
    blocks = data.draw(st.permutations(list(table.blocks(size))))
    sample = table.take(np.array(sorted(rows)))
    found = find_block_cutoff(lambda: blocks, sample, budget)
    assert found.cutoff == find_cutoff(table, budget)
    assert found.cost == sum_cost(table.cost_of(apply_cutoff(table, found.cutoff)))


@pytest.mark.parametrize("grid", [None, 16])
@pytest.mark.parametrize("budget", [1.2, 3.0, 9.0])
def test_few_questions_are_kept_even_if_upgrades_are_tied(grid: int | None, budget: float) -> None:
    table = make_table(60_000, grid=grid)
    sample = table.take(slice(None, None, 4))
    bracket = estimate_bracket(sample, budget, 4.0)
    kept = scan_bracket(table, bracket).undecided
    assert len(kept) < 0.1 * len(table)
    passes = []

    def read() -> list[UtilityTable]:
        passes.append(1)
        return list(table.blocks(7_000))

    assert find_block_cutoff(read, sample, budget).cutoff == find_cutoff(table, budget)
    assert len(passes) == 1


def test_a_misleading_sample_costs_further_passes_only() -> None:
    table = make_table(4_000, grid=None)
    easy = UtilityTable(np.tile(np.arange(5.0), (50, 1)), COST)
    passes = []

    def read() -> list[UtilityTable]:
        passes.append(1)
        return [table]

    assert find_block_cutoff(read, easy, 3.0).cutoff == find_cutoff(table, 3.0)
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
    exact = find_cutoff(table, budget)
    assert exact.key == order[3]
    assert block_cutoff._try(lambda: [table], bracket, budget) is None
    found = block_cutoff._try(lambda: [table], Bracket(), budget)
    assert found is not None
    assert found.cutoff == exact


def test_budgets_beyond_both_ends() -> None:
    table = make_table(500, grid=16)
    assert find_block_cutoff(lambda: [table], table, 99.0).cutoff == EVERYTHING
    assert find_block_cutoff(lambda: [table], table, 1.0).cutoff == find_cutoff(table, 1.0)
    with pytest.raises(InfeasibleBudget):
        find_block_cutoff(lambda: [table], table, 0.9)


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
    monkeypatch.setattr(block_cutoff, "SAMPLE_SIZE", 10_000)
    chosen = is_sampled(key, len(key))
    assert 9_500 < chosen.sum() < 10_500
    assert (is_sampled(key[500:900], len(key)) == chosen[500:900]).all()
