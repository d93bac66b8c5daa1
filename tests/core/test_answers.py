from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adacompute.core.answers import (
    UNPARSED,
    Answers,
    number_classes_by_question,
    order_samples,
)
from adacompute.core.errors import DataError
from adacompute.core.types import KeyArray
from test_support.episodes import number_classes

samples = st.from_type(Answers)


def rows(answers: Answers) -> list[list[tuple[int, bool, float]]]:
    """Return Answers as plain lists, one per question."""
    assert answers.score is not None
    flat = list(
        zip(answers.answer.tolist(), answers.correct.tolist(), answers.score.tolist(), strict=True)
    )
    return [flat[a:b] for a, b in itertools.pairwise(answers.offsets.tolist())]


def keys(answers: Answers) -> KeyArray:
    return np.arange(len(answers), dtype=np.uint64)


def numbered(*sizes: int) -> Answers:
    """Build samples that are identified by their score."""
    total = sum(sizes)
    return Answers(
        np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]),
        np.zeros(total, dtype=np.int64),
        np.zeros(total, dtype=np.bool_),
        np.arange(total, dtype=np.float64),
    )


def test_of_builds_from_lists() -> None:
    answers = Answers.of([[0, 1], [], [UNPARSED]], correct=[[True, False], [], [False]])
    assert (len(answers), answers.n_samples.tolist()) == (3, [2, 0, 1])
    assert answers.n_parsed.tolist() == [2, 0, 0]
    assert answers.question.tolist() == [0, 0, 2]
    assert answers.position.tolist() == [0, 1, 0]
    assert len(Answers.of([], correct=[])) == 0


@pytest.mark.parametrize("offsets", [[], [0, 2], [1, 3], [0, 4, 3]])
def test_offsets_must_match_the_samples(offsets: list[int]) -> None:
    with pytest.raises(DataError, match="offsets"):
        Answers(np.array(offsets, dtype=np.int64), np.zeros(3, np.int64), np.zeros(3, np.bool_))


def test_every_sample_needs_a_grade_and_a_score() -> None:
    answer, right = np.zeros(3, np.int64), np.zeros(3, np.bool_)
    with pytest.raises(DataError, match="3 samples need 3 grades"):
        Answers(np.array([0, 3]), answer, right[:1])
    with pytest.raises(DataError, match="scores"):
        Answers(np.array([0, 3]), answer, right, np.zeros(1))


def test_classes_below_unparsed_are_rejected() -> None:
    with pytest.raises(DataError, match="-1 or a number from 0 on"):
        Answers.of([[-2]], correct=[[False]])


def test_an_unparsed_sample_cannot_be_correct() -> None:
    with pytest.raises(DataError, match="marked as correct"):
        Answers.of([[UNPARSED]], correct=[[True]])


@given(samples)
def test_class_accuracy_is_the_share_of_correct_samples(answers: Answers) -> None:
    share = iter(answers.class_accuracy.tolist())
    for row in rows(answers):
        for answer, _, _ in row:
            own = [right for other, right, _ in row if other == answer]
            assert next(share) == pytest.approx(sum(own) / len(own), abs=1e-15)


@given(samples, st.data())
def test_take_keeps_samples_in_order(answers: Answers, data: st.DataObject) -> None:
    which = data.draw(st.lists(st.integers(0, len(answers) - 1), max_size=4))
    expected = [rows(answers)[q] for q in which]
    assert rows(answers.take(np.array(which, dtype=np.int64))) == expected
    mask = np.isin(np.arange(len(answers)), which)
    assert rows(answers.take(mask)) == [rows(answers)[q] for q in sorted(set(which))]


@given(samples, st.data())
def test_keep_keeps_every_question(answers: Answers, data: st.DataObject) -> None:
    mask = np.array([data.draw(st.booleans()) for _ in answers.answer], dtype=np.bool_)
    kept = answers.keep(mask)
    keeps = iter(mask.tolist())
    assert rows(kept) == [[s for s in row if next(keeps)] for row in rows(answers)]


@given(samples, st.integers(0, 7))
def test_first_returns_the_first_samples(answers: Answers, number: int) -> None:
    assert rows(answers.first(number)) == [row[:number] for row in rows(answers)]


def test_missing_scores_stay_missing() -> None:
    answers = Answers.of([[0, 1]], correct=[[True, False]])
    assert answers.first(1).score is None


@given(samples)
def test_classes_of_many_questions_are_numbered_like_those_of_one(answers: Answers) -> None:
    codes = np.where(answers.answer == UNPARSED, UNPARSED, 7 - answers.answer)
    expected: list[int] = []
    for a, b in itertools.pairwise(answers.offsets.tolist()):
        expected += number_classes(None if c == UNPARSED else c for c in codes[a:b].tolist())
    assert number_classes_by_question(answers.question, codes).tolist() == expected


@given(st.lists(st.integers(0, 7), min_size=1, max_size=4), st.integers(0, 99))
def test_halves_are_disjoint_and_equally_large(sizes: list[int], seed: int) -> None:
    whole = numbered(*sizes)
    one, two = whole.halves(np.random.default_rng(seed))
    for all_of, left, right in zip(rows(whole), rows(one), rows(two), strict=True):
        assert len(left) == len(right) == len(all_of) // 2
        assert not set(left) & set(right)
        assert set(left) | set(right) <= set(all_of)


def test_every_half_is_equally_likely() -> None:
    rng = np.random.default_rng(0)
    halves = [tuple(s for _, _, s in rows(numbered(4).halves(rng)[0])[0]) for _ in range(3000)]
    counts = Counter(halves)
    assert len(counts) == 6
    assert all(400 < count < 600 for count in counts.values())


@given(samples)
def test_groups_hold_every_question_once_with_its_samples(answers: Answers) -> None:
    seen: dict[int, list[int]] = {}
    for which, index in answers.groups():
        assert index.shape[0] == len(which)
        seen |= dict(zip(which.tolist(), index.tolist(), strict=True))
    bounds = itertools.pairwise(answers.offsets.tolist())
    assert seen == {q: list(range(a, b)) for q, (a, b) in enumerate(bounds)}


@given(
    st.lists(st.integers(3, 6), min_size=1, max_size=4),
    st.integers(1, 8),
    st.integers(1, 3),
    st.integers(0, 99),
)
def test_orders_contain_a_questions_own_samples_once(
    sizes: list[int], orders: int, length: int, seed: int
) -> None:
    answers = numbered(*sizes)
    index = order_samples(answers, keys(answers), n_orders=orders, length=length, seed=seed)
    assert index.shape == (len(sizes), orders, length)
    for q, own in enumerate(index):
        assert ((own >= answers.offsets[q]) & (own < answers.offsets[q + 1])).all()
        assert all(len(set(order)) == length for order in own.tolist())
    again = order_samples(answers, keys(answers), n_orders=orders, length=length, seed=seed)
    assert np.array_equal(index, again)


def test_every_order_is_equally_likely() -> None:
    answers = numbered(*[3] * 6000)
    index = order_samples(answers, keys(answers), n_orders=1, length=3, seed=0)
    counts = Counter(tuple((order[0] % 3).tolist()) for order in index)
    assert len(counts) == 6
    assert all(850 < count < 1150 for count in counts.values())


def test_orders_form_a_latin_design() -> None:
    answers = numbered(5, 5, 4)
    index = order_samples(answers, keys(answers), n_orders=5, length=4, seed=1)
    for own in index[:2]:
        for column in own.T:
            assert len(set(column.tolist())) == 5


def test_orders_are_not_rotations_of_each_other() -> None:
    answers = numbered(*[9] * 20)
    index = order_samples(answers, keys(answers), n_orders=2, length=9, seed=2)
    assert not any(two[:-1].tolist() == one[1:].tolist() for one, two in index)


def test_orders_longer_than_the_samples_are_rejected() -> None:
    with pytest.raises(DataError, match="needs 4 samples, one has 3"):
        order_samples(numbered(5, 3), np.zeros(2, np.uint64), n_orders=2, length=4, seed=0)


@given(st.lists(st.integers(4, 9), min_size=2, max_size=8), st.integers(0, 99))
def test_orders_of_a_question_do_not_depend_on_other_questions(sizes: list[int], seed: int) -> None:
    answers = numbered(*sizes)
    key = np.random.default_rng(seed).permutation(2 * len(sizes))[: len(sizes)].astype(np.uint64)
    every = order_samples(answers, key, n_orders=6, length=4, seed=seed)
    rows = np.arange(len(sizes) - 1, 0, -1)  # without the first question, in another order
    some = order_samples(answers.take(rows), key[rows], n_orders=6, length=4, seed=seed)
    first, taken = answers.offsets[rows], answers.take(rows).offsets[:-1]
    assert np.array_equal(every[rows] - first[:, None, None], some - taken[:, None, None])


def test_orders_of_different_keys_differ() -> None:
    index = (
        order_samples(
            numbered(9, 9, 9), np.array([4, 4, 5], dtype=np.uint64), n_orders=9, length=9, seed=0
        )
        - 9 * np.arange(3)[:, None, None]
    )
    assert np.array_equal(index[0], index[1])
    assert not np.array_equal(index[0], index[2])
