"""Wording: the sentences of the page for every verdict, and how numbers are written."""

from __future__ import annotations

import re
from typing import Any

import pytest

from adacompute.report import commands, wording


def document(**changed: Any) -> dict[str, Any]:
    """Return the part of a document that sentences use: no gain, 80 questions, all parsed."""
    point = {
        "budget": 2.0,
        "cost": 1.8,
        "rounds": 1.8,
        "gain": 0.01,
        "gain_low": -0.01,
        "gain_high": 0.03,
    }
    known: dict[str, Any] = {
        "operating_points": [point | changed.pop("point", {})],
        "selected": 0,
        "budget": 2.0,
        "unit": "samples",
        "policy": "sequential",
        "path": "my run",
        "bundle": None,
        "has_token_prices": False,
        "custom_levels": None,
        "arms": [],
        "model": None,
        "grader": None,
        "independent_questions": 80,
        "fold_assignments": 3,
        "questions": 80,
        "samples": 16,
        "verdict": "no gain",
        "advice": "use n = 2",
        "reason": None,
        "questions_needed": 240,
        "frontier": [{"budget": 1.0}, {"budget": 6.5}],
        "latency_p50_s": None,
        "latency_p95_s": None,
        "today": None,
        "today_options": None,
        "unparsed": {"share": 0.0, "gain": 0.0, "gain_low": 0.0, "gain_high": 0.0},
    }
    return known | changed


def all_sentences(content: dict[str, Any]) -> str:
    """Return every sentence that depends on the verdict."""
    steps = [commands.describe_next(content), *commands.next_steps(content)]
    functions = (wording.headline, wording.explain_headline, wording.explain_verdict)
    parts = [part for step in steps for part in step if part]
    return " ".join([*(function(content) for function in functions), *parts])


def test_a_gain_is_written_with_its_interval() -> None:
    gain = {"gain": 0.042, "gain_low": 0.028, "gain_high": 0.056}
    text = wording.headline(document(verdict="gain", point=gain))
    assert "2 samples per question" in text
    assert "4.2 points [2.8,\u00a05.6]" in text


def test_rounds_and_the_recorded_latency_are_named() -> None:
    assert "1.8 rounds" in wording.explain_headline(document())
    timed = document(latency_p50_s=0.42, latency_p95_s=1.7)
    assert "0.42 s" in wording.explain_headline(timed)
    assert "1.7 s" in wording.explain_headline(timed)


@pytest.mark.parametrize("verdict", ["gain", "loss", "no gain", "inconclusive", "not judged"])
def test_without_today_the_page_asks_for_it_once(verdict: str) -> None:
    assert all_sentences(document(verdict=verdict)).count("--today") == 1
    assert wording.explain_headline(document(verdict=verdict)).startswith(wording.ASK_TODAY)
    asked = document(verdict=verdict, today_options={"today": "5"})  # too few questions to say
    assert wording.ASK_TODAY not in all_sentences(asked)


def test_a_loss_gives_the_advice() -> None:
    loss = {"gain": -0.02, "gain_low": -0.03, "gain_high": -0.01}
    text = all_sentences(document(verdict="loss", point=loss))
    assert "use n = 2" in text
    assert "[−3.0,\u00a0−1.0]" in text
    assert "adacompute serve" not in text


def test_the_questions_needed_are_named_if_the_verdict_is_inconclusive() -> None:
    text = all_sentences(document(verdict="inconclusive", questions_needed=1240))
    assert "1,240 questions" in text
    assert "80 questions" in text
    for verdict in ("gain", "loss", "no gain"):
        decided = document(verdict=verdict, questions_needed=0)
        assert not re.search(r"\b0 questions|in total", all_sentences(decided))


def test_without_any_variation_no_number_of_questions_is_named() -> None:
    nothing = {"gain": 0.0, "gain_low": 0.0, "gain_high": 0.0}
    text = all_sentences(document(point=nothing, questions_needed=0))
    assert "use n = 2" in text
    assert "None" not in text
    assert "in total" not in text


def test_unparsed_samples_need_another_grader_and_not_more_questions() -> None:
    options: dict[str, Any] = {"verdict": "not judged", "questions_needed": None}
    text = all_sentences(document(**options, reason="90 % are unparsed", grader="math"))
    assert "90 % are unparsed" in text
    assert "adacompute research grade 'my run' --grader math" in text
    assert not re.search("collect|Collect|evaluate", text)


def test_too_few_questions_need_more() -> None:
    options: dict[str, Any] = {"verdict": "not judged", "questions_needed": 40}
    text = all_sentences(document(**options, reason="12 questions are too few"))
    assert "collect" in text
    assert "40 questions" in text


def test_commands_use_the_costs_and_levels_of_the_page() -> None:
    plain = [command for _, command in commands.next_steps(document(verdict="gain"))]
    assert plain[0] == "adacompute research train 'my run' --policy sequential --out BUNDLE"
    content = document(verdict="gain", unit="money", has_token_prices=True, custom_levels=[1, 3])
    train = commands.next_steps(content)[0][1]
    assert train == f"{plain[0]} --unit money --token-prices TOKEN_PRICES --levels 1,3"
    evaluate = commands.next_steps(content | {"verdict": "no gain"})[-1][1]
    assert evaluate is not None
    assert evaluate.endswith("--unit money --token-prices TOKEN_PRICES --levels 1,3")


def test_a_budget_with_a_gain_is_suggested_where_the_chosen_one_has_none() -> None:
    content = document()
    better = {"budget": 4.0, "cost": 3.9, "gain": 0.03, "gain_low": 0.01, "gain_high": 0.05}
    content["operating_points"].append(better)
    text = all_sentences(content)
    assert "4 samples per question" in text
    assert "+3.0 points [1.0,\u00a05.0]" in text


def test_a_budget_that_cannot_be_spent_is_mentioned() -> None:
    assert "at most" not in wording.explain_headline(document())
    text = wording.explain_headline(document(budget=100.0, point={"cost": 6.25}))
    assert "at most 6.25 samples per question" in text


@pytest.mark.parametrize(
    ("gain", "retry", "part"),
    [
        (0.04, 0.01, r"part .* \+4\.0"),
        (0.04, 0.05, r"All .* \+4\.0"),
        (-0.01, 0.02, "extraction"),
        (0.04, 0.0, "^$"),
    ],
)
def test_the_share_of_resampling_in_the_gain(gain: float, retry: float, part: str) -> None:
    unparsed = {"share": 0.2, "gain": retry, "gain_low": 0.0, "gain_high": 0.1}
    content = document(point={"gain": gain}, unparsed=unparsed)
    assert re.search(part, wording.explain_retry(content))
    content["verdict"] = "gain"
    is_mentioned = "+5.0 points" in wording.explain_headline(content)
    assert is_mentioned == (retry == 0.05)


def test_numbers_keep_their_size() -> None:
    texts = [wording.format_number(value) for value in (999.4, 999.7, -999.7, 1e5, 5.97e-7)]
    assert texts[:4] == ["999", "1,000", "−1,000", "100,000"]
    assert float(texts[4]) == pytest.approx(6e-7)


def test_the_cost_of_questions_that_are_never_correct_is_stated_with_what_reduces_it() -> None:
    def point(budget: float, share: float, questions: int = 77) -> dict[str, Any]:
        unsolved = {"questions": questions, "share": 0.26, "budget_share": share}
        return {"budget": budget, "cost": budget, "unsolved": unsolved}

    def explain(selected: int, *points: dict[str, Any]) -> str:
        content = document(operating_points=list(points), selected=selected)
        return wording.explain_unsolved(content).replace("\u00a0", " ")

    points = point(1.1, 0.25), point(2.0, 0.31), point(4.0, 0.2)
    assert "31 % of the cost is spent on the 77 questions (26 %)" in explain(1, *points)
    assert "a smaller budget (25 % at 1.1 samples per question)" in explain(1, *points)
    assert "smaller budget" not in explain(0, *points)
    assert "add a model" in explain(0, *points)
    assert "no cost is in vain" in explain(0, point(1.1, 0.0, 0))
