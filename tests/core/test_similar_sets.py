"""Joining similar sets, against a comparison of all pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from adacompute.core import similar_sets
from adacompute.core.similar_sets import join_linked, join_similar
from adacompute.core.types import hash_keys

if TYPE_CHECKING:
    import pytest

    from adacompute.core.types import IntArray, KeyArray

VOCABULARY = hash_keys(np.arange(4_000, dtype=np.uint64))


def compare_all(sets: list[KeyArray]) -> IntArray:
    """Join all pairs with a Jaccard similarity of at least 0.9, one by one."""
    pairs = [
        (i, j)
        for i in range(len(sets))
        for j in range(i)
        if 10 * len(shared := set(sets[i].tolist()) & set(sets[j].tolist()))
        >= 9 * (len(sets[i]) + len(sets[j]) - len(shared))
        and len(sets[i])
    ]
    first, second = (np.array([pair[k] for pair in pairs], dtype=np.int64) for k in (0, 1))
    return join_linked(len(sets), [(first, second)])


def make_sets(seed: int, size: int, count: int) -> list[KeyArray]:
    """Make sets that differ from their predecessor by about the limit, or not at all alike."""
    rng = np.random.default_rng(seed)
    sets: list[KeyArray] = []
    for _ in range(count):
        if not sets or rng.random() < 0.2:
            sets.append(rng.choice(VOCABULARY, int(rng.integers(0, size + 1)), replace=False))
            continue
        old = sets[rng.integers(len(sets))]
        kept = old[rng.random(len(old)) > rng.choice([0.0, 0.03, 0.06])]
        new = rng.choice(VOCABULARY, int(rng.integers(0, size // 15 + 2)), replace=False)
        sets.append(np.unique(np.concatenate([kept, new])))
    return sets


@given(st.integers(0, 10**6), st.integers(0, 120), st.integers(0, 25))
def test_join_similar_finds_exactly_the_pairs_of_a_full_comparison(
    seed: int, size: int, count: int
) -> None:
    sets = make_sets(seed, size, count)
    assert join_similar(sets).tolist() == compare_all(sets).tolist()


def test_the_limit_is_nine_tenths() -> None:
    base = VOCABULARY[:19]
    one, other = np.append(base[:18], VOCABULARY[20]), np.append(base[:18], VOCABULARY[21])
    assert join_similar([base, one]).tolist() == [0, 0]  # 18 / 20
    assert join_similar([base[:18], one[:17]]).tolist() == [0, 0]  # 17 / 18
    assert join_similar([one[1:], other[1:]]).tolist() == [0, 1]  # 17 / 19


def test_many_long_sets_are_compared_by_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    bases = [rng.choice(VOCABULARY, 1_500, replace=False) for _ in range(20)]
    sets = [one for base in bases for one in (base, base[5:])]
    exact = join_similar(sets)
    assert len(set(exact.tolist())) == 20
    monkeypatch.setattr(similar_sets, "MAX_PRODUCTS", 3_000)
    assert join_similar(sets).tolist() == exact.tolist()
    monkeypatch.setattr(similar_sets, "MAX_EXACT_SETS", 10)
    monkeypatch.setattr(similar_sets, "MAX_HASHES", 40_000)
    assert join_similar(sets).tolist() == exact.tolist()
    # Shares of fewer than 32 hashes say too little.
    monkeypatch.setattr(similar_sets, "MAX_HASHES", 1_000)
    assert len(set(join_similar(sets).tolist())) == 40


def test_more_candidates_than_are_compared_at_once_are_split(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(similar_sets, "MAX_EXACT_SETS", 8)
    rng = np.random.default_rng(1)
    # All are linked by equal parts, and only pairs are similar.
    base = VOCABULARY[:600]
    sets = []
    for _ in range(15):
        one = base[rng.random(600) > 0.12]
        sets += [one, one[:-1]]
    found, exact = join_similar(sets), compare_all(sets)
    assert len(set(exact.tolist())) == 15
    assert 15 <= len(set(found.tolist())) <= 20
    assert (exact[found] == exact).all()  # it joins no others
