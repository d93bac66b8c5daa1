"""Extraction takes time linear in the length of the text, whatever the text is."""

from __future__ import annotations

import time

import pytest

from adacompute.graders.grader import load_grader

MB = 1_000_000
HOSTILE = [
    *("1", "1,", "1,000", "1/2", "1 1/", "+1", "€", "..5", "1.", "1e", "x10^", "1 x 10^"),
    *(
        "(",
        "[",
        "{",
        "}",
        "\\",
        "\\boxed{",
        "\\boxed{1}",
        "\\boxed ",
        "\\fbox  {",
        "$",
        "\\(",
        "\\[",
    ),
    *("answer", "answer ", "answer is ", "answer:", "answers are\n", "#### ", "#### 1\n", "#"),
    *("=", "= $", "=(", "**A", "(A)", "\nA)", "\n\n", "option ", "options is ", "A and B"),
    *("\\text{", "\\frac{", "\\frac{1}{2}", "{,}", "   ", "\t", "word ", "^\\circ", "\\$$"),
    *("é", "é\u0301", "\u0301", "ﬁ", "İ", "ß", "ǆ", "\u0345", "😀", "\x00"),
]


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["numeric", "choice", "exact", "math"])
def test_a_megabyte_of_anything_takes_seconds_at_most(name: str) -> None:
    if name == "math":
        pytest.importorskip("math_verify")
    grader = load_grader(name)
    for unit in HOSTILE:
        # The exact grader leaves longer texts alone.
        length = 100_000 if name == "exact" else MB
        text = (unit * (length // len(unit) + 1))[:length]
        begun = time.process_time()
        grader.extract(text)
        # A megabyte takes about a second; quadratic time would be hours.
        assert time.process_time() - begun < 8, repr(unit)
