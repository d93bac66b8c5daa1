"""Named prompts: each asks for the answer in the form that its grader finds."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from adacompute.collection.plan import read_plan
from adacompute.core.errors import ConfigError
from adacompute.graders.grader import load_grader
from adacompute.models.templates import Template

QUESTION = "Tom has 3 boxes of 6 pens. How many pens has he?"
STEPS = "There are 3 boxes.\nEach box has 6 pens, and 3 * 6 = 17 + 1.\n"


def cot(folder: Path, grader: str) -> Template:
    """The template of a collection with --config prompt=cot."""
    path = folder / "questions.jsonl"
    path.write_text(json.dumps({"question_id": "a", "question": QUESTION, "gold": "18"}))
    url = "http://127.0.0.1:9/v1"
    plan = read_plan(str(path), base_url=url, model="m", grader=grader, prompt="cot")
    return plan.arms[0].template


def sent(template: Template) -> str:
    messages = template.render(QUESTION).messages
    assert messages
    return str(messages[-1]["content"])


def test_numeric_grader_finds_the_answer_that_cot_asks_for(tmp_path: Path) -> None:
    prompt = sent(cot(tmp_path, "numeric"))
    assert prompt.startswith(QUESTION)
    assert "step by step" in prompt
    announcement = re.search(r'"(.+?)"', prompt)
    assert announcement
    answer = f"{STEPS}{announcement[1]} 18.\nHe has them in 3 boxes."
    assert load_grader("numeric").extract(answer) == "18"


def test_math_grader_finds_the_answer_that_cot_asks_for(tmp_path: Path) -> None:
    pytest.importorskip("math_verify")
    prompt = sent(cot(tmp_path, "math"))
    assert prompt.startswith(QUESTION)
    assert "step by step" in prompt
    box = re.search(r"\\\w+\{\}", prompt)
    assert box
    answer = f"{STEPS}It is {box[0][:-1]}\\frac{{36}}{{2}}}}, for 3 boxes."
    assert load_grader("math").equal(load_grader("math").extract(answer) or "", "18")


@pytest.mark.parametrize("grader", ["numeric", "math"])
def test_the_question_is_found_in_a_cot_prompt(tmp_path: Path, grader: str) -> None:
    if grader == "math":
        pytest.importorskip("math_verify")
    template = cot(tmp_path, grader)
    assert template.extract_question(template.render(QUESTION)) == QUESTION


def test_cot_with_a_grader_that_it_has_no_form_for_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="exact"):
        cot(tmp_path, "exact")
