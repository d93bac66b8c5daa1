"""Paper comparison: the data behind the tables and figures that compare policies.

The pipeline with its numbers, the main table, frontiers, the gap to the oracle, and the levels that
the router gives to each difficulty. Everything is computed twice: by the paper's protocol and on
held-out questions. It knows nothing of plotting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from adacompute.core.allocation.oracle import solve
from adacompute.core.types import FloatArray, IntArray
from adacompute.evaluation.experiment import Experiment
from adacompute.evaluation.factories import find_factory
from adacompute.evaluation.scoring.held_out import HeldOutCurve, replay_splits, split_folds
from adacompute.evaluation.scoring.imitation import measure_imitation
from adacompute.evaluation.scoring.oracles import cross_fitted_oracle
from reproduction.protocol import LEAKING_ROUTER, evaluate_paper
from reproduction.protocol import POLICIES as PAPER_POLICIES
from reproduction.run_data import BUDGETS, MAIN_BUDGET, SEED, RunData, group_shares
from reproduction.table_files import Row

HEAT_MAP_BUDGETS = (1.2, 1.5, 3.0)
HELD_OUT_POLICIES = ("mixture", "router", "adaptive-consistency", "sequential")
PERMUTATIONS = 40
"""Random orders of each question's samples, as many as ``evaluate`` uses."""

FIGURE_13 = "with the feature of Figure 13"
"""The third column beside the two protocols; see `reproduction.protocol`."""

FRONTIER_POLICIES = tuple(name for name in PAPER_POLICIES if name != LEAKING_ROUTER)


def find_row(rows: Sequence[dict[str, Any]], policy: str, budget: float) -> dict[str, Any]:
    """Return the row of a policy at a budget."""
    return next(row for row in rows if row["policy"] == policy and row["budget"] == budget)


@dataclass(frozen=True, eq=False)
class MainTable:
    """Every policy at every budget, by both protocols."""

    rows: list[Row]

    def cell(self, policy: str, budget: float, column: str) -> float:
        """Return a number of the table."""
        row = next(row for row in self.rows if (row["policy"], row["B"]) == (policy, budget))
        return float(row[column] or 0.0)


def tabulate_main(run: RunData) -> MainTable:
    """Return the scores of both protocols side by side, and the router with one more feature."""
    rows: list[Row] = []
    names = list(dict.fromkeys(row["policy"] for row in run.paper_rows + run.held_out_rows))
    names.remove(LEAKING_ROUTER)  # a column of the router's row
    for budget in BUDGETS:
        for name in names:
            row: Row = {"B": budget, "policy": name}
            for paper in run.paper_rows:
                if (paper["policy"], paper["budget"]) == (name, budget):
                    row["accuracy (paper)"] = paper["accuracy"]
                    row["± (paper)"] = paper["accuracy_high"] - paper["accuracy"]
                    row["cost (paper)"] = paper["cost"]
                    row["over budget (paper)"] = "yes" if paper["is_over_budget"] else "no"
                    row["unseen fifth (paper)"] = paper["held_out_accuracy"]
                    row[f"accuracy ({FIGURE_13})"] = None
                    row[f"unseen fifth ({FIGURE_13})"] = None
            if name == "router":
                leaking = find_row(run.paper_rows, LEAKING_ROUTER, budget)
                row[f"accuracy ({FIGURE_13})"] = leaking["accuracy"]
                row[f"unseen fifth ({FIGURE_13})"] = leaking["held_out_accuracy"]
            for held_out in run.held_out_rows:
                if (held_out["policy"], held_out["budget"]) == (name, budget):
                    row["accuracy (held out)"] = held_out["accuracy"]
                    row["low"], row["high"] = held_out["accuracy_low"], held_out["accuracy_high"]
                    row["cost (held out)"] = held_out["cost"]
                    row["gain over mixture"] = held_out["difference"]
                    row["gain low"] = held_out["difference_low"]
                    row["gain high"] = held_out["difference_high"]
            rows.append(row)
    longest = max(rows, key=len)  # gives all rows the same columns in the same order
    return MainTable([{column: row.get(column) for column in longest} for row in rows])


@dataclass(frozen=True, eq=False)
class BudgetCurve:
    """Cost and accuracy of a policy at each budget."""

    budget: FloatArray
    cost: FloatArray
    accuracy: FloatArray


@dataclass(frozen=True, eq=False)
class Frontiers:
    """Curve of each policy, by the paper's protocol and on held-out questions."""

    paper: dict[str, BudgetCurve]
    held_out: dict[str, BudgetCurve]

    @property
    def rows(self) -> list[Row]:
        """One row per protocol, policy and budget."""
        return [
            {
                "protocol": protocol,
                "policy": name,
                "B": float(curve.budget[i]),
                "cost": float(curve.cost[i]),
                "accuracy": float(curve.accuracy[i]),
            }
            for protocol, curves in (("paper", self.paper), ("held out", self.held_out))
            for name, curve in curves.items()
            for i in range(len(curve.budget))
        ]


def trace_frontiers(run: RunData) -> Frontiers:
    """Score every policy on a dense grid of budgets, by both protocols."""
    budgets = run.budgets_up_to(run.levels[-1])
    paper = evaluate_paper(run.pool, budgets=budgets, policies=FRONTIER_POLICIES)
    budgets = run.budgets_up_to(max(run.half_levels))
    experiment = Experiment(run.pool, run.half_levels, budgets, PERMUTATIONS, SEED)
    splits = split_folds(run.fold)
    held_out: list[dict[str, Any]] = []
    for name in HELD_OUT_POLICIES:
        folds = replay_splits(experiment, find_factory(name), splits)
        curve = HeldOutCurve(tuple(folds), experiment.pool.group)
        for budget in budgets:
            point = curve.read(budget)
            row = {"cost": point.cost, "accuracy": point.accuracy}
            held_out.append({"policy": name, "budget": budget, **row})
    oracle = cross_fitted_oracle(run.pool, run.half_levels, budgets, seed=SEED)
    for budget, (cost, utility) in oracle.items():
        row = {"cost": cost, "accuracy": float(utility.mean())}
        held_out.append({"policy": "oracle", "budget": budget, **row})
    return Frontiers(
        {name: _make_curve(paper, name) for name in FRONTIER_POLICIES},
        {name: _make_curve(held_out, name) for name in (*HELD_OUT_POLICIES, "oracle")},
    )


def _make_curve(rows: Sequence[dict[str, Any]], policy: str) -> BudgetCurve:
    own = sorted((row for row in rows if row["policy"] == policy), key=lambda row: row["budget"])
    columns = ("budget", "cost", "accuracy")
    return BudgetCurve(*(np.array([row[column] for row in own]) for column in columns))


def compare_policies(run: RunData) -> Row:
    """Return one row with the accuracies of a run at B = 2, by both protocols.

    Imitation and the gap to the oracle are those of the router, at the budget where they are worst.
    """
    paper, held_out = run.paper_rows, run.held_out_rows
    router = find_row(held_out, "router", MAIN_BUDGET)
    sequential = find_row(held_out, "sequential", MAIN_BUDGET)
    adaptive = find_row(held_out, "adaptive-consistency", MAIN_BUDGET)
    in_sample = find_row(held_out, "oracle-in-sample", MAIN_BUDGET)
    return {
        "run": run.name,
        "questions": len(run),
        "samples": run.n_samples,
        "mixture": find_row(held_out, "mixture", MAIN_BUDGET)["accuracy"],
        "static oracle (paper)": in_sample["accuracy"],
        "static oracle (cross-fitted)": find_row(held_out, "oracle", MAIN_BUDGET)["accuracy"],
        "router (paper)": find_row(paper, "router", MAIN_BUDGET)["accuracy"],
        f"router ({FIGURE_13})": find_row(paper, LEAKING_ROUTER, MAIN_BUDGET)["accuracy"],
        "router (held out)": router["accuracy"],
        "router gain low": router["difference_low"],
        "router gain high": router["difference_high"],
        "adaptive-consistency": adaptive["accuracy"],
        "sequential": sequential["accuracy"],
        "sequential gain low": sequential["difference_low"],
        "sequential gain high": sequential["difference_high"],
        **_worst_imitation(run, "router", "paper"),
        **_worst_imitation(run, LEAKING_ROUTER, FIGURE_13),
    }


def _worst_imitation(run: RunData, router: str, column: str) -> Row:
    """Return the worst imitation and gap of a router over the budgets, with their intervals."""
    rows = [find_row(run.paper_rows, router, budget) for budget in BUDGETS]
    return {
        **with_ends(min(rows, key=lambda row: row["imitation"]), "imitation", column),
        **with_ends(max(rows, key=lambda row: row["oracle_gap"]), "oracle_gap", column),
    }


def with_ends(scores: dict[str, Any], name: str, column: str) -> Row:
    """Return a score and the ends of its interval as columns of a table."""
    title = name.replace("held_out", "unseen").replace("_", " ")
    return {
        f"{title} ({column})": scores[name],
        f"{title} low ({column})": scores[f"{name}_low"],
        f"{title} high ({column})": scores[f"{name}_high"],
    }


@dataclass(frozen=True, eq=False)
class GapTable:
    """How closely the router follows the oracle, by the paper's protocol and held out.

    The columns 'with the feature of Figure 13' are by the paper's protocol, for the router that
    also knows each question's own Acc(x, 1); ``unseen`` is its fifth that was not trained on.
    """

    rows: list[Row]


def measure_gap(run: RunData) -> GapTable:
    """Measure imitation of the oracle and the gap to it, by both protocols.

    Imitation should be compared with the share of the most common level, which a constant
    prediction reaches. The router is the one trained for the budget, whatever it then spends; the
    main table reads its held-out accuracy at a cost of exactly the budget.
    """
    rows: list[Row] = []
    for budget in BUDGETS:
        paper = find_row(run.paper_rows, "router", budget)
        shares = solve(run.window_table, budget).shares(len(run.levels))
        leaking = find_row(run.paper_rows, LEAKING_ROUTER, budget)
        held_out = imitate_held_out(run, budget)
        rows.append(
            {
                "B": budget,
                "accuracy (paper)": paper["accuracy"],
                **with_ends(paper, "imitation", "paper"),
                **with_ends(paper, "oracle_gap", "paper"),
                "cost (paper)": paper["cost"],
                f"accuracy ({FIGURE_13})": leaking["accuracy"],
                **with_ends(leaking, "imitation", FIGURE_13),
                **with_ends(leaking, "oracle_gap", FIGURE_13),
                **with_ends(leaking, "held_out_imitation", FIGURE_13),
                "share of the most common level": float(shares.max()),
                "imitation (held out)": held_out["imitation"],
                "oracle gap (held out)": held_out["oracle_gap"],
                "cost as trained (held out)": held_out["cost"],
                "regret (held out)": held_out["regret"],
                "regret bound": held_out["regret_bound"],
            }
        )
    return GapTable(rows)


def imitate_held_out(run: RunData, budget: float) -> dict[str, float]:
    """Compare the levels that the router gives to held-out questions with those of the oracle."""
    table, choice = run.window_table, run.held_out_choices[budget]
    oracle = solve(table, budget)
    measured = measure_imitation(table, choice, oracle.choice, oracle.price, budget)
    return {**measured, "cost": float(table.cost_of(choice).mean())}


@dataclass(frozen=True, eq=False)
class HeatMap:
    """Share of questions at each level by difficulty, (budgets, bands, K)."""

    budgets: tuple[float, ...]
    bands: tuple[str, ...]
    levels: tuple[int, ...]
    oracle: FloatArray
    router: FloatArray
    router_held_out: FloatArray

    @property
    def choosers(self) -> tuple[tuple[str, FloatArray], ...]:
        """The names and the shares of the three ways to choose levels."""
        return (
            ("static oracle", self.oracle),
            ("router (paper)", self.router),
            ("router (held out)", self.router_held_out),
        )

    @property
    def rows(self) -> list[Row]:
        """One row per budget, way to choose and band."""
        rows: list[Row] = []
        for i, budget in enumerate(self.budgets):
            for name, shares in self.choosers:
                for b, band in enumerate(self.bands):
                    row: Row = {"B": budget, "chosen by": name, "difficulty": band}
                    row |= {f"level {n}": float(shares[i, b, k]) for k, n in enumerate(self.levels)}
                    rows.append(row)
        return rows


def map_levels(run: RunData, budgets: tuple[float, ...] = HEAT_MAP_BUDGETS) -> HeatMap:
    """Count the levels of the oracle and of the router by difficulty."""
    table, bands = run.window_table, run.bands

    def count(choices: Sequence[IntArray]) -> FloatArray:
        n_bands, n_levels = len(bands.names), table.n_levels
        return np.stack([group_shares(bands.band, n_bands, c, n_levels) for c in choices])

    return HeatMap(
        budgets=budgets,
        bands=bands.names,
        levels=run.levels,
        oracle=count([solve(table, budget).choice for budget in budgets]),
        router=count([run.route_as_paper(budget) for budget in budgets]),
        router_held_out=count([run.route_held_out(budget) for budget in budgets]),
    )
