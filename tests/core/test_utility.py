from __future__ import annotations

import itertools
import math
import tracemalloc
from collections import Counter
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adacompute.core import utility, votes
from adacompute.core.answers import UNPARSED, Answers
from adacompute.core.errors import ConfigError, DataError
from adacompute.core.utility import estimate, estimate_windows, probability_of_best

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from adacompute.core.types import FloatArray, IntArray

samples = st.from_type(Answers)
Sample = tuple[int, bool, float]


def pools(answers: Answers) -> list[list[Sample]]:
    """Return samples as plain lists of (class, correct, score), one per question."""
    score = np.zeros(len(answers.answer)) if answers.score is None else answers.score
    flat = list(zip(answers.answer.tolist(), answers.correct.tolist(), score.tolist(), strict=True))
    return [flat[a:b] for a, b in itertools.pairwise(answers.offsets.tolist())]


def shares_of(pool: list[Sample]) -> dict[int, Fraction]:
    sizes = Counter(answer for answer, _, _ in pool)
    right = Counter(answer for answer, is_right, _ in pool if is_right)
    return {answer: Fraction(right[answer], size) for answer, size in sizes.items()}


def leading_share(totals: dict[int, float], shares: dict[int, Fraction]) -> Fraction:
    best = [answer for answer, total in totals.items() if total == max(totals.values())]
    return sum((shares[answer] for answer in best), Fraction()) / len(best) if best else Fraction()


def by_majority(drawn: Iterable[Sample], shares: dict[int, Fraction]) -> Fraction:
    return leading_share(dict(Counter(a for a, _, _ in drawn if a != UNPARSED)), shares)


def by_score(drawn: Iterable[Sample], shares: dict[int, Fraction]) -> Fraction:
    del shares
    parsed = [(score, right) for answer, right, score in drawn if answer != UNPARSED]
    best = [right for score, right in parsed if score == max(parsed)[0]]
    return Fraction(sum(best), len(best)) if best else Fraction()


def by_luck(drawn: Iterable[Sample], shares: dict[int, Fraction]) -> Fraction:
    del shares
    return Fraction(any(right for _, right, _ in drawn))


RULES: dict[str, Callable[[Iterable[Sample], dict[int, Fraction]], Fraction]] = {
    "majority": by_majority,
    "best-of": by_score,
    "any": by_luck,
}


def over_subsets(pool: list[Sample], size: int, vote: str = "majority") -> Fraction:
    """Average a vote over all subsets of a pool."""
    shares = shares_of(pool)
    values = [RULES[vote](drawn, shares) for drawn in itertools.combinations(pool, size)]
    return sum(values, Fraction()) / len(values)


def draw_population(seed: int, questions: int, samples_each: int, repeats: int) -> Answers:
    """Sample questions of six classes, the first correct, several times each."""
    rng = np.random.default_rng(seed)
    measure_states = np.repeat(rng.dirichlet(np.full(6, 0.7), size=questions), repeats, axis=0)
    edges = np.cumsum(measure_states, axis=1)[:, None, :]
    answer = (rng.random((len(measure_states), samples_each, 1)) > edges[:, :, :-1]).sum(axis=2)
    answer[rng.random(answer.shape) < 0.05] = UNPARSED
    offsets = np.arange(len(measure_states) + 1) * samples_each
    return Answers(offsets, answer.ravel(), answer.ravel() == 0)


# The exact estimator.


@given(samples)
def test_exact_is_the_average_over_all_subsets(answers: Answers) -> None:
    levels = tuple(range(1, int(answers.n_samples.min()) + 1))
    found = estimate(answers, levels).utility
    for row, pool in enumerate(pools(answers)):
        for k, size in enumerate(levels):
            expected = float(over_subsets(pool, size))
            assert found[row, k] == pytest.approx(expected, abs=1e-12, rel=0)


@pytest.mark.parametrize("vote", ["best-of", "any"])
@given(answers=samples)
def test_order_statistics_are_the_average_over_all_subsets(vote: str, answers: Answers) -> None:
    levels = tuple(range(1, int(answers.n_samples.min()) + 1))
    found = estimate(answers, levels, vote=vote)
    for row, pool in enumerate(pools(answers)):
        for k, size in enumerate(levels):
            expected = float(over_subsets(pool, size, vote))
            assert found.utility[row, k] == pytest.approx(expected, abs=1e-12, rel=0)
    assert np.isnan(found.standard_error).all()


def test_any_needs_no_score() -> None:
    answers = Answers.of([[0, 1, 1]], correct=[[True, False, False]])
    assert estimate(answers, (2,), vote="any").utility.tolist() == [[pytest.approx(2 / 3)]]


def test_exact_agrees_with_random_subsets_of_many_samples() -> None:
    answers = draw_population(7, questions=6, samples_each=60, repeats=1)
    found = estimate(answers, (1, 5, 16, 32), standard_errors=False).utility
    rng = np.random.default_rng(0)
    trials = 4000
    for row, (start, end) in enumerate(itertools.pairwise(answers.offsets)):
        for k, size in enumerate((1, 5, 16, 32)):
            index = start + rng.random((trials, end - start)).argsort(axis=1)[:, :size]
            value = votes.majority_accuracy(answers.answer[index], answers.class_accuracy[index])
            noise = 4.5 * float(value.std()) / math.sqrt(trials) + 1e-3
            assert found[row, k] == pytest.approx(float(value.mean()), abs=noise)


@pytest.mark.parametrize(("levels", "size"), [((1, 2), 4), ((1, 2, 3), 3), ((2,), 5)])
def test_exact_is_unbiased(levels: tuple[int, ...], size: int) -> None:
    """Average the estimate over all sequences of samples, by their probability."""
    measure_states = {0: Fraction(1, 2), 1: Fraction(1, 3), UNPARSED: Fraction(1, 6)}
    sequences = list(itertools.product(measure_states, repeat=size))
    answer = np.array(sequences).ravel()
    answers = Answers(np.arange(len(sequences) + 1) * size, answer, answer == 0)
    found = estimate(answers, levels).utility
    weight = np.array([float(math.prod(measure_states[a] for a in s)) for s in sequences])
    for k, level in enumerate(levels):
        truth = sum(
            math.prod((measure_states[a] for a in s), start=Fraction(1))
            * by_majority(((a, False, 0.0) for a in s), {0: Fraction(1), 1: Fraction()})
            for s in itertools.product(measure_states, repeat=level)
        )
        assert float(weight @ found[:, k]) == pytest.approx(float(truth), abs=1e-12)


def test_windows_vary_more_than_the_exact_estimator() -> None:
    questions, repeats = 40, 200
    answers = draw_population(11, questions, samples_each=48, repeats=repeats)
    exact = estimate(answers, (16,), standard_errors=False).utility
    spread, of_windows = (
        float(found.reshape(questions, repeats).var(axis=1, ddof=1).mean())
        for found in (exact, estimate_windows(answers, (16,)))
    )
    assert of_windows > 1.3 * spread


def test_questions_are_processed_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = draw_population(2, questions=23, samples_each=9, repeats=1)
    whole = estimate(answers, (1, 4))
    monkeypatch.setattr(utility, "BLOCK_SIZE", 5)
    parts = estimate(answers, (1, 4))
    assert np.array_equal(whole.utility, parts.utility)
    assert np.array_equal(whole.standard_error, parts.standard_error)


def test_questions_may_differ_in_their_number_of_samples() -> None:
    answers = Answers.of([[0, 1, 1], [0, 0]], correct=[[True, False, False], [True, True]])
    assert estimate(answers, (2,)).utility.tolist() == [[pytest.approx(1 / 3)], [1.0]]
    assert estimate_windows(answers, (2,)).tolist() == [[0.5], [1.0]]


def test_unparsed_samples_have_utility_zero() -> None:
    answers = Answers.of([[UNPARSED, UNPARSED, UNPARSED]], correct=[[False, False, False]])
    found = estimate(answers, (1, 2, 3))
    assert found.utility.tolist() == [[0.0, 0.0, 0.0]]
    assert found.standard_error[0, :2].tolist() == [0.0, 0.0]


def test_no_questions_give_an_empty_estimate() -> None:
    found = estimate(Answers.of([], correct=[]), (1, 2))
    assert found.utility.shape == found.standard_error.shape == (0, 2)


@given(samples)
def test_classes_are_counted(answers: Answers) -> None:
    counts, right, unparsed = answers.count_classes()
    for row, pool in enumerate(pools(answers)):
        for answer in range(counts.shape[1]):
            assert counts[row, answer] == sum(a == answer for a, _, _ in pool)
            assert right[row, answer] == sum(a == answer and r for a, r, _ in pool)
        assert unparsed[row] == sum(a == UNPARSED for a, _, _ in pool)


@given(st.integers(1, 60), st.data())
def test_probability_of_best_is_a_ratio_of_binomials(total: int, data: st.DataObject) -> None:
    size = data.draw(st.integers(1, total))
    ways = [math.comb(i, size - 1) / math.comb(total, size) for i in range(total)]
    assert np.allclose(probability_of_best(total, size), ways, rtol=1e-12, atol=0)


# Standard errors.


def delete_one(pool: list[Sample], size: int) -> float:
    left_out = [over_subsets(pool[:i] + pool[i + 1 :], size) for i in range(len(pool))]
    mean = sum(left_out, Fraction()) / len(pool)
    squares = sum(((value - mean) ** 2 for value in left_out), Fraction())
    return math.sqrt(squares * (len(pool) - 1) / len(pool))


@given(samples)
def test_standard_errors_are_the_delete_one_jackknife(answers: Answers) -> None:
    levels = tuple(range(1, int(answers.n_samples.min()) + 1))
    found = estimate(answers, levels).standard_error
    for row, pool in enumerate(pools(answers)):
        for k, size in enumerate(levels):
            if size == len(pool):
                assert np.isnan(found[row, k])
            else:
                assert found[row, k] == pytest.approx(delete_one(pool, size), abs=1e-7)


def test_standard_errors_of_one_sample_are_those_of_a_mean() -> None:
    answers = draw_population(5, questions=10, samples_each=40, repeats=1)
    right = answers.correct.reshape(10, 40)
    expected = right.std(axis=1, ddof=1) / math.sqrt(40)
    assert np.allclose(estimate(answers, (1,)).standard_error[:, 0], expected, atol=1e-9)


def test_standard_errors_can_be_skipped() -> None:
    answers = draw_population(5, questions=3, samples_each=5, repeats=1)
    with_errors, without = (
        estimate(answers, (1, 2)),
        estimate(answers, (1, 2), standard_errors=False),
    )
    assert np.isfinite(with_errors.standard_error).all()
    assert np.isnan(without.standard_error).all()
    assert np.array_equal(with_errors.utility, without.utility)


# The paper's estimators.


def test_windows_average_the_votes_of_consecutive_samples() -> None:
    answers = Answers.of(
        [[0, 0, 1, 1, 1, 0, 2]], correct=[[True, True, False, False, False, True, False]]
    )
    found = estimate_windows(answers, (1, 2, 3, 7))
    assert found[0].tolist() == pytest.approx([3 / 7, 0.5, 0.5, 0.5], abs=1e-12)


# Facts.


@given(samples)
def test_without_unparsed_samples_two_samples_equal_one(answers: Answers) -> None:
    parsed = answers.keep(answers.answer != UNPARSED)
    parsed = parsed.take(parsed.n_samples >= 2)
    found = estimate(parsed, (1, 2)).utility
    assert np.allclose(found[:, 0], found[:, 1], atol=1e-12, rtol=0)


def test_windows_of_two_equal_one_sample_if_they_use_all() -> None:
    answers = draw_population(4, questions=100, samples_each=48, repeats=1)
    answers = answers.keep(answers.answer != UNPARSED)
    answers = answers.take(answers.n_samples % 2 == 0)
    found = estimate_windows(answers, (1, 2))
    assert len(found) > 20
    assert np.array_equal(found[:, 0], found[:, 1])


@given(samples)
def test_with_unparsed_samples_the_second_sample_is_a_retry(answers: Answers) -> None:
    """Of two samples each parsed one counts half, or fully if the other is unparsed."""
    answers = answers.take(answers.n_samples >= 2)
    size = answers.n_samples
    p = np.bincount(answers.question, answers.correct, minlength=len(answers)) / size
    q = 1 - answers.n_parsed / size
    expected = p * (1 + q * size / (size - 1))
    assert np.allclose(estimate(answers, (2,)).utility[:, 0], expected, atol=1e-12, rtol=0)


@given(st.integers(1, 12), st.integers(1, 12), st.data())
def test_with_two_classes_an_even_level_equals_the_odd_one_below(
    first: int, second: int, data: st.DataObject
) -> None:
    answer = [0] * first + [1] * second
    right = [data.draw(st.booleans()) for _ in answer]
    answers = Answers.of([answer], correct=[right])
    found = estimate(answers, range(1, first + second + 1)).utility[0]
    even = found[1::2]
    assert np.allclose(even, found[: 2 * len(even) : 2], atol=1e-12, rtol=0)


def test_with_three_classes_an_even_level_can_be_worth_more() -> None:
    answers = Answers.of([[0, 0, 0, 1, 2, 3, 4, 5]], correct=[[True] * 3 + [False] * 5])
    three, four = estimate(answers, (3, 4)).utility[0]
    assert four > three + 0.01


def test_levels_of_equal_utility_compare_equal() -> None:
    answers = draw_population(3, questions=200, samples_each=30, repeats=1)
    answers = answers.keep(answers.answer != UNPARSED)
    found = estimate(answers, (1, 2), standard_errors=False).utility
    assert np.array_equal(found[:, 0], found[:, 1])
    sure = Answers.of([[0] * 9 + [UNPARSED]], correct=[[True] * 9 + [False]])
    assert estimate(sure, (2, 3, 5, 8)).utility.tolist() == [[1.0, 1.0, 1.0, 1.0]]


# What is refused.


def test_an_unknown_vote_is_rejected() -> None:
    answers = Answers.of([[0]], correct=[[True]])
    with pytest.raises(ConfigError, match="'plurality'"):
        estimate(answers, (1,), vote="plurality")


@pytest.mark.parametrize("levels", [(1, 3), (0, 1), ()])
def test_levels_above_the_samples_are_rejected(levels: tuple[int, ...]) -> None:
    for function in (estimate, estimate_windows):
        with pytest.raises(DataError, match="lower the levels or collect more"):
            function(Answers.of([[0, 0]], correct=[[True, True]]), levels)


@pytest.mark.parametrize("score", [None, [np.nan, 0.1], [0.1, np.inf]])
def test_votes_by_score_need_finite_scores(score: list[float] | None) -> None:
    offsets: IntArray = np.array([0, 2])
    answers = Answers(
        offsets,
        np.array([0, 1]),
        np.array([True, False]),
        None if score is None else np.array(score),
    )
    with pytest.raises(DataError, match="needs a finite score"):
        estimate(answers, (1,), vote="best-of")


def test_scores_of_unparsed_samples_are_ignored() -> None:
    answers = Answers(
        np.array([0, 3]),
        np.array([0, 1, UNPARSED]),
        np.array([True, False, False]),
        np.array([0.9, 0.1, np.nan]),
    )
    assert estimate(answers, (3,), vote="best-of").utility.tolist() == [[1.0]]


def test_probabilities_that_underflow_are_rejected() -> None:
    answers = draw_population(0, questions=1, samples_each=1060, repeats=1)
    with pytest.raises(DataError, match="lower the levels"):
        estimate(answers, (1, 1060))


def test_memory_does_not_grow_with_pairs_of_samples() -> None:
    questions, samples = 6000, 48
    answer = np.random.default_rng(0).integers(-1, 4, questions * samples)
    answers = Answers(np.arange(questions + 1) * samples, answer, answer == 0)
    tracemalloc.start()
    estimate(answers, (1, 16), vote="any")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 80e6


def test_questions_with_the_same_counts_are_estimated_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[int] = []
    original = utility._over_subsets

    def count(counts: FloatArray, *rest: Any) -> FloatArray:
        seen.append(len(counts))
        return original(counts, *rest)

    monkeypatch.setattr(utility, "_over_subsets", count)
    rows = [[0, 0, 1, 2], [1, 2, 2, 0], [UNPARSED, 0, 1, 1]]
    correct = [[True, True, False, False], [False, True, True, False], [False, True, False, False]]
    found = estimate(Answers.of(rows * 500, correct=correct * 500), (1, 2, 3))
    assert seen[0] == 2
    assert (found.utility[::3] == found.utility[1::3]).all()
    assert (found.standard_error[::3] == found.standard_error[1::3]).all()
    assert (found.utility[2::3] != found.utility[::3]).any()
