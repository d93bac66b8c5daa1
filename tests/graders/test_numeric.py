from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adacompute.graders.grader import grade
from adacompute.graders.numeric import NumericGrader

if TYPE_CHECKING:
    from pathlib import Path

GRADER = NumericGrader()


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("12", "12"),
        ("007", "7"),
        ("-0", "0"),
        ("12.50", "12.5"),
        ("25/2", "12.5"),
        ("1/3", "1/3"),
        ("2/6", "1/3"),
        ("-2/6", "-1/3"),
        ("2 1/2", "2.5"),
        ("1,234,567.80", "1234567.8"),
        ("12,34", "34"),
        ("(1,2)", "2"),
        ("$1,200", "1200"),
        ("-$5", "-5"),
        ("$-5", "-5"),
        ("−5", "-5"),
        ("+5", "5"),
        (".5", "0.5"),
        ("50%", "50"),
        ("50 %", "50"),
        ("1e3", "1000"),
        ("1.5E-2", "0.015"),
        ("3 \\times 10^{5}", "300000"),
        ("2.5 x 10^-1", "0.25"),
        ("5/0", None),
        ("0/5", "0"),
        ("1e401", None),
        ("", None),
        ("no number", None),
        ("x2 and H2O", None),
        ("15-9", "9"),
        ("5-10 apples", "10"),
        ("10km", "10"),
        ("He has 3 cats and 4 dogs.", "4"),
        ("2 + 3 = 5, see step 2", "5"),
        ("x = y + 5 and z = 7 of 9", "7"),
        ("The answer is 6. There were 15 before.", "6"),
        ("Answer: 15-9=6. The answer is 6.", "6"),
        ("Answer: 15 - 9 = 6", "6"),
        ("The answer is 5. Wait, no: the answer is 6.", "6"),
        ("#### 5\nThat was too quick.\n#### 6", "6"),
        ("\\boxed{5} is too small, so \\boxed{6}.", "6"),
        ("\\boxed{6}. I checked that the answer is 7.", "7"),
        ("The final answer is therefore 12 out of 20", "12"),
        ("The answer is:\n\n18\n", "18"),
        ("**Answer:** 18 (of 20)", "18"),
        ("So 3 * 6 = 18.\n#### 18", "18"),
        ("#### 1,800\nChecked: 2 * 900 = 1800, 1 time", "1800"),
        ("#### Step 1: add\n2 + 3 = 5\n#### Step 2: done", "5"),
        ("#### 1. Add\n2 + 3 = 5", "5"),
        ("#### -5 apples", "-5"),
        ("The ANSWER IS $7.00.", "7"),
        ("The answer is therefore:\n\n42 in 3 steps", "42"),
        ("5 apples. The answer is:", "5"),
        ("\\boxed{42} in 3 steps", "42"),
        ("\\boxed{x = 42}", "42"),
        ("\\boxed{\\frac{3}{4}}", "0.75"),
        ("\\boxed{-\\dfrac{1}{3}}", "-1/3"),
        ("\\boxed{2\\frac{1}{3}}", "7/3"),
        ("\\boxed{1{,}234\\text{ m}}", "1234"),
        ("\\boxed{\\$12.50}", "12.5"),
        ("\\boxed{} is where it goes: \\boxed{5}. I hope the answer is clear.", "5"),
        ("\\boxed{5", "5"),
        ("Both answers are 4", "4"),
    ],
)
def test_extract(text: str, answer: str | None) -> None:
    assert GRADER.extract(text) == answer


def test_numbers_of_400_characters_are_parsed() -> None:
    assert GRADER.extract("9" * 400) == "9" * 400
    assert GRADER.extract("1e-398") == f"0.{'0' * 397}1"


@given(
    st.decimals(
        allow_nan=False, allow_infinity=False, min_value=-(10**9), max_value=10**9, places=6
    )
)
def test_decimals_are_exact(value: object) -> None:
    spelled = GRADER.extract(f"It is {value}")
    assert spelled is not None
    assert Fraction(spelled) == Fraction(str(value))
    assert GRADER.extract(f"It is {value:,}") == spelled


def test_gold_answers_of_gsm8k_are_parsed(data: Path) -> None:
    for name in ("gsm8k-test", "gsm8k-train", "svamp", "aime24"):
        golds = pq.read_table(data / f"questions/{name}.parquet")["gold"].to_pylist()
        unread = [gold for gold in golds if GRADER.extract(gold) is None]
        unlike = [gold for gold in golds if Fraction(GRADER.extract(gold) or "0") != Fraction(gold)]
        assert (unread, unlike) == ([], [])
        stated = [GRADER.extract(f"2 of 3.\n#### {gold}") for gold in golds]
        assert stated == [GRADER.extract(gold) for gold in golds]


def test_recorded_answers_are_graded_as_recorded(data: Path) -> None:
    for name in ("svamp141__qwen2.5-coder-1.5b", "arith110__smollm2-135m"):
        table = pq.read_table(
            data / f"samples/{name}.parquet", columns=["answer", "gold", "correct"]
        )
        rows = {(row["answer"], row["gold"], row["correct"]) for row in table.to_pylist()}
        unlike = [
            (answer, gold)
            for answer, gold, correct in rows
            if grade(GRADER, [answer], gold).correct != [correct]
        ]
        assert unlike == []
