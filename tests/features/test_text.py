from __future__ import annotations

import itertools
import math
import os
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adacompute.core.errors import ConfigError, DataError
from adacompute.features import block
from adacompute.features import text as text_features
from adacompute.features.text import (
    FEATURE_SETS,
    FEATURES,
    VERSION,
    extract_features,
)

ROOT = Path(__file__).parents[2]
DATA = ROOT / os.environ.get("ADACOMPUTE_DATA", "../shared/data")

TOKENS = (
    r"The train runs 60 miles per hour. $5 $x$ 1,234.5 (1,2) 50% How many? 3/4 \frac{1}{2} x=3"
    r' \dfrac12 \sqrt{2} half Then then (A) B) not 7. "Stop." 1.2.3 12,34 0.05'
)
WORDS = st.sampled_from([*TOKENS.split(" "), "\n(A)", "\nB)", "a\n", "don't", "½", "€", "√"])
ASCII = st.text(st.characters(codec="ascii"), max_size=60)
PROSE = st.lists(WORDS, max_size=30).map(" ".join)
ANY = st.one_of(st.text(max_size=60), ASCII, PROSE, st.lists(st.one_of(WORDS, ASCII)).map("".join))


def named(text: str | None, features: str = "paper") -> dict[str, float]:
    row = extract_features(pa.array([text], pa.string()), features=features)[0]
    return dict(zip(FEATURE_SETS[features], row.tolist(), strict=True))


def magnitude(number: str) -> float:
    whole, _, rest = number.replace(",", "").partition(".")
    return float(f"{whole}.{rest.replace('.', '')}")


def reference(text: str) -> dict[str, float]:
    """Say the same in slow and plain words, for ASCII."""
    words = text.split()
    folded = re.findall(r"[a-z0-9']+", text.lower())
    ends = [bool(re.search(r"[.!?][\"')\]}*]?$", word)) for word in words]
    numbers = re.findall(r"\d+(?:(?:\.|,(?=\d{3}(?!\d)))\d+)*", text, re.ASCII)
    values = [magnitude(number) for number in numbers]
    lists = {name: set(words.split()) for name, words in text_features._KEYWORDS.items()}
    has = {name: not words.isdisjoint(folded) for name, words in lists.items()}
    found = {
        "prompt_length_chars": len(text),
        "prompt_length_words": len(words),
        "sentence_count": sum(ends) + bool(ends and not ends[-1]),
        "question_marks": text.count("?"),
        "numbers_count": len(values),
        "number_magnitude_avg": math.log1p(sum(values) / max(1, len(values))),
        "number_magnitude_max": math.log1p(max(values, default=0.0)),
        "has_percentage": "%" in text or has["percent"],
        "has_fraction": bool(re.search(r"[0-9]/[0-9]|\\[A-Za-z]?frac", text)),
        "has_time_word": has["time"],
        "has_rate_word": has["rate"],
        "has_multi_step_word": has["step"],
        "avg_word_length": sum(map(len, words)) / max(1, len(words)),
        "unique_word_ratio": len(set(folded)) / max(1, len(folded)),
    }
    return {name: float(value) for name, value in found.items()}


@given(st.one_of(PROSE.filter(str.isascii), ASCII))
def test_features_are_what_they_are_called(text: str) -> None:
    found = named(text)
    expected = reference(text)
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-6)


@given(st.lists(ANY, max_size=12), st.lists(st.integers(0, 12)), st.sampled_from([1, 7, 64]))
def test_a_row_does_not_depend_on_the_rows_beside_it(
    texts: list[str], cuts: list[int], size: int
) -> None:
    array = pa.array(texts, pa.string())
    whole = extract_features(array)
    edges = sorted({0, len(texts), *(cut for cut in cuts if cut <= len(texts))})
    pieces = [array[low:high] for low, high in itertools.pairwise(edges)]
    split = [extract_features(piece) for piece in pieces]
    assert np.array_equal(np.concatenate([whole[:0], *split]), whole)
    chunked = pa.chunked_array([*pieces, array[:0]], pa.string())
    assert np.array_equal(extract_features(chunked), whole)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block, "BLOCK_BYTES", size)
        assert np.array_equal(extract_features(array), whole)


@given(ANY)
def test_every_text_has_finite_features(text: str) -> None:
    for wide in (pa.string(), pa.large_string()):
        row = extract_features(pa.array([text], wide))
        assert row.shape == (1, 16)
        assert np.isfinite(row).all()
        assert (row >= 0).all()


HOSTILE = {
    "digits": "9" * 400,
    "many digits": "9" * 1_000_000,
    "many long numbers": ("9" * 400 + " ") * 2500,
    "small": "0." + "0" * 5000 + "1",
    "points": "1." * 300_000,
    "commas": "1,234" * 200_000,
    "combining": "\u0301" * 1000,
    "bidi": "\u202e\u2066abc\u2069" * 100,
    "nul": "\x00" * 1000 + "a\x00b",
    "empty": "",
    "blank": " \t\n\v\f\r " * 1000,
    "stops": ".!?" * 100_000,
    "backslashes": "\\" * 1_000_000,
    "dollars": "$" * 1_000_000,
    "long word": "a" * 1_000_000,
    "many words": " ".join(map(str, range(150_000))),
    "emoji": "👩‍👩‍👧‍👦" * 50_000,
    "newlines": "\n" * 1_000_000,
    "parens": "(a)" * 300_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_text_is_read_quickly(name: str) -> None:
    text = HOSTILE[name]
    begun = time.process_time()
    found = named(text)
    assert time.process_time() - begun < 10.0
    assert all(math.isfinite(value) for value in found.values())
    assert found["prompt_length_chars"] == len(text)
    beside = extract_features(pa.array(["x", text, "y"]))
    assert beside[1].tolist() == list(found.values())


def test_magnitudes_are_logarithms_that_never_overflow() -> None:
    assert named("9" * 15)["number_magnitude_max"] == pytest.approx(math.log1p(10**15), rel=1e-6)
    assert named("9" * 280)["number_magnitude_max"] == pytest.approx(280 * math.log(10), rel=1e-5)
    assert named("9" * 10_000)["number_magnitude_max"] >= 280 * math.log(10)
    assert named("7 and 1,000,000.5")["number_magnitude_max"] == pytest.approx(13.8155, rel=1e-5)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("has_money_word", "It costs $5, or $1,200.", 1),
        ("has_money_word", r"Let $5x + 3$ be prime, and $x$ odd.", 0),
        ("has_money_word", r"A ticket is \$7 and $x$ are sold.", 1),
        ("has_money_word", "Three for £2", 1),
        ("has_money_word", "Three for 2 €", 1),
        ("has_money_word", "He PAID it", 1),
        ("has_money_word", "repaid it", 0),
        ("has_fraction", "Add ½ cup", 1),
        ("has_fraction", "Add ⅔ cup", 1),
        ("has_fraction", "and/or", 0),
        ("has_fraction", r"\tfrac34", 1),
        ("has_percentage", "20\\% of it", 1),
        ("has_percentage", "percent", 1),
        ("sentence_count", 'He said "Stop." Then he left', 2),
        ("sentence_count", "3.5 apples", 1),
        ("numbers_count", "(1,2) and 12,345 and 3.5", 4),
        ("prompt_length_chars", "naïve 日本", 8),
        ("avg_word_length", "日本 a", 1.5),
        ("unique_word_ratio", "The cat, the dog.", 0.75),
    ],
)
def test_feature(name: str, text: str, value: float) -> None:
    assert named(text)[name] == pytest.approx(value)


def test_every_keyword_is_found_in_its_list() -> None:
    column = {"time": "has_time_word", "money": "has_money_word", "rate": "has_rate_word"}
    column |= {"step": "has_multi_step_word", "percent": "has_percentage"}
    for kind, words in text_features._KEYWORDS.items():
        table = extract_features(pa.array([f"a {word.upper()}, b" for word in words.split()]))
        assert (table[:, FEATURES.index(column[kind])] == 1).all()


def test_words_add_to_the_sixteen_of_the_paper() -> None:
    assert len(FEATURES) == 16
    assert FEATURE_SETS["words"][:16] == FEATURES
    assert isinstance(VERSION, int)
    texts = pa.array(["How many are 3/4 of $20 each hour?", None, "x"])
    words = extract_features(texts, features="words")[:, :16]
    assert np.array_equal(extract_features(texts), words)


def test_the_matrix_is_float32_and_contiguous() -> None:
    for texts in (["a", "b"], ["a"], []):
        matrix = extract_features(pa.array(texts, pa.string()))
        assert matrix.shape == (len(texts), 16)
        assert matrix.dtype == np.float32
        assert matrix.flags.c_contiguous


def test_a_null_text_has_no_feature() -> None:
    for texts in (pa.array([None], pa.string()), pa.nulls(1), pa.chunked_array([pa.nulls(1)])):
        (row,) = extract_features(texts)
        assert not row.any()


def test_wrong_arguments_are_rejected() -> None:
    with pytest.raises(ConfigError, match=r"'papers'.*paper, words"):
        extract_features(pa.array(["a"]), features="papers")
    with pytest.raises(DataError, match="int64"):
        extract_features(pa.array([1]))


def test_large_arrays_use_64_bit_offsets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts = pa.array(["How many are 3/4 of $20?", "x"])
    expected = extract_features(texts)
    monkeypatch.setattr(block, "_MAX_STRING_BYTES", 1)
    assert np.array_equal(extract_features(texts), expected)


@pytest.mark.skipif(not DATA.is_dir(), reason="the question sets are not here")
def test_real_questions_agree_with_the_reference() -> None:
    texts: list[Any] = []
    for path in sorted((DATA / "questions").glob("*.parquet")):
        texts += pq.read_table(path, columns=["question"])["question"].to_pylist()[::40]
    table = extract_features(pa.array(texts))
    assert np.isfinite(table).all()
    for text, row in zip(texts, table.tolist(), strict=True):
        if text.isascii():
            found = dict(zip(FEATURES, row, strict=True))
            expected = {k: v for k, v in reference(text).items() if not k.startswith("has_")}
            assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-5)


def test_a_list_of_strings_is_accepted() -> None:
    texts = ["How many are 3/4 of $20?", None, "x"]
    expected = extract_features(pa.array(texts, pa.string()), features="words")
    assert np.array_equal(extract_features(texts, features="words"), expected)
