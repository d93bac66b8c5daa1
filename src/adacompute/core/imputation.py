"""Imputation: likely further samples of questions that have few.

Questions can have unequal numbers of samples, and the number can be informative: adaptive
collection stops early where samples agree. Leaving out questions, or samples, would then change the
figures. So every recorded sample is kept, and questions with fewer samples than wanted get further
ones from the posterior that ``posterior`` fits. If a question has many samples, its own count most:
with n samples, further ones repeat its own with probability n / (n + 16), and otherwise come from
one of its likely types. How common the types are can be learned from training questions alone, so
that held-out questions do not tell how to fill the training questions, nor each other.

Imputed samples are not data: they say what the recorded ones say, not more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from adacompute.core.answers import UNPARSED, Answers, number_classes_by_question
from adacompute.core.posterior import PSEUDO_SAMPLES, SLOTS, fit_posterior

if TYPE_CHECKING:
    from adacompute.core.types import BoolArray, IntArray

MIN_CLASS_ACCURACY = 0.5
"""A class whose samples are correct more often than this is the correct answer."""


def impute_samples(
    answers: Answers, n_samples: int, *, train: IntArray | None = None, seed: int = 0
) -> tuple[Answers, BoolArray]:
    """Return answers with at least ``n_samples`` samples per question, and which are recorded.

    Recorded samples keep their order and come first in each question. Every question needs one
    sample. How common each type of question is comes from the rows ``train``, by default from all.

    >>> answers = Answers.of([[0, 0, 0, 0], [0]], correct=[[True] * 4, [True]])
    >>> filled, is_recorded = impute_samples(answers, 4)
    >>> filled.n_samples.tolist(), int(is_recorded.sum())
    ([4, 4], 5)
    """
    missing = np.maximum(n_samples - answers.n_samples, 0)
    question = np.repeat(np.arange(len(answers)), missing)
    answer, correct = _draw(answers, question, train, np.random.default_rng(seed))
    joined = np.concatenate([answers.question, question])
    order = np.argsort(joined, kind="stable")
    is_recorded = np.arange(len(joined)) < len(answers.answer)
    offsets = np.concatenate([[0], np.cumsum(answers.n_samples + missing)])
    code = np.concatenate([answers.answer, answer])[order]
    return (
        Answers(
            offsets=offsets.astype(np.int64),
            answer=number_classes_by_question(joined[order], code),
            correct=np.concatenate([answers.correct, correct])[order],
        ),
        is_recorded[order],
    )


def _draw(
    answers: Answers, question: IntArray, train: IntArray | None, rng: np.random.Generator
) -> tuple[IntArray, BoolArray]:
    """Draw one sample for each entry of ``question``: its class and whether it is correct."""
    posterior = fit_posterior(answers, train=train)
    size = answers.n_samples
    repeats_own = (rng.random(len(answers)) < size / (size + PSEUDO_SAMPLES))[question]
    own = answers.offsets[question] + (rng.random(len(question)) * size[question]).astype(np.int64)
    question_type = np.zeros(len(answers), dtype=np.int64)
    for q in np.unique(question).tolist():
        share = posterior.probability[posterior.state[q]]
        question_type[q] = rng.choice(len(share), p=share / share.sum())
    edges = np.cumsum(posterior.types.probability, axis=1)[question_type[question]]
    category = (rng.random((len(question), 1)) > edges[:, :-1]).sum(axis=1)
    from_type = _classes_by_category(answers)[question, category]
    # Answers of the tail hardly ever repeat: each gets a class of its own.
    tail = category == 2 + SLOTS
    from_type[tail] += np.arange(int(tail.sum()))
    answer = np.where(repeats_own, answers.answer[own], from_type)
    correct = np.where(repeats_own, answers.correct[own], category == 0)
    return answer, np.asarray(correct & (answer != UNPARSED), dtype=np.bool_)


def _classes_by_category(answers: Answers) -> IntArray:
    """Return the class of each category of a type: correct, unparsed, wrong slots and tail, (N, 6).

    The wrong answers of a question fill the slots by their frequency. Classes that were never
    sampled get new numbers.
    """
    count, n_correct, _ = answers.count_classes()
    width, size = count.shape[1], len(answers)
    accuracy = n_correct / np.maximum(count, 1)
    is_correct = accuracy > MIN_CLASS_ACCURACY
    found = np.full((size, 3 + SLOTS), UNPARSED, dtype=np.int64)
    best = np.where(is_correct, count, 0).argmax(axis=1)
    found[:, 0] = np.where(is_correct.any(axis=1), best, width)
    wrong = np.pad(np.where(is_correct, 0, count), ((0, 0), (0, SLOTS)))
    order = np.argsort(-wrong, axis=1, kind="stable")[:, :SLOTS]
    new = width + 1 + np.arange(1 + SLOTS)
    is_known = np.take_along_axis(wrong, order, axis=1) > 0
    found[:, 2 : 2 + SLOTS] = np.where(is_known, order, new[:SLOTS])
    found[:, 2 + SLOTS] = new[SLOTS]
    return found
