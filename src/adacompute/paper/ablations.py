"""Paper ablations: the data behind the paper's ablation tables and figures.

Five classifiers with their regret, its bound, and the confusion matrix of the trees; accuracy by
the number of training questions; and coarser, finer and odd sets of levels. The paper splits rows
of (question, budget) at random, so copies of a test question at other budgets are in the training
set. The same is therefore also computed with splits by question, and without the draft that the
paper does not pay for. N questions, K levels. It knows nothing of plotting.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from adacompute.core.errors import DataError
from adacompute.core.oracle import frontier, solve
from adacompute.core.types import Allocation, BoolArray, FloatArray, IntArray
from adacompute.evaluation.imitation import measure_imitation
from adacompute.evaluation.oracles import cross_fitted_oracle
from adacompute.evaluation.pool import assign_folds
from adacompute.paper.run_data import (
    BUDGETS,
    FOLDS,
    MAIN_BUDGET,
    SEED,
    RunData,
    levels_up_to,
)
from adacompute.policies.learners import CLASSIFIERS, fit_classifier, single_threaded
from adacompute.policies.router import max_regret
from adacompute.report.table_files import Row

N_SPLITS = 10
BY_ROW, BY_QUESTION = "rows", "questions"
FRACTIONS = (0.1, 0.2, 0.25, 0.4, 0.6, 0.8, 1.0)
SEEDS = (0, 1, 2, 3)
LEVEL_SETS = {
    "coarse": (1, 8, 16),
    "default": (1, 2, 4, 8, 16),
    "fine": (1, 2, 3, 4, 6, 8, 12, 16),
    "odd": (1, 3, 5, 7, 9, 13, 15),
}


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

    A confusion matrix is (K, K), true levels in rows that sum to 1. ``constant_imitation`` is the
    imitation of a constant prediction of the most common level. ``adjacent_share`` is the share of
    the trees' mistakes that are one level off, of the levels that the oracle uses.
    """

    levels: tuple[int, ...]
    trials: list[Trial]
    confusion: dict[str, FloatArray]
    constant_imitation: float
    adjacent_share: dict[str, float]
    excluded: dict[str, str]

    def mean(self, classifier: str, split_by: str, field: str) -> float:
        """Mean of a score over splits; NaN where the classifier has no trial."""
        own = self._select(classifier, split_by)
        return float(np.mean([getattr(trial, field) for trial in own])) if own else float("nan")

    def _select(self, classifier: str, split_by: str) -> list[Trial]:
        return [t for t in self.trials if (t.classifier, t.split_by) == (classifier, split_by)]

    @property
    def rows(self) -> list[Row]:
        """One row per kind of split and classifier."""
        rows: list[Row] = []
        for split_by in (BY_ROW, BY_QUESTION):
            for name in CLASSIFIERS:
                if own := self._select(name, split_by):
                    row: Row = {"split by": split_by, "classifier": name}
                    row |= {
                        "accuracy": self.mean(name, split_by, "accuracy"),
                        "±": float(np.std([trial.accuracy for trial in own])),
                        "oracle gap": self.mean(name, split_by, "oracle_gap"),
                        "imitation": self.mean(name, split_by, "imitation"),
                        "share of the most common level": self.constant_imitation,
                        "cost": self.mean(name, split_by, "cost"),
                        "regret": self.mean(name, split_by, "regret"),
                        "regret bound": self.mean(name, split_by, "regret_bound"),
                    }
                    rows.append(row)
        return rows


def ablate(run: RunData, *, n_splits: int = N_SPLITS) -> Ablation:
    """Fit five classifiers to the oracle's levels at three budgets.

    As in the paper, rows of all budgets are pooled and the budget is not a feature.
    """
    table = run.window_table
    oracles = [solve(table, budget) for budget in BUDGETS]
    label = np.concatenate([oracle.choice for oracle in oracles])
    row_masks = [_hold_out_rows(len(label), seed) for seed in range(n_splits)]
    folds = [assign_folds(run.pool.group, FOLDS, seed=seed) == 0 for seed in range(n_splits)]
    held_out = {BY_ROW: row_masks, BY_QUESTION: [np.tile(fold, len(BUDGETS)) for fold in folds]}
    copies = (len(BUDGETS), 1)
    features_of = {
        BY_ROW: np.tile(run.paper_pool.features, copies),
        BY_QUESTION: np.tile(run.pool.features, copies),
    }
    trials: list[Trial] = []
    counts = {split_by: np.zeros((table.n_levels, table.n_levels)) for split_by in held_out}
    excluded: dict[str, str] = {}
    for classifier in CLASSIFIERS:
        for split_by, masks in held_out.items():
            features = features_of[split_by]
            for seed, mask in enumerate(masks):
                try:
                    with single_threaded():
                        model = fit_classifier(
                            features[~mask],
                            label[~mask],
                            n_levels=table.n_levels,
                            classifier=classifier,
                            seed=seed,
                        )
                except DataError as error:
                    excluded[classifier] = str(error)
                    continue
                choice = label.copy()
                choice[mask] = model.predict(features[mask]).argmax(axis=1)
                trials.append(_score(run, classifier, split_by, choice, mask, oracles))
                if classifier == "gbm":
                    np.add.at(counts[split_by], (label[mask], choice[mask]), 1.0)
    total = {name: np.maximum(1.0, c.sum(axis=1, keepdims=True)) for name, c in counts.items()}
    return Ablation(
        levels=run.levels,
        trials=trials,
        confusion={name: c / total[name] for name, c in counts.items()},
        constant_imitation=float(np.bincount(label).max() / len(label)),
        adjacent_share={name: _adjacent_share(c, label) for name, c in counts.items()},
        excluded=excluded,
    )


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
    run: RunData,
    classifier: str,
    split_by: str,
    choice: IntArray,
    mask: BoolArray,
    oracles: list[Allocation],
) -> Trial:
    """Score a classifier on the held-out rows, each budget against its own oracle."""
    table, size = run.window_table, len(run)
    weights, scores, max_losses, mistakes = [], [], [], []
    for i, (budget, oracle) in enumerate(zip(BUDGETS, oracles, strict=True)):
        rows = np.flatnonzero(mask[i * size : (i + 1) * size])
        if len(rows) == 0:
            continue
        part, chosen = table.take(rows), choice[i * size + rows]
        best = oracle.choice[rows]
        max_losses.append(max_regret(part, best, oracle.price))
        mistakes.append(best != chosen)
        weights.append(len(rows))
        means = {"accuracy": float(part.utility_of(chosen).mean())}
        means["cost"] = float(part.cost_of(chosen).mean())
        scores.append(measure_imitation(part, chosen, best, oracle.price, budget) | means)
    mean = {
        name: float(np.average([one[name] for one in scores], weights=weights))
        for name in scores[0]
    }
    max_loss, error_rate = np.concatenate(max_losses), float(np.concatenate(mistakes).mean())
    return Trial(
        classifier=classifier,
        split_by=split_by,
        accuracy=mean["accuracy"],
        oracle_gap=mean["oracle_gap"],
        imitation=mean["imitation"],
        cost=mean["cost"],
        regret=mean["regret"],
        regret_bound=mean["regret_bound"],
        mean_bound=float(max_loss.mean()) * error_rate,
        max_bound=float(max_loss.max()) * error_rate,
    )


@dataclass(frozen=True, eq=False)
class Efficiency:
    """Accuracy by share of the training questions, (budgets, fractions, seeds).

    ``paper`` is over all questions, including the training questions; ``held_out`` is over the
    unseen fifth. ``oracle`` and ``fixed`` are over all questions, (budgets,); ``fixed_held_out`` is
    over the unseen fifths, (budgets, seeds).
    """

    budgets: tuple[float, ...]
    fractions: tuple[float, ...]
    paper: FloatArray
    held_out: FloatArray
    oracle: FloatArray
    fixed: FloatArray
    fixed_held_out: FloatArray

    @property
    def rows(self) -> list[Row]:
        """One row per budget and fraction."""
        return [
            {
                "B": budget,
                "share of training questions": fraction,
                "accuracy (paper)": float(self.paper[i, f].mean()),
                "± (paper)": float(self.paper[i, f].std()),
                "accuracy (held out)": float(self.held_out[i, f].mean()),
                "± (held out)": float(self.held_out[i, f].std()),
                "static oracle": float(self.oracle[i]),
                "fixed": float(self.fixed[i]),
                "fixed (held out)": float(self.fixed_held_out[i].mean()),
            }
            for i, budget in enumerate(self.budgets)
            for f, fraction in enumerate(self.fractions)
        ]


def measure_efficiency(run: RunData) -> Efficiency:
    """Train on growing shares of four fifths of the questions."""
    table, questions = run.window_table, np.arange(len(run))
    shape = (len(BUDGETS), len(FRACTIONS), len(SEEDS))
    paper, held_out = np.zeros(shape), np.zeros(shape)
    fixed = [max(k for k, n in enumerate(run.levels) if n <= budget) for budget in BUDGETS]
    fixed_held_out = np.zeros((len(BUDGETS), len(SEEDS)))
    for s, seed in enumerate(SEEDS):
        unseen = assign_folds(run.pool.group, FOLDS, seed=seed) == 0
        train = np.random.default_rng(seed).permutation(np.flatnonzero(~unseen))
        for i, budget in enumerate(BUDGETS):
            fixed_held_out[i, s] = table.utility[unseen, fixed[i]].mean()
            for f, fraction in enumerate(FRACTIONS):
                subset = np.sort(train[: max(2, round(fraction * len(train)))])
                level = run.route(budget, subset, table, seed, free_draft=True)
                paper[i, f, s] = table.utility[questions, level].mean()
                if run.paper_pool is not run.pool:
                    level = run.route(budget, subset, table, seed, free_draft=False)
                held_out[i, f, s] = table.utility[questions, level][unseen].mean()
    return Efficiency(
        budgets=BUDGETS,
        fractions=FRACTIONS,
        paper=paper,
        held_out=held_out,
        oracle=np.array([solve(table, budget).utility for budget in BUDGETS]),
        fixed=table.utility.mean(axis=0)[fixed],
        fixed_held_out=fixed_held_out,
    )


@dataclass(frozen=True, eq=False)
class LevelSet:
    """Results with one set of levels.

    ``in_sample`` is the accuracy of the oracle at ``budgets``, ``cross_fitted`` that of the
    cross-fitted oracle at ``cross_fitted_budgets``. ``router`` and ``router_held_out`` are rows of
    (cost, accuracy) at BUDGETS. ``shares`` are those of the oracle's levels at B = 2.
    """

    levels: tuple[int, ...]
    budgets: tuple[float, ...]
    in_sample: FloatArray
    cross_fitted_budgets: tuple[float, ...]
    cross_fitted: FloatArray
    router: FloatArray
    router_held_out: FloatArray
    shares: FloatArray

    @property
    def in_sample_at_main(self) -> float:
        """Accuracy of the in-sample oracle at B = 2."""
        return float(self.in_sample[self.budgets.index(MAIN_BUDGET)])

    @property
    def cross_fitted_at_main(self) -> float:
        """Accuracy of the cross-fitted oracle at B = 2."""
        return float(self.cross_fitted[self.cross_fitted_budgets.index(MAIN_BUDGET)])


@dataclass(frozen=True, eq=False)
class Granularity:
    """Results with coarser, finer and odd sets of levels, by name."""

    level_sets: dict[str, LevelSet]

    @property
    def rows(self) -> list[Row]:
        """One row per set of levels."""
        main = BUDGETS.index(MAIN_BUDGET)
        return [
            {
                "level set": name,
                "levels": ", ".join(map(str, one.levels)),
                "static oracle at B = 2": one.in_sample_at_main,
                "cross-fitted": one.cross_fitted_at_main
                if MAIN_BUDGET in one.cross_fitted_budgets
                else None,
                "router (paper)": float(one.router[main, 1]),
                "router (held out)": float(one.router_held_out[main, 1]),
                "oracle's shares": ", ".join(
                    f"{n}: {share:.2f}" for n, share in zip(one.levels, one.shares, strict=True)
                ),
            }
            for name, one in self.level_sets.items()
        ]


def compare_level_sets(run: RunData) -> Granularity:
    """Solve and train with each set of levels that has at least two levels."""
    available = {name: levels_up_to(levels, run.n_samples) for name, levels in LEVEL_SETS.items()}
    return Granularity(
        {name: _measure(run, levels) for name, levels in available.items() if len(levels) > 1}
    )


def _measure(run: RunData, levels: tuple[int, ...]) -> LevelSet:
    half_levels = levels_up_to(levels, max(1, run.n_samples // 2))
    table = run.pool.table(levels, method="windows")
    budgets, half_budgets = (
        run.budgets_up_to(levels[-1]),
        run.budgets_up_to(max(half_levels[-1], 2)),
    )
    curve = frontier(table)
    oracle = cross_fitted_oracle(run.pool, half_levels, half_budgets, seed=SEED)
    router = []
    for choose_levels in (run.route_as_paper, run.route_held_out):
        choices = [choose_levels(budget, table) for budget in BUDGETS]
        points = [(table.cost_of(c).mean(), table.utility_of(c).mean()) for c in choices]
        router.append(np.array(points))
    return LevelSet(
        levels=levels,
        budgets=budgets,
        in_sample=np.array([curve.utility_at(budget) for budget in budgets]),
        cross_fitted_budgets=half_budgets,
        cross_fitted=np.array([oracle[budget][1].mean() for budget in half_budgets]),
        router=router[0],
        router_held_out=router[1],
        shares=solve(table, MAIN_BUDGET).shares(len(levels)),
    )
