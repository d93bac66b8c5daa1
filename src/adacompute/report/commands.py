"""Commands: what to do next, with the commands that do it.

With what is run today, it is the way that saves most for the least effort; without it, what the
verdict at the budget suggests. Where the bundle of the policy is known, it is only served. Commands
are as they would be typed; capitals stand for what the page does not know.
"""

from __future__ import annotations

import shlex
from typing import Any

from adacompute.evaluation.scoring.baseline import BASELINE
from adacompute.evaluation.scoring.saving_text import describe_advice
from adacompute.evaluation.scoring.savings import DECIDED, FEWER, OTHER_ARM, POLICY, WEIGHTED
from adacompute.evaluation.scoring.verdict import round_up
from adacompute.graders.grader import COMMAND
from adacompute.policies.bundles.bundle import NOT_JUDGED
from adacompute.report.wording import format_budget, format_gain, keep_together

Step = tuple[str, str | None]
"""What to do, and the command that does it if there is one."""

OTHERS, ROUTERS_TOO = "Compare all policies.", "Compare all policies, including the routers."
EXAMPLE_URL = "http://127.0.0.1:8080/v1"
"""Where many model servers listen by default."""


def describe_next(document: dict[str, Any]) -> Step:
    """Return what to do next in a few words, and its command; all steps follow on the page."""
    steps = [step for step in next_steps(document) if step[1]]
    text, command = steps[0]
    words = _name_next(document)
    if text in (OTHERS, ROUTERS_TOO):  # what comes before needs no command
        return f"{words} {text}", command
    if document["today"] and document["today"]["advice"] == POLICY:
        command = steps[-1][1]
    return words, command


def _name_next(document: dict[str, Any]) -> str:
    if document["today"]:
        return keep_together(f"{describe_advice(document['today'], document['unit'])}.")
    if document["verdict"] == "gain":
        fitted = "" if document["bundle"] else "fit the policy for this budget, and "
        return f"{fitted}serve {'this policy at this budget' if document['bundle'] else 'it'}."
    if document["verdict"] in ("no gain", "loss"):
        return f"spend the budget uniformly: {document['advice']}."
    if document["questions_needed"] is None:
        return "fix the answer extraction first."
    return "collect and grade more questions first."


def next_steps(document: dict[str, Any]) -> list[Step]:
    """Return what to do next, with the commands that do it.

    A bundle that is known is always served in one of them, in the last one if it is not advised.
    """
    steps = _advise(document)
    if not document["bundle"] or document["verdict"] == NOT_JUDGED:
        return steps
    served = _steps_to_serve(document)
    text = f"Or serve the policy in {document['bundle']} at this budget all the same."
    return steps if served[0] in steps else [*steps, (text, served[0][1])]


def _advise(document: dict[str, Any]) -> list[Step]:
    """Return the steps that the verdict, or what is saved, suggests."""
    if document["today"]:
        return _steps_to_save(document)
    needed = document["questions_needed"]
    if document["verdict"] == "gain":
        return _steps_to_serve(document)
    if document["verdict"] == "not judged" and needed is None:
        words = ["adacompute", "fit", "SAMPLES", "--grader", _grader(document) or "GRADER"]
        words += ["--budget", f"{document['budget']:g}", "--out", "BUNDLE"]
        fix = "Look at the unparsed samples, fix the prompt or the grader, and fit again."
        return [(fix, shlex.join(words))]
    steps: list[Step] = []
    if document["verdict"] != "not judged":
        steps.append((f"Spend the budget uniformly: {document['advice']}.", None))
    if better := _suggest_budget(document):
        steps.append((better, None))
    return [*steps, *_steps_to_decide(document, needed)]


def _steps_to_save(document: dict[str, Any]) -> list[Step]:
    """Return how to run the way that is advised instead of what is run today."""
    today = document["today"]
    advice = describe_advice(today, document["unit"])
    if today["advice"] == POLICY:
        return _steps_to_serve(document)
    ways: dict[str, dict[str, Any]] = {one["way"]: one for one in today["ways"]}
    way = ways.get(today["advice"], {})
    steps: list[Step] = [(f"{advice[:1].upper()}{advice[1:]}.", None)]
    if today["advice"] in (WEIGHTED, OTHER_ARM):
        steps = _steps_to_serve(document, BASELINE, round_up(way["cost"]))
    elif today["advice"] == DECIDED:
        budget = round_up(way["cost"])
        steps = [
            ("Build the rule that stops when the vote is decided.", _fit_decided(document)),
            ("Serve it in front of your model.", _serve(document, budget)),
        ]
    elif today["advice"] == FEWER:
        steps = [(f"Ask for {way['samples']} samples per question in your own requests.", None)]
    return [*steps, *_steps_to_decide(document, today["questions_needed"])]


def _steps_to_decide(document: dict[str, Any], needed: int | None) -> list[Step]:
    """Return how to learn more: with more questions, and from all policies."""
    more = f"For a clear verdict, grade about {needed:,} questions like these in total."
    steps: list[Step] = [(more, None)] if needed else []
    words = ["adacompute", "evaluate", document["path"], *_costs(document)]
    if document["custom_levels"]:
        words += ["--levels", ",".join(map(str, document["custom_levels"]))]
    evaluate = shlex.join([*words, *_today(document)])
    return [*steps, (OTHERS if document["arms"] else ROUTERS_TOO, evaluate)]


def _steps_to_serve(
    document: dict[str, Any], policy: str | None = None, budget: float | None = None
) -> list[Step]:
    """Return how to fit and serve a policy: that of the page, or another one at its own budget."""
    if policy is None and document["bundle"]:
        served = f"Serve the policy in {document['bundle']} in front of your model."
        return [(served, _serve(document, document["budget"], document["bundle"]))]
    words = ["adacompute", "fit", document["path"], *_today(document), "--out", "BUNDLE"]
    words += ["--config", f"policy={policy or document['policy']}", *_costs(document)]
    if document["custom_levels"]:
        words += ["--config", f"levels={','.join(map(str, document['custom_levels']))}"]
    if budget is None:
        budget = document["budget"]
        words += ["--budget", f"{budget:g}"]
    fitted = f"the policy {policy}" if policy else "the policy"
    return [
        (f"Fit {fitted} to these questions.", shlex.join(words)),
        ("Serve it in front of your model.", _serve(document, budget)),
    ]


def _serve(document: dict[str, Any], budget: float, bundle: str = "BUNDLE") -> str:
    words = ["adacompute", "serve", "--bundle", bundle, "--budget", f"{budget:g}"]
    words += ["--base-url", EXAMPLE_URL]
    for name, known in (("model", document["model"]), ("grader", _grader(document))):
        words += [] if known else [f"--{name}", name.upper()]
    return shlex.join(words)


def _fit_decided(document: dict[str, Any]) -> str:
    """Return the command that builds the rule with the same answers as today."""
    words = ["adacompute", "fit", document["samples_path"], *_today(document, "today", "calls")]
    words += ["--config", "same-answer=1", "--out", "BUNDLE", *_costs(document)]
    for name, known in (("model", document["model"]), ("grader", _grader(document))):
        words += [f"--{name}", known] if known else []
    return shlex.join(words)


def _grader(document: dict[str, Any]) -> str | None:
    """Return the name of the grader; the command of one's own is not known."""
    return None if document["grader"] == COMMAND else document["grader"]


TODAY_OPTIONS = {
    "today": "--today",
    "calls": "today-calls",
    "tolerance": "tolerance",
}


def _today(document: dict[str, Any], *names: str) -> list[str]:
    """Return the options that say what is run today, or some of them."""
    given = document["today_options"] or {}
    known = [(TODAY_OPTIONS[name], given.get(name)) for name in names or TODAY_OPTIONS]
    texts = [(option, value) for option, value in known if value is not None]
    words: list[str] = []
    for option, value in texts:
        text = f"{value:g}" if isinstance(value, float) else str(value)
        is_option = option.startswith("--")
        words += [option, text] if is_option else ["--config", f"{option}={text}"]
    return words


def _costs(document: dict[str, Any]) -> list[str]:
    """Return the options that give other commands the costs of this page."""
    words = [] if document["unit"] == "samples" else ["--unit", document["unit"]]
    return words + (["--token-prices", "TOKEN_PRICES"] if document["has_token_prices"] else [])


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
