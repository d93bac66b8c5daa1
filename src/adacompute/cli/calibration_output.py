"""Calibration output: the verdict, the gain and the cost of a calibrated bundle, for people."""

from __future__ import annotations

import math
from typing import Any

from adacompute.cli.output import (
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

GOOD, BAD, OPEN = "bold green", "bold red", "bold yellow"
STYLES = {
    **dict.fromkeys(("gain", "saves", "same answer"), GOOD),
    **dict.fromkeys(("loss", "no saving"), BAD),
    **dict.fromkeys(("no gain", "inconclusive"), OPEN),
}
"""Colours of verdicts in a terminal."""


def print_calibration(result: Result) -> None:
    """Print the verdict, the gain and the cost of a calibrated bundle, and its digest."""
    _print_verdict(result)
    print_digest(result)


def print_same_answer(result: Result) -> None:
    """Print what a vote that stops early saves, and how often its answer is that of all samples."""
    today = result["today"]
    size = today["samples"]
    from adacompute.evaluation.scoring.saving_text import describe_recorded

    print_text(f"Same answer. {today['sentence']}", STYLES["same answer"])
    if today["wanted_samples"] > size:
        print_text(describe_recorded(today))
    by_redrawing = "" if today["repeat_agreement_by"] == "disjoint samples" else ", about"
    agreement = format_percent(today["repeat_agreement"], 0)
    print_text(f"Two runs of {size} agree in {agreement} of questions{by_redrawing}.")
    if not result["graded"]:
        print_text("No grades were found: answers are compared with those of all samples alone.")
    rounds = f"{result['rounds']:.1f} rounds per question, one after another, where today takes one"
    print_text(f"{rounds}.")
    if today["excluded"]:
        print_text(f"Left out: {today['excluded']} questions with fewer than {size} samples.")
    print_rows(
        f"Instead of {size} samples, stop at",
        [
            {
                "Lead": "decided vote" if one["lead"] == size else one["lead"],
                "Mean cost": f"{one['cost']:.4g}",
                "Saving": format_percent(one["saving"], 0),
                "Same answer": format_percent(one["same_answer"]),
                "At least": format_percent(math.floor(1000 * one["same_answer_low"]) / 1000),
            }
            for one in today["leads"]
        ],
    )
    chosen = "decided vote" if today["is_decided_vote"] else f"a lead of {today['lead']}"
    print_values(
        "Delivered",
        {
            "Bundle": result["bundle"],
            "Stops at": chosen,
            "Expected cost": format_cost(result["cost"], result["unit"]),
            "Rounds per question": f"{result['rounds']:.2f}",
            "Latency": _format_latency(today),
            "Questions": result["questions"],
        },
    )
    print_digest(result)


def print_digest(result: Result) -> None:
    """Print the digest that pins a bundle, on a line of its own to copy it from."""
    print_text(f"Digest: {result['bundle_digest']}", wrap=False)


def describe_questions(result: Result, noun: str = "") -> str:
    """Return the number of questions, of independent ones, and of all if it is a subsample."""
    total: int = result["questions"]
    count = format_amount(total, noun) if noun else format_value(total)
    independent: int = result.get("independent_questions", total)
    from adacompute.evaluation.pool import describe_assignments, describe_copies

    count += describe_copies(total, independent)
    count += describe_assignments(result.get("fold_assignments", 1))
    if "subsample_of" in result:
        count = f"{count}, a subsample by hash of {result['subsample_of']:,}"
    return count


def _print_verdict(result: Result) -> None:
    if result["today"]:
        print_saving(result["today"], result["unit"])
        print_text(f"Compared with the best uniform mixture at this cost: {result['verdict']}.")
    else:
        advice = f"{result['advice'][:1].upper()}{result['advice'][1:]}"
        print_text(f"Verdict: {result['verdict']}. {advice}.", STYLES[result["verdict"]])
        print_text("What do you run today? --today N says what you save.")
    print_text(describe_gain(result))
    if result["gain_by_votes"]:
        print_text(describe_vote_gain(result))
    print_sure(result)
    needed = {}
    if result["questions_needed"]:
        needed["Questions that would decide the gain, about"] = result["questions_needed"]
    print_values(
        f"Calibrated {result['policy']}",
        {
            "Bundle": result["bundle"],
            "Budget": _budget(result),
            "Expected cost": _expected_cost(result),
            "Rounds per question": f"{result['rounds']:.2f}",
            "Latency": _format_latency(result),
            "Accuracy": format_percent(result["accuracy"]),
            "Price": result["price"],
            "Gain of only retrying unparsed samples": f"{format_points(result['retry_gain'])}"
            " points",
            "Questions": describe_questions(result),
            **needed,
        },
    )
    _print_arm_shares(result)


def _print_arm_shares(result: Result) -> None:
    """Print which arm is sampled for how many questions; nothing for a single arm."""
    arms = result["arm_shares"]
    if arms:
        rows = [
            {
                "Arm": one["arm"],
                "Questions": format_percent(one["share"], 0),
                "Share of cost": format_percent(one["cost_share"], 0),
            }
            for one in arms
        ]
        print_rows("Which arm is sampled, for which share of the questions", rows)
        if result["unit"] == "samples":
            print_text(
                "Here a sample costs the same from every arm: --unit tokens, or money with "
                "--token-prices, counts what arms cost."
            )


def print_sure(result: Result) -> None:
    """Print how well right answers are separated from wrong ones, and what is guaranteed."""
    from adacompute.evaluation.scoring.precision import Precision, describe_p_correct

    if result["p_correct"] is not None:
        sentence = describe_p_correct(result["p_correct"])
        print_text(f"How sure: {sentence}")
    if result["precision"] is not None:
        print_text(f"{Precision(**result['precision'])}", "bold")


def print_saving(today: Result, unit: str) -> None:
    """Print what is saved: the first line in the colour of its verdict, then the details."""
    from adacompute.evaluation.scoring.saving_text import (
        describe_advice,
        describe_saving,
        name_verdict,
    )

    first, *rest = describe_saving(today, unit)
    print_text(f"{name_verdict(today)} {first}", STYLES[today["verdict"]])
    for line in rest:
        print_text(line)
    if today.get("advice"):
        print_text(f"Advice: {describe_advice(today, unit)}.", "bold")


def print_savings(rows: list[Result], unit: str) -> None:
    """Print what each policy costs at the accuracy of today, and what it would deliver."""
    from adacompute.evaluation.scoring.saving_text import cost_scale, name_today

    scale, name_of_unit = cost_scale(unit)
    lines: list[list[Cell]] = []
    for row in rows:
        equal, delivered = row["same_accuracy_cost"], row["delivered_cost"]
        ends = (format_percent(row[name], 0) for name in ("saving_low", "saving_high"))
        saving = f"{format_percent(row['saving'], 0)} [{', '.join(ends)}]".replace(" %", "")
        costs = [format_value(None if c is None else c * scale, 3) for c in (equal, delivered)]
        verdict = (row["verdict"], STYLES[row["verdict"]])
        lines.append([row["policy"], costs[0], saving, costs[1], verdict])
    title = f"Today: {name_today(rows[0], unit)}, {format_percent(rows[0]['accuracy'])} correct"
    columns = ["Policy", "Equal at", "Saves %", "Delivers", "Verdict"]
    print_cells(f"{title}; costs in {name_of_unit}, savings with 95 % intervals", columns, lines)


def scale_costs(rows: list[Result], unit: str) -> tuple[list[Result], str]:
    """Return rows with costs and budgets for people, and their unit."""
    from adacompute.evaluation.scoring.saving_text import cost_scale

    scale, name = cost_scale(unit)
    if scale == 1:
        return rows, name
    names = ("cost", "budget")
    return [row | {key: row[key] * scale for key in names if key in row} for row in rows], name


def describe_gain(result: Result) -> str:
    """Return the gain with its interval, in one sentence."""
    return (
        f"Gain: {format_points(result['gain'])} points "
        f"({format_percent(result['confidence'], 0)} interval {format_points(result['gain_low'])} "
        f"to {format_points(result['gain_high'])}) over the best uniform mixture at the same cost."
    )


def describe_vote_gain(result: Result) -> str:
    """Return what weighted votes gain, in one sentence."""
    names = ("gain_by_votes", "gain_by_votes_low", "gain_by_votes_high")
    gain, lower, upper = (format_points(result[name]) for name in names)
    return (
        f"Weighted votes: {gain} points ({lower} to {upper}) over counting each sample once, in "
        f"the mixture; together {format_points(result['gain_total'])} points."
    )


def _expected_cost(result: Result) -> str:
    from adacompute.evaluation.scoring.saving_text import cost_scale

    scale, _ = cost_scale(result["unit"])
    low, high = (format_value(result[name] * scale) for name in ("cost_low", "cost_high"))
    return (
        f"{format_cost(result['cost'], result['unit'])} "
        f"({format_percent(result['confidence'], 0)} interval {low} to {high} in the long run)"
    )


def _budget(result: Result) -> str:
    """Return the budget; of money also that of a question, which is what commands take."""
    text = format_cost(result["budget"], result["unit"])
    own = f" (--budget {format_value(result['budget'])})" if result["unit"] == "money" else ""
    return f"{text}{own}"


def _format_latency(result: Result) -> str | None:
    if result["latency_p50_s"] is None:
        return None
    p50, p95 = (format_value(result[name]) for name in ("latency_p50_s", "latency_p95_s"))
    return f"{p50} s per question at the median, {p95} s at the 95th percentile"
