from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from adacompute.core.errors import DataError
from adacompute.core.types import (
    MAX_COST,
    Allocation,
    FloatArray,
    KeyArray,
    Split,
    UtilityTable,
    cost_units,
    hash_keys,
    hash_text,
    join_tables,
    make_levels,
    quantise_cost,
    replace_surrogates,
    sum_cost,
    text_id,
)

costs = arrays(
    np.float64,
    st.integers(0, 20),
    elements=st.one_of(st.floats(0, MAX_COST), st.integers(0, 2**32).map(float)),
) | arrays(np.float64, st.integers(0, 20), elements=st.floats(0, 1e-4))


# Levels, keys and costs.


def test_levels_are_named_by_their_samples() -> None:
    levels = make_levels((1, 4, 16), model="small")
    assert [(level.name, level.n_samples, level.model) for level in levels] == [
        ("1", 1, "small"),
        ("4", 4, "small"),
        ("16", 16, "small"),
    ]
    assert levels[0].settings == {}


@pytest.mark.parametrize("samples", [(), (0, 1), (2, 1), (1, 1), (-1,)])
def test_levels_must_increase_from_one(samples: tuple[int, ...]) -> None:
    with pytest.raises(DataError, match="increasing"):
        make_levels(samples)


def test_an_id_is_the_hash_of_the_text() -> None:
    assert int(text_id("What is 7 + 6?"), 16) == hash_text("What is 7 + 6?") == 0x3A781A84D1980C8F


@given(st.lists(st.sampled_from("5 €\U0001f600\ud83d\ude00")).map("".join))
def test_only_halves_of_surrogate_pairs_are_replaced(text: str) -> None:
    expected = text.replace("\ud83d", "?").replace("\ude00", "?")
    assert replace_surrogates(text) == expected


@given(arrays(np.uint64, st.integers(0, 50), unique=True))
def test_hashing_keys_is_injective(key: KeyArray) -> None:
    assert len(np.unique(hash_keys(key))) == len(key)


def test_hashing_keys_is_splitmix64() -> None:
    expected = [0xE220A8397B1DCDAF, 0x910A2DEC89025CC1]
    assert hash_keys(np.array([0, 1], dtype=np.uint64)).tolist() == expected


@given(costs)
def test_costs_are_rounded_up_to_the_next_multiple_or_kept(cost: FloatArray) -> None:
    rounded, units = quantise_cost(cost), int(cost_units(max(cost, default=0.0)))
    for before, after in zip(cost.tolist(), rounded.tolist(), strict=True):
        counted = Fraction(after) * units
        assert counted.denominator == 1
        assert counted == math.ceil(Fraction(before) * units)


@given(costs)
def test_rounding_costs_is_idempotent(cost: FloatArray) -> None:
    rounded = quantise_cost(cost)
    assert quantise_cost(rounded).tolist() == rounded.tolist()


@given(costs, st.data())
def test_the_units_of_a_part_are_at_least_as_fine(cost: FloatArray, data: st.DataObject) -> None:
    whole = quantise_cost(cost)
    part = whole[: data.draw(st.integers(0, len(whole)))]
    assert cost_units(max(part, default=0.0)) >= cost_units(max(whole, default=0.0)) or not any(
        part
    )
    assert sum_cost(part) + sum_cost(whole[len(part) :]) == sum_cost(whole)


@given(arrays(np.float64, 5, elements=st.floats(1e-9, 1.0)))
def test_small_costs_are_rounded_by_less_than_two_millionths(cost: FloatArray) -> None:
    assert bool((quantise_cost(cost) - cost < 2e-6 * cost.max()).all())


@given(costs)
def test_costs_are_summed_exactly(cost: FloatArray) -> None:
    whole = quantise_cost(cost)
    assert sum_cost(whole) == sum((Fraction(c) for c in whole.tolist()), Fraction(0))


def test_costs_are_summed_exactly_beyond_float_precision() -> None:
    cost = np.full(2**22 + 1, MAX_COST - 1)
    cost[0] = 1.0
    assert sum_cost(cost) == 2**22 * (2**32 - 1) + 1


@pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf, 2.0**33])
def test_invalid_costs_are_rejected(bad: float) -> None:
    with pytest.raises(DataError, match="numbers from 0 to 4294967296"):
        quantise_cost([1.0, bad])


# Tables.


def test_a_table_needs_two_dimensions() -> None:
    for utility in (np.zeros(3), np.zeros((2, 0)), np.zeros((1, 1, 1))):
        with pytest.raises(DataError, match=r"\(questions, levels\)"):
            UtilityTable(utility, np.array([1.0]))


@pytest.mark.parametrize("bad", [[np.nan, 0.0], [np.inf, 0.0], [np.inf, -np.inf]])
def test_utilities_must_be_finite(bad: list[float]) -> None:
    with pytest.raises(DataError, match="finite"):
        UtilityTable(np.array([bad]), np.array([1.0, 2.0]))


def test_the_sum_of_utilities_may_overflow() -> None:
    assert len(UtilityTable(np.full((2, 2), 1e308), np.array([1.0, 2.0]))) == 2


def test_keys_default_to_row_numbers() -> None:
    utility, cost = np.zeros((3, 2)), np.array([1.0, 2.0])
    assert UtilityTable(utility, cost).key.tolist() == [0, 1, 2]
    assert UtilityTable(utility, cost, np.array([5, 6, 2**64 - 1], dtype=np.uint64)).key[2] > 2**63
    with pytest.raises(DataError, match="key must have shape"):
        UtilityTable(utility, cost, np.array([1, 2], dtype=np.uint64))


@pytest.mark.parametrize("shape", [(3,), (2,), (3, 2, 1), (2, 3)])
def test_costs_of_another_shape_are_rejected(shape: tuple[int, ...]) -> None:
    utility = np.zeros((3, 4))
    with pytest.raises(DataError, match="cost must have shape"):
        UtilityTable(utility, np.ones(shape))


def full_table() -> UtilityTable:
    return UtilityTable(
        np.arange(12.0).reshape(4, 3),
        np.array([1.0, 2.0, 3.0]),
        np.array([9, 8, 7, 6], dtype=np.uint64),
    )


@pytest.mark.parametrize(
    "rows",
    [np.array([2, 0]), np.array([True, False, True, False]), slice(1, 3)],
    ids=["numbers", "mask", "slice"],
)
def test_take_keeps_all_fields(rows: slice) -> None:
    table = full_table()
    part = table.take(rows)
    assert part.utility.tolist() == table.utility[rows].tolist()
    assert part.key.tolist() == table.key[rows].tolist()
    assert part.cost.tolist() == [1.0, 2.0, 3.0]


@given(st.from_type(UtilityTable), st.integers(1, 7))
def test_blocks_concatenate_to_the_table(table: UtilityTable, size: int) -> None:
    blocks = list(table.blocks(size))
    assert np.concatenate([block.key for block in blocks]).tolist() == table.key.tolist()
    assert np.concatenate([block.costs for block in blocks]).tolist() == table.costs.tolist()
    assert all(len(block) == size for block in blocks[:-1])
    assert np.shares_memory(blocks[0].utility, table.utility)


@given(st.from_type(UtilityTable), st.data())
def test_cost_of_and_utility_of_a_choice(table: UtilityTable, data: st.DataObject) -> None:
    level = st.integers(0, table.n_levels - 1)
    choice = np.array([data.draw(level) for _ in range(len(table))])
    for row, k in enumerate(choice.tolist()):
        assert table.cost_of(choice)[row] == table.costs[row, k]
        assert table.utility_of(choice)[row] == table.utility[row, k]


# Allocations.


def allocation(*, utility: float, bound: float) -> Allocation:
    none = np.empty(0, dtype=np.int64)
    return Allocation(
        choice=np.array([0, 2, 2, 0]),
        price=0.1,
        cost=1.0,
        utility=utility,
        bound=bound,
        split=Split(none, none, np.empty(0)),
        mixed_cost=1.0,
        mixed_utility=utility,
    )


def test_the_gap_is_never_negative() -> None:
    assert allocation(utility=0.25, bound=0.75).gap == 0.5
    assert allocation(utility=0.75, bound=0.75 - 1e-16).gap == 0.0


def test_shares_count_the_questions_at_each_level() -> None:
    assert allocation(utility=0.0, bound=0.0).shares(4).tolist() == [0.5, 0.0, 0.5, 0.0]


def test_an_empty_split_has_length_zero() -> None:
    assert len(allocation(utility=0.0, bound=0.0).split) == 0


@pytest.mark.parametrize("costs", [[0.1, 0.3], [[0.1, 0.3], [0.2, 0.4]]])
def test_tables_are_joined_with_their_costs(costs: list[float]) -> None:
    cost = np.array(costs)
    table = UtilityTable(np.array([[0.1, 0.9], [0.2, 0.8]]), cost, np.array([5, 7]))
    joined = join_tables([table.take(slice(0, 1)), table.take(slice(1, 2))])
    assert joined.costs.tolist() == table.costs.tolist()
    assert joined.key.tolist() == [5, 7]
    assert joined.cost.ndim == cost.ndim
