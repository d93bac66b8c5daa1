"""Plans: what makes no sense is refused before anything is paid for."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from adacompute.collection.plan import estimate_cost, read_plan
from adacompute.core.errors import ConfigError, DataError

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
    ("options", "said"),
    [
        ({"samples": 0}, "samples of the level 'default' are from 1 to"),
        ({"samples": -3}, "not -3"),
        ({"samples": 2**31}, "from 1 to 2147483647"),
        ({"levels": ({"name": "big", "samples": "0"},)}, "samples of the level 'big'"),
        ({"concurrency": 0}, "calls at once are from 1"),
        ({"requests_per_minute": 0}, "requests a minute are from 1"),
        ({"tokens_per_minute": -1}, "tokens a minute are from 1"),
        ({"max_cost": math.nan}, "a limit on cost is a finite number above 0, not nan"),
        ({"max_cost": math.inf}, "not inf"),
        ({"max_cost": -1.0}, "not -1.0"),
        ({"levels": ({"name": "a"}, {"name": "a"})}, "two levels share a name"),
        ({"levels": ({"model": "n"},)}, "a level needs a name"),
        ({"levels": ({"name": "a", "colour": "red"},)}, "a level has no 'colour'"),
        ({"levels": ({"name": "a", "temperature": "hot"},)}, "level 'a': "),
        ({"budget": 2.0}, "add --adaptive"),
        ({"budget": 0.5, "adaptive": True}, "from 1 on, not 0.5"),
        ({"scorer_price": 0.1}, "name its URL with --scorer"),
    ],
)
def test_what_makes_no_sense_is_refused(
    questions: str, token_prices: Path, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        read_plan(questions, token_prices=token_prices, **ASKED, **options)


def test_a_limit_without_prices_is_refused(questions: str) -> None:
    with pytest.raises(ConfigError, match="a limit on cost needs prices"):
        read_plan(questions, max_cost=1.0, **ASKED)


def test_a_question_without_text_is_not_sent(tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_text('{"question_id": "a", "question": null}', encoding="utf-8")
    with pytest.raises(DataError, match="question 'a' has no text to send"):
        estimate_cost(read_plan(str(path), **ASKED))


def test_adaptive_collection_needs_every_right_answer(tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_text('{"question_id": "a", "question": "1 + 1?", "gold": null}', encoding="utf-8")
    with pytest.raises(ConfigError, match="'a' has none: collect without --adaptive"):
        read_plan(str(path), adaptive=True, **ASKED)


def test_what_it_needs_at_most_is_counted(questions: str, token_prices: Path) -> None:
    plan = read_plan(questions, token_prices=token_prices, samples=20, max_tokens=100, **ASKED)
    (row,) = estimate_cost(plan)["levels"]
    assert (row["samples"], row["calls_at_most"]) == (60, 60)
    assert row["completion_tokens_at_most"] == 6000
    prompts = row["prompt_tokens"] * 1e-6
    assert row["cost_at_most"] == pytest.approx(6000 * 2e-6 + prompts)
    # With native n, two calls of at most 16 draws do, and each pays its prompt once.
    assert row["cost_at_most_with_native_n"] == pytest.approx(6000 * 2e-6 + prompts / 10)
