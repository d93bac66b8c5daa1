"""Commands: each way to save has the commands that build it, with what is run today."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from adacompute.evaluation.scoring.savings import (
    AS_TODAY,
    DECIDED,
    FEWER,
    OTHER_ARM,
    POLICY,
    WEIGHTED,
)
from adacompute.report.commands import describe_next, next_steps


def document(advice: str, **changed: Any) -> dict[str, Any]:
    """Return the part of a document that commands use."""
    ways = [
        {"way": way, "cost": cost, "saving": 1 - cost / 5, "difference": 0.0, "passes": True}
        for way, cost in ((FEWER, 4.0), (WEIGHTED, 2.51984), (OTHER_ARM, 2.0), (DECIDED, 3.7))
    ]
    ways[0]["samples"] = 4
    ways.append({"way": POLICY, "cost": 1.8, "saving": 0.64, "difference": 0.0, "passes": True})
    known: dict[str, Any] = {
        "today": {"advice": advice, "ways": ways, "questions_needed": 0},
        "today_options": {"today": "5", "tolerance": 0.01, "calls": None},
        "path": "my run",
        "bundle": None,
        "samples_path": "my run/samples.parquet",
        "policy": "sequential",
        "budget": 1.807,
        "unit": "money",
        "has_token_prices": True,
        "custom_levels": [1, 2, 5],
        "arms": [],
        "model": "large",
        "grader": "numeric",
        "verdict": "gain",
    }
    return known | changed


TODAY = ["--today", "5", "--config", "tolerance=0.01"]
COSTS = ["--unit", "money", "--token-prices", "TOKEN_PRICES"]
URL = ["--base-url", "http://127.0.0.1:8080/v1"]


def split(content: dict[str, Any]) -> list[list[str]]:
    """Return the commands of all steps as words."""
    commands = [command for _, command in next_steps(content) if command]
    return [shlex.split(command)[1:] for command in commands]


def test_a_policy_that_saves_is_fitted_and_served() -> None:
    fit, serve = split(document(POLICY))
    assert fit[:2] == ["fit", "my run"]
    assert fit[2 : 2 + len(TODAY)] == TODAY
    levels = ["--config", "levels=1,2,5", "--budget", "1.807"]
    assert fit[-len(COSTS) - 8 :] == [
        *("--out", "BUNDLE", "--config", "policy=sequential"),
        *(*COSTS, *levels),
    ]
    assert serve == ["serve", "--bundle", "BUNDLE", "--budget", "1.807", *URL]
    text, command = describe_next(document(POLICY))
    assert shlex.split(command or "")[1:] == serve
    assert "64\u00a0%\u00a0less" in text


@pytest.mark.parametrize(("advice", "budget"), [(WEIGHTED, "2.52"), (OTHER_ARM, "2")])
def test_a_uniform_mixture_is_served_at_its_own_cost(advice: str, budget: str) -> None:
    fit, serve, evaluate = split(document(advice, arms=["a"]))
    assert "policy=mixture" in fit
    assert "--budget" not in fit
    assert serve[4] == budget
    assert evaluate == ["evaluate", "my run", *COSTS, "--levels", "1,2,5", *TODAY]
    assert shlex.split(describe_next(document(advice))[1] or "")[1:] == fit


def test_a_decided_vote_is_fitted_to_the_samples_of_the_run() -> None:
    fit, serve, _ = split(document(DECIDED))
    assert fit[:4] == ["fit", "my run/samples.parquet", "--today", "5"]
    assert fit[4:8] == ["--config", "same-answer=1", "--out", "BUNDLE"]
    assert fit[8:] == [*COSTS, "--model", "large", "--grader", "numeric"]
    assert serve[4] == "3.7"
    unknown = split(document(DECIDED, model=None, grader="cmd"))
    assert unknown[0][8:] == COSTS
    assert unknown[1][-4:] == ["--model", "MODEL", "--grader", "GRADER"]


@pytest.mark.parametrize("advice", [FEWER, AS_TODAY])
def test_what_needs_no_bundle_leads_to_the_other_policies(advice: str) -> None:
    ((name, *_),) = split(document(advice))
    text, command = describe_next(document(advice))
    assert name == shlex.split(command or "")[1] == "evaluate"
    assert "Compare all policies" in text
    assert ("4 samples" in next_steps(document(advice))[0][0]) == (advice == FEWER)


def test_the_questions_that_would_decide_are_a_step() -> None:
    content = document(DECIDED)
    content["today"]["questions_needed"] = 1650
    assert "1,650 questions" in " ".join(text for text, _ in next_steps(content))


def test_a_known_bundle_is_only_served_at_the_budget() -> None:
    (serve,) = split(document(POLICY, bundle="my policy"))
    assert serve == ["serve", "--bundle", "my policy", "--budget", "1.807", *URL]
    assert shlex.split(describe_next(document(POLICY, bundle="my policy"))[1] or "")[1:] == serve
    fit, *_, last = split(document(WEIGHTED, bundle="my policy"))
    assert fit[0] == "fit"  # the bundle holds another policy
    assert last == serve


def test_a_known_bundle_is_served_where_it_gains() -> None:
    known: dict[str, Any] = {"today": None, "budget": 2.5, "questions_needed": 0}
    content = document(POLICY, bundle="my policy", **known)
    assert split(content) == [["serve", "--bundle", "my policy", "--budget", "2.5", *URL]]
    assert "fit" not in describe_next(content)[0]
