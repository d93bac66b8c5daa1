from __future__ import annotations

import pytest

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


def test_a_too_long_text_is_unparsed() -> None:
    assert GRADER.extract("a" * 100_000) == "a" * 100_000
    assert GRADER.extract("a" * 100_001) is None
    assert GRADER.extract("\ufdfa" * 10_000) is None


def test_long_runs_of_marks_are_shortened() -> None:
    assert GRADER.extract("a" + "\u0301\u0316" * 40_000) == GRADER.extract(
        "a" + "\u0301\u0316" * 15
    )
