"""Wording: how the page says numbers, and its sentences; and how it cuts texts of others.

Every gain is said with its interval. Texts of others are cut, and characters that steer a line's
direction or a terminal are replaced: what is left still has to be escaped by whoever writes it.
"""

from __future__ import annotations

import math
import shlex
import unicodedata
from typing import Any

import numpy as np

CUT = 240
STEERING = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
"""Unicode categories whose characters are replaced: controls, formats, surrogates, separators."""

MANY, FEW = 1000, 0.0001
MUCH = 0.2
"""Share of a gain that redrawing must have to be named beside it."""

UNITS = {
    "samples": "samples",
    "tokens": "tokens",
    "characters": "characters",
    "money": "of money",
    "seconds": "seconds",
}


def clean(text: str, most: int = CUT) -> str:
    r"""Cut a text of others and replace what would steer the line it stands in.

    >>> clean("a\u202eb\n  c")
    'a�b c'
    >>> clean("long" * 100, 6)
    'longl…'
    """
    cut = text[: 4 * most]
    words = " ".join(cut.split())
    shown = "".join("�" if unicodedata.category(c) in STEERING else c for c in words)
    whole = len(cut) == len(text) and len(shown) <= most
    return shown if whole else shown[: most - 1] + "…"


def number(value: float | None) -> str:
    """Say a number by three or four digits.

    >>> number(2.0), number(1234.5), number(0.01234), number(4e-6), number(None)
    ('2', '1,234', '0.0123', '0.000004', '–')
    """
    if value is None or not math.isfinite(value):
        return "–"
    if abs(value) >= MANY - 0.5:  # what three digits would round to as many
        return _minus(f"{value:,.0f}")
    if 0 < abs(value) < FEW:
        return _minus(np.format_float_positional(value, 2, fractional=False, trim="-"))
    return _minus(f"{value:.3g}")


def percent(value: float | None, places: int = 1) -> str:
    r"""Say a fraction in per cent.

    >>> percent(0.6216), percent(None)
    ('62.2\xa0%', '–')
    """
    return "–" if value is None else _minus(f"{100 * value:.{places}f}\u00a0%")


def points(value: float | None) -> str:
    """Say a difference of fractions in points, with its sign.

    >>> points(0.0123), points(-0.0004), points(-0.02)
    ('+1.2', '0.0', '−2.0')
    """
    if value is None:
        return "–"
    said = f"{100 * value:+.1f}"
    return "0.0" if float(said) == 0 else _minus(said)


def between(low: float | None, high: float | None) -> str:
    r"""Say an interval of fractions, in points.

    >>> between(-0.001, 0.023), between(None, None)
    ('[−0.1,\xa02.3]', '–')
    """
    if low is None or high is None:
        return "–"
    return _minus(f"[{100 * low:z.1f},\u00a0{100 * high:z.1f}]")


def _minus(text: str) -> str:
    return text.replace("-", "−")


def per_question(budget: float, unit: str) -> str:
    """Say a budget.

    >>> per_question(2.0, "samples"), per_question(1.0, "samples")
    ('2 samples a question', '1 sample a question')
    """
    noun = UNITS.get(unit, unit)
    if budget == 1 and noun.endswith("s"):
        noun = noun[:-1]
    return f"{number(budget)} {noun} a question"


def one_of(unit: str) -> str:
    """Say one of a unit.

    >>> one_of("samples"), one_of("money")
    ('sample', 'unit of money')
    """
    return "unit of money" if unit == "money" else unit.removesuffix("s")


def headline(document: dict[str, Any]) -> str:
    """Say in one sentence what the policy gains at the budget, or that it is nothing."""
    at, groups = document["stops"][document["at"]], document["groups"]
    here = f"At your budget of {per_question(document['budget'], document['unit'])}"
    if document["verdict"] == "no verdict":
        return f"{here} nothing can be said yet: {document['why']}."
    if document["verdict"] == "gain":
        gained = points(at["gain"]).removeprefix("+")
        inside = between(at["gain_low"], at["gain_high"])
        return f"{here} you gain {gained} points, {inside}, over the best uniform mixture."
    if at["gain_high"] < 0:
        return f"{here} you gain nothing, and lose accuracy: {document['advice']}."
    return f"{here} you gain nothing that {groups:,} questions can show: {document['advice']}."


def support(document: dict[str, Any]) -> str:
    """Say what the sentence rests on."""
    at = document["stops"][document["at"]]
    measured = f"{points(at['gain'])} points, {between(at['gain_low'], at['gain_high'])}"
    said = "" if document["verdict"] == "gain" else f"Measured: {measured}. "
    model = f" of {document['model']}" if document["model"] else ""
    unread = document["unparsed"]
    if document["verdict"] == "gain" and unread["gain"] > MUCH * at["gain"]:
        said = (
            f"Of this, {points(unread['gain'])} points, "
            f"{between(unread['gain_low'], unread['gain_high'])}, come from "
            "resampling answers that could not be parsed. "
        )
    return (
        f"{said}Accuracy of the policy “{document['policy']}” less that of the best mixture of "
        f"uniform numbers of samples at equal cost, on {document['questions']:,} held-out "
        f"questions × {document['samples']:,} recorded samples{model}; brackets are 95\u00a0% "
        f"intervals.{_spare(document)}"
    )


def _spare(document: dict[str, Any]) -> str:
    """Say so where the budget is more than the policy can spend."""
    if max(point["cost_high"] for point in document["frontier"]) >= document["budget"]:
        return ""
    spent = number(document["stops"][document["at"]]["cost"])
    return f" The policy spends {spent} at most, so that a smaller budget buys as much."


def verdict(document: dict[str, Any]) -> str:
    """Say why the verdict is what it is."""
    at, groups = document["stops"][document["at"]], f"{document['groups']:,} different questions"
    gain = f"{points(at['gain'])} points, {between(at['gain_low'], at['gain_high'])}, on {groups}"
    if document["verdict"] == "no verdict":
        return f"{document['why']}. Measured: {gain}."
    if document["verdict"] == "gain":
        return f"the interval of the gain lies above zero ({gain})."
    more, end = document["questions_needed"], ""
    if more and at["gain"] > 0:
        end = f" If the gain is as large as it looks, about {more:,} more questions settle it."
    return f"the interval of the gain does not lie above zero ({gain}).{end}"


def redrawing(document: dict[str, Any]) -> str:
    """Say how much of the gain is drawing again what could not be read."""
    gain, redrawn = document["stops"][document["at"]]["gain"], document["unparsed"]["gain"]
    if redrawn <= 0:
        return ""
    merit = "not an allocation’s merit: a better extraction would bring it too."
    if gain <= 0:
        return "A better extraction would bring that too."
    if redrawn < gain:
        return f"That part of the gain of {points(gain)} is {merit}"
    return f"The whole gain of {points(gain)} is {merit}"


def outlook(document: dict[str, Any]) -> str:
    """Say in a few words what to do next; the steps are below."""
    if document["verdict"] == "gain":
        return "fit the policy, calibrate it for this budget, serve it."
    if document["verdict"] == "no gain":
        return f"spend without looking: {document['advice']}."
    if document["questions_needed"] is None:
        return "mend how answers are read before anything is decided."
    return "collect and grade more before anything is decided."


def counted(amount: float, noun: str) -> str:
    """Say how many.

    >>> counted(1.0, "sample"), counted(2.5, "sample")
    ('1 sample', '2.5 samples')
    """
    said = number(amount)
    return f"{said} {noun}" if said == "1" else f"{said} {noun}s"


def next_steps(document: dict[str, Any]) -> list[tuple[str, str | None]]:
    """Say what to do next, with the commands that do it."""
    run, policy = document["path"], document["policy"]
    budget, more = f"{document['budget']:g}", document["questions_needed"]
    same = _options(document)
    train = ("adacompute", "train", run, "--policy", policy, "--out", "BUNDLE", *same)
    calibrate = ("adacompute", "calibrate", run, "--bundle", "BUNDLE", "--budget", budget)
    serve = ("adacompute", "serve", "--bundle", "BUNDLE", "--budget", budget, "--base-url", "URL")
    if document["verdict"] == "gain":
        return [
            ("Fit the policy to all of these questions.", shlex.join(train)),
            ("Set its price on held-out questions, for this budget.", shlex.join(calibrate)),
            ("Put it in front of your model.", shlex.join(serve)),
        ]
    if document["verdict"] == "no verdict" and more is None:
        grade = ("adacompute", "grade", run, "--grader", document["grader"] or "GRADER")
        mend = "Look at samples that could not be read, mend the prompt or the grader, grade again."
        return [(mend, shlex.join(grade))]
    steps: list[tuple[str, str | None]] = []
    if document["verdict"] == "no gain":
        steps.append((f"Spend without looking: {document['advice']}.", None))
    if better := _better(document):
        steps.append((better, None))
    if more and (document["stops"][document["at"]]["gain"] > 0 or document["why"]):
        settle = f"To settle it, grade about {more:,} more questions like these and report again."
        steps.append((settle, None))
    other = ("adacompute", "evaluate", run, *same)
    return [*steps, ("Look at every policy, the learned routers too.", shlex.join(other))]


def _options(document: dict[str, Any]) -> list[str]:
    """Options by which other commands see the costs and levels of this page."""
    words = [] if document["unit"] == "samples" else ["--unit", document["unit"]]
    if document["priced"]:
        words += ["--token-prices", "TOKEN_PRICES"]
    if document["custom_levels"]:
        words += ["--levels", ",".join(map(str, document["custom_levels"]))]
    return words


def _better(document: dict[str, Any]) -> str | None:
    """Name another budget where there is a gain, when there is none at the one asked for."""
    sure = [stop for stop in document["stops"] if stop["gain_low"] > 0]
    if document["verdict"] != "no gain" or not sure:
        return None
    best = max(sure, key=lambda stop: float(stop["gain_low"]))
    return (
        f"Consider another budget: at {per_question(best['budget'], document['unit'])} the policy "
        f"gains {points(best['gain'])} points, {between(best['gain_low'], best['gain_high'])}. "
        "It is the best of those looked at, so expect a little less."
    )
