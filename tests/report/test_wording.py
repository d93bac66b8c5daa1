"""Sentences of the page say what is so: also where nothing varies, and where most is unreadable."""

from __future__ import annotations

import re
from typing import Any

import pytest

from adacompute.report import wording


def told(**changed: Any) -> dict[str, Any]:
    """A document as far as sentences read it: no gain, on 80 questions, all of them readable."""
    stop = {"budget": 2.0, "cost": 1.8, "gain": 0.01, "gain_low": -0.01, "gain_high": 0.03}
    known: dict[str, Any] = {
        "stops": [stop | changed.pop("stop", {})],
        "at": 0,
        "budget": 2.0,
        "unit": "samples",
        "policy": "sequential",
        "path": "my run",
        "priced": False,
        "custom_levels": None,
        "model": None,
        "grader": None,
        "groups": 80,
        "questions": 80,
        "samples": 16,
        "verdict": "no gain",
        "advice": "use n = 2",
        "why": None,
        "questions_needed": 240,
        "frontier": [{"cost_high": 1.0}, {"cost_high": 6.5}],
        "unparsed": {"share": 0.0, "gain": 0.0, "gain_low": 0.0, "gain_high": 0.0},
    }
    return known | changed


def said(document: dict[str, Any]) -> str:
    """Every sentence that depends on the verdict."""
    steps = [part for step in wording.next_steps(document) for part in step if part]
    made = (wording.headline, wording.support, wording.verdict, wording.outlook)
    return " ".join([*(say(document) for say in made), *steps])


def test_how_many_more_questions_is_said_where_they_could_settle_it() -> None:
    assert "about 240 more questions settle it" in wording.verdict(told())
    assert "more questions" not in wording.verdict(told(stop={"gain": -0.01}))


def test_where_nothing_varies_no_number_of_questions_is_named() -> None:
    nothing = {"gain": 0.0, "gain_low": 0.0, "gain_high": 0.0}
    text = said(told(stop=nothing, questions_needed=None))
    assert "you gain nothing that 80 questions can show" in text
    assert "None" not in text
    assert "more questions" not in text


def test_unreadable_samples_are_mended_and_not_collected() -> None:
    why = "90 % of the samples could not be read, so look at the grader first"
    text = said(told(verdict="no verdict", why=why, questions_needed=None, grader="math"))
    assert "mend how answers are read" in text
    assert "adacompute grade 'my run' --grader math" in text
    assert not re.search("collect|Collect|evaluate", text)


def test_too_few_questions_need_more() -> None:
    text = said(told(verdict="no verdict", why="12 questions are too few", questions_needed=28))
    assert "collect and grade more" in text
    assert "about 28 more questions" in text


def test_commands_see_the_costs_and_the_levels_of_the_page() -> None:
    plain = [command for _, command in wording.next_steps(told(verdict="gain"))]
    assert plain[0] == "adacompute train 'my run' --policy sequential --out BUNDLE"
    asked = told(verdict="gain", unit="money", priced=True, custom_levels=[1, 3])
    train = wording.next_steps(asked)[0][1]
    assert train == f"{plain[0]} --unit money --token-prices TOKEN_PRICES --levels 1,3"
    evaluate = wording.next_steps(asked | {"verdict": "no gain"})[-1][1]
    assert evaluate is not None
    assert evaluate.endswith("--unit money --token-prices TOKEN_PRICES --levels 1,3")


def test_a_budget_that_cannot_be_spent_is_said_to_be_one() -> None:
    assert "at most" not in wording.support(told())
    text = wording.support(told(budget=100.0, stop={"cost": 6.25}))
    assert text.endswith("The policy spends 6.25 at most, so that a smaller budget buys as much.")


@pytest.mark.parametrize(
    ("gain", "redrawn", "sentence"),
    [
        (0.04, 0.01, "That part of the gain of +4.0 is not"),
        (0.04, 0.05, "The whole gain of +4.0 is not"),
        (-0.01, 0.02, "A better extraction would bring that too."),
        (0.04, 0.0, ""),
    ],
)
def test_what_redrawing_has_of_the_gain(gain: float, redrawn: float, sentence: str) -> None:
    unread = {"share": 0.2, "gain": redrawn, "gain_low": 0.0, "gain_high": 0.1}
    found = wording.redrawing(told(stop={"gain": gain}, unparsed=unread))
    assert found.startswith(sentence)
    assert bool(found) == bool(sentence)


def test_numbers_keep_their_size() -> None:
    spoken = [wording.number(value) for value in (999.4, 999.7, -999.7, 1e5, 5.97e-7)]
    assert spoken[:4] == ["999", "1,000", "−1,000", "100,000"]
    assert float(spoken[4]) == pytest.approx(6e-7)
