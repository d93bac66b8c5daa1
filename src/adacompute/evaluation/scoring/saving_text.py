"""Saving text: what is saved, in sentences for people.

The command line, the page and Python print the same sentences. "As accurate" is never said of a
tolerance: a bound is written as a bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from adacompute.evaluation.scoring.savings import (
    AS_TODAY,
    DECIDED,
    FEWER,
    INCONCLUSIVE,
    OTHER_ARM,
    POLICY,
    WEIGHTED,
)

LARGE = 99.5
"""Numbers from which all digits are written; with two digits this one would be 100."""

SPENT = 0.98
"""Share of a cost from which it counts as spent."""


def cost_scale(unit: str) -> tuple[int, str]:
    """Return what mean costs are multiplied by for people, and the name of what it then is.

    >>> cost_scale("money"), cost_scale("tokens")
    ((1000, 'currency units per 1,000 questions'), (1, 'tokens'))
    """
    return (1000, "currency units per 1,000 questions") if unit == "money" else (1, unit)


def describe_saving(today: Mapping[str, Any], unit: str) -> list[str]:
    """Return the statement: what is saved first, then the details."""
    lines = [headline_saving(today, unit)]
    if today["wanted_samples"] > today["samples"]:
        lines.append(describe_recorded(today))
    lines += [_describe_equal_cost(today, unit), _describe_accuracy(today, unit)]
    lines.append(_describe_rounds(today))
    if today["verdict"] == INCONCLUSIVE:
        lines.append(_describe_remedy(today))
    return lines


def _describe_remedy(today: Mapping[str, Any]) -> str:
    """Return what would decide: more samples where all are used up, or else more questions."""
    if more := today.get("samples_needed"):
        used = f"All {today['samples']} recorded samples are used up"
        return f"{used}: record {more} samples on some of the questions."
    return f"About {today['questions_needed']:,} questions would decide."


def name_verdict(today: Mapping[str, Any]) -> str:
    """Return the verdict as the word before the first line.

    >>> name_verdict({"verdict": "no saving"})
    'No saving.'
    """
    return f"{str(today['verdict']).capitalize()}."


def describe_recorded(today: Mapping[str, Any]) -> str:
    """Say that fewer samples are recorded than are run today."""
    return (
        f"{today['samples']} samples per question are recorded, so nothing can be said about "
        f"{today['wanted_samples']}: all numbers are compared with {today['samples']}."
    )


def headline_saving(today: Mapping[str, Any], unit: str) -> str:
    """Return the first line: what is run today, what it becomes, and the bound on accuracy."""
    fewer = next((way for way in today.get("ways", ()) if way["way"] == FEWER), None)
    if fewer is not None and today["advice"] == FEWER:
        return (
            f"{_samples(fewer['samples'])} per question are as accurate as {today['samples']}: "
            f"draw {fewer['samples']}, {_less(fewer['saving'])} "
            f"(estimate {_points(fewer['difference'])} points)."
        )
    confidence = f"{100 * today['confidence']:g} % confidence"
    estimate = f"estimate {_points(today['difference'])}"
    low = today["difference_low"]
    if low >= 0:
        accuracy = f"at least {100 * low:.1f} points more accurate ({confidence}; {estimate})"
    else:
        accuracy = f"at most {-100 * low:.1f} points less accurate ({confidence}; {estimate})"
    cost, saving = today["delivered_cost"], today["delivered_saving"]
    amount = f"{_number(cost)} per question" if unit == "samples" else _mean_cost(cost, unit)
    return f"{name_today(today, unit)} → {amount}: {_less(saving)}, {accuracy}."


def name_today(today: Mapping[str, Any], unit: str) -> str:
    """Return what is run today, with its cost if that is not counted in samples."""
    arm = "" if today["arm"] is None else f" of {today['arm']}"
    votes = " with weighted votes" if today["votes"] == "weighted" else ""
    samples = f"{_samples(today['samples'])}{arm}{votes}"
    return samples if unit == "samples" else f"{samples}, {_amount(today['cost'], unit)}"


def _describe_equal_cost(today: Mapping[str, Any], unit: str) -> str:
    """Return the cost at equal accuracy, with the interval of the saving."""
    cost, saving = today["same_accuracy_cost"], today["saving"]
    if cost is None:
        return "No setting of this policy is as accurate by its estimate."
    low, high = today["saving_low"], today["saving_high"]
    interval = f"{100 * today['confidence']:g} % interval"
    lowest = "up to" if low is None else f"{100 * low:.0f} to"
    ends = f"{interval} {lowest} {100 * high:.0f} %"
    return f"Equal accuracy at about {_amount(cost, unit)}: {_less(saving)} ({ends})."


def _describe_accuracy(today: Mapping[str, Any], unit: str) -> str:
    at_cost, now = (f"{100 * today[name]:.1f} %" for name in ("accuracy_at_cost", "accuracy"))
    cost, spent = today["cost"], today["spent_at_cost"]
    if spent < SPENT * cost:
        part = _number(spent * cost_scale(unit)[0])
        spends = f"It spends {part} of {_amount(cost, unit)}: more buys nothing"
        return f"{spends}; {at_cost} correct there, today {now}."
    return f"At {_mean_cost(cost, unit)}: {at_cost} correct, today {now}."


def _describe_rounds(today: Mapping[str, Any]) -> str:
    """Return the rounds, and the latency beside that of today, if it was recorded and measured."""
    rounds = f"{today['rounds']:.1f} rounds per question"
    if today.get("latency_p50_s") is None or today.get("today_latency_p50_s") is None:
        is_recorded = today.get("today_latency_p50_s") is not None
        missing = "" if is_recorded else "; no latency_s was recorded"
        return f"{rounds}, one after another, where today takes one{missing}."
    own, now = (
        " and ".join(f"{_number(today[f'{name}_{p}_s'])} s" for p in ("p50", "p95"))
        for name in ("latency", "today_latency")
    )
    return (
        f"{rounds}, which take {own} (median, 95th percentile); {_samples(today['samples'])} in "
        f"parallel take {now}."
    )


def describe_advice(today: Mapping[str, Any], unit: str) -> str:
    """Return the advice in a few words."""
    way = next((one for one in today["ways"] if one["way"] == today["advice"]), None)
    if today["advice"] == AS_TODAY or way is None:
        return "stay with what you run today"
    saving, cost = _less(way["saving"]), _mean_cost(way["cost"], unit)
    return {
        FEWER: f"draw {_samples(way.get('samples', 0))} per question: {saving}",
        WEIGHTED: f"weigh the votes by log-probability, at {cost}: {saving}",
        OTHER_ARM: f"use the best mixture of arms, at {cost}: {saving}",
        DECIDED: f"stop when the rest cannot change the vote: {saving}, the same answers",
        POLICY: f"use this policy: {saving}",
    }.get(way["way"], f"{way['way']}: {saving}")


def _samples(count: int) -> str:
    return "1 sample" if count == 1 else f"{count} samples"


def _percent(fraction: float) -> str:
    return f"{abs(100 * fraction):.0f} %"


def _less(saving: float) -> str:
    return f"{_percent(saving)} {'less' if saving >= 0 else 'more'}"


def _points(fraction: float) -> str:
    text = f"{100 * fraction:+.1f}"
    return "0.0" if float(text) == 0 else text


def _number(value: float) -> str:
    """Write a number with two digits, or as a whole number if it is large.

    >>> [_number(value) for value in (1.806, 5.0, 345.9, 2521.0, 0.0000123)]
    ['1.8', '5', '346', '2,521', '0.000012']
    """
    if abs(value) >= LARGE:
        return f"{value:,.0f}"
    return np.format_float_positional(value, 2, fractional=False, trim="-")


def _amount(cost: float, unit: str) -> str:
    """Write a mean cost."""
    scale, name = cost_scale(unit)
    text = _number(cost * scale)
    return f"{text} {name.removesuffix('s') if text == '1' and scale == 1 else name}"


def _mean_cost(cost: float, unit: str) -> str:
    """Write a mean cost, with the number of questions that it is for."""
    text = _amount(cost, unit)
    return text if unit == "money" else f"{text} per question"
