from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adacompute.core.answers import UNPARSED, Answers
from adacompute.core.errors import DataError
from adacompute.core.utility import estimate
from adacompute.evaluation.pool import Pool, assign_folds

groups = st.lists(st.integers(0, 40), min_size=60, max_size=120).filter(lambda g: len(set(g)) >= 10)


def pool_of_lists(answer: list[list[int]]) -> Pool:
    """Return a pool in which sample i of question q costs 100 q + i."""
    size = len(answer)
    return Pool(
        answers=Answers.of(answer, [[a == 0 for a in row] for row in answer]),
        key=np.arange(size, dtype=np.uint64) + np.uint64(50),
        group=np.arange(size, dtype=np.uint64),
        features=np.arange(size, dtype=np.float32)[:, None],
        sample_cost=np.array(
            [100.0 * q + i for q, row in enumerate(answer) for i in range(len(row))]
        ),
    )


@given(groups, st.integers(2, 5), st.integers(0, 3))
def test_copies_of_a_question_share_a_fold(group: list[int], folds: int, seed: int) -> None:
    key = np.array(group, dtype=np.uint64)
    fold = assign_folds(key, folds, seed=seed)
    for copy in set(group):
        assert len(set(fold[key == copy].tolist())) == 1


@given(groups, st.integers(2, 5), st.integers(0, 99))
def test_a_fold_does_not_depend_on_the_order_of_questions(
    group: list[int], folds: int, seed: int
) -> None:
    key = np.array(group, dtype=np.uint64)
    order = np.random.default_rng(seed).permutation(len(key))
    assert (assign_folds(key, folds)[order] == assign_folds(key[order], folds)).all()


@given(groups, st.integers(2, 5))
def test_folds_have_equal_sizes(group: list[int], folds: int) -> None:
    unique = np.unique(np.array(group, dtype=np.uint64))
    sizes = np.bincount(assign_folds(unique, folds), minlength=folds)
    assert sizes.max() - sizes.min() <= 1


def test_too_few_questions_for_folds_are_refused() -> None:
    copies = np.zeros(50, dtype=np.uint64)
    with pytest.raises(DataError, match=r"1 independent questions are too few .* at least 10"):
        assign_folds(copies, 5)
    with pytest.raises(DataError, match=r"11 independent questions .* at least 12 are needed"):
        assign_folds(np.arange(11, dtype=np.uint64), 12)


def test_trim_keeps_the_first_samples_and_excludes_the_shortest_tenth() -> None:
    rows = [[0, 1, 2, 0, 1][: 3 + q % 3] for q in range(20)]
    rows[4], rows[9] = [0], []
    equal = pool_of_lists(rows).equalise()
    assert (len(equal), equal.n_excluded) == (18, 2)
    assert (equal.answers.n_samples == 3).all()
    assert (equal.answers.answer.reshape(-1, 3) == [0, 1, 2]).all()
    questions = [q for q in range(20) if q not in {4, 9}]
    assert equal.key.tolist() == [q + 50 for q in questions]
    assert equal.features[:, 0].tolist() == questions
    assert equal.sample_cost.tolist() == [100 * q + i for q in questions for i in range(3)]


def test_drop_unparsed_counts_and_keeps_parsed_samples_only() -> None:
    rows = [[UNPARSED, 0, UNPARSED, 1, 2] if q % 2 else [3, 0, 1, 2, UNPARSED] for q in range(20)]
    rows[7] = [UNPARSED, UNPARSED, 1, UNPARSED, 0]
    rows[8] = [UNPARSED] * 5
    equal = pool_of_lists(rows).equalise(drop_unparsed=True)
    assert (len(equal), equal.n_excluded) == (18, 2)
    assert (equal.answers.n_samples == 3).all()
    by_question = dict(
        zip(equal.key.tolist(), equal.answers.answer.reshape(-1, 3).tolist(), strict=True)
    )
    assert by_question[51] == [0, 1, 2]
    assert by_question[50] == [3, 0, 1]
    cost = dict(zip(equal.key.tolist(), equal.sample_cost.reshape(-1, 3).tolist(), strict=True))
    assert cost[51] == [101, 103, 104]


@pytest.mark.parametrize("drop_unparsed", [False, True])
def test_equalise_leaves_an_equal_pool_unchanged(small: Pool, drop_unparsed: bool) -> None:  # noqa: FBT001
    readable = small.keep(small.answers.answer != UNPARSED).equalise() if drop_unparsed else small
    again = readable.equalise(drop_unparsed=drop_unparsed)
    assert again.n_excluded == 0
    assert (again.answers.answer == readable.answers.answer).all()
    assert (again.sample_cost == readable.sample_cost).all()


def test_equalise_refuses_a_pool_without_parsed_samples() -> None:
    rows = [[UNPARSED, UNPARSED] if q < 3 else [0, 1] for q in range(20)]
    with pytest.raises(DataError, match="more than a tenth of the questions"):
        pool_of_lists(rows).equalise(drop_unparsed=True)
    with pytest.raises(DataError, match="no sample"):
        pool_of_lists([]).equalise()


def test_level_cost_is_the_mean_sample_cost_times_its_samples() -> None:
    pool = pool_of_lists([[0, 0, 0], [1, 1, 1]])
    assert pool.mean_sample_cost().tolist() == [1, 101]
    assert pool.level_cost((1, 3)).tolist() == [[1, 3], [101, 303]]
    assert pool.take(np.array([1])).level_cost((1, 3)).tolist() == [101, 303]


def test_table_equals_the_estimated_utility(small: Pool) -> None:
    table = small.table((1, 3))
    expected = estimate(small.answers, (1, 3), standard_errors=False).utility
    assert (table.utility == expected).all()
    assert table.cost.tolist() == [1, 3]
    assert (table.key == small.key).all()
    windows = small.table((1, 3), windows=True)
    assert (windows.utility != table.utility).any()
