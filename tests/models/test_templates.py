from __future__ import annotations

import pytest

from adacompute.core.errors import ConfigError
from adacompute.models.templates import Template


def test_a_chat_template_makes_turns() -> None:
    template = Template("Q: {question}", system="Be brief.", few_shot=(("1 + 1?", "2"),))
    prompt = template.render("2 + 2?")
    assert prompt.text is None
    assert prompt.messages == (
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Q: 1 + 1?"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "Q: 2 + 2?"},
    )


def test_a_completion_template_makes_one_text() -> None:
    template = Template(
        "Q: {question}\nA:", system="Sums.", few_shot=(("1 + 1?", "2"),), chat=False
    )
    assert template.render("2 + 2?").text == "Sums.\n\nQ: 1 + 1?\nA: 2\n\nQ: 2 + 2?\nA:"


@pytest.mark.parametrize("form", ["no field", "{question}{question}", ""])
def test_a_form_needs_the_question_once(form: str) -> None:
    with pytest.raises(ConfigError, match="question"):
        Template(form)


def test_the_name_changes_with_anything_about_the_prompt() -> None:
    templates = [
        Template(),
        Template(chat=False),
        Template(system=""),
        Template("{question}."),
        Template(few_shot=(("a", "b"),)),
    ]
    assert len({template.name for template in templates}) == len(templates)
    assert Template().name == Template().name
