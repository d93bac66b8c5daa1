"""Groups of questions that are copies of each other."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from adacompute.core import question_groups
from adacompute.core.question_groups import group_questions
from adacompute.core.types import hash_strings

WORDS = (
    "farm",
    "apples",
    "bought",
    "sold",
    "train",
    "town",
    "river",
    "day",
    "left",
    "gave",
    "field",
)


def count(*texts: str | None) -> int:
    """Return the number of groups."""
    names = [f"id {i}" for i in range(len(texts))]
    return len(np.unique(group_questions(texts, names)))


def write_story(seed: int, size: int = 90) -> list[str]:
    """Make a text of different triples, with two numbers, an operator and a sign."""
    rng = random.Random(seed)
    words = [f"{rng.choice(WORDS)}{'' if rng.random() < 0.7 else 's'}" for _ in range(size)]
    return [*words[:10], "12", *words[10:20], "+", *words[20:30], "-7", *words[30:]]


@pytest.mark.parametrize(
    "copy",
    [
        "What is the capital of France? ",
        "what is THE capital of france?",
        "What is  the\ncapital of France",
        "What is the capital of France.",
        "What is the capital of France?!",
        'What is the capital of France?"',
    ],
)
def test_case_spaces_and_closing_punctuation_do_not_count(copy: str) -> None:
    assert count("What is the capital of France?", copy) == 1
    assert count("What is the capital of Spain?", copy) == 2


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("What is 3 + 4?", "What is 3 - 4?"),
        ("What is 3 + 4?", "What is 3 + 5?"),
        ("What is -3 + 4?", "What is 3 + 4?"),
        ("What is 12?", "What is 1 2?"),
        ("What is 1.5?", "What is 15?"),
        ("What is .5?", "What is 5?"),
        ("What is 5!", "What is 5?"),
        ("What is n!", "What is n"),
        ("What is (2+n)!", "What is (2+n)."),
        ("Find x².", "Find x³."),
        ("Two and two", "Two and three"),
        ("It is f(x)", "It is f'(x)"),
        ("Is a < b?", "Is a > b?"),
        ("(2 + 3) * 4", "2 + (3 * 4)"),
        ("$5", "5"),
        ("5 %", "5"),
    ],
)
def test_numbers_operators_and_signs_count(one: str, other: str) -> None:
    story = " ".join(write_story(1))
    assert count(one, other) == 2
    assert count(f"{story} {one}", f"{story} {other}") == 2
    assert count(f"{story} {one} {story}", f"{story} {other} {story}") == 2


@given(
    st.integers(0, 10**6),
    st.integers(0, 92),
    st.sampled_from(["+", "-", "*", "/", "^", "=", "<", "%", "−", "1", "0.5", "-3", "seven", "("]),
    st.booleans(),
)
def test_one_more_or_another_number_or_operator_is_another_question(
    seed: int,
    place: int,
    mark: str,
    replaces: bool,  # noqa: FBT001
) -> None:
    story = write_story(seed)
    assume(not replaces or story[place] != mark)
    other = [*story[:place], mark, *story[place + replaces :]]
    assert count(" ".join(story), " ".join(other)) == 2


@given(st.integers(0, 10**6), st.integers(31, 92))
def test_an_operator_at_another_place_is_another_question(seed: int, place: int) -> None:
    story = write_story(seed)
    one, other = list(story), list(story)
    one.insert(place, "/")
    other.insert(place + 1, "/")
    assume(one[place + 1] != other[place + 2] if place + 2 < len(other) else True)
    assert count(" ".join(one), " ".join(other)) == 2


@given(st.integers(0, 10**6))
def test_texts_that_share_nine_tenths_of_their_word_triples_are_copies(seed: int) -> None:
    story = write_story(seed)
    near = [*story[:50], "mill", *story[51:]]
    far = [word if i % 9 or i < 30 else "mill" for i, word in enumerate(story)]
    assert count(" ".join(story), " ".join(near)) == 1
    assert count(" ".join(story), " ".join(far)) == 2


def test_texts_of_fewer_than_three_words_must_be_equal() -> None:
    assert count("Red house", "red house.", "Red", "red house big", "house red") == 4


def test_what_most_questions_share_at_the_beginning_and_at_the_end_does_not_count() -> None:
    ask, end = "Answer the following question: ", " Think step by step, then answer."
    capitals = [f"{ask}What is the capital of {name}?" for name in ("Peru", "Chad", "Laos")]
    assert count(*capitals, "What is the capital of Peru?") == 3
    # Beside a long instruction a short question hardly counts, unless the instruction is dropped.
    long = f"{ask}{' '.join(write_story(3))}. "
    cities = ("Peru", "Chad", "Laos", "Cuba", "Mali")
    assert count(*(f"{long}Where is {name}?" for name in cities)) == 5
    assert count(*(f"Where is {name}? {long}" for name in cities)) == 5
    ended = [f"Where is {name}?{end}" for name in cities]
    assert count(*ended, "Where is Laos?") == 5
    # A number of the instruction counts: with and without it are not copies.
    assert count(*(f"Use 3 words. {text}" for text in ended), ended[0]) == 6
    assert count("Answer:", *(f"Answer: {name}" for name in cities)) == 6
    assert count("?", "!", *(f"Answer: {name}" for name in cities)) == 6


def test_a_question_without_text_is_a_group_by_its_id() -> None:
    group = group_questions([None, " ", "a b", None], ["a", "b", "c", "d"])
    assert group.tolist() == hash_strings(["a", "b", "a b", "d"]).tolist()
    assert group_questions([], []).tolist() == []


def test_a_given_group_takes_the_place_of_the_text() -> None:
    texts = ["Where is Peru?", "where is peru", "Where is Chad?", "Why?", "Why?"]
    group = group_questions(texts, "abcde", [None, "x", "x", None, "Why?"])
    assert group[1] == group[2]
    assert len(set(group.tolist())) == 4


@given(st.permutations(range(6)))
def test_a_group_does_not_depend_on_the_order_and_alone_is_that_of_the_text(
    order: list[int],
) -> None:
    story = write_story(5)
    texts = ["Who?", "who", " ".join(story), " ".join([*story[:-1], "mill"]), "Why me?", "Red"]
    group = group_questions(texts, "abcdef")
    again = group_questions([texts[i] for i in order], ["abcdef"[i] for i in order])
    assert again.tolist() == group[list(order)].tolist()
    key = hash_strings(texts)
    assert group.tolist() == [*[min(key[:2])] * 2, *[min(key[2:4])] * 2, key[4], key[5]]


def test_of_too_many_texts_only_equal_ones_are_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    story = write_story(5)
    texts = [" ".join(story), " ".join([*story[:-1], "mill"]), " ".join(story) + "."]
    assert count(*texts) == 1
    monkeypatch.setattr(question_groups, "MAX_COMPARED", 1)
    assert count(*texts) == 2


def test_thousands_of_like_texts_are_grouped_in_bounded_time() -> None:
    rng = random.Random(0)
    texts = [" ".join(rng.choices(WORDS, k=120)) for _ in range(1_500)]
    assert count(*texts, *(f"{text} " for text in texts)) == 1_500
