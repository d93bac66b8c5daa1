"""The recorded upstream answers with samples of the question that a prompt ends with."""

from __future__ import annotations

import random

import pytest

from adacompute.testing.recorded import answer, read_completions

PROMPT = "Question: What is 1 + 1?\nAnswer: 2\n\nQuestion: What is 6 + 3?\nAnswer:"


def test_choices_are_recorded_samples_of_the_last_question() -> None:
    completions = read_completions()
    reply = answer(completions, {"prompt": PROMPT, "n": 3}, random.Random(0))
    known = {text for text, _ in completions["What is 6 + 3?"]}
    assert len(completions) == 300
    assert [choice["text"] in known for choice in reply["choices"]] == [True] * 3
    assert reply["usage"]["completion_tokens"] > 0


def test_a_question_that_was_not_recorded_is_an_error() -> None:
    with pytest.raises(KeyError):
        answer(read_completions(), {"prompt": "Hello"}, random.Random(0))
