"""Adaptive: utilities of kinds against the exact estimator, and which questions stay open."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adacompute.core import posterior as adaptive
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
"""Samples among which a few are as good as drawn with replacement."""


def one_of_each(shares: list[float]) -> Answers:
    """Return one question with so many right samples, unread ones and wrong answers."""
    counts = [round(MANY * share) for share in shares]
    answer = np.repeat([0, -1, *range(1, len(counts) - 1)], counts)
    right = answer == 0
    return Answers(np.array([0, len(answer)]), answer, right)


def draw(share: float, draws: int, questions: int, seed: int) -> Answers:
    """Draw from questions of one wrong answer, right as often as that."""
    rng = np.random.default_rng(seed)
    right = rng.random((questions, draws)) < share
    return Answers.of((1 - right.astype(int)).tolist(), right.tolist())


@pytest.mark.parametrize("kind", [0, 37, 200, 333, 503])
def test_what_a_kind_is_worth_is_what_many_samples_of_it_say(kind: int) -> None:
    kinds = make_question_types()
    shares = kinds.probability[kind]
    grains = [shares[5] / adaptive.TAIL_ANSWERS] * adaptive.TAIL_ANSWERS
    exact = estimate(one_of_each([*shares[:5], *grains]), LEVELS, standard_errors=False).utility[0]
    assert kinds.utility[kind] == pytest.approx(exact, abs=0.02)
    assert kinds.utility[kind][0] == pytest.approx(shares[0])


def test_draws_are_counted_by_what_they_are() -> None:
    answers = Answers.of([[0, 1, 1, 2, 3, 4, 4, 4, 5, -1], []], [[True, *[False] * 9], []])
    assert count_answers(answers).tolist() == [[1, 1, 3, 2, 1, 2, 2], [0] * 7]


@settings(max_examples=40, deadline=None)
@given(st.from_type(Answers))
def test_beliefs_are_chances_and_doubt_is_never_negative(answers: Answers) -> None:
    belief = fit_posterior(answers)
    assert belief.probability.sum(axis=1) == pytest.approx(1.0)
    assert belief.utility.shape == (len(answers), len(LEVELS))
    assert ((belief.utility > 0) & (belief.utility < 1)).all()
    for price in (0.0, 0.01, 0.3):
        assert (belief.expected_value_of_information(price, np.array(LEVELS)) >= 0).all()


def test_beliefs_do_not_depend_on_the_names_of_answers_or_the_order_of_questions() -> None:
    first = Answers.of([[0, 1, 2, 1], [0, 0, 3, 0]], [[True, False, False, False], [True] * 4])
    first = Answers(first.offsets, first.answer, first.answer == 0)
    other = Answers.of([[7, 7, 2, 7], [7, 4, 9, 4]], [[False] * 4, [False] * 4])
    other = Answers(other.offsets, other.answer, other.answer == 7)
    assert fit_posterior(first).utility == pytest.approx(fit_posterior(other).utility[::-1])


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_many_draws_are_believed(share: float) -> None:
    answers = draw(share, 300, 3, seed=1)
    told = estimate(answers, LEVELS, standard_errors=False).utility
    assert fit_posterior(answers).utility == pytest.approx(told, abs=0.12)


def test_easy_and_hopeless_questions_are_settled_before_mixed_ones() -> None:
    easy, hopeless = [[True] * 6] * 20, [[False] * 6] * 20
    mixed = [[i < right for i in range(6)] for right in (1, 2, 3, 4, 5, 2, 3, 4)]
    right = [*easy, *hopeless, *mixed]
    answers = Answers.of([[int(not r) for r in row] for row in right], right)
    left = find_undecided(answers, 2.0)
    assert left.size > 0
    assert set(left.tolist()) <= set(range(40, 48))
    assert len(find_undecided(answers, 2.0, threshold=1.0)) == 0
    assert set(left.tolist()) <= set(
        find_undecided(answers, 2.0, threshold=SETTLED_THRESHOLD / 10).tolist()
    )


def test_with_many_draws_little_is_left_undecided() -> None:
    few, many = draw(0.7, 4, 60, seed=3), draw(0.7, 400, 60, seed=3)
    assert len(find_undecided(few, 3.0)) > len(find_undecided(many, 3.0))


def test_many_states_are_worked_on_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = draw(0.5, 12, 40, seed=2)
    whole = fit_posterior(answers).utility
    monkeypatch.setattr(adaptive, "MAX_STATES", 4)
    assert fit_posterior(answers).utility == pytest.approx(whole, abs=0.1)


def test_nothing_is_believed_of_no_questions() -> None:
    assert fit_posterior(Answers.of([], [])).utility.shape == (0, len(LEVELS))
