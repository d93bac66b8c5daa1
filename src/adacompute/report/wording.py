"""Wording: how the page writes numbers and sentences, and how it shortens texts of others.

Every gain is written with its interval. In texts of others, characters that control the direction
of a line or a terminal are replaced; the caller still has to escape the result.
"""

from __future__ import annotations

import math
import re
import unicodedata
from typing import Any

import numpy as np

from adacompute.evaluation.pool import describe_assignments
from adacompute.evaluation.scoring import saving_text

MAX_TEXT = 240
CONTROL_CATEGORIES = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
"""Unicode categories whose characters are replaced: controls, formats, surrogates, separators."""

LARGE, SMALL = 1000, 0.0001
MIN_RETRY_SHARE = 0.2
"""Share of a gain from which the part that comes from resampling is mentioned beside it."""

UNIT_NOUNS = {"samples": "samples", "tokens": "tokens", "money": "currency units"}
ASK_TODAY = "What do you run today? --today N says what you save."
POLICY_LABELS = {
    "mixture": "best uniform mixture",
    "oracle": "static oracle",
    "oracle-in-sample": "static oracle, in-sample",
}
"""Names for people, where they differ from those in JSON."""


def clean_text(text: str, max_length: int = MAX_TEXT) -> str:
    r"""Shorten a text of others and replace its control characters.

    >>> clean_text("a\u202eb\n  c")
    'a�b c'
    >>> clean_text("long" * 100, 6)
    'longl…'
    """
    start = text[: 4 * max_length]
    words = " ".join(start.split())
    cleaned = "".join("�" if unicodedata.category(c) in CONTROL_CATEGORIES else c for c in words)
    is_complete = len(start) == len(text) and len(cleaned) <= max_length
    return cleaned if is_complete else cleaned[: max_length - 1] + "…"


def format_number(value: float | None) -> str:
    """Write a number with three or four digits.

    >>> format_number(2.0), format_number(1234.5), format_number(0.01234), format_number(4e-6)
    ('2', '1,234', '0.0123', '0.000004')
    >>> format_number(None)
    '–'
    """
    if value is None or not math.isfinite(value):
        return "–"
    if abs(value) >= LARGE - 0.5:  # three digits would round it up to LARGE
        return _minus(f"{value:,.0f}")
    if 0 < abs(value) < SMALL:
        return _minus(np.format_float_positional(value, 2, fractional=False, trim="-"))
    return _minus(f"{value:.3g}")


def format_percent(value: float | None, places: int = 1) -> str:
    r"""Write a fraction in per cent.

    >>> format_percent(0.6216), format_percent(None)
    ('62.2\xa0%', '–')
    """
    return "–" if value is None else _minus(f"{100 * value:.{places}f}\u00a0%")


def format_points(value: float | None) -> str:
    """Write a difference of fractions in points, with its sign.

    >>> format_points(0.0123), format_points(-0.0004), format_points(-0.02)
    ('+1.2', '0.0', '−2.0')
    """
    if value is None:
        return "–"
    text = f"{100 * value:+.1f}"
    return "0.0" if float(text) == 0 else _minus(text)


def format_interval(low: float | None, high: float | None) -> str:
    r"""Write an interval of fractions in points.

    >>> format_interval(-0.001, 0.023), format_interval(None, None)
    ('[−0.1,\xa02.3]', '–')
    """
    if low is None or high is None:
        return "–"
    return _minus(f"[{100 * low:z.1f},\u00a0{100 * high:z.1f}]")


def format_costs(low: float | None, high: float | None) -> str:
    r"""Write an interval of costs, which may have no lower or no upper end.

    >>> format_costs(1.5, 2.25), format_costs(1.5, None), format_costs(None, None)
    ('[1.5,\xa02.25]', 'at least 1.5', '')
    """
    return _format_ends(*(None if end is None else format_number(end) for end in (low, high)))


def format_shares(low: float | None, high: float | None) -> str:
    r"""Write an interval of fractions in whole per cent, which may have no lower end.

    >>> format_shares(0.61, 0.731), format_shares(None, 0.66)
    ('[61,\xa073]', 'at most 66')
    """
    return _format_ends(*(None if end is None else f"{100 * end:z.0f}" for end in (low, high)))


def _format_ends(low: str | None, high: str | None) -> str:
    if low is None or high is None:
        return f"at least {low}" if low else f"at most {high}" if high else ""
    return _minus(f"[{low},\u00a0{high}]")


def format_gain(gain: dict[str, Any]) -> str:
    r"""Write a gain in points with its interval.

    >>> format_gain({"gain": 0.0123, "gain_low": -0.001, "gain_high": 0.023})
    '+1.2 points [−0.1,\xa02.3]'
    """
    interval = format_interval(gain["gain_low"], gain["gain_high"])
    return f"{format_points(gain['gain'])} points {interval}"


def _minus(text: str) -> str:
    return text.replace("-", "−")


def name_amount(amount: float, unit: str) -> str:
    """Write an amount of a unit.

    >>> name_amount(2.25, "samples"), name_amount(1.0, "samples"), name_amount(0.5, "money")
    ('2.25 samples', '1 sample', '0.5 currency units')
    """
    return format_count(amount, name_unit(unit))


def format_budget(budget: float, unit: str) -> str:
    """Write a budget.

    >>> format_budget(2.0, "samples"), format_budget(1.0, "samples"), format_budget(0.5, "money")
    ('2 samples per question', '1 sample per question', '0.5 currency units per question')
    """
    return f"{name_amount(budget, unit)} per question"


def name_unit(unit: str) -> str:
    """Return the name of one of a unit.

    >>> name_unit("samples"), name_unit("money")
    ('sample', 'currency unit')
    """
    return UNIT_NOUNS.get(unit, unit).removesuffix("s")


def name_policy(policy: str) -> str:
    """Return the name of a policy for people.

    >>> name_policy("oracle"), name_policy("sequential")
    ('static oracle', 'sequential')
    """
    return POLICY_LABELS.get(policy, policy)


def format_count(amount: float, noun: str) -> str:
    """Write a number of things.

    >>> format_count(1.0, "sample"), format_count(2.5, "sample")
    ('1 sample', '2.5 samples')
    """
    text = format_number(amount)
    return f"{text} {noun}" if text == "1" else f"{text} {noun}s"


def _selected(document: dict[str, Any]) -> dict[str, Any]:
    """Return the operating point of the budget that the page is about."""
    point: dict[str, Any] = document["operating_points"][document["selected"]]
    return point


def keep_together(text: str) -> str:
    r"""Keep numbers and their signs on one line.

    >>> keep_together("5 samples → 1.8: 64 % less")
    '5 samples →\xa01.8: 64\xa0%\xa0less'
    """
    return re.sub(r"(?<=\d) (?=%)|(?<=→) |(?<=%) (?=less|more)", "\u00a0", text)


def name_verdict(document: dict[str, Any]) -> str:
    """Return the verdict as the first word of the headline; empty without what is run today."""
    return saving_text.name_verdict(document["today"]) if document["today"] else ""


def list_savings(document: dict[str, Any]) -> list[str]:
    """Return the statement on what is saved, line by line; empty without what is run today."""
    today = document["today"]
    return (
        [keep_together(line) for line in saving_text.describe_saving(today, document["unit"])]
        if today
        else []
    )


def headline(document: dict[str, Any]) -> str:
    """Return one sentence: what is saved, or what the policy gains at the budget."""
    if document["today"]:
        return f"{name_verdict(document)} {list_savings(document)[0]}"
    point, count = _selected(document), document["independent_questions"]
    budget = f"At a budget of {format_budget(document['budget'], document['unit'])}"
    if document["verdict"] == "not judged":
        return f"{budget}, no verdict is possible: {document['reason']}."
    if document["verdict"] == "gain":
        gain = format_points(point["gain"]).removeprefix("+")
        interval = format_interval(point["gain_low"], point["gain_high"])
        return (
            f"{budget}, this policy is {gain} points {interval} more accurate than the best "
            "uniform mixture."
        )
    if document["verdict"] == "loss":
        return f"{budget}, this policy loses accuracy: {document['advice']}."
    if document["verdict"] == "no gain":
        return f"{budget}, this policy makes no difference: {document['advice']}."
    return f"{budget}, {count:,} questions cannot tell whether this policy gains anything."


def explain_headline(document: dict[str, Any]) -> str:
    """Return what the gain in the headline is, and what it was measured on."""
    point, unparsed = _selected(document), document["unparsed"]
    first = "" if document["verdict"] == "gain" else f"Measured gain: {format_gain(point)}. "
    model = f" of {document['model']}" if document["model"] else ""
    if document["verdict"] == "gain" and unparsed["gain"] > MIN_RETRY_SHARE * point["gain"]:
        first = (
            f"Of this gain, {format_gain(unparsed)} come from resampling answers that could not "
            "be parsed. "
        )
    if document["today_options"] is None:
        first = f"{ASK_TODAY} {first}"
    mixture, samples = "uniform numbers of samples", f"{document['samples']:,} recorded samples"
    mean = describe_assignments(document["fold_assignments"])
    if document["arms"]:
        mixture = "levels of single arms"
        samples = f"up to {samples} of each of {len(document['arms'])} arms"
    return (
        f"{first}The gain is the accuracy of the policy “{document['policy']}” minus that of the "
        f"best mixture of {mixture} at equal cost, on {document['questions']:,} "
        f"held-out questions × {samples}{model}{mean}. Brackets are "
        f"95\u00a0% intervals. {_describe_rounds(document)}{_explain_unspent(document)}"
    )


def _describe_rounds(document: dict[str, Any]) -> str:
    """Return the mean number of rounds per question, and their latency if it was recorded."""
    rounds = f"A question takes {_selected(document)['rounds']:.1f} rounds of samples on average"
    if document["latency_p50_s"] is None:
        return f"{rounds}."
    p50, p95 = (format_number(document[f"latency_{name}_s"]) for name in ("p50", "p95"))
    return f"{rounds}, and {p50} s at the median ({p95} s at the 95th percentile)."


def _explain_unspent(document: dict[str, Any]) -> str:
    """Return a sentence if the budget is more than the policy can spend."""
    if document["frontier"][-1]["budget"] >= document["budget"] * (1 - 1e-6):
        return ""
    cost = format_budget(_selected(document)["cost"], document["unit"])
    return f" The policy spends at most {cost}, so a smaller budget gives the same result."


def explain_verdict(document: dict[str, Any]) -> str:
    """Return the reason for the verdict."""
    point = _selected(document)
    gain = f"{format_gain(point)} on {document['independent_questions']:,} independent questions"
    if document["verdict"] == "not judged":
        return f"{document['reason']}. Measured gain: {gain}."
    if document["verdict"] == "gain":
        return f"the interval of the gain is above zero ({gain})."
    if document["verdict"] == "loss":
        return f"the interval of the gain is below zero ({gain})."
    if document["verdict"] == "no gain":
        return f"the interval of the gain is too narrow for a gain that matters ({gain})."
    return (
        f"the interval of the gain includes zero ({gain}). If the gain is as large as measured, "
        f"about {document['questions_needed']:,} questions in total decide it."
    )


def explain_retry(document: dict[str, Any]) -> str:
    """Return how much of the gain comes from resampling unparsed answers."""
    gain, retry = _selected(document)["gain"], document["unparsed"]["gain"]
    if retry <= 0:
        return ""
    if gain <= 0:
        return "Better answer extraction would give this gain too."
    part = "This part" if retry < gain else "All"
    return (
        f"{part} of the gain of {format_points(gain)} points does not come from allocation: better "
        "answer extraction would give it too."
    )


MIN_REDUCTION = 0.01
"""Share of the cost by which a smaller budget must reduce another share to be named."""


def explain_unsolved(document: dict[str, Any]) -> str:
    """Return what is spent on questions that are never answered correctly, and what reduces it."""
    points, point = document["operating_points"], _selected(document)
    unsolved = point["unsolved"]
    if not unsolved["questions"]:
        return "Some recorded sample of every question is correct, so no cost is in vain."
    share = unsolved["budget_share"]
    spent = (
        f"{format_percent(share, 0)} of the cost is spent on the {unsolved['questions']:,} "
        f"questions ({format_percent(unsolved['share'], 0)}) that no recorded sample answers "
        "correctly; to reduce it, "
    )
    add = "add a model that can answer them"
    smaller = [one for one in points if one["cost"] < point["cost"]]
    best = min(smaller, key=lambda one: float(one["unsolved"]["budget_share"]), default=point)
    if best["unsolved"]["budget_share"] > share - MIN_REDUCTION:
        return f"{spent}{add} or leave such questions out."
    lowest = format_percent(best["unsolved"]["budget_share"], 0)
    budget = format_budget(best["budget"], document["unit"])
    return f"{spent}use a smaller budget ({lowest} at {budget}) or {add}."
