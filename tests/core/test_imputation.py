"""Imputed samples: recorded ones stay, and the others are as likely as the posterior says."""

from __future__ import annotations

import numpy as np
import pytest

from adacompute.core.answers import UNPARSED, Answers
from adacompute.core.imputation import impute_samples
from adacompute.core.utility import estimate


def thin(answer: np.ndarray, keep: np.ndarray) -> Answers:
    rows = [row[:n].tolist() for row, n in zip(answer, keep.tolist(), strict=True)]
    return Answers.of(rows, [[a == 0 for a in row] for row in rows])


def population(size: int = 400, n_samples: int = 24) -> np.ndarray:
    """Questions of three types, whose correct answer is class 0."""
    rng = np.random.default_rng(0)
    shares = np.array([[0.9, 0.05, 0.05], [0.5, 0.3, 0.2], [0.1, 0.6, 0.3]])
    return np.stack([rng.choice(3, n_samples, p=shares[k]) for k in rng.integers(0, 3, size)])


def test_recorded_samples_stay_first_and_in_order() -> None:
    answer = population(30)
    answer[0, :3] = UNPARSED
    keep = np.arange(30) % 20 + 1
    filled, is_recorded = impute_samples(thin(answer, keep), 12)
    assert filled.n_samples.tolist() == np.maximum(keep, 12).tolist()
    assert int(is_recorded.sum()) == int(keep.sum())
    for q in range(30):
        mine = slice(filled.offsets[q], filled.offsets[q] + keep[q])
        assert is_recorded[mine].all()
        assert filled.correct[mine].tolist() == (answer[q, : keep[q]] == 0).tolist()
        same = filled.answer[mine][:, None] == filled.answer[mine]
        recorded = answer[q, : keep[q]]
        assert (same == (recorded[:, None] == recorded)).all()
        assert ((filled.answer[mine] == UNPARSED) == (recorded == UNPARSED)).all()


def test_complete_questions_do_not_change() -> None:
    answers = thin(population(10), np.full(10, 24))
    filled, is_recorded = impute_samples(answers, 24)
    assert is_recorded.all()
    assert filled.correct.tolist() == answers.correct.tolist()
    assert filled.class_accuracy.tolist() == answers.class_accuracy.tolist()


def test_the_same_seed_gives_the_same_samples() -> None:
    answers = thin(population(40), np.full(40, 4))
    first, second, other = (impute_samples(answers, 16, seed=s)[0] for s in (0, 0, 1))
    assert first.answer.tolist() == second.answer.tolist()
    assert first.answer.tolist() != other.answer.tolist()


def test_a_correct_answer_that_was_never_sampled_is_a_class_of_its_own() -> None:
    answers = Answers.of([[0, 0, 0]] * 50, [[False] * 3] * 25 + [[True] * 3] * 25)
    filled, _ = impute_samples(answers, 60)
    accuracy = filled.class_accuracy
    assert ((accuracy == 0) | (accuracy == 1)).all()


@pytest.mark.parametrize("by_agreement", [False, True])
def test_thinned_questions_keep_the_mean_utility(*, by_agreement: bool) -> None:
    """Also if questions whose first four samples agree have no others, as when collected."""
    answer = population()
    levels, settled = (1, 3, 8), (answer[:, :4] == answer[:, :1]).all(axis=1)
    keep = np.random.default_rng(1).integers(4, 25, len(answer))
    if by_agreement:
        keep = np.where(settled, 4, 24)
    complete = estimate(thin(answer, np.full(len(answer), 24)), levels).utility
    filled = estimate(impute_samples(thin(answer, keep), 24)[0], levels).utility
    error = complete.std(axis=0) / np.sqrt(len(complete))
    assert (np.abs(filled.mean(axis=0) - complete.mean(axis=0)) < 2 * error).all()


def test_training_questions_alone_say_how_common_each_type_is() -> None:
    """Questions that are not for training have no part in the samples of others."""
    answer, keep = population(60), np.full(60, 6)
    train = np.arange(40)
    worse = answer.copy()
    worse[50:] = 2
    before, after = thin(answer, keep), thin(worse, keep)
    for rows in (slice(0, 40 * 16), slice(40 * 16, 50 * 16)):
        one, other = (impute_samples(a, 16, train=train)[0] for a in (before, after))
        assert one.answer[rows].tolist() == other.answer[rows].tolist()
        assert one.correct[rows].tolist() == other.correct[rows].tolist()
    one, other = (impute_samples(a, 16)[0] for a in (before, after))
    assert one.correct[: 50 * 16].tolist() != other.correct[: 50 * 16].tolist()
    every = impute_samples(before, 16, train=np.arange(60))[0]
    assert every.answer.tolist() == impute_samples(before, 16)[0].answer.tolist()
