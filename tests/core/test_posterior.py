"""Posterior: utilities of types against the exact estimator, and undecided questions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adacompute.core import posterior as module
from adacompute.core.answers import Answers
from adacompute.core.posterior import (
    LEVELS,
    SETTLED_THRESHOLD,
    count_answers,
    find_undecided,
    fit_posterior,
    make_question_types,
)
from adacompute.core.utility import estimate

MANY = 2000
"""So many samples that drawing a few without replacement is like drawing with it."""


def one_of_each(shares: list[float]) -> Answers:
    """Return one question with these shares of correct, unparsed and wrong answers."""
    counts = [round(MANY * share) for share in shares]
    answer = np.repeat([0, -1, *range(1, len(counts) - 1)], counts)
    correct = answer == 0
    return Answers(np.array([0, len(answer)]), answer, correct)


def sample_answers(share: float, n_samples: int, questions: int, seed: int) -> Answers:
    """Sample questions that have one wrong answer and this share of correct samples."""
    rng = np.random.default_rng(seed)
    correct = rng.random((questions, n_samples)) < share
    return Answers.of((1 - correct.astype(int)).tolist(), correct.tolist())


@pytest.mark.parametrize("number", [0, 37, 200, 333, 503])
def test_the_utility_of_a_type_agrees_with_many_samples(number: int) -> None:
    types = make_question_types()
    shares = types.probability[number]
    tail = [shares[5] / module.TAIL_ANSWERS] * module.TAIL_ANSWERS
    exact = estimate(one_of_each([*shares[:5], *tail]), LEVELS, standard_errors=False).utility[0]
    assert types.utility[number] == pytest.approx(exact, abs=0.02)
    assert types.utility[number][0] == pytest.approx(shares[0])


def test_answers_are_counted() -> None:
    answers = Answers.of([[0, 1, 1, 2, 3, 4, 4, 4, 5, -1], []], [[True, *[False] * 9], []])
    assert count_answers(answers).tolist() == [[1, 1, 3, 2, 1, 2, 2], [0] * 7]


@settings(max_examples=40, deadline=None)
@given(st.from_type(Answers))
def test_the_posterior_is_a_distribution_and_information_has_value(answers: Answers) -> None:
    posterior = fit_posterior(answers)
    assert posterior.probability.sum(axis=1) == pytest.approx(1.0)
    assert posterior.utility.shape == (len(answers), len(LEVELS))
    assert ((posterior.utility > 0) & (posterior.utility < 1)).all()
    for price in (0.0, 0.01, 0.3):
        assert (posterior.expected_value_of_information(price, np.array(LEVELS)) >= 0).all()


def test_the_posterior_is_invariant_to_labels_and_order() -> None:
    first = Answers.of([[0, 1, 2, 1], [0, 0, 3, 0]], [[True, False, False, False], [True] * 4])
    first = Answers(first.offsets, first.answer, first.answer == 0)
    other = Answers.of([[7, 7, 2, 7], [7, 4, 9, 4]], [[False] * 4, [False] * 4])
    other = Answers(other.offsets, other.answer, other.answer == 7)
    assert fit_posterior(first).utility == pytest.approx(fit_posterior(other).utility[::-1])


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_with_many_samples_the_posterior_agrees_with_them(share: float) -> None:
    answers = sample_answers(share, 300, 3, seed=1)
    expected = estimate(answers, LEVELS, standard_errors=False).utility
    assert fit_posterior(answers).utility == pytest.approx(expected, abs=0.12)


def test_easy_and_hopeless_questions_are_settled_before_mixed_ones() -> None:
    easy, hopeless = [[True] * 6] * 20, [[False] * 6] * 20
    mixed = [[i < correct for i in range(6)] for correct in (1, 2, 3, 4, 5, 2, 3, 4)]
    correct = [*easy, *hopeless, *mixed]
    answers = Answers.of([[int(not r) for r in row] for row in correct], correct)
    left = find_undecided(answers, 2.0)
    assert left.size > 0
    assert set(left.tolist()) <= set(range(40, 48))
    assert len(find_undecided(answers, 2.0, threshold=1.0)) == 0
    assert set(left.tolist()) <= set(
        find_undecided(answers, 2.0, threshold=SETTLED_THRESHOLD / 10).tolist()
    )


def test_more_samples_leave_fewer_questions_undecided() -> None:
    few, many = sample_answers(0.7, 4, 60, seed=3), sample_answers(0.7, 400, 60, seed=3)
    assert len(find_undecided(few, 3.0)) > len(find_undecided(many, 3.0))


def test_states_are_processed_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = sample_answers(0.5, 12, 40, seed=2)
    whole = fit_posterior(answers).utility
    monkeypatch.setattr(module, "MAX_STATES", 4)
    assert fit_posterior(answers).utility == pytest.approx(whole, abs=0.1)


def test_the_posterior_of_no_questions_is_empty() -> None:
    assert fit_posterior(Answers.of([], [])).utility.shape == (0, len(LEVELS))
