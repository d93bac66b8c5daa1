"""Pool: recorded samples of questions, with everything that a policy may know about them.

``equalise`` keeps equally many samples of every question, so that all policies are scored on the
same data. A pool knows nothing about policies.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from adacompute.core.answers import UNPARSED, Answers
from adacompute.core.errors import DataError, InfeasibleBudget
from adacompute.core.types import (
    BoolArray,
    Float32Array,
    FloatArray,
    IntArray,
    KeyArray,
    UtilityTable,
    hash_keys,
)
from adacompute.core.utility import estimate, estimate_windows

N_FOLDS = 5
MIN_QUESTIONS = 10
"""With fewer questions, a fold has fewer than two."""

MAX_EXCLUDED_SHARE = 0.1
"""Share of the questions that may be excluded because they have too few samples."""

BY_QUESTION = ("key", "group", "features", "sequential_features", "prompt_cost")
BY_SAMPLE = ("sample_cost", "latency_s", "arm", "signals")
"""Columns of a pool that have a row per question, and a row per sample."""


def _mean_by_question(answers: Answers, values: FloatArray) -> FloatArray:
    total = np.bincount(answers.question, values, minlength=len(answers))
    return np.asarray(total / np.maximum(1, answers.n_samples), dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Pool:
    """N questions with S samples in total.

    ``group`` is equal for copies of a question. ``sample_cost`` (S,) is the cost of each sample, in
    the order of the answers. ``round_cost`` is the cost of each round besides its samples, one
    number for all questions or (N,): the prompt of a call, for example, is paid once for all of its
    samples. ``prompt_cost`` (N,) is what the prompt of a call costs, if it is known; it is part of
    the cost of a round if ``prompt_per_round``, else of each sample. ``features`` are for routers,
    and ``length_feature`` is the column that holds the length of the question.
    ``sequential_features``, where given, are for the sequential policy. Where ``logprob`` (S,) is
    given, ties go to the likeliest answer. ``latency_s`` (S,) is how long each sample took, if it
    is known. ``arm`` (S,) numbers the ``arms`` if there are several. ``signals`` (S, names) are
    what was recorded about the confidence of each sample, under ``signal_names``; NaN is unknown.
    ``n_excluded`` counts the questions that ``equalise`` left out.
    """

    answers: Answers
    key: KeyArray
    group: KeyArray
    features: Float32Array
    sample_cost: FloatArray
    length_feature: int = 0
    sequential_features: Float32Array | None = None
    round_cost: float | FloatArray = 0.0
    prompt_cost: FloatArray | None = None
    prompt_per_round: bool = False
    latency_s: FloatArray | None = None
    arm: IntArray | None = None
    arms: tuple[str, ...] = ()
    signal_names: tuple[str, ...] = ()
    signals: FloatArray | None = None
    n_excluded: int = 0

    def __len__(self) -> int:
        return len(self.answers)

    @property
    def n_groups(self) -> int:
        """Number of independent questions: copies count once."""
        return len(np.unique(self.group))

    def take(self, rows: IntArray | BoolArray) -> Pool:
        """Return these questions, given as a mask or as rising row numbers."""
        rows = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
        mask = np.zeros(len(self), dtype=np.bool_)
        mask[rows] = True
        if not bool((np.diff(rows) > 0).all()):
            raise DataError("the rows of a pool must be taken in rising order")
        kept = mask[self.answers.question]
        return replace(
            self,
            answers=self.answers.take(rows),
            round_cost=self.round_cost if np.ndim(self.round_cost) == 0 else self.round_costs[rows],
            **self._rows(BY_QUESTION, rows),
            **self._rows(BY_SAMPLE, kept),
        )

    @property
    def n_samples(self) -> int:
        """Number of samples that every question has at least, of the arm with the most."""
        return max(self.n_by_arm) if len(self) else 0

    @property
    def n_by_arm(self) -> list[int]:
        """Samples of each arm that every question has."""
        found: list[int] = self.arm_counts.min(axis=0).tolist()
        return found

    @property
    def has_arms(self) -> bool:
        """Whether there are samples of several arms."""
        return len(self.arms) > 1

    @property
    def arm_counts(self) -> IntArray:
        """Number of samples of each question and arm, (N, arms)."""
        return np.asarray(self._sum_by_arm(None), dtype=np.int64)

    def _sum_by_arm(self, values: FloatArray | None) -> FloatArray:
        """Return the sums of values of samples, or their number, (N, arms)."""
        size = max(1, len(self.arms))
        cell = self.answers.question * size + (0 if self.arm is None else self.arm)
        total = np.bincount(cell, values, minlength=len(self) * size)
        return np.asarray(total.reshape(-1, size), dtype=np.float64)

    @property
    def arm_position(self) -> IntArray:
        """Position of each sample among those of its question and arm, which are sorted by arm."""
        before = np.cumsum(self.arm_counts, axis=1) - self.arm_counts
        first = 0 if self.arm is None else before[self.answers.question, self.arm]
        return np.asarray(self.answers.position - first)

    def arm_cost(self) -> FloatArray:
        """Return the mean cost of a sample of each question and arm, (N, arms)."""
        return self._sum_by_arm(self.sample_cost) / np.maximum(self.arm_counts, 1)

    def equalise(self, *, drop_unparsed: bool = False) -> Pool:
        """Keep the first n samples of every question, and exclude questions that have fewer.

        n is the 10th percentile of the numbers of samples; with several arms, that of each arm.
        With ``drop_unparsed`` only parsed samples are counted and kept. Otherwise no answer has a
        part in which samples and questions are kept.
        """
        pool = self.keep(self.answers.answer != UNPARSED) if drop_unparsed else self
        counts = pool.arm_counts
        wanted = np.array([common_sample_count(column) for column in counts.T])
        if (wanted < 1).any():
            noun, remedy = "parsed sample" if drop_unparsed else "sample", "collect more"
            if self.has_arms:
                noun += f" of the arm {self.arms[int(wanted.argmin())]!r}"
                remedy = "leave the arm out, or collect more"
            raise DataError(f"more than a tenth of the questions have no {noun}: {remedy}")
        enough = np.flatnonzero((counts >= wanted).all(axis=1))
        kept = pool.take(enough)
        kept = kept.keep(kept.arm_position < wanted[0 if kept.arm is None else kept.arm])
        return replace(kept, n_excluded=len(self) - len(enough))

    def keep(self, samples: BoolArray) -> Pool:
        """Return all questions with only these samples, given as a mask."""
        return replace(self, answers=self.answers.keep(samples), **self._rows(BY_SAMPLE, samples))

    def _rows(self, columns: tuple[str, ...], rows: IntArray | BoolArray) -> dict[str, Any]:
        """Return some rows of the columns that there are."""
        known = {name: getattr(self, name) for name in columns}
        return {name: column[rows] for name, column in known.items() if column is not None}

    def mean_sample_cost(self) -> FloatArray:
        """Return the mean cost of a sample of each question, (N,)."""
        return _mean_by_question(self.answers, self.sample_cost)

    def check_budget(self, budget: float, n_samples: int = 1) -> None:
        """Refuse a budget that does not pay for so many samples of each question."""
        cheapest = float(self.arm_cost().mean(axis=0).min())
        lowest = cheapest * n_samples + float(self.round_costs.mean())
        if budget < lowest * (1 - 1e-9):
            noun = "one sample" if n_samples == 1 else f"{n_samples} samples"
            raise InfeasibleBudget(
                f"a budget of {budget:g} is below {lowest:.6g}, the mean cost of {noun}, which "
                "every question needs: use a larger budget"
            )

    @property
    def round_costs(self) -> FloatArray:
        """Cost of a round besides its samples, on each question, (N,)."""
        return np.broadcast_to(np.asarray(self.round_cost, dtype=np.float64), (len(self),))

    def table(self, levels: tuple[int, ...], *, windows: bool = False) -> UtilityTable:
        """Return the utility and the cost of each level on each question.

        Utilities are means over all subsets of samples, or over the paper's ``windows``.
        """
        if windows:
            utility = estimate_windows(self.answers, levels)
        else:
            utility = estimate(self.answers, levels, standard_errors=False).utility
        return UtilityTable(utility, self.level_cost(levels), self.key)

    def level_cost(self, levels: tuple[int, ...]) -> FloatArray:
        """Return the expected cost of each level, (N, K), or (K,) if all questions cost the same.

        The samples of a level are assumed to come in one round.
        """
        sample, per_round = self.mean_sample_cost(), self.round_costs
        is_equal = (sample == sample[:1]).all() and (per_round == per_round[:1]).all()
        if len(sample) > 0 and bool(is_equal):
            return np.asarray(sample[0] * np.asarray(levels) + per_round[0], dtype=np.float64)
        cost = sample[:, None] * np.asarray(levels) + per_round[:, None]
        return np.asarray(cost, dtype=np.float64)


def common_sample_count(counts: IntArray) -> int:
    """Return the largest number of samples that nine out of ten questions have.

    >>> common_sample_count(np.array([1, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8]))
    8
    """
    percent = 100 * MAX_EXCLUDED_SHARE
    return int(np.percentile(counts, percent, method="higher")) if len(counts) else 0


def describe_copies(n_questions: int, n_groups: int) -> str:
    """Return what follows a number of questions if some are copies.

    >>> describe_copies(300, 150), describe_copies(300, 300)
    (' (150 independent)', '')
    """
    return f" ({n_groups:,} independent)" if n_groups != n_questions else ""


def describe_assignments(count: int) -> str:
    """Return what follows scores on held-out questions that are means of several assignments.

    >>> describe_assignments(3), describe_assignments(1)
    (', mean of 3 fold assignments', '')
    """
    return f", mean of {count} fold assignments" if count > 1 else ""


def assign_folds(group: KeyArray, n_folds: int, *, seed: int = 0) -> IntArray:
    """Return the fold of each question.

    Copies of a question share a fold, and the order of the questions does not matter.
    """
    unique, inverse = np.unique(group, return_inverse=True)
    needed = max(MIN_QUESTIONS, n_folds)
    if len(unique) < needed:
        raise DataError(
            f"{len(unique)} independent questions are too few to hold some of them out: "
            f"at least {needed} are needed"
        )
    rank = np.empty(len(unique), dtype=np.int64)
    salt = hash_keys(np.array([seed], dtype=np.uint64))
    rank[np.argsort(hash_keys(unique ^ salt))] = np.arange(len(unique))
    return (rank % n_folds)[inverse]
