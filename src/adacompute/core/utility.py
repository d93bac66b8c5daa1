"""Utility: what each number of samples is worth on each question, from R recorded samples.

    exact     the expectation over every subset of b samples, a finite sum over the counts of the
              answer classes: unbiased, and the least variance there is
    windows   the paper's: cut the samples into R // b windows and average their votes
    single    one trial of b samples, ties to the first: the paper's R = 1

The majority over a random subset depends only on how many samples of each class fall into it. A
subset of fixed size is a set of independent coin flips given how many came up, so class counts are
independent binomials given their sum; a polynomial in that sum, for each possible leading count,
adds up all cases without ever enumerating one. Standard errors are by the delete-one jackknife,
with one evaluation for each class, not for each sample. It knows nothing of cost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from adacompute.core import votes
from adacompute.core.answers import UNPARSED, Answers
from adacompute.core.errors import ConfigError, DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from adacompute.core.types import FloatArray, IntArray

METHODS = ("exact", "windows", "single")
VOTES = ("majority", "weighted", "best-of", "any")
ROWS = 2048
"""Rows worked on at once: their polynomials fit a core's cache."""

LEAST = 1e-290
"""Chances below this have lost digits to underflow."""

DIGITS = 12
"""Utilities are rounded to this many, so that levels of equal worth are equal: the solver breaks
ties to the cheaper level, and would else pay for the rounding errors of a sum."""

SUBSETS = 400
"""Random subsets a question for the one vote that has no closed form."""


@dataclass(frozen=True, eq=False)
class Estimate:
    """Utility of each number of samples on each question, (N, K), with standard errors.

    The error is NaN where there is none: at b = R, and for estimators other than ``exact``.
    """

    utility: FloatArray
    standard_error: FloatArray


def estimate(
    answers: Answers,
    levels: Sequence[int],
    *,
    method: str = "exact",
    vote: str = "majority",
    standard_errors: bool = True,
    seed: int = 0,
) -> Estimate:
    """Estimate the chance of a right answer from each number of samples.

    >>> answers = Answers.of([[0, 0, 1, 1]], correct=[[True, True, False, False]])
    >>> estimate(answers, (1, 2, 4)).utility.tolist()
    [[0.5, 0.5, 0.5]]
    """
    if method not in METHODS or vote not in VOTES:
        raise ConfigError(
            f"method must be one of {METHODS} and vote one of {VOTES}, not {method!r} and {vote!r}"
        )
    most = max(levels, default=0)
    short = int(answers.n_samples.min(initial=most))
    if short < most or min(levels, default=0) < 1:
        raise DataError(
            f"levels {tuple(levels)} need {max(1, most)} samples of every question and one has "
            f"{short}: lower the levels or collect more"
        )
    if vote in ("weighted", "best-of") and not _scored(answers):
        raise DataError(f"vote {vote!r} needs a finite score for every sample that could be read")
    error = np.full((len(answers), len(levels)), np.nan)
    if method != "exact":
        utility = _trials(answers, levels, vote=vote, every=method == "windows")
    elif vote == "weighted":
        utility = _subsets(answers, levels, seed=seed)
    elif vote == "majority":
        counts = count_classes(answers)
        utility = _over_subsets(*counts, levels)
        error = _jackknife(*counts, levels) if standard_errors else error
    else:
        utility = _order_statistics(answers, levels, vote=vote)
    return Estimate(np.round(utility, DIGITS), error)


def _scored(answers: Answers) -> bool:
    score = answers.score
    return score is not None and bool(np.isfinite(score[answers.answer != UNPARSED]).all())


def _valuer(answers: Answers, vote: str) -> Callable[[IntArray], FloatArray]:
    """Value of votes over the samples at (M, n) indices."""
    right = answers.correct.astype(np.float64)
    score = np.zeros(len(right)) if answers.score is None else answers.score
    rules: dict[str, Callable[[IntArray], FloatArray]] = {
        "majority": lambda i: votes.majority_accuracy(answers.answer[i], answers.class_accuracy[i]),
        "weighted": lambda i: votes.weighted_accuracy(
            answers.answer[i], answers.class_accuracy[i], score[i]
        ),
        "best-of": lambda i: votes.best_of_accuracy(answers.answer[i], right[i], score[i]),
        "any": lambda i: votes.any_correct(right[i]),
    }
    return rules[vote]


def _blocks(answers: Answers) -> Iterator[tuple[IntArray, IntArray]]:
    """Questions with equally many samples, few enough that every pair of samples can be held."""
    for rows, index in answers.groups():
        for start in range(0, len(rows), ROWS):
            yield rows[start : start + ROWS], index[start : start + ROWS]


def _trials(answers: Answers, levels: Sequence[int], *, vote: str, every: bool) -> FloatArray:
    """Average the votes of consecutive windows, or take the first window alone."""
    value = _valuer(answers, vote)
    utility = np.empty((len(answers), len(levels)))
    for rows, index in _blocks(answers):
        for k, size in enumerate(levels):
            windows = index.shape[1] // size if every else 1
            cut = index[:, : windows * size].reshape(-1, size)
            if not every and vote == "majority":
                # Where nothing was readable −1 is the last sample, which is not right either.
                first = votes.winner(answers.answer[cut])
                utility[rows, k] = answers.correct[cut[np.arange(len(cut)), first]]
            else:
                utility[rows, k] = value(cut).reshape(len(rows), windows).mean(axis=1)
    return utility


def _subsets(answers: Answers, levels: Sequence[int], *, seed: int) -> FloatArray:
    """Average weighted votes over random subsets."""
    value = _valuer(answers, "weighted")
    rng = np.random.default_rng(seed)
    utility = np.empty((len(answers), len(levels)))
    for rows, index in answers.groups():
        for row, own in zip(rows, index, strict=True):
            order = np.argsort(rng.random((SUBSETS, len(own))), axis=1)
            for k, size in enumerate(levels):
                utility[row, k] = value(own[order[:, :size]]).mean()
    return utility


def _order_statistics(answers: Answers, levels: Sequence[int], *, vote: str) -> FloatArray:
    """Best-of-n and pass@n in closed form: a subset's best sample is the one of largest rank."""
    utility = np.empty((len(answers), len(levels)))
    right = answers.correct.astype(np.float64)
    rank_by = right if answers.score is None or vote == "any" else answers.score
    rank_by = np.where(answers.answer == UNPARSED, -np.inf, rank_by)
    for rows, index in _blocks(answers):
        total = index.shape[1]
        order = np.argsort(rank_by[index], axis=1, kind="stable")
        ranked = np.take_along_axis(right[index], order, axis=1)
        scores = np.take_along_axis(rank_by[index], order, axis=1)
        same = scores[:, :, None] == scores[:, None, :]
        ranked = (same * ranked[:, None, :]).sum(axis=2) / same.sum(axis=2)  # uniform ties
        for k, size in enumerate(levels):
            utility[rows, k] = ranked @ probability_of_best(total, size)
    return utility


def probability_of_best(total: int, size: int) -> FloatArray:
    """Chance that the i-th smallest of ``total`` is the largest of a random subset.

    It is C(i, size − 1) / C(total, size), built up as a product of ratios near one.
    """
    chance = np.zeros(total)
    chance[-1] = size / total
    for i in range(total - 1, size - 1, -1):
        chance[i - 1] = chance[i] * (i - size + 1) / i
    return chance


def _jackknife(
    counts: FloatArray, right: FloatArray, nulls: FloatArray, levels: Sequence[int]
) -> FloatArray:
    """Delete-one standard errors; samples of one class, equally right, are one case."""
    wrong = counts - right
    row_right, class_right = np.nonzero(right)
    row_wrong, class_wrong = np.nonzero(wrong)
    row_null = np.flatnonzero(nulls)
    question = np.concatenate([row_right, row_wrong, row_null])
    weight = np.concatenate(
        [right[row_right, class_right], wrong[row_wrong, class_wrong], nulls[row_null]]
    )
    less, less_right, less_nulls = counts[question], right[question], nulls[question]
    first, last = len(row_right), len(row_right) + len(row_wrong)
    less[np.arange(last), np.concatenate([class_right, class_wrong])] -= 1
    less_right[np.arange(first), class_right] -= 1
    less_nulls[last:] -= 1
    left_out = _over_subsets(less, less_right, less_nulls, levels)
    total = counts.sum(axis=1) + nulls
    error = np.empty((len(counts), len(levels)))
    for k, size in enumerate(levels):
        value = left_out[:, k]
        mean = np.bincount(question, weight * value, minlength=len(counts)) / total
        spread = weight * (value - mean[question]) ** 2
        squares = np.bincount(question, spread, minlength=len(counts))
        error[:, k] = np.where(total > size, np.sqrt(squares * (total - 1) / total), np.nan)
    return error


def count_classes(answers: Answers) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Count samples and right samples by class, (N, C), and unreadable ones, (N,)."""
    valid = answers.answer != UNPARSED
    width = int(answers.answer.max(initial=0)) + 1
    shape = (len(answers), width)
    cell = answers.question[valid] * width + answers.answer[valid]
    counts = np.bincount(cell, minlength=shape[0] * shape[1]).reshape(shape)
    right = np.bincount(cell[answers.correct[valid]], minlength=shape[0] * shape[1]).reshape(shape)
    nulls = answers.n_samples - answers.n_parsed
    return counts.astype(np.float64), right.astype(np.float64), nulls.astype(np.float64)


def _over_subsets(
    counts: FloatArray, right: FloatArray, nulls: FloatArray, levels: Sequence[int]
) -> FloatArray:
    """Chance that the majority of a random subset is right, (rows, levels)."""
    share = np.divide(right, counts, out=np.zeros_like(counts), where=counts > 0)
    order = np.argsort(-counts, axis=1, kind="stable")  # empty classes last, to be cut off
    counts = np.take_along_axis(counts, order, axis=1)
    share = np.take_along_axis(share, order, axis=1)
    classes = (counts > 0).sum(axis=1)
    by_width = np.argsort(classes, kind="stable")
    value = np.empty((len(counts), len(levels)))
    for start in range(0, len(counts), ROWS):
        rows = by_width[start : start + ROWS]
        width = max(1, int(classes[rows].max(initial=0)))
        value[rows] = _polynomials(
            counts[rows, :width].T, share[rows, :width].T, nulls[rows], levels
        )
    return value


def _polynomials(
    counts: FloatArray, share: FloatArray, nulls: FloatArray, levels: Sequence[int]
) -> FloatArray:
    """Sum all cases by leading count; arrays are (classes, rows)."""
    most = max(levels)
    total = counts.sum(axis=0) + nulls
    chance = np.minimum(0.5, most / (2.0 * np.maximum(total, 1.0)))
    probability = _binomial(total, chance, most)[list(levels)]
    probability[np.asarray(levels)[:, None] > total] = np.nan
    if bool((probability < LEAST).any()):
        raise DataError(
            f"levels {tuple(levels)} of {int(total.max())} samples are too many for the exact "
            "estimator: use the windows"
        )
    pick = np.stack([_binomial(own, chance, most) for own in counts])
    rest = _binomial(nulls, chance, most)
    value = np.zeros((len(levels), counts.shape[1]))
    for lead in range(1, most + 1):
        worth = _lead_by(pick, share, lead, most)
        for k, size in enumerate(levels):
            if lead > size:
                continue
            for ties in range(1, size // lead + 1):
                picked = (worth[: size + 1, ties] * rest[size::-1]).sum(axis=0)
                value[k] += picked / ties
    return np.asarray((value / probability).T)


def _lead_by(pick: FloatArray, share: FloatArray, lead: int, most: int) -> FloatArray:
    """Chance of (number picked, classes tied at the lead), times the sum of the ties' shares."""
    most_ties = most // lead
    shape = (most + 1, most_ties + 1, pick.shape[2])
    both = np.zeros((2, *shape))  # the chances alone, and times the sum of the tied shares
    both[0, 0, 0] = 1.0
    for own, right in zip(pick, share, strict=True):
        new = both * own[0]
        for taken in range(1, lead):
            new[:, taken:] += both[:, : most + 1 - taken] * own[taken]
        tie = both[:, : most + 1 - lead, :-1] * own[lead]
        tie[1] += tie[0] * right
        new[:, lead:, 1:] += tie
        both = new
    return np.asarray(both[1])


def _binomial(size: FloatArray, chance: FloatArray, most: int) -> FloatArray:
    """Binomial probabilities of 0..most, (most + 1, rows)."""
    result = np.empty((most + 1, len(size)))
    result[0] = (1.0 - chance) ** size
    odds = chance / (1.0 - chance)
    for i in range(most):
        result[i + 1] = result[i] * np.maximum(size - i, 0.0) / (i + 1) * odds
    return result
