"""Plans: what makes no sense is refused before anything is paid for."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from adacompute.collection.plan import estimate_cost, read_plan
from adacompute.core.errors import ConfigError, DataError
from adacompute.models.formats.openai_format import request_body
from adacompute.models.messages import Capabilities
from adacompute.models.templates import Template

ASKED: dict[str, Any] = {"base_url": "http://127.0.0.1:9/v1", "model": "m", "grader": "exact"}


@pytest.fixture
def questions(tmp_path: Path) -> str:
    rows = [{"question_id": str(n), "question": f"{n} + 1?", "gold": str(n + 1)} for n in range(3)]
    path = tmp_path / "questions.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return str(path)


@pytest.fixture
def token_prices(tmp_path: Path) -> Path:
    path = tmp_path / "prices.toml"
    path.write_text("[models.m]\ninput = 1.0\noutput = 2.0\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samples": 0}, "samples of the arm 'default'"),
        ({"samples": -3}, "got -3"),
        ({"samples": 2**31}, "from 1 to 2147483647"),
        ({"arms": ({"name": "big", "samples": "0"},)}, "samples of the arm 'big'"),
        ({"concurrency": 0}, "concurrency must be from 1"),
        ({"requests_per_minute": 0}, "requests per minute must be from 1"),
        ({"tokens_per_minute": -1}, "tokens per minute must be from 1"),
        ({"max_cost": math.nan}, "finite number above 0, got nan"),
        ({"max_cost": math.inf}, "got inf"),
        ({"max_cost": -1.0}, "got -1.0"),
        ({"arms": ({"name": "a"}, {"name": "a"})}, "different names"),
        ({"arms": ({"model": "n"},)}, "needs a name"),
        ({"arms": ({"name": "a", "colour": "red"},)}, "has no 'colour'"),
        ({"arms": ({"name": "a", "temperature": "hot"},)}, "arm 'a': "),
        ({"arms": ({"name": "a", "request": "x"},)}, "arm 'a': request must be a table"),
        ({"arms": ({"name": "a", "request": {"max_tokens": 9}},)}, "'max_tokens'"),
        ({"arms": ({"name": "a", "request.n": "9"},)}, "'n'"),
        ({"arms": ({"name": "a", "samples": [1]},)}, "arm 'a': "),
        ({"scorer_price": 0.1}, "its URL, scorer=URL"),
    ],
)
def test_invalid_options_are_refused(
    questions: str, token_prices: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        read_plan(questions, token_prices=token_prices, **ASKED, **options)


def test_an_arm_may_set_any_request_field(questions: str) -> None:
    thinking = {"type": "enabled", "budget_tokens": 16000}
    arms = (
        {"name": "low", "request.reasoning_effort": "low", "request.top_p": "0.9"},
        {"name": "think", "samples": 4, "temperature": 1.0, "request": {"thinking": thinking}},
    )
    low, think = read_plan(questions, arms=arms, **ASKED).arms
    assert low.settings.extra == {"reasoning_effort": "low", "top_p": 0.9}
    assert (think.n_samples, think.settings.temperature) == (4, 1.0)
    prompt = think.template.render("1 + 1?")
    body = request_body(think.model, prompt, think.settings, Capabilities())
    assert body["thinking"] == thinking
    assert body["max_tokens"] == 1024


def test_an_arm_may_have_its_own_prompt(questions: str, tmp_path: Path) -> None:
    (tmp_path / "few.jsonl").write_text('{"question": "2 + 2?", "answer": "4"}')
    own = {"prompt": "Q: {question}", "system": "Be brief.", "few_shot": tmp_path / "few.jsonl"}
    arms = ({"name": "plain"}, {"name": "own", **own})
    plain, changed = read_plan(questions, arms=arms, **ASKED).arms
    assert plain.template == Template()
    assert changed.template == Template("Q: {question}", "Be brief.", (("2 + 2?", "4"),))
    rows = estimate_cost(read_plan(questions, arms=arms, **ASKED))["arms"]
    assert rows[0]["prompt_tokens"] < rows[1]["prompt_tokens"]


def test_max_cost_without_prices_is_refused(questions: str) -> None:
    with pytest.raises(ConfigError, match="needs prices"):
        read_plan(questions, max_cost=1.0, **ASKED)


def test_question_without_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_text('{"question_id": "a", "question": null}', encoding="utf-8")
    with pytest.raises(DataError, match="question 'a' has no text to send"):
        estimate_cost(read_plan(str(path), **ASKED))


def test_maximum_cost_is_estimated(questions: str, token_prices: Path) -> None:
    plan = read_plan(questions, token_prices=token_prices, samples=20, max_tokens=100, **ASKED)
    (row,) = estimate_cost(plan)["arms"]
    assert (row["samples"], row["max_calls"]) == (60, 60)
    assert row["max_completion_tokens"] == 6000
    prompts = row["prompt_tokens"] * 1e-6
    assert row["max_cost"] == pytest.approx(6000 * 2e-6 + prompts)
    # With native n, two calls of at most 16 samples are enough, and each pays its prompt once.
    assert row["max_cost_with_native_n"] == pytest.approx(6000 * 2e-6 + prompts / 10)


def test_paper_sampling_is_the_default(tmp_path: Path) -> None:
    rows = [
        {"question_id": str(n), "question": f"{n} + 1?", "gold": str(n + 1)} for n in range(210)
    ]
    path = tmp_path / "questions.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    plan = read_plan(str(path), max_questions=200, **ASKED)
    (arm,) = plan.arms
    assert (arm.n_samples, arm.settings.temperature) == (48, 0.7)
    (cost,) = estimate_cost(plan)["arms"]
    assert (cost["samples"], cost["max_calls"]) == (9600, 9600)
