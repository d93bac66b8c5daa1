"""Results: what each command prints for people.

Every function takes the JSON document that a stage returns. Accuracies are printed in per cent,
differences in points, both with their intervals. It computes nothing but these conversions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from adacompute.cli.calibration_output import (
    STYLES,
    describe_questions,
    print_calibration,
    print_same_answer,
    print_savings,
    scale_costs,
)
from adacompute.cli.output import (
    NOTHING,
    Cell,
    format_amount,
    format_cost,
    format_percent,
    format_points,
    format_value,
    print_cells,
    print_rows,
    print_text,
    print_values,
)

Result = dict[str, Any]

FULLY_SPENT = 0.95
"""Share of a budget below which the scores show the cost."""

ONE_ROUND = 1.05
"""Mean rounds below which the scores do not show them."""

UNIFORM = ("fixed", "mixture", "oracle")
"""Policies that have no headroom of their own."""


def print_solution(result: Result, budget: float) -> None:
    """Print an allocation and the bound on what any allocation can reach."""
    unit = result["unit"]
    is_accuracy = unit is not None  # of samples; the utility of a table may be anything
    amount = partial(format_cost, unit=unit) if is_accuracy else format_value
    show_utility = format_percent if is_accuracy else format_value
    gap = f"{100 * result['gap']:.2f} points" if is_accuracy else format_value(result["gap"])
    noun = " samples" if next(iter(result["shares"])).isdigit() else ""  # none: levels of arms
    print_values(
        f"Best allocation of {amount(budget)}",
        {
            "Questions": result["questions"],
            "Mean cost": amount(result["cost"]),
            "Accuracy" if is_accuracy else "Utility": show_utility(result["utility"]),
            "Upper bound": f"{show_utility(result['bound'])}, {gap} above this allocation",
            "Price": result["price"],
        },
    )
    shares = [
        {"Samples per question" if noun else "Level": level, "Questions": format_percent(share)}
        for level, share in result["shares"].items()
    ]
    print_rows("Levels", shares)
    for split in result["split"]:
        print_text(
            f"Question {format_value(split['question'])} takes {split['level']}{noun} with "
            f"probability {format_value(split['probability'])}: this spends the whole budget, "
            f"{amount(result['mixed_cost'])}, for {show_utility(result['mixed_utility'])}."
        )
    for name, what in (("out", "Levels"), ("frontier", "Frontier")):
        if result[name] is not None:
            print_text(f"{what}: {result[name]}", wrap=False)


def print_fit(result: Result) -> None:
    """Print the verdict of a fitted policy, where everything is, and the next command."""
    for note in result["notes"]:
        print_text(note)
    if result["steps_skipped"]:
        print_text(f"Skipped, as nothing changed: {', '.join(result['steps_skipped'])}.")
    if result.get("same_answer") is not None:
        print_text(f"Same answer. {result['same_answer']['sentence']}", STYLES["same answer"])
        print_text("With grades:")
    (print_same_answer if result["verdict"] == "same answer" else print_calibration)(result)
    print_values("Files", {"Run": result["run"], "Report": result["report"]})
    print_text("Next:")
    print_text(f"  {result['next']}", "bold", wrap=False)


def print_scores(result: Result) -> None:
    """Print the scores of each policy at each budget, one table per quantity."""
    dropped = ", unparsed samples removed" if result["drop_unparsed"] else ""
    from adacompute.evaluation.pool import describe_assignments

    mean = describe_assignments(result["fold_assignments"])
    rows, unit = scale_costs(result["rows"], result["unit"])
    title = f"Accuracy by mean budget in {unit}, held-out questions{mean}{dropped}"
    if result["today"]:
        print_savings(result["today"], result["unit"])
    print_by_budget(title, rows, _accuracy)
    title = "Difference to the mixture at equal cost, in points (95 % interval)"
    print_by_budget(title, rows, _difference)
    print_by_budget("Headroom recovered", rows, _headroom)
    print_by_budget("Mean rounds per question", rows, _rounds)
    print_text(_legend(result))
    print_skipped(result)
    if result["arms"] is not None:
        print_arms(result["arms"])


def print_arms(result: Result) -> None:
    """Print efficient levels by rising cost, and the best level of each arm that has none."""
    rows, unit = scale_costs(sorted(result["rows"], key=lambda row: row["cost"]), result["unit"])
    has_efficient = {row["arm"] for row in rows if row["efficient"]}
    best: dict[str, Result] = {}
    for row in rows:
        if row["arm"] not in has_efficient:
            held = best.setdefault(row["arm"], row)
            best[row["arm"]] = row if row["accuracy"] > held["accuracy"] else held
    shown = [row for row in rows if row["efficient"] or row is best.get(row["arm"])]
    title = f"Arms by mean cost in {unit}, {result['questions']} questions"
    print_rows(title, [_describe_level(row, result["confidence"]) for row in shown])
    from adacompute.evaluation.arm_levels import level_name

    efficient = [level_name(row) for row in rows if row["efficient"]]
    print_text(f"Efficient, by rising cost: {', '.join(efficient)}.")


def _describe_level(row: Result, confidence: float) -> Result:
    """Return a row for people."""
    low, high = format_percent(row["accuracy_low"]), format_percent(row["accuracy_high"])
    p50, p95 = row["latency_p50_s"], row["latency_p95_s"]
    return {
        "arm": row["arm"],
        "samples": row["samples"],
        "cost": format_value(row["cost"]),
        "accuracy": format_percent(row["accuracy"]),
        f"{format_percent(confidence, 0)} interval": f"{low} to {high}",
        "latency p50, p95 (s)": NOTHING if p50 is None else f"{p50:.3g}, {p95:.3g}",
        "efficient": "yes" if row["efficient"] else f"no: {row['dominated_by']}",
    }


def print_skipped(result: Result) -> None:
    """Print which policies were not scored, and why."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in result["skipped"].items():
        by_reason.setdefault(reason, []).append(name)
    for reason, names in by_reason.items():
        print_text(f"Not scored: {', '.join(names)} ({reason})")


def print_by_budget(title: str, rows: list[Result], cell: Callable[[Result], Cell | None]) -> None:
    """Print one quantity by policy and budget, without policies that do not have it."""
    budgets = sorted({row["budget"] for row in rows})
    cells: dict[str, dict[float, Cell]] = {}
    for row in rows:
        if (found := cell(row)) is not None:
            cells.setdefault(row["policy"], {})[row["budget"]] = found
    lines = [[name, *(found.get(b, "") for b in budgets)] for name, found in cells.items()]
    if lines:
        print_cells(title, ["Policy", *(f"{budget:g}" for budget in budgets)], lines)


def _accuracy(row: Result) -> Cell:
    """Return the accuracy, and the cost where the policy spent less than the budget."""
    is_spent = row["cost"] >= FULLY_SPENT * row["budget"]
    return format_percent(row["accuracy"]) if is_spent else accuracy_and_cost(row)


def accuracy_and_cost(row: Result) -> Cell:
    """Return the accuracy, and the cost below it."""
    return f"{format_percent(row['accuracy'])}\ncost {format_value(float(row['cost']))}"


def _difference(row: Result) -> Cell | None:
    if row["policy"] == "mixture":
        return None
    low, high = row["difference_low"], row["difference_high"]
    style = "green" if low > 0 else "red" if high < 0 else ""
    return f"{format_points(low)} to {format_points(high)}", style


def _headroom(row: Result) -> Cell | None:
    return None if row["policy"] in UNIFORM else format_percent(row["headroom"], 0)


def _rounds(row: Result) -> Cell | None:
    return f"{row['rounds']:.1f}" if row["rounds"] >= ONE_ROUND else None


def _legend(result: Result) -> str:
    unparsed = f"{format_percent(result['unparsed_share'])} of the samples could not be parsed."
    questions = describe_questions(result, "question")
    excluded = f" ({result['excluded']} excluded)" if result["excluded"] else ""
    levels = format_value(result["levels"])
    if result["levels_excluded"]:
        above = format_value(result["levels_excluded"])
        levels += f" (without {above}: more than half of the samples)"
    return (
        f"{questions}{excluded} × {format_amount(result['samples'], 'sample')}, levels {levels}. "
        f"{unparsed} The mixture is the best mixture of uniform levels. Headroom is what the "
        f"cross-fitted static oracle gains over it; {NOTHING} where it may gain nothing. Costs are "
        f"shown where they are below {format_percent(FULLY_SPENT, 0)} of the budget, rounds where "
        "there are more than one."
    )


def print_report(result: Result) -> None:
    """Print what the page of a report says, and where it is."""
    print_text(result["sentence"], "bold")
    print_values(
        "Report",
        {
            "Page": result["out"],
            "Policy": result["policy"],
            "Verdict": result["verdict"],
            "Questions": describe_questions(result),
            "Mean cost": format_cost(result["cost"], result["unit"]),
            "Not scored": ", ".join(result["skipped"]) or None,
        },
    )
