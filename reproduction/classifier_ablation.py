"""Paper classifier ablation: five classifiers of the oracle's levels.

As in the paper, rows of (question, budget) are pooled, and the budget is not a feature. The paper
splits the rows at random, so copies of a test question are in the training set. The same is
therefore also computed with splits by question, which keep the copies of a question at all budgets
together. R rows, K levels. It knows nothing of plotting.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from adacompute.core.allocation.oracle import solve
from adacompute.core.errors import DataError
from adacompute.core.types import (
    BoolArray,
    Float32Array,
    FloatArray,
    IntArray,
    KeyArray,
)
from adacompute.evaluation.pool import assign_folds
from adacompute.policies.learners import CLASSIFIERS, fit_classifier, single_threaded
from reproduction.run_data import BUDGETS, FOLDS, RunData
from reproduction.table_files import Row

N_SPLITS = 10
BY_ROW, BY_QUESTION = "rows", "questions"
SCORES = ("accuracy", "oracle_gap", "imitation", "cost")
"""The scores of the paper's table, which come with their deviation over the splits."""


@dataclass(frozen=True)
class Trial:
    """Scores of one classifier on one split, and three bounds of its regret.

    ``regret_bound`` weighs each mistake by its own worst cost and is valid. ``mean_bound`` is the
    mean worst cost times the error rate: the paper plots it, and it is no bound. ``max_bound`` is
    the largest worst cost times the error rate.
    """

    classifier: str
    split_by: str
    accuracy: float
    oracle_gap: float
    imitation: float
    cost: float
    regret: float
    regret_bound: float
    mean_bound: float
    max_bound: float


@dataclass(frozen=True, eq=False)
class Ablation:
    """Trials of five classifiers, and the confusion matrix of the trees by kind of split.

    ``oracle_accuracy`` and ``lowest_accuracy`` are those of the oracle and of the lowest level. A
    confusion matrix is (K, K), true levels in rows that sum to 1.
    ``constant_imitation`` is the imitation of a constant prediction of the most common level.
    ``adjacent_share`` is the share of the trees' mistakes that are one level off, among the levels
    that occur as labels. ``mean_loss`` and ``max_loss`` are those of the worst level of each row.
    """

    levels: tuple[int, ...]
    trials: list[Trial]
    oracle_accuracy: float
    lowest_accuracy: float
    oracle_cost: float
    confusion: dict[str, FloatArray]
    constant_imitation: float
    adjacent_share: dict[str, float]
    mean_loss: float
    max_loss: float
    excluded: dict[str, str]

    def select(self, classifier: str, split_by: str) -> list[Trial]:
        """Return the trials of a classifier with a kind of split."""
        return [t for t in self.trials if (t.classifier, t.split_by) == (classifier, split_by)]

    def mean(self, classifier: str, split_by: str, field: str) -> float:
        """Mean of a score over splits; NaN where the classifier has no trial."""
        own = self.select(classifier, split_by)
        return float(np.mean([getattr(trial, field) for trial in own])) if own else float("nan")

    @property
    def rows(self) -> list[Row]:
        """One row per kind of split and classifier."""
        rows: list[Row] = []
        for split_by in (BY_ROW, BY_QUESTION):
            for name in CLASSIFIERS:
                if own := self.select(name, split_by):
                    row: Row = {"split by": split_by, "classifier": name}
                    for score in SCORES:
                        column = score.replace("_", " ")
                        row[column] = self.mean(name, split_by, score)
                        row[f"± {column}"] = float(np.std([getattr(t, score) for t in own]))
                    row["share of the most common level"] = self.constant_imitation
                    row["regret"] = self.mean(name, split_by, "regret")
                    row["regret bound"] = self.mean(name, split_by, "regret_bound")
                    rows.append(row)
        return rows


@dataclass(frozen=True, eq=False)
class _PooledRows:
    """R rows of (budget, question); ``net`` (R, K) is utility − price × cost of each level.

    Only the features of splits by row, the paper's own, include the draft that it does not pay for.
    """

    features: dict[str, Float32Array]
    group: KeyArray
    label: IntArray
    utility: FloatArray
    cost: FloatArray
    net: FloatArray

    def at(self, values: FloatArray, choice: IntArray) -> FloatArray:
        """Return the value of the chosen level of each row, (R,)."""
        return np.asarray(values[np.arange(len(values)), choice])

    @property
    def max_loss(self) -> FloatArray:
        """M_λ(x) of Theorem 2: the loss of the worst level of each row."""
        return np.asarray(self.at(self.net, self.label) - self.net.min(axis=1))


def ablate(run: RunData, n_splits: int = N_SPLITS) -> Ablation:
    """Fit five classifiers to the oracle's levels at three budgets."""
    levels, pooled = run.levels, _pool_rows(run)
    folds = [assign_folds(pooled.group, FOLDS, seed=seed) == 0 for seed in range(n_splits)]
    row_masks = [_hold_out_rows(len(pooled.label), seed) for seed in range(n_splits)]
    trials: list[Trial] = []
    counts = {split: np.zeros((len(levels), len(levels))) for split in (BY_ROW, BY_QUESTION)}
    excluded: dict[str, str] = {}
    for classifier in CLASSIFIERS:
        for split_by, masks in ((BY_ROW, row_masks), (BY_QUESTION, folds)):
            for seed, mask in enumerate(masks):
                try:
                    choice = _predict(pooled, split_by, mask, classifier, seed, len(levels))
                except DataError as error:
                    excluded[classifier] = str(error)
                    continue
                trials.append(_score(pooled, classifier, split_by, choice, mask))
                if classifier == "gbm":
                    np.add.at(counts[split_by], (pooled.label[mask], choice[mask]), 1.0)
    total = {name: np.maximum(1.0, c.sum(axis=1, keepdims=True)) for name, c in counts.items()}
    oracle = pooled.at(pooled.utility, pooled.label)
    return Ablation(
        levels=levels,
        trials=trials,
        oracle_accuracy=float(oracle.mean()),
        lowest_accuracy=float(pooled.utility[:, 0].mean()),
        oracle_cost=float(pooled.at(pooled.cost, pooled.label).mean()),
        confusion={name: c / total[name] for name, c in counts.items()},
        constant_imitation=float(np.bincount(pooled.label).max() / len(pooled.label)),
        adjacent_share={name: _adjacent_share(c, pooled.label) for name, c in counts.items()},
        mean_loss=float(pooled.max_loss.mean()),
        max_loss=float(pooled.max_loss.max()),
        excluded=excluded,
    )


def _pool_rows(run: RunData) -> _PooledRows:
    """Stack the questions at all budgets, with the oracle's level of each."""
    table, n = run.window_table, len(BUDGETS)
    utility, cost = (np.concatenate([values] * n) for values in (table.utility, table.costs))
    allocations = [solve(table, budget) for budget in BUDGETS]
    price = np.repeat([one.price for one in allocations], len(run))[:, None]
    return _PooledRows(
        features={
            BY_ROW: np.concatenate([run.paper_pool.features] * n),
            BY_QUESTION: np.concatenate([run.pool.features] * n),
        },
        group=np.concatenate([run.pool.group] * n),
        label=np.concatenate([one.choice for one in allocations]),
        utility=utility,
        cost=cost,
        net=utility - price * cost,
    )


def _predict(
    pooled: _PooledRows, split_by: str, mask: BoolArray, classifier: str, seed: int, n_levels: int
) -> IntArray:
    """Fit a classifier to the other rows; return its level of the held-out ones, else the label."""
    features, label = pooled.features[split_by], pooled.label
    with single_threaded():
        model = fit_classifier(
            features[~mask], label[~mask], n_levels=n_levels, classifier=classifier, seed=seed
        )
    choice = label.copy()
    choice[mask] = model.predict(features[mask]).argmax(axis=1)
    return choice


def _adjacent_share(counts: FloatArray, label: IntArray) -> float:
    """Share of the mistakes that are one level off, of the levels that some label uses."""
    used = np.unique(label)
    counts = counts[np.ix_(used, used)]
    mistakes = counts.sum() - np.trace(counts)
    adjacent = np.trace(counts, offset=1) + np.trace(counts, offset=-1)
    return float(adjacent / mistakes) if mistakes else 1.0


def _hold_out_rows(n_rows: int, seed: int) -> BoolArray:
    """Mark a random fifth of the rows, as the paper splits."""
    held_out = np.zeros(n_rows, dtype=np.bool_)
    order = np.random.default_rng(seed).permutation(n_rows)
    held_out[order[: max(1, n_rows // FOLDS)]] = True
    return held_out


def _score(
    pooled: _PooledRows, classifier: str, split_by: str, choice: IntArray, mask: BoolArray
) -> Trial:
    """Score a classifier on the held-out rows, each at the price of its own budget."""
    label = pooled.label
    utility, cost = (pooled.at(values, choice)[mask] for values in (pooled.utility, pooled.cost))
    gap = pooled.at(pooled.utility, label)[mask] - utility
    regret = (pooled.at(pooled.net, label) - pooled.at(pooled.net, choice))[mask]
    max_loss, is_wrong = pooled.max_loss[mask], (label != choice)[mask]
    error_rate = float(is_wrong.mean())
    return Trial(
        classifier=classifier,
        split_by=split_by,
        accuracy=float(utility.mean()),
        oracle_gap=float(gap.mean()),
        imitation=1.0 - error_rate,
        cost=float(cost.mean()),
        regret=float(regret.mean()),
        regret_bound=float((max_loss * is_wrong).mean()),
        mean_bound=float(max_loss.mean()) * error_rate,
        max_bound=float(max_loss.max()) * error_rate,
    )
