from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adacompute.core.errors import ConfigError, DataError
from adacompute.graders.command import CommandGrader
from adacompute.graders.grader import GRADERS, Grader, grade, load_grader
from adacompute.graders.numeric import NumericGrader

if TYPE_CHECKING:
    from collections.abc import Iterator

PIECES = r"""The answer is |Answer: |#### |= |\boxed{|}|{|$|\(|\)|A|I|B) |(C)|**D**|c|12|-3.50|1,234
|1/3|2 1/2|1e5|50%|\frac|{1}{2}|\text{cm}|^\circ|x|+|^{2}|\sqrt|. | |,|\left(|because it is so
|option |\\|[|]|*|é|½"""
TOKENS = st.sampled_from([*PIECES.split("|"), "\n", "\u0301", "\u202e", "\x00"])
TEXTS = st.one_of(st.text(max_size=40), st.lists(TOKENS, max_size=12).map("".join))

SIZE = 40_000
HOSTILE = [
    *[
        "answer is ",
        "answer:",
        "answer",
        "#### ",
        "#",
        "\\boxed{",
        "\\boxed{1}",
        "{",
        "}",
        "$",
        "$1",
    ],
    *[
        "\\(",
        "\\)",
        "=",
        "= ",
        "1,",
        "1/",
        "1 ",
        "9",
        "-",
        "(A)",
        "A)\n",
        "A",
        "I ",
        "**",
        "** A **",
    ],
    *[" ", "\n", "x10^{", "1e", "\\frac{1}", "\\text{", ".)))", "\u0301\u0316", "\u0f73", "\u202e"],
    *["\x00", "é", "\ufdfa", "Option A ", "^\\circ", "1,234", "1.1", "\\", ".", "2 1/", "\ud800"],
]


@pytest.fixture(scope="module", params=[*GRADERS, "cmd"])
def grader(request: pytest.FixtureRequest) -> Iterator[Grader]:
    if request.param == "cmd":
        made = load_grader(f"cmd:{request.getfixturevalue('program')}")
        assert isinstance(made, CommandGrader)
        with made:
            yield made
    else:
        yield load_grader(request.param)


fixed = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@fixed
@given(TEXTS)
def test_extraction_is_idempotent(grader: Grader, text: str) -> None:
    answer = grader.extract(text)
    if answer is not None:
        assert grader.extract(answer) == answer


@fixed
@given(TEXTS, TEXTS)
def test_equality_is_reflexive_and_symmetric(grader: Grader, left: str, right: str) -> None:
    one, other = grader.extract(left), grader.extract(right)
    if one is not None and other is not None:
        assert grader.equal(one, one)
        assert grader.equal(one, other) == grader.equal(other, one)


def test_hostile_texts_take_little_time(grader: Grader) -> None:
    for piece in HOSTILE:
        for before in ("", "The answer is "):
            begun = time.process_time()
            answer = grader.extract(before + piece * (SIZE // len(piece)))
            assert time.process_time() - begun < 10.0, piece
            assert answer is None or grader.extract(answer) == answer, piece


@pytest.mark.parametrize(
    "text", ["", " ", "\n\t", "\u200b", "\x00", "\ud800", "\u0301", "\\boxed{}"]
)
def test_texts_without_an_answer_do_not_raise(grader: Grader, text: str) -> None:
    answer = grader.extract(text)
    assert answer is None or grader.equal(answer, answer)


@pytest.mark.parametrize("piece", ["answer:", "\\boxed{", "9"])
def test_a_megabyte_takes_little_time(grader: Grader, piece: str) -> None:
    begun = time.process_time()
    grader.extract(piece * (1_000_000 // len(piece)))
    assert time.process_time() - begun < 10.0


def test_an_unknown_name_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"'maths'.*numeric, math, choice, exact, cmd:COMMAND"):
        load_grader("maths")


class Counting:
    """Compares lengths, and counts how often it is asked."""

    name: str = "counting"

    def __init__(self) -> None:
        self.extracted: list[str] = []
        self.compared: list[tuple[str, str]] = []

    def extract(self, text: str) -> str | None:
        self.extracted.append(text)
        return text.strip() or None

    def equal(self, left: str, right: str) -> bool:
        self.compared.append((left, right))
        return len(left) == len(right)


def test_equal_answers_are_written_as_the_first() -> None:
    graded = grade(Counting(), ["aa", "b", "cc", None, " ", "d", "aa"], "xx")
    assert graded.answer == ["aa", "b", "aa", None, None, "b", "aa"]
    assert graded.correct == [True, False, True, False, False, False, True]


def test_equal_texts_are_extracted_once() -> None:
    counting = Counting()
    grade(counting, ["aa", "b", "aa", "b", "cc", "aa ", "cc"], "xx")
    assert len(counting.extracted) == len(set(counting.extracted))
    assert len(counting.compared) == len({frozenset(pair) for pair in counting.compared})
    # Two classes against the reference, and "b" and "cc" against the classes before them.
    assert sorted(counting.compared) == [("aa", "b"), ("aa", "cc"), ("xx", "aa"), ("xx", "b")]


def test_a_missing_or_unparsed_gold_answer_is_rejected() -> None:
    with pytest.raises(DataError, match="no gold answer"):
        grade(NumericGrader(), ["1"], None)
    with pytest.raises(DataError, match=r"numeric.*'east'"):
        grade(NumericGrader(), ["1"], "east")
