"""Paper ablations: the data behind the paper's ablation tables and figures.

Five classifiers with the regret bound and the confusion of the trees; how many questions training
needs; how fine a ladder must be, odd ones included. The paper's protocol draws its splits over
rows, so that copies of a question at other budgets are trained on; beside it the same with splits
by question. N questions, K levels. It knows nothing of drawing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from adacompute.core.errors import DataError
from adacompute.core.oracle import frontier, solve
from adacompute.core.types import BoolArray, FloatArray, IntArray
from adacompute.core.upgrades import choose
from adacompute.evaluation.imitation import measure
from adacompute.evaluation.oracles import cross_fitted_oracle
from adacompute.evaluation.pool import assign_folds
from adacompute.paper.subject import BUDGETS, FOLDS, MIDDLE, SEED, Subject, within
from adacompute.policies.learners import CLASSIFIERS, fit_classifier, single_threaded
from adacompute.policies.router import max_regret
from adacompute.report.table_files import Row

SPLITS = 10
BY_ROW, BY_QUESTION = "rows", "questions"
FRACTIONS = (0.1, 0.2, 0.25, 0.4, 0.6, 0.8, 1.0)
SEEDS = (0, 1, 2, 3)
LADDERS = {
    "coarse": (1, 8, 16),
    "default": (1, 2, 4, 8, 16),
    "fine": (1, 2, 3, 4, 6, 8, 12, 16),
    "odd": (1, 3, 5, 7, 9, 13, 15),
}


@dataclass(frozen=True)
class Trial:
    """One classifier on one split: what it got, what it lost, and what bounds that.

    ``bound`` weighs each mistake by its own worst cost and is valid; ``mean_bound`` is the mean of
    these times the error rate, which the paper draws and which bounds nothing; ``largest_bound``
    the largest times the error rate.
    """

    classifier: str
    split_by: str
    accuracy: float
    gap: float
    imitation: float
    cost: float
    regret: float
    bound: float
    mean_bound: float
    largest_bound: float


@dataclass(frozen=True, eq=False)
class Ablation:
    """Trials of five classifiers, and of the trees the confusion, (K, K), rows that sum to 1.

    ``commonest`` is what always saying the commonest label would score as imitation, ``near`` the
    share of the trees' mistakes that are the next level.
    """

    levels: tuple[int, ...]
    trials: list[Trial]
    confusion: dict[str, FloatArray]
    commonest: float
    near: dict[str, float]
    excluded: dict[str, str]

    def mean(self, classifier: str, split_by: str, column: str) -> float:
        """Mean over splits."""
        mine = [t for t in self.trials if (t.classifier, t.split_by) == (classifier, split_by)]
        return float(np.mean([getattr(trial, column) for trial in mine])) if mine else float("nan")

    @property
    def rows(self) -> list[Row]:
        """One row a classifier and kind of split."""
        rows: list[Row] = []
        for split_by in (BY_ROW, BY_QUESTION):
            for name in CLASSIFIERS:
                mine = [t for t in self.trials if (t.classifier, t.split_by) == (name, split_by)]
                if mine:
                    spread = float(np.std([trial.accuracy for trial in mine]))
                    row: Row = {"split by": split_by, "classifier": name}
                    row |= {
                        "accuracy": self.mean(name, split_by, "accuracy"),
                        "±": spread,
                        "oracle gap": self.mean(name, split_by, "gap"),
                        "imitation": self.mean(name, split_by, "imitation"),
                        "commonest label": self.commonest,
                        "cost": self.mean(name, split_by, "cost"),
                        "regret": self.mean(name, split_by, "regret"),
                        "regret bound": self.mean(name, split_by, "bound"),
                    }
                    rows.append(row)
        return rows


def ablate(subject: Subject, *, splits: int = SPLITS) -> Ablation:
    """Fit five classifiers to the oracle's labels of three budgets together, without the budget."""
    table = subject.windows
    prices = [solve(table, budget).price for budget in BUDGETS]
    label = np.concatenate([choose(table, price) for price in prices])
    row_split = [_hold_rows(len(label), seed) for seed in range(splits)]
    groups = [assign_folds(subject.pool.group, FOLDS, seed=seed) == 0 for seed in range(splits)]
    held = {BY_ROW: row_split, BY_QUESTION: [np.tile(group, len(BUDGETS)) for group in groups]}
    features = np.tile(subject.drafted, (len(BUDGETS), 1))
    trials: list[Trial] = []
    confusion = {name: np.zeros((table.n_levels, table.n_levels)) for name in held}
    excluded: dict[str, str] = {}
    for kind in CLASSIFIERS:
        for split_by, masks in held.items():
            for seed, mask in enumerate(masks):
                try:
                    with single_threaded():
                        model = fit_classifier(
                            features[~mask],
                            label[~mask],
                            n_levels=table.n_levels,
                            classifier=kind,
                            seed=seed,
                        )
                except DataError as error:
                    excluded[kind] = str(error)
                    continue
                choice = label.copy()
                choice[mask] = model.predict(features[mask]).argmax(axis=1)
                trials.append(_try(subject, kind, split_by, choice, mask, prices))
                if kind == "gbm":
                    np.add.at(confusion[split_by], (label[mask], choice[mask]), 1.0)
    total = {name: np.maximum(1.0, c.sum(axis=1, keepdims=True)) for name, c in confusion.items()}
    return Ablation(
        levels=subject.levels,
        trials=trials,
        confusion={name: c / total[name] for name, c in confusion.items()},
        commonest=float(np.bincount(label).max() / len(label)),
        near={name: _near(counts) for name, counts in confusion.items()},
        excluded=excluded,
    )


def _near(counts: FloatArray) -> float:
    """Share of the mistakes that are one level off."""
    wrong = counts.sum() - np.trace(counts)
    beside = np.trace(counts, offset=1) + np.trace(counts, offset=-1)
    return float(beside / wrong) if wrong else 1.0


def _hold_rows(rows: int, seed: int) -> BoolArray:
    """A random fifth of the rows, as the paper splits."""
    held = np.zeros(rows, dtype=np.bool_)
    held[np.random.default_rng(seed).permutation(rows)[: max(1, rows // FOLDS)]] = True
    return held


def _try(
    subject: Subject,
    kind: str,
    split_by: str,
    choice: IntArray,
    mask: BoolArray,
    prices: list[float],
) -> Trial:
    """Measure what a classifier does on the rows held out, each budget at its own price."""
    table, size = subject.windows, len(subject)
    weights, found, worst, mistakes = [], [], [], []
    for i, (budget, price) in enumerate(zip(BUDGETS, prices, strict=True)):
        rows = np.flatnonzero(mask[i * size : (i + 1) * size])
        if len(rows) == 0:
            continue
        part, mine = table.take(rows), choice[i * size + rows]
        best = choose(part, price)
        worst.append(max_regret(part, best, price))
        mistakes.append(best != mine)
        weights.append(len(rows))
        about = {"accuracy": float(part.utility_of(mine).mean())}
        about["cost"] = float(part.cost_of(mine).mean())
        found.append(measure(part, mine, price, budget) | about)
    mean = {
        name: float(np.average([one[name] for one in found], weights=weights)) for name in found[0]
    }
    weight, error = np.concatenate(worst), float(np.concatenate(mistakes).mean())
    return Trial(
        classifier=kind,
        split_by=split_by,
        accuracy=mean["accuracy"],
        gap=mean["oracle_gap"],
        imitation=mean["imitation"],
        cost=mean["cost"],
        regret=mean["regret"],
        bound=mean["regret_bound"],
        mean_bound=float(weight.mean()) * error,
        largest_bound=float(weight.max()) * error,
    )


@dataclass(frozen=True, eq=False)
class Efficiency:
    """Accuracy by share of the training questions, (budgets, fractions, seeds).

    ``paper`` scores all questions, those trained on included; ``held_out`` the unseen fifth. Beside
    them the oracle and Fixed-b of all questions, (budgets,), and Fixed-b of the unseen fifths,
    (budgets, seeds).
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
        """One row a budget and fraction."""
        return [
            {
                "B": budget,
                "share of training": fraction,
                "paper's accuracy": float(self.paper[i, f].mean()),
                "±": float(self.paper[i, f].std()),
                "held out": float(self.held_out[i, f].mean()),
                "± held out": float(self.held_out[i, f].std()),
                "oracle": float(self.oracle[i]),
                "fixed": float(self.fixed[i]),
                "fixed held out": float(self.fixed_held_out[i].mean()),
            }
            for i, budget in enumerate(self.budgets)
            for f, fraction in enumerate(self.fractions)
        ]


def measure_efficiency(subject: Subject) -> Efficiency:
    """Train on growing shares of four fifths of the questions."""
    table, every = subject.windows, np.arange(len(subject))
    shape = (len(BUDGETS), len(FRACTIONS), len(SEEDS))
    paper, fair = np.zeros(shape), np.zeros(shape)
    level = [max(k for k, n in enumerate(subject.levels) if n <= budget) for budget in BUDGETS]
    unseen = np.zeros((len(BUDGETS), len(SEEDS)))
    for s, seed in enumerate(SEEDS):
        held = assign_folds(subject.pool.group, FOLDS, seed=seed) == 0
        train = np.random.default_rng(seed).permutation(np.flatnonzero(~held))
        for i, budget in enumerate(BUDGETS):
            unseen[i, s] = table.utility[held, level[i]].mean()
            for f, fraction in enumerate(FRACTIONS):
                some = np.sort(train[: max(2, round(fraction * len(train)))])
                worth = table.utility[every, subject.route(budget, some, table, seed)]
                paper[i, f, s], fair[i, f, s] = worth.mean(), worth[held].mean()
    return Efficiency(
        budgets=BUDGETS,
        fractions=FRACTIONS,
        paper=paper,
        held_out=fair,
        oracle=np.array([solve(table, budget).utility for budget in BUDGETS]),
        fixed=table.utility.mean(axis=0)[level],
        fixed_held_out=unseen,
    )


@dataclass(frozen=True, eq=False)
class Ladder:
    """One set of levels: its frontiers and its labels.

    ``in_sample`` and ``cross_fitted_oracle`` are the oracle along ``budgets`` and ``fair_budgets``,
    ``learned`` and ``held_out`` the router at BUDGETS as (cost, accuracy) rows.
    """

    levels: tuple[int, ...]
    budgets: tuple[float, ...]
    in_sample: FloatArray
    fair_budgets: tuple[float, ...]
    cross_fitted_oracle: FloatArray
    learned: FloatArray
    held_out: FloatArray
    shares: FloatArray


@dataclass(frozen=True, eq=False)
class Granularity:
    """Ladders of different fineness."""

    ladders: dict[str, Ladder]

    def at_middle(self, name: str, column: str) -> float:
        """What the oracle gets at B = 2 on a ladder, in-sample or cross-fitted."""
        ladder = self.ladders[name]
        budgets = ladder.budgets if column == "in_sample" else ladder.fair_budgets
        return float(getattr(ladder, column)[budgets.index(MIDDLE)])

    @property
    def rows(self) -> list[Row]:
        """One row a ladder."""
        at = BUDGETS.index(MIDDLE)
        return [
            {
                "ladder": name,
                "levels": ", ".join(map(str, ladder.levels)),
                "oracle at B = 2": self.at_middle(name, "in_sample"),
                "cross-fitted": self.at_middle(name, "cross_fitted")
                if MIDDLE in ladder.fair_budgets
                else None,
                "learned": float(ladder.learned[at, 1]),
                "learned, held out": float(ladder.held_out[at, 1]),
                "labels": ", ".join(
                    f"{n}: {share:.2f}"
                    for n, share in zip(ladder.levels, ladder.shares, strict=True)
                ),
            }
            for name, ladder in self.ladders.items()
        ]


def compare_ladders(subject: Subject) -> Granularity:
    """Solve and learn on ladders of different fineness, those with two levels or more."""
    climbed = {name: within(levels, subject.samples) for name, levels in LADDERS.items()}
    return Granularity(
        {name: _climb(subject, levels) for name, levels in climbed.items() if len(levels) > 1}
    )


def _climb(subject: Subject, levels: tuple[int, ...]) -> Ladder:
    half = within(levels, max(1, subject.samples // 2))
    table = subject.pool.table(levels, method="windows")
    budgets, fair = subject.grid(levels[-1]), subject.grid(max(half[-1], 2))
    curve = frontier(table)
    found = cross_fitted_oracle(subject.pool, half, fair, seed=SEED)
    shown = []
    for choose_levels in (subject.learned, subject.held_out):
        choices = [choose_levels(budget, table) for budget in BUDGETS]
        points = [(table.cost_of(c).mean(), table.utility_of(c).mean()) for c in choices]
        shown.append(np.array(points))
    return Ladder(
        levels=levels,
        budgets=budgets,
        in_sample=np.array([curve.utility_at(budget) for budget in budgets]),
        fair_budgets=fair,
        cross_fitted_oracle=np.array([found[budget][1].mean() for budget in fair]),
        learned=shown[0],
        held_out=shown[1],
        shares=solve(table, MIDDLE).shares(len(levels)),
    )
