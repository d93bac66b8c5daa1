"""Paper scores: the data behind the tables and figures that compare policies.

The pipeline with its numbers, the main table, frontiers, the gap to the oracle, and which levels
the learned router gives to which difficulty. Every figure stands twice: by the paper's protocol,
and on questions that were held out. It knows nothing of drawing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from adacompute.core.oracle import solve
from adacompute.core.types import FloatArray
from adacompute.core.upgrades import choose
from adacompute.evaluation.curves import cross_validate, read_curve, split_folds
from adacompute.evaluation.factories import Experiment, find_factory
from adacompute.evaluation.imitation import measure
from adacompute.evaluation.oracles import cross_fitted_oracle
from adacompute.paper.protocol import evaluate_paper
from adacompute.paper.subject import BUDGETS, MIDDLE, SEED, Subject, shares_by
from adacompute.report.table_files import Row

HEAT_BUDGETS = (1.2, 1.5, 3.0)
ON_PAPER = ("fixed", "random", "longest-first", "router", "oracle-in-sample")
HELD_OUT = ("mixture", "router", "adaptive-consistency", "sequential")
ORDERS = 40
"""Orders of each question's samples, as evaluation has them."""


@dataclass(frozen=True, eq=False)
class Pipeline:
    """What goes in and what comes out of each step on a run."""

    rows: list[Row]

    def __getitem__(self, what: str) -> float:
        """Return one of the numbers."""
        return float(next(row["value"] for row in self.rows if row["what"] == what) or 0.0)


def describe_pipeline(subject: Subject) -> Pipeline:
    """Follow a run along solve, learn and deploy."""
    found = solve(subject.windows, MIDDLE)
    routed = pick(subject.held_out_rows, "router", MIDDLE)
    values: dict[str, float | int] = {
        "questions": len(subject),
        "samples a question": subject.samples,
        "levels": len(subject.levels),
        "price at B = 2": found.price,
        "labels at the lowest level": float(found.shares(len(subject.levels))[0]),
        "features": int(subject.drafted.shape[1]),
        "imitation of training questions": float(
            pick(subject.paper_rows, "router", MIDDLE)["imitation"]
        ),
        "imitation held out": float(routed["imitation"]),
        "cost held out": float(routed["cost"]),
        "accuracy held out": float(routed["accuracy"]),
    }
    return Pipeline([{"what": what, "value": value} for what, value in values.items()])


def pick(rows: Sequence[dict[str, Any]], policy: str, budget: float) -> dict[str, Any]:
    """Return the row of a policy at a budget."""
    return next(row for row in rows if row["policy"] == policy and row["budget"] == budget)


@dataclass(frozen=True, eq=False)
class Main:
    """The main table: every policy at every budget, by both protocols."""

    rows: list[Row]

    def cell(self, policy: str, budget: float, column: str) -> float:
        """Return a number of the table."""
        row = next(row for row in self.rows if (row["policy"], row["B"]) == (policy, budget))
        return float(row[column] or 0.0)


def tabulate_main(subject: Subject) -> Main:
    """Put what the paper's protocol says beside what held-out questions say."""
    rows: list[Row] = []
    names = list(dict.fromkeys(row["policy"] for row in subject.paper_rows + subject.held_out_rows))
    for budget in BUDGETS:
        for name in names:
            row: Row = {"B": budget, "policy": name}
            for paper in subject.paper_rows:
                if (paper["policy"], paper["budget"]) == (name, budget):
                    row["paper's accuracy"] = paper["accuracy"]
                    row["±"] = paper["accuracy_high"] - paper["accuracy"]
                    row["paper's cost"] = paper["cost"]
                    row["its unseen fifth"] = paper["held_out_accuracy"]
            for fair in subject.held_out_rows:
                if (fair["policy"], fair["budget"]) == (name, budget):
                    row["held out"] = fair["accuracy"]
                    row["low"], row["high"] = fair["accuracy_low"], fair["accuracy_high"]
                    row["cost"] = fair["cost"]
                    row["gain over mixture"] = fair["difference"]
                    row["gain low"] = fair["difference_low"]
                    row["gain high"] = fair["difference_high"]
            rows.append(row)
    first = max(rows, key=len)  # so that all columns come in one order
    return Main([{name: row.get(name) for name in first} for row in rows])


@dataclass(frozen=True, eq=False)
class Line:
    """A policy along the budgets: what it spends and gets right."""

    budget: FloatArray
    cost: FloatArray
    accuracy: FloatArray


@dataclass(frozen=True, eq=False)
class Pareto:
    """Frontiers by the paper's protocol, and on held-out questions."""

    paper: dict[str, Line]
    held_out: dict[str, Line]

    @property
    def rows(self) -> list[Row]:
        """One row a protocol, policy and budget."""
        return [
            {
                "protocol": protocol,
                "policy": name,
                "B": float(line.budget[i]),
                "cost": float(line.cost[i]),
                "accuracy": float(line.accuracy[i]),
            }
            for protocol, lines in (("paper", self.paper), ("held out", self.held_out))
            for name, line in lines.items()
            for i in range(len(line.budget))
        ]


def trace_frontiers(subject: Subject) -> Pareto:
    """Score every policy on a dense grid of budgets, by both protocols."""
    paper = evaluate_paper(subject.paper_pool, budgets=subject.grid(subject.levels[-1]))
    grid = subject.grid(max(subject.half_levels))
    experiment = Experiment(subject.pool, subject.half_levels, grid, ORDERS, SEED)
    splits, once = split_folds(subject.fold), np.ones((1, len(subject)))
    fair: list[dict[str, Any]] = []
    for name in HELD_OUT:
        curve = cross_validate(experiment, find_factory(name), splits)
        for budget in grid:
            read = read_curve(curve, budget, once)
            row = {"cost": read.cost, "accuracy": read.accuracy}
            fair.append({"policy": name, "budget": budget, **row})
    known = cross_fitted_oracle(subject.pool, subject.half_levels, grid, seed=SEED)
    for budget, (cost, worth) in known.items():
        row = {"cost": cost, "accuracy": float(worth.mean())}
        fair.append({"policy": "oracle", "budget": budget, **row})
    return Pareto(
        {name: _line(paper, name) for name in ON_PAPER},
        {name: _line(fair, name) for name in (*HELD_OUT, "oracle")},
    )


def _line(rows: Sequence[dict[str, Any]], name: str) -> Line:
    mine = sorted((row for row in rows if row["policy"] == name), key=lambda row: row["budget"])
    columns = ("budget", "cost", "accuracy")
    return Line(*(np.array([row[column] for row in mine]) for column in columns))


def compare_policies(subject: Subject) -> Row:
    """Say in one row what a run comes to at B = 2, by both protocols."""
    paper, fair = subject.paper_rows, subject.held_out_rows
    routed, unseen = pick(paper, "router", MIDDLE), pick(fair, "router", MIDDLE)
    steps = pick(fair, "sequential", MIDDLE)
    return {
        "run": subject.name,
        "questions": len(subject),
        "samples": subject.samples,
        "mixture": pick(fair, "mixture", MIDDLE)["accuracy"],
        "oracle (paper)": pick(fair, "oracle-in-sample", MIDDLE)["accuracy"],
        "oracle (cross-fitted)": pick(fair, "oracle", MIDDLE)["accuracy"],
        "router (paper)": routed["accuracy"],
        "router (held out)": unseen["accuracy"],
        "router gain low": unseen["difference_low"],
        "router gain high": unseen["difference_high"],
        "adaptive-consistency": pick(fair, "adaptive-consistency", MIDDLE)["accuracy"],
        "sequential": steps["accuracy"],
        "sequential gain low": steps["difference_low"],
        "sequential gain high": steps["difference_high"],
    }


@dataclass(frozen=True, eq=False)
class Gap:
    """How closely the router follows the oracle: on its training questions, and held out."""

    rows: list[Row]


def measure_gap(subject: Subject) -> Gap:
    """Measure imitation and the gap by both protocols, beside always saying the same level."""
    rows: list[Row] = []
    for budget in BUDGETS:
        paper = pick(subject.paper_rows, "router", budget)
        price = solve(subject.windows, budget).price
        best = choose(subject.windows, price)
        common = np.bincount(best, minlength=len(subject.levels)).max() / len(subject)
        fair = measure(subject.windows, subject.held_out(budget), price, budget)
        rows.append(
            {
                "B": budget,
                "accuracy": paper["accuracy"],
                "imitation": paper["imitation"],
                "oracle gap": paper["oracle_gap"],
                "cost": paper["cost"],
                "commonest label": float(common),
                "imitation held out": fair["imitation"],
                "oracle gap held out": fair["oracle_gap"],
                "regret held out": fair["regret"],
                "regret bound": fair["regret_bound"],
            }
        )
    return Gap(rows)


@dataclass(frozen=True, eq=False)
class HeatMap:
    """Share of questions at each level by difficulty, (budgets, bands, K)."""

    budgets: tuple[float, ...]
    bands: tuple[str, ...]
    levels: tuple[int, ...]
    oracle: FloatArray
    learned: FloatArray
    held_out: FloatArray

    @property
    def rows(self) -> list[Row]:
        """One row a budget, band and way to choose."""
        ways = (
            ("oracle", self.oracle),
            ("learned", self.learned),
            ("learned, held out", self.held_out),
        )
        rows: list[Row] = []
        for i, budget in enumerate(self.budgets):
            for name, shares in ways:
                for b, band in enumerate(self.bands):
                    row: Row = {"B": budget, "labels": name, "difficulty": band}
                    row |= {f"level {n}": float(shares[i, b, k]) for k, n in enumerate(self.levels)}
                    rows.append(row)
        return rows


def map_labels(subject: Subject, budgets: tuple[float, ...] = HEAT_BUDGETS) -> HeatMap:
    """Count levels by difficulty: the oracle's, the router's, and the router's held out."""
    table, bands = subject.windows, subject.bands

    def share(choices: Sequence[Any]) -> FloatArray:
        counted = [shares_by(bands.band, len(bands.names), c, table.n_levels) for c in choices]
        return np.stack(counted)

    return HeatMap(
        budgets=budgets,
        bands=bands.names,
        levels=subject.levels,
        oracle=share([solve(table, budget).choice for budget in budgets]),
        learned=share([subject.learned(budget) for budget in budgets]),
        held_out=share([subject.held_out(budget) for budget in budgets]),
    )
