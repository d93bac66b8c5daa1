from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adacompute.graders.exact import ExactGrader

GRADER = ExactGrader()


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("  Paris ", "paris"),
        ("New\n\t York\u00a0City", "new york city"),
        ("Straße", "strasse"),
        ("ﬁve", "five"),
        ("①", "1"),
        ("e\u0301", "é"),
        ("The answer is 5.", "the answer is 5."),
        ("", None),
        (" \n ", None),
    ],
)
def test_extract(text: str, answer: str | None) -> None:
    assert GRADER.extract(text) == answer


@given(st.text(st.characters(codec="ascii")))
def test_case_and_white_space_make_no_difference(text: str) -> None:
    assert GRADER.extract(f" \t{text.swapcase()}\n") == GRADER.extract(text)


@given(st.text())
def test_extraction_is_idempotent(text: str) -> None:
    folded = GRADER.extract(text)
    if folded is not None:
        assert folded == " ".join(folded.split())
        assert folded == GRADER.extract(folded)


def test_answers_that_differ_are_not_equal() -> None:
    assert not GRADER.equal("a b", "ab")
    assert GRADER.equal("a b", "a b")


def test_a_too_long_text_is_unparsed() -> None:
    assert GRADER.extract("a" * 100_000) == "a" * 100_000
    assert GRADER.extract("a" * 100_001) is None
    assert GRADER.extract("\ufdfa" * 10_000) is None


def test_long_runs_of_marks_are_shortened() -> None:
    assert GRADER.extract("a" + "\u0301\u0316" * 40_000) == GRADER.extract(
        "a" + "\u0301\u0316" * 15
    )
