from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adacompute.graders.choice import ChoiceGrader
from adacompute.graders.grader import grade

if TYPE_CHECKING:
    from pathlib import Path

GRADER = ChoiceGrader()


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("C", "C"),
        ("c", "C"),
        ("(C)", "C"),
        ("C.", "C"),
        ("**C**", "C"),
        ("[C]", "C"),
        ("A", "A"),
        ("I", "I"),
        ("3", "3"),
        ("(2)", "2"),
        ("K", None),
        ("12", None),
        ("The answer is (C).", "C"),
        ("the answer is (c)", "C"),
        ("The answer is C because B is too small.", "C"),
        ("Answer: C", "C"),
        ("**Answer:** C", "C"),
        ("Answer: **C**", "C"),
        ("Answer: [C]", "C"),
        ("ANSWER: (C) 33 seconds", "C"),
        ("The correct answer is B: 10", "B"),
        ("The answer is A.", "A"),
        ("The answer is A", "A"),
        ("The answer is A because it must be.", "A"),
        ("The answer is A) 5", "A"),
        ("The answer is option D, not (B).", "D"),
        ("Answer: The correct option is D", "D"),
        ("The correct choice is (E).", "E"),
        ("It is (A) or (B).\n#### C", "C"),
        ("#### A great step\n(B)", "B"),
        ("The answer is 3.", "3"),
        ("Answer: (2)", "2"),
        ("The answer is 3.5", None),
        ("The answer is 12", None),
        ("\\boxed{C}", "C"),
        ("\\boxed{\\text{(C)}}", "C"),
        ("\\boxed{\\textbf{C}}", "C"),
        ("So (A) fails.\n\\boxed{B}", "B"),
        ("First (A) fails, then (B).\n\nC\n", "C"),
        ("Since (A) fails:\n**(D)**", "D"),
        ("B) The mitochondria", "B"),
        ("B. The mitochondria\nIt is the powerhouse.", "B"),
        ("A) 1\nB) 2\nC) 3", None),
        ("It must be **C** then, I think.", "C"),
        ("We rule out (A) and keep (B)", "B"),
        ("f(A) = 3", None),
        ("The answer is (A) and not (B). Therefore the answer is (D).", "D"),
        ("A man and I went home.", None),
        ("I think that a train is fast. A train is.", None),
        ("Answer: I do not know.", None),
        ("Answer: I'm not sure", None),
        ("The answer is A great surprise", None),
        ("The answer is a number.", None),
        ("The answer is an apple", None),
        ("The answer is A and C", None),
        ("The answer is B or C", None),
        ("Vitamin C is good.", None),
        ("A. Smith and J. Doe disagree", None),
        ("", None),
    ],
)
def test_extract(text: str, choice: str | None) -> None:
    assert GRADER.extract(text) == choice


LETTERS = st.sampled_from("ABCDEFGHIJ")


@given(LETTERS, LETTERS)
def test_the_announced_choice_wins(letter: str, other: str) -> None:
    for said in (f"The answer is ({letter}).", f"Answer: {letter}", f"\\boxed{{{letter}}}"):
        assert GRADER.extract(f"Not ({other}), I say.\n{other}) no\n{said}") == letter


@given(st.lists(st.sampled_from(["A", "I", "a", "train", "saw", "went.", "man", "and", "Then"])))
def test_articles_and_pronouns_are_no_choices(words: list[str]) -> None:
    text = " ".join(["So", *words, "home", "again."])
    assert GRADER.extract(text) is None
    assert GRADER.extract(f"The answer is what {text}") is None


def test_the_recorded_choices_are_read_and_graded_as_recorded(data: Path) -> None:
    golds = pq.read_table(data / "questions/mcqa10x100.parquet")["gold"].to_pylist()
    assert [GRADER.extract(gold) for gold in golds] == golds
    assert [GRADER.extract(f"A, I say. The answer is ({gold}).") for gold in golds] == golds
    name = "samples/mcqa10x100__gpt-3.5-turbo.parquet"
    table = pq.read_table(data / name, columns=["answer", "gold", "correct"])
    rows = {(row["answer"], row["gold"], row["correct"]) for row in table.to_pylist()}
    assert len(rows) > 20
    for answer, gold, correct in rows:
        assert grade(GRADER, [answer], gold).correct == [correct]
        assert grade(GRADER, [answer], gold).answer == [answer]
