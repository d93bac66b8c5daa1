"""Pool: recorded samples of questions, with all that a policy may know of them.

It can be reduced to what a table is scored on: equally many samples of each question, with or
without those that could not be read. It knows nothing of policies.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from adacompute.core.answers import UNPARSED, Answers
from adacompute.core.errors import DataError
from adacompute.core.types import (
    BoolArray,
    Float32Array,
    FloatArray,
    IntArray,
    KeyArray,
    Level,
    UtilityTable,
    hash_keys,
)
from adacompute.core.utility import estimate

MIN_QUESTIONS = 10
"""Folds of fewer than two questions say nothing."""

SHORT_SHARE = 0.1
"""Share of questions that may be left out for having too few samples."""


@dataclass(frozen=True, eq=False)
class Resort:
    """Samples of another model on the same questions: its draws answer where it is asked.

    ``level`` says which model, and how many of its samples vote; ``sample_cost`` is by sample.
    """

    level: Level
    answers: Answers
    sample_cost: FloatArray

    def __post_init__(self) -> None:
        fewest = int(self.answers.n_samples.min(initial=self.level.n_samples))
        if fewest < self.level.n_samples:
            raise DataError(
                f"a last resort of {self.level.n_samples} samples is recorded with {fewest} of "
                "some question: collect more of them, or let fewer vote"
            )

    def take(self, rows: IntArray | BoolArray) -> Resort:
        """Return these questions."""
        rows = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
        keep = np.isin(self.answers.question, rows)
        return replace(self, answers=self.answers.take(rows), sample_cost=self.sample_cost[keep])

    @property
    def cost(self) -> FloatArray:
        """Mean cost of asking it, by question."""
        return self.level.n_samples * _mean_cost(self.answers, self.sample_cost)

    @property
    def utility(self) -> FloatArray:
        """Chance that it is right, by question."""
        return estimate(self.answers, (self.level.n_samples,), standard_errors=False).utility[:, 0]


def _mean_cost(answers: Answers, sample_cost: FloatArray) -> FloatArray:
    """Mean cost of a sample of each question."""
    total = np.bincount(answers.question, sample_cost, minlength=len(answers))
    return np.asarray(total / np.maximum(1, answers.n_samples), dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Pool:
    """N questions with S samples in all.

    ``group`` is the same for copies of a question; ``sample_cost`` (S,) is what each sample cost,
    in the order of the answers; ``length_feature`` is the column of the features with the length.
    ``features`` are what routers read of the text; ``words``, where given, what the sequential
    policy reads instead. ``round_cost`` is what each round of draws costs beside them, one for all
    questions or (N,): a call's prompt is paid once, however many draws share it. ``resort`` is
    another model that the sequential policy may ask. Where ``logprob`` (S,) is given, ties go to
    the likeliest answer.
    """

    answers: Answers
    key: KeyArray
    group: KeyArray
    features: Float32Array
    sample_cost: FloatArray
    length_feature: int = 0
    words: Float32Array | None = None
    round_cost: float | FloatArray = 0.0
    resort: Resort | None = None
    logprob: FloatArray | None = None
    excluded: int = field(default=0)

    def __len__(self) -> int:
        return len(self.answers)

    def take(self, rows: IntArray | BoolArray) -> Pool:
        """Return these questions."""
        rows = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
        keep = np.zeros(len(self), dtype=np.bool_)
        keep[rows] = True
        if not bool((np.diff(rows) > 0).all()):
            raise DataError("questions are taken in their own order")
        kept = keep[self.answers.question]
        return replace(
            self,
            answers=self.answers.take(rows),
            key=self.key[rows],
            group=self.group[rows],
            features=self.features[rows],
            words=None if self.words is None else self.words[rows],
            resort=None if self.resort is None else self.resort.take(rows),
            sample_cost=self.sample_cost[kept],
            logprob=None if self.logprob is None else self.logprob[kept],
            round_cost=self.round_cost if np.ndim(self.round_cost) == 0 else self.round_costs[rows],
        )

    def equalise(self, *, drop_unparsed: bool = False) -> Pool:
        """Give every question equally many samples, the first ones; leave out those with too few.

        How many is the 10th percentile over questions. With ``drop_unparsed`` only parsed samples
        count and are kept.
        """
        read = self.answers.answer != UNPARSED
        counts = self.answers.n_parsed if drop_unparsed else self.answers.n_samples
        most = equalise_samples(counts)
        if most < 1:
            raise DataError(
                "more than a tenth of the questions have no readable sample: nothing can be scored"
            )
        enough = np.flatnonzero(counts >= most)
        pool = self.keep(read) if drop_unparsed else self
        pool = pool.take(enough)
        pool = pool.keep(pool.answers.position < most)
        return replace(pool, excluded=len(self) - len(enough))

    def keep(self, samples: BoolArray) -> Pool:
        """Return these samples of all questions."""
        return replace(
            self,
            answers=self.answers.keep(samples),
            sample_cost=self.sample_cost[samples],
            logprob=None if self.logprob is None else self.logprob[samples],
        )

    def mean_sample_cost(self) -> FloatArray:
        """Mean cost of a sample of each question."""
        return _mean_cost(self.answers, self.sample_cost)

    @property
    def round_costs(self) -> FloatArray:
        """What a round costs beside its draws on each question, (N,)."""
        return np.broadcast_to(np.asarray(self.round_cost, dtype=np.float64), (len(self),))

    def table(self, samples: tuple[int, ...], *, method: str = "exact") -> UtilityTable:
        """What each level is worth and costs on each question."""
        worth = estimate(self.answers, samples, method=method, standard_errors=False)
        return UtilityTable(worth.utility, self.level_cost(samples), self.key)

    def level_cost(self, samples: tuple[int, ...]) -> FloatArray:
        """Expected cost of each level on each question, (N, K), or (K,) when all are alike."""
        each, fee = self.mean_sample_cost(), self.round_costs
        if len(each) > 0 and bool((each == each[0]).all() and (fee == fee[0]).all()):
            return np.asarray(each[0] * np.asarray(samples) + fee[0], dtype=np.float64)
        return np.asarray(each[:, None] * np.asarray(samples) + fee[:, None], dtype=np.float64)


def equalise_samples(counts: IntArray) -> int:
    """How many samples nine of ten questions have, of so many each.

    >>> equalise_samples(np.array([1, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8]))
    8
    """
    share = 100 * SHORT_SHARE
    return int(np.percentile(counts, share, method="higher")) if len(counts) else 0


def assign_folds(group: KeyArray, folds: int, *, seed: int = 0) -> IntArray:
    """Fold of each question: copies of one share it, and it does not depend on their order."""
    unique, inverse = np.unique(group, return_inverse=True)
    if len(unique) < max(MIN_QUESTIONS, folds):
        raise DataError(
            f"{len(unique)} different questions are too few to hold some of them out: "
            f"at least {max(MIN_QUESTIONS, folds)} are needed"
        )
    rank = np.empty(len(unique), dtype=np.int64)
    salt = hash_keys(np.array([seed], dtype=np.uint64))
    rank[np.argsort(hash_keys(unique ^ salt))] = np.arange(len(unique))
    return (rank % folds)[inverse]
