"""Run data: the samples of one run, and what the paper's tables and figures compute from them.

It has the utilities from windows and over all subsets, the utilities of two halves of the samples,
bands of difficulty, the paper's router trained as in the paper and cross-validated, and the scores
of both protocols. Each is computed on first use. N questions, K levels. It knows nothing of files
or figures.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from adacompute.core.answers import Answers
from adacompute.core.errors import DataError
from adacompute.core.types import FloatArray, IntArray, UtilityTable
from adacompute.core.utility import estimate
from adacompute.evaluation.experiment import PolicyFactory
from adacompute.evaluation.pool import Pool, assign_folds
from adacompute.evaluation.scoring.oracles import PAPER_LEVELS
from adacompute.evaluation.scoring.scores import evaluate, make_experiment
from reproduction.drafts import Drafts, add_free_draft
from reproduction.heuristic import HEURISTIC, make_heuristic
from reproduction.protocol import evaluate_paper, route

BUDGETS = (1.5, 2.0, 3.0)
"""The budgets of the paper's tables."""

MAIN_BUDGET = 2.0
"""The budget of results that are shown at one budget only."""

BUDGET_GRID = (1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0, 14.0, 16.0)
"""The budgets of a frontier."""

POLICIES: dict[str, str | PolicyFactory] = {
    "fixed": "fixed",
    "random": "random",
    HEURISTIC: make_heuristic,
    "mixture": "mixture",
    "router": "router",
    "adaptive-consistency": "adaptive-consistency",
    "sequential": "sequential",
    "oracle": "oracle",
    "oracle-in-sample": "oracle-in-sample",
}
"""The policies that are scored on held-out questions."""

FOLDS = 5
MAX_BANDS = 12
SEED = 0


@dataclass(frozen=True, eq=False)
class Bands:
    """Groups of questions by difficulty, easiest first; ``band`` (N,) is the group of each.

    Where ``is_recorded`` is true they come from the source. Otherwise they are thirds by how often
    the first half of the samples is correct, and only the second half may be used to measure them.
    """

    names: tuple[str, ...]
    band: IntArray
    is_recorded: bool


@dataclass(frozen=True, eq=False)
class RunData:
    """Samples of a run, equally many per question, and the recorded difficulty of its questions."""

    name: str
    pool: Pool
    ids: tuple[str, ...]
    difficulty: tuple[str | None, ...]
    drafts: Drafts | None = None

    @staticmethod
    def from_pool(
        name: str,
        pool: Pool,
        *,
        ids: Sequence[str] | None = None,
        difficulty: Sequence[str | None] | None = None,
        drafts: Drafts | None = None,
    ) -> RunData:
        """Keep equally many samples of every question; drop questions that have too few."""
        equal = pool.equalise()
        rows = np.flatnonzero(np.isin(pool.key, equal.key)).tolist()
        all_ids = [str(row) for row in range(len(pool))] if ids is None else list(ids)
        labels = [None] * len(pool) if difficulty is None else list(difficulty)
        return RunData(
            name=name,
            pool=equal,
            ids=tuple(all_ids[row] for row in rows),
            difficulty=tuple(labels[row] for row in rows),
            drafts=drafts,
        )

    def __len__(self) -> int:
        return len(self.pool)

    @property
    def n_samples(self) -> int:
        """Number of samples per question."""
        return self.pool.n_samples

    @property
    def levels(self) -> tuple[int, ...]:
        """The paper's levels for which there are enough samples."""
        return levels_up_to(PAPER_LEVELS, self.n_samples)

    @property
    def half_levels(self) -> tuple[int, ...]:
        """The paper's levels for which half of the samples are enough."""
        return levels_up_to(PAPER_LEVELS, max(1, self.n_samples // 2))

    @cached_property
    def window_table(self) -> UtilityTable:
        """Utilities from windows of samples, as the paper estimates them."""
        return self.pool.table(self.levels, windows=True)

    @cached_property
    def exact_table(self) -> UtilityTable:
        """Utilities as the mean over all subsets of the samples."""
        return self.pool.table(self.levels)

    @cached_property
    def half_tables(self) -> tuple[UtilityTable, UtilityTable]:
        """Utilities of two random halves of each question's samples.

        Their noise is independent, so the second half gives an unbiased score of levels that were
        chosen with the first.
        """
        if self.n_samples < 2:  # noqa: PLR2004 - one sample per half
            raise DataError(f"{self.name} has one sample per question: at least 2 are needed")
        first, second = self.pool.answers.halves(np.random.default_rng(SEED))
        return self._half_table(first), self._half_table(second)

    def _half_table(self, answers: Answers) -> UtilityTable:
        utility = estimate(answers, self.half_levels, standard_errors=False).utility
        return UtilityTable(utility, self.pool.level_cost(self.half_levels), self.pool.key)

    @cached_property
    def bands(self) -> Bands:
        """Groups of questions by difficulty."""
        single = self.half_tables[0].utility[:, 0]
        recorded = parse_bands(self.difficulty, single)
        if recorded is not None:
            return recorded
        thirds = quantile_groups(-single, 3)
        return Bands(("easy", "middle", "hard"), thirds, is_recorded=False)

    @cached_property
    def paper_pool(self) -> Pool:
        """The samples, with the features of the paper's router: they include an unpaid draft."""
        return add_free_draft(self.pool, self.drafts)

    @cached_property
    def paper_rows(self) -> list[dict[str, Any]]:
        """Scores by the paper's protocol."""
        return evaluate_paper(self.pool, budgets=BUDGETS, drafts=self.drafts)

    @cached_property
    def held_out_rows(self) -> list[dict[str, Any]]:
        """Scores on held-out questions."""
        experiment = make_experiment(self.pool, BUDGETS, PAPER_LEVELS, seed=SEED)
        return evaluate(experiment, POLICIES).rows

    def budgets_up_to(self, max_budget: int) -> tuple[float, ...]:
        """Budgets of a frontier that ends at a level."""
        return tuple(budget for budget in BUDGET_GRID if budget <= max_budget)

    @cached_property
    def fold(self) -> IntArray:
        """Fold of each question; copies of a text are in the same fold."""
        return assign_folds(self.pool.group, FOLDS, seed=SEED)

    def route(
        self,
        budget: float,
        train: IntArray,
        table: UtilityTable,
        seed: int = 0,
        *,
        free_draft: bool,
    ) -> IntArray:
        """Train the paper's router on some questions; return the level it gives to every one.

        With ``free_draft`` it sees a draft that is not paid for, as in the paper.
        """
        levels = tuple(int(cost) for cost in np.atleast_2d(table.cost)[0].tolist())
        pool = self.paper_pool if free_draft else self.pool
        return route(pool, table, levels, budget, train, seed=seed)

    def route_as_paper(self, budget: float, table: UtilityTable | None = None) -> IntArray:
        """Level of every question by a router that was trained on four fifths of them."""
        table = self.window_table if table is None else table
        return self.route(budget, np.flatnonzero(self.fold != 0), table, free_draft=True)

    def route_held_out(self, budget: float, table: UtilityTable | None = None) -> IntArray:
        """Level of every question by a router that was trained on the other folds."""
        table = self.window_table if table is None else table
        choice = np.empty(len(self), dtype=np.int64)
        for fold in range(FOLDS):
            held_out = self.fold == fold
            train = np.flatnonzero(~held_out)
            choice[held_out] = self.route(budget, train, table, free_draft=False)[held_out]
        return choice

    @cached_property
    def held_out_choices(self) -> dict[float, IntArray]:
        """Levels that the router gives to held-out questions, at each budget of the tables."""
        return {budget: self.route_held_out(budget) for budget in BUDGETS}


def levels_up_to(levels: Sequence[int], max_level: int) -> tuple[int, ...]:
    """Return the levels that are no larger than a number of samples."""
    return tuple(n for n in levels if n <= max_level)


def quantile_groups(values: FloatArray, n_groups: int) -> IntArray:
    """Split questions into groups of equal size by rising value; ties keep their order.

    >>> quantile_groups(np.array([0.1, 0.9, 0.5, 0.2]), 2).tolist()
    [0, 1, 1, 0]
    """
    rank = np.empty(len(values), dtype=np.int64)
    rank[np.argsort(values, kind="stable")] = np.arange(len(values))
    return rank * n_groups // max(1, len(values))


def group_shares(group: IntArray, n_groups: int, value: IntArray, n_values: int) -> FloatArray:
    """Share of each value in each group, (groups, values); zeros where a group is empty."""
    counts = np.zeros((n_groups, n_values))
    np.add.at(counts, (group, value), 1.0)
    return np.asarray(counts / np.maximum(1.0, counts.sum(axis=1, keepdims=True)))


def parse_bands(difficulty: Sequence[str | None], single: FloatArray) -> Bands | None:
    """Return bands from recorded difficulties; None where labels are missing, equal or too many.

    Labels that differ only in a number are ordered by it, and split into thirds where there are
    many. Others are ordered by ``single``, the accuracy of one sample. Where there are many of
    those, only the part before " | " counts.
    """
    if any(label is None or not label.strip() for label in difficulty) or len(difficulty) == 0:
        return None
    labels = [str(label).strip() for label in difficulty]
    numbers = _parse_numbers(labels)
    if numbers is not None and len(set(labels)) > MAX_BANDS:
        band = quantile_groups(numbers, 3)
        ends = [(numbers[band == b].min(), numbers[band == b].max()) for b in range(3)]
        return Bands(tuple(f"{low:g} to {high:g}" for low, high in ends), band, is_recorded=True)
    if len(set(labels)) > MAX_BANDS:
        labels = [label.partition(" | ")[0] for label in labels]
    unique, band = np.unique(labels, return_inverse=True)
    if not 1 < len(unique) <= MAX_BANDS:
        return None
    sort_by = -single if numbers is None else numbers
    order = np.argsort([sort_by[band == b].mean() for b in range(len(unique))], kind="stable")
    rank = np.empty(len(unique), dtype=np.int64)
    rank[order] = np.arange(len(unique))
    return Bands(tuple(str(unique[b]) for b in order), rank[band], is_recorded=True)


def _parse_numbers(labels: Sequence[str]) -> FloatArray | None:
    """Return the first number of each label, None unless labels differ only in their numbers."""
    found = [re.search(r"\d+(\.\d+)?", label) for label in labels]
    if not all(found) or len({re.sub(r"[\d.]+", "", label) for label in labels}) > 1:
        return None
    return np.array([float(match.group()) for match in found if match])


def never_rises(values: FloatArray) -> bool:
    """Whether no value is larger than the one before it."""
    return all(after <= before for before, after in pairwise(values.tolist()))
