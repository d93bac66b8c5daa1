"""Paper subject: one run seen by the paper's protocol and by the honest one.

It holds what the tables and figures of the paper share: utilities by windows and over all subsets,
two halves of the samples, bands of difficulty, the paper's router trained as the paper does and
with every question held out once, and the scores of both protocols. Everything is worked out when
it is first asked for. N questions, K levels. It knows nothing of files or figures.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from adacompute.core.answers import Answers
from adacompute.core.errors import DataError
from adacompute.core.types import Float32Array, FloatArray, IntArray, UtilityTable, make_levels
from adacompute.core.utility import estimate
from adacompute.evaluation.oracles import PAPER_LEVELS
from adacompute.evaluation.pool import Pool, assign_folds
from adacompute.evaluation.scores import evaluate
from adacompute.paper.protocol import decide_once, evaluate_paper
from adacompute.policies.router import fit_router

BUDGETS = (1.5, 2.0, 3.0)
"""Of the paper's tables."""

MIDDLE = 2.0
"""The budget of what is shown at one budget only."""

GRID = (1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0, 14.0, 16.0)
"""Budgets of a frontier."""

SCORED = (
    "fixed",
    "random",
    "longest-first",
    "mixture",
    "router",
    "adaptive-consistency",
    "sequential",
    "oracle",
    "oracle-in-sample",
)
"""Policies of the honest tables."""

FOLDS = 5
MOST_BANDS = 12
SEED = 0


@dataclass(frozen=True, eq=False)
class Bands:
    """Groups of questions by difficulty, the easiest first.

    ``recorded`` says whether the source tells them; else they are thirds by how often the first
    half of the samples is right, and only the second half may be measured by them.
    """

    names: tuple[str, ...]
    band: IntArray
    recorded: bool


@dataclass(frozen=True, eq=False)
class Subject:
    """A run: its samples, equally many of each question, and what its source says of difficulty.

    ``drafted`` are the features with what a first draft tells, which only the paper's protocol may
    read: it takes the draft for free.
    """

    name: str
    pool: Pool
    ids: tuple[str, ...]
    difficulty: tuple[str | None, ...]
    drafted: Float32Array

    @staticmethod
    def of(
        name: str,
        pool: Pool,
        *,
        ids: Sequence[str] | None = None,
        difficulty: Sequence[str | None] | None = None,
        drafted: Float32Array | None = None,
    ) -> Subject:
        """Give every question equally many samples; those with too few are left out."""
        equal = pool.equalise()
        rows = np.flatnonzero(np.isin(pool.key, equal.key)).tolist()
        names = [str(row) for row in range(len(pool))] if ids is None else list(ids)
        known = [None] * len(pool) if difficulty is None else list(difficulty)
        return Subject(
            name=name,
            pool=equal,
            ids=tuple(names[row] for row in rows),
            difficulty=tuple(known[row] for row in rows),
            drafted=(pool.features if drafted is None else drafted)[rows],
        )

    def __len__(self) -> int:
        return len(self.pool)

    @property
    def samples(self) -> int:
        """Samples of each question."""
        return int(self.pool.answers.n_samples[0])

    @property
    def levels(self) -> tuple[int, ...]:
        """The paper's levels, as far as there are samples for them."""
        return within(PAPER_LEVELS, self.samples)

    @property
    def half_levels(self) -> tuple[int, ...]:
        """Those for which half of the samples suffice."""
        return within(PAPER_LEVELS, max(1, self.samples // 2))

    @cached_property
    def windows(self) -> UtilityTable:
        """Utilities as the paper estimates them."""
        return self.pool.table(self.levels, method="windows")

    @cached_property
    def exact(self) -> UtilityTable:
        """Utilities over all subsets."""
        return self.pool.table(self.levels)

    @cached_property
    def halves(self) -> tuple[UtilityTable, UtilityTable]:
        """Utilities on two random halves of each question's samples.

        Their noise is independent, so that what is chosen on one is scored fairly on the other.
        """
        if self.samples < 2:  # noqa: PLR2004 - a half needs a sample
            raise DataError(f"{self.name} has one sample a question: at least 2 are needed")
        both = self.pool.answers.halves(np.random.default_rng(SEED))
        return self._table(both[0]), self._table(both[1])

    def _table(self, answers: Answers) -> UtilityTable:
        worth = estimate(answers, self.half_levels, standard_errors=False).utility
        return UtilityTable(worth, self.pool.level_cost(self.half_levels), self.pool.key)

    @cached_property
    def bands(self) -> Bands:
        """Groups of questions by difficulty."""
        single = self.halves[0].utility[:, 0]
        told = read_bands(self.difficulty, single)
        if told is not None:
            return told
        return Bands(("easy", "middle", "hard"), cut_evenly(-single, 3), recorded=False)

    @cached_property
    def paper_pool(self) -> Pool:
        """The samples with what the paper's router reads."""
        return replace(self.pool, features=self.drafted)

    @cached_property
    def paper_rows(self) -> list[dict[str, Any]]:
        """Scores by the paper's protocol."""
        return evaluate_paper(self.paper_pool, budgets=BUDGETS)

    @cached_property
    def held_out_rows(self) -> list[dict[str, Any]]:
        """Scores on questions that were held out."""
        scores = evaluate(
            self.pool, budgets=BUDGETS, levels=PAPER_LEVELS, policies=SCORED, seed=SEED
        )
        return scores.rows

    def grid(self, most: int) -> tuple[float, ...]:
        """Budgets of a frontier up to a level."""
        return tuple(budget for budget in GRID if budget <= most)

    @cached_property
    def fold(self) -> IntArray:
        """Fold of each question; copies of a text share it."""
        return assign_folds(self.pool.group, FOLDS, seed=SEED)

    def route(self, budget: float, train: IntArray, table: UtilityTable, seed: int = 0) -> IntArray:
        """Level of every question by the paper's router, trained on some of them."""
        samples = tuple(int(cost) for cost in np.atleast_2d(table.cost)[0].tolist())
        policy = fit_router(
            self.drafted[train],
            table.take(train),
            make_levels(samples),
            budgets=[budget],
            seed=seed,
        )
        return decide_once(policy, self.paper_pool, policy.schedule.prices[0], table)

    def learned(self, budget: float, table: UtilityTable | None = None) -> IntArray:
        """Choose as the paper does: trained on four fifths, and asked about all."""
        table = self.windows if table is None else table
        return self.route(budget, np.flatnonzero(self.fold != 0), table)

    def held_out(self, budget: float, table: UtilityTable | None = None) -> IntArray:
        """Choose for each question by a router that was trained on the others."""
        table = self.windows if table is None else table
        choice = np.empty(len(self), dtype=np.int64)
        for fold in range(FOLDS):
            held = self.fold == fold
            choice[held] = self.route(budget, np.flatnonzero(~held), table)[held]
        return choice


def within(samples: Sequence[int], most: int) -> tuple[int, ...]:
    """Levels for which there are enough samples."""
    return tuple(n for n in samples if n <= most)


def cut_evenly(values: FloatArray, parts: int) -> IntArray:
    """Cut questions into equally large parts by rising value; ties in their order.

    >>> cut_evenly(np.array([0.1, 0.9, 0.5, 0.2]), 2).tolist()
    [0, 1, 1, 0]
    """
    rank = np.empty(len(values), dtype=np.int64)
    rank[np.argsort(values, kind="stable")] = np.arange(len(values))
    return rank * parts // max(1, len(values))


def shares_by(group: IntArray, groups: int, choice: IntArray, levels: int) -> FloatArray:
    """Share of each level within each group, (groups, K); zeros where a group is empty."""
    counts = np.zeros((groups, levels))
    np.add.at(counts, (group, choice), 1.0)
    return np.asarray(counts / np.maximum(1.0, counts.sum(axis=1, keepdims=True)))


def read_bands(difficulty: Sequence[str | None], single: FloatArray) -> Bands | None:
    """Bands from what the source says, None where it says too little or too much.

    Labels that differ in a number only are ordered by it, and cut into thirds where there are many;
    others are ordered by how often one sample is right. Of many, what is before a bar counts.
    """
    if any(label is None or not label.strip() for label in difficulty) or len(difficulty) == 0:
        return None
    labels = [str(label).strip() for label in difficulty]
    numbers = _numbers(labels)
    if numbers is not None and len(set(labels)) > MOST_BANDS:
        band = cut_evenly(numbers, 3)
        ends = [(numbers[band == b].min(), numbers[band == b].max()) for b in range(3)]
        return Bands(tuple(f"{low:g} to {high:g}" for low, high in ends), band, recorded=True)
    if len(set(labels)) > MOST_BANDS:
        labels = [label.partition(" | ")[0] for label in labels]
    unique, band = np.unique(labels, return_inverse=True)
    if not 1 < len(unique) <= MOST_BANDS:
        return None
    by = -single if numbers is None else numbers
    order = np.argsort([by[band == b].mean() for b in range(len(unique))], kind="stable")
    place = np.empty(len(unique), dtype=np.int64)
    place[order] = np.arange(len(unique))
    return Bands(tuple(str(unique[b]) for b in order), place[band], recorded=True)


def _numbers(labels: Sequence[str]) -> FloatArray | None:
    """The first number of each label, None unless labels differ in their numbers only."""
    found = [re.search(r"\d+(\.\d+)?", label) for label in labels]
    if not all(found) or len({re.sub(r"[\d.]+", "", label) for label in labels}) > 1:
        return None
    return np.array([float(match.group()) for match in found if match])


def falls(values: FloatArray) -> bool:
    """Whether values never rise."""
    return all(after <= before for before, after in pairwise(values.tolist()))
