"""Utility: the value of each number of samples on each question, from R recorded samples.

``estimate`` is the expectation over all subsets of b samples, a finite sum over the counts of the
answer classes: unbiased, with the smallest possible variance. ``estimate_windows`` is the paper's
estimator: it cuts the samples into R // b windows and averages their votes.

The majority of a random subset depends only on how many samples of each class are in it. A subset
of fixed size is a set of independent coin flips given the number of heads, so class counts are
independent binomials given their sum. A polynomial in that sum, one for each possible leading
count, adds up all cases without enumerating them. Standard errors are by the delete-one jackknife,
with one evaluation per class instead of one per sample.

This module does not know costs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from adacompute.core import votes
from adacompute.core.answers import UNPARSED, Answers
from adacompute.core.errors import ConfigError, DataError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from adacompute.core.types import FloatArray, IntArray

VOTES = ("majority", "best-of", "any")
BLOCK_SIZE = 2048
"""Rows processed at a time: their polynomials fit into the cache of one core."""

MIN_PROBABILITY = 1e-290
"""Smaller probabilities have lost digits to underflow."""

DIGITS = 12
"""Decimal digits of utilities. Levels with equal utility must compare equal, because the solver
breaks ties in favour of the cheaper level; without rounding it would pay for rounding errors."""


@dataclass(frozen=True, eq=False)
class Estimate:
    """Utility of each number of samples on each question, (N, K), with standard errors.

    The standard error is NaN at b = R and for votes other than the majority.
    """

    utility: FloatArray
    standard_error: FloatArray


def estimate(
    answers: Answers,
    levels: Sequence[int],
    *,
    vote: str = "majority",
    standard_errors: bool = True,
) -> Estimate:
    """Estimate the probability of a correct answer at each level, a number of samples.

    >>> answers = Answers.of([[0, 0, 1, 1]], correct=[[True, True, False, False]])
    >>> estimate(answers, (1, 2, 4)).utility.tolist()
    [[0.5, 0.5, 0.5]]
    """
    if vote not in VOTES:
        raise ConfigError(f"vote must be one of {VOTES}, got {vote!r}")
    _check_levels(answers, levels)
    if vote == "any":  # the best sample is a correct one
        answers, vote = replace(answers, score=answers.correct.astype(np.float64)), "best-of"
    if vote != "majority" and not _has_scores(answers):
        raise DataError(f"vote {vote!r} needs a finite score for every parsed sample")
    error = np.full((len(answers), len(levels)), np.nan)
    if vote == "majority":
        counts, kind_of = answers.count_kinds()
        size, correct, unparsed = (one.astype(np.float64) for one in counts)
        utility = _over_subsets(size, correct, unparsed, levels)[kind_of]
        if standard_errors:
            error = _jackknife(size, correct, unparsed, levels)[kind_of]
    else:
        utility = _order_statistics(answers, levels)
    return Estimate(np.round(utility, DIGITS), error)


def estimate_windows(answers: Answers, levels: Sequence[int]) -> FloatArray:
    """Return the paper's estimate of each level, (N, K): the mean vote of consecutive windows.

    >>> answers = Answers.of([[0, 0, 1, 1]], correct=[[True, True, False, False]])
    >>> estimate_windows(answers, (1, 2, 3)).tolist()
    [[0.5, 0.5, 1.0]]
    """
    _check_levels(answers, levels)
    answer, class_accuracy = answers.answer, answers.class_accuracy
    utility = np.empty((len(answers), len(levels)))
    for rows, index in _blocks(answers):
        for k, size in enumerate(levels):
            n_windows = index.shape[1] // size
            window = index[:, : n_windows * size].reshape(-1, size)
            voted = votes.majority_accuracy(answer[window], class_accuracy[window])
            utility[rows, k] = voted.reshape(len(rows), n_windows).mean(axis=1)
    return np.round(utility, DIGITS)


def _check_levels(answers: Answers, levels: Sequence[int]) -> None:
    """Refuse levels above the samples of a question."""
    max_samples = max(levels, default=0)
    fewest = int(answers.n_samples.min(initial=max_samples))
    if fewest < max_samples or min(levels, default=0) < 1:
        raise DataError(
            f"levels {tuple(levels)} need {max(1, max_samples)} samples of every question, one has "
            f"{fewest}: lower the levels or collect more samples"
        )


def _has_scores(answers: Answers) -> bool:
    score = answers.score
    return score is not None and bool(np.isfinite(score[answers.answer != UNPARSED]).all())


def _blocks(answers: Answers) -> Iterator[tuple[IntArray, IntArray]]:
    """Group questions with equally many samples into blocks of limited size."""
    for rows, index in answers.groups():
        for start in range(0, len(rows), BLOCK_SIZE):
            yield rows[start : start + BLOCK_SIZE], index[start : start + BLOCK_SIZE]


def _order_statistics(answers: Answers, levels: Sequence[int]) -> FloatArray:
    """Return best-of-n or pass@n in closed form: the best sample of a subset has the top rank."""
    utility = np.empty((len(answers), len(levels)))
    correct = answers.correct.astype(np.float64)
    rank_by = correct if answers.score is None else answers.score
    rank_by = np.where(answers.answer == UNPARSED, -np.inf, rank_by)
    for rows, index in _blocks(answers):
        total = index.shape[1]
        order = np.argsort(rank_by[index], axis=1, kind="stable")
        ranked = np.take_along_axis(correct[index], order, axis=1)
        scores = np.take_along_axis(rank_by[index], order, axis=1)
        same = scores[:, :, None] == scores[:, None, :]
        ranked = (same * ranked[:, None, :]).sum(axis=2) / same.sum(axis=2)  # uniform ties
        for k, size in enumerate(levels):
            utility[rows, k] = ranked @ probability_of_best(total, size)
    return utility


def probability_of_best(total: int, size: int) -> FloatArray:
    """Return the probability that the i-th smallest of ``total`` is the largest of a random subset.

    It is C(i, size − 1) / C(total, size), computed as a product of ratios near one.
    """
    probability = np.zeros(total)
    probability[-1] = size / total
    for i in range(total - 1, size - 1, -1):
        probability[i - 1] = probability[i] * (i - size + 1) / i
    return probability


def _jackknife(
    counts: FloatArray, correct: FloatArray, unparsed: FloatArray, levels: Sequence[int]
) -> FloatArray:
    """Return delete-one standard errors.

    Deleting any correct (or any wrong) sample of a class is the same case, counted by its weight.
    """
    wrong = counts - correct
    row_correct, class_correct = np.nonzero(correct)
    row_wrong, class_wrong = np.nonzero(wrong)
    row_unparsed = np.flatnonzero(unparsed)
    question = np.concatenate([row_correct, row_wrong, row_unparsed])
    weight = np.concatenate(
        [correct[row_correct, class_correct], wrong[row_wrong, class_wrong], unparsed[row_unparsed]]
    )
    kept, kept_correct, kept_unparsed = counts[question], correct[question], unparsed[question]
    first, last = len(row_correct), len(row_correct) + len(row_wrong)
    kept[np.arange(last), np.concatenate([class_correct, class_wrong])] -= 1
    kept_correct[np.arange(first), class_correct] -= 1
    kept_unparsed[last:] -= 1
    without = _over_subsets(kept, kept_correct, kept_unparsed, levels)
    total = counts.sum(axis=1) + unparsed
    error = np.empty((len(counts), len(levels)))
    for k, size in enumerate(levels):
        value = without[:, k]
        mean = np.bincount(question, weight * value, minlength=len(counts)) / total
        spread = weight * (value - mean[question]) ** 2
        squares = np.bincount(question, spread, minlength=len(counts))
        error[:, k] = np.where(total > size, np.sqrt(squares * (total - 1) / total), np.nan)
    return error


def _over_subsets(
    counts: FloatArray, correct: FloatArray, unparsed: FloatArray, levels: Sequence[int]
) -> FloatArray:
    """Return the probability that the majority of a random subset is correct, (rows, levels)."""
    accuracy = np.divide(correct, counts, out=np.zeros_like(counts), where=counts > 0)
    order = np.argsort(-counts, axis=1, kind="stable")  # empty classes last, to be cut off
    counts = np.take_along_axis(counts, order, axis=1)
    accuracy = np.take_along_axis(accuracy, order, axis=1)
    n_classes = (counts > 0).sum(axis=1)
    by_width = np.argsort(n_classes, kind="stable")
    value = np.empty((len(counts), len(levels)))
    for start in range(0, len(counts), BLOCK_SIZE):
        rows = by_width[start : start + BLOCK_SIZE]
        width = max(1, int(n_classes[rows].max(initial=0)))
        value[rows] = _polynomials(
            counts[rows, :width].T, accuracy[rows, :width].T, unparsed[rows], levels
        )
    return value


def _polynomials(
    counts: FloatArray, accuracy: FloatArray, unparsed: FloatArray, levels: Sequence[int]
) -> FloatArray:
    """Sum all cases by leading count; arrays are (classes, rows)."""
    max_samples = max(levels)
    total = counts.sum(axis=0) + unparsed
    heads = np.minimum(0.5, max_samples / (2.0 * np.maximum(total, 1.0)))
    probability = _binomial(total, heads, max_samples)[list(levels)]
    probability[np.asarray(levels)[:, None] > total] = np.nan
    if bool((probability < MIN_PROBABILITY).any()):
        raise DataError(
            f"levels {tuple(levels)} of {int(total.max())} samples are too large for the exact "
            "estimator: lower the levels"
        )
    pick = np.stack([_binomial(size, heads, max_samples) for size in counts])
    rest = _binomial(unparsed, heads, max_samples)
    largest = counts.max(axis=1).astype(np.int64).tolist()
    return np.asarray((sum_leads(pick, accuracy, rest, levels, largest) / probability).T)


def sum_leads(
    pick: FloatArray,
    accuracy: FloatArray,
    rest: FloatArray,
    levels: Sequence[int],
    largest: Sequence[int],
) -> FloatArray:
    """Return the probability of each number of samples with a correct majority, (levels, rows).

    ``pick`` (classes, samples + 1, rows) are the probabilities of numbers of samples of each class,
    which is correct with its ``accuracy`` (classes, rows), and ``rest`` (samples + 1, rows) those
    of unparsed samples. Ties are broken uniformly.
    """
    max_samples, value = max(levels), np.zeros((len(levels), pick.shape[2]))
    for lead in range(1, min(max_samples, max(largest, default=0)) + 1):
        led = _with_lead(pick, accuracy, lead, max_samples, largest)
        for k, size in enumerate(levels):
            if lead > size:
                continue
            for ties in range(1, size // lead + 1):
                picked = (led[: size + 1, ties] * rest[size::-1]).sum(axis=0)
                value[k] += picked / ties
    return value


def _with_lead(
    pick: FloatArray, accuracy: FloatArray, lead: int, max_samples: int, largest: Sequence[int]
) -> FloatArray:
    """Return P(samples picked, classes tied at the lead) × the sum of the tied accuracies.

    No more samples of a class are picked than ``largest`` says that it has in any row.
    """
    max_ties, n_rows = max_samples // lead, pick.shape[2]
    # The probability, and its product with the tied accuracies, for as many ties as there can be.
    both = np.zeros((2, max_samples + 1, 1, n_rows))
    both[0, 0, 0] = 1.0
    for own, class_accuracy, size in zip(pick, accuracy, largest, strict=True):
        new = both * own[0]
        for taken in range(1, min(lead, size + 1)):
            new[:, taken:] += both[:, : max_samples + 1 - taken] * own[taken]
        if size < lead:
            both = new
            continue
        n_ties = min(both.shape[2], max_ties)
        new = np.pad(new, ((0, 0), (0, 0), (0, n_ties + 1 - both.shape[2]), (0, 0)))
        tie = both[:, : max_samples + 1 - lead, :n_ties] * own[lead]
        tie[1] += tie[0] * class_accuracy
        new[:, lead:, 1:] += tie
        both = new
    return np.pad(both[1], ((0, 0), (0, max_ties + 1 - both.shape[2]), (0, 0)))


def _binomial(size: FloatArray, heads: FloatArray, max_heads: int) -> FloatArray:
    """Return the binomial probabilities of 0..max_heads heads, (max_heads + 1, rows)."""
    result = np.empty((max_heads + 1, len(size)))
    result[0] = (1.0 - heads) ** size
    odds = heads / (1.0 - heads)
    for i in range(max_heads):
        result[i + 1] = result[i] * np.maximum(size - i, 0.0) / (i + 1) * odds
    return result
