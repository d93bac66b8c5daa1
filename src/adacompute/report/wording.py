"""Wording: how the page writes numbers and sentences, and how it shortens texts of others.

Every gain is written with its interval. In texts of others, characters that control the direction
of a line or a terminal are replaced; the caller still has to escape the result.
"""

from __future__ import annotations

import math
import shlex
import unicodedata
from typing import Any

import numpy as np

from adacompute.evaluation.saving_text import headline_saving
from adacompute.graders.grader import COMMAND

MAX_TEXT = 240
CONTROL_CATEGORIES = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
"""Unicode categories whose characters are replaced: controls, formats, surrogates, separators."""

LARGE, SMALL = 1000, 0.0001
MIN_RETRY_SHARE = 0.2
"""Share of a gain from which the part that comes from resampling is mentioned beside it."""

UNIT_NOUNS = {
    "samples": "samples",
    "tokens": "tokens",
    "characters": "characters",
    "money": "currency units",
    "seconds": "seconds",
}
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


def format_gain(gain: dict[str, Any]) -> str:
    r"""Write a gain in points with its interval.

    >>> format_gain({"gain": 0.0123, "gain_low": -0.001, "gain_high": 0.023})
    '+1.2 points [−0.1,\xa02.3]'
    """
    interval = format_interval(gain["gain_low"], gain["gain_high"])
    return f"{format_points(gain['gain'])} points {interval}"


def _minus(text: str) -> str:
    return text.replace("-", "−")


def format_budget(budget: float, unit: str) -> str:
    """Write a budget.

    >>> format_budget(2.0, "samples"), format_budget(1.0, "samples"), format_budget(0.5, "money")
    ('2 samples per question', '1 sample per question', '0.5 currency units per question')
    """
    noun = UNIT_NOUNS.get(unit, unit)
    return f"{format_number(budget)} {noun.removesuffix('s') if budget == 1 else noun} per question"


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


def headline(document: dict[str, Any]) -> str:
    """Return one sentence: what the policy gains at the budget, or that it gains nothing."""
    if document["today"]:
        saving, unit = document["today"], document["unit"]
        return f"{saving['verdict'].capitalize()}. {headline_saving(saving, unit)}"
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
    mixture, samples = "uniform numbers of samples", f"{document['samples']:,} recorded samples"
    if document["arms"]:
        mixture = "levels of single arms"
        samples = f"up to {samples} of each of {len(document['arms'])} arms"
    return (
        f"{first}The gain is the accuracy of the policy “{document['policy']}” minus that of the "
        f"best mixture of {mixture} at equal cost, on {document['questions']:,} "
        f"held-out questions × {samples}{model}. Brackets are "
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


def describe_next(document: dict[str, Any]) -> str:
    """Return what to do next in a few words; the steps follow on the page."""
    if document["verdict"] == "gain":
        return "fit the policy, calibrate it for this budget, and serve it."
    if document["verdict"] in ("no gain", "loss"):
        return f"spend the budget uniformly: {document['advice']}."
    if document["questions_needed"] is None:
        return "fix the answer extraction first."
    return "collect and grade more questions first."


ROUTERS_TOO = "Compare all policies, including the routers."
EXAMPLE_URL = "http://127.0.0.1:8080/v1"
"""Where many model servers listen by default."""


def next_steps(document: dict[str, Any]) -> list[tuple[str, str | None]]:
    """Return what to do next, with the commands that do it."""
    run, policy = document["path"], document["policy"]
    budget, needed = f"{document['budget']:g}", document["questions_needed"]
    options = _options(document)
    train = ("adacompute", "train", run, "--policy", policy, "--out", "BUNDLE", *options)
    calibrate = ("adacompute", "calibrate", run, "--bundle", "BUNDLE", "--budget", budget)
    serve = ["adacompute", "serve", "--bundle", "BUNDLE", "--budget", budget]
    serve += ["--base-url", EXAMPLE_URL]
    grader = None if document["grader"] == COMMAND else document["grader"]
    for name, known in (("model", document["model"]), ("grader", grader)):
        serve += [] if known else [f"--{name}", name.upper()]
    if document["verdict"] == "gain":
        return [
            ("Fit the policy to all of these questions.", shlex.join(train)),
            ("Find its price for this budget on held-out questions.", shlex.join(calibrate)),
            ("Serve it in front of your model.", shlex.join(serve)),
        ]
    if document["verdict"] == "not judged" and needed is None:
        grade = ("adacompute", "grade", run, "--grader", grader or "GRADER")
        fix = "Look at the unparsed samples, fix the prompt or the grader, and grade again."
        return [(fix, shlex.join(grade))]
    steps: list[tuple[str, str | None]] = []
    if document["verdict"] != "not judged":
        steps.append((f"Spend the budget uniformly: {document['advice']}.", None))
    if better := _suggest_budget(document):
        steps.append((better, None))
    if needed:
        more = f"For a clear verdict, grade about {needed:,} questions like these in total."
        steps.append((more, None))
    evaluate = ("adacompute", "evaluate", run, *options)
    others = "Compare all policies." if document["arms"] else ROUTERS_TOO
    return [*steps, (others, shlex.join(evaluate))]


def _options(document: dict[str, Any]) -> list[str]:
    """Return the options that give other commands the costs and levels of this page."""
    words = [] if document["unit"] == "samples" else ["--unit", document["unit"]]
    if document["has_token_prices"]:
        words += ["--token-prices", "TOKEN_PRICES"]
    if document["custom_levels"]:
        words += ["--levels", ",".join(map(str, document["custom_levels"]))]
    return words


def _suggest_budget(document: dict[str, Any]) -> str | None:
    """Return a sentence about the budget with the clearest gain, if the chosen one has none."""
    gains = [point for point in document["operating_points"] if point["gain_low"] > 0]
    if document["verdict"] == "gain" or not gains:
        return None
    best = max(gains, key=lambda point: float(point["gain_low"]))
    return (
        f"Consider another budget: at {format_budget(best['budget'], document['unit'])} the policy "
        f"gains {format_gain(best)}. This is the best of all budgets on this page, so expect "
        "slightly less."
    )
