"""Text features: what a question's wording says about how hard it may be.

The sixteen statistics of the paper's appendix, and a few more as cheap, for N questions at once.
A word is what white space separates; to compare words, all but letters, digits and apostrophes is
white space and case is ignored. Keywords are English.

The features know nothing of the answer key, of the model, or of the other questions in the block;
every one is finite for any text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from adacompute.core.errors import ConfigError, DataError
from adacompute.features.block import (
    BLOCK_BYTES,
    SPACES,
    UPPER,
    blocks,
    hash_words,
    members,
    runs,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from adacompute.core.types import BoolArray, Float32Array, FloatArray, IntArray, KeyArray
    from adacompute.features.block import Block

VERSION = 1
"""Raise it when the definition of any feature changes: bundles record it."""

FEATURES: tuple[str, ...] = (
    "prompt_length_chars",
    "prompt_length_words",
    "sentence_count",
    "question_marks",
    "numbers_count",
    "number_magnitude_avg",
    "number_magnitude_max",
    "has_percentage",
    "has_fraction",
    "has_time_word",
    "has_money_word",
    "has_rate_word",
    "has_multi_step_word",
    "avg_word_length",
    "unique_word_ratio",
    "entropy_estimate",
)
"""The paper's sixteen, in its order."""

EXTRA_FEATURES: tuple[str, ...] = (
    "has_square_roots",
    "has_equation",
    "has_multi_subproblems",
    "capitalised_words",
    "latex_commands",
    "newline_count",
    "answer_choices",
    "digit_share",
    "operator_count",
    "negation_words",
)
"""Flags that the paper's figures name and its appendix does not, and further cheap counts."""

WORDS = 256
WORD_FEATURES: tuple[str, ...] = tuple(f"word_{i}" for i in range(WORDS))
"""The words of a question, each counted for or against one of so many columns by its hash."""

FEATURE_SETS: dict[str, tuple[str, ...]] = {
    "paper": FEATURES,
    "extended": FEATURES + EXTRA_FEATURES,
    "words": FEATURES + WORD_FEATURES,
}
"""Which features a name stands for, in column order."""

_KEYWORDS = {
    "percent": "percent percents percentage percentages percentile",
    "time": (
        "second seconds minute minutes hour hours day days daily week weeks weekly weekend month"
        " months monthly year years yearly annual annually decade century today tomorrow yesterday"
        " morning noon afternoon evening night midnight clock o'clock hourly time duration am pm"
        " monday tuesday wednesday thursday friday saturday sunday"
    ),
    "money": (
        "dollar dollars cent cents euro euros pound pounds rupee rupees rs yen penny pennies nickel"
        " nickels dime dimes money cash price prices priced cost costs pay pays paid payment buy"
        " buys bought purchase sell sells sold spend spends spent earn earns earned salary wage"
        " wages profit loss discount tax tip bill budget interest loan rent fee change"
    ),
    "rate": (
        "per rate rates speed speeds velocity mph kmph kmh each every average faster slower pace"
        " ratio proportion proportional constant"
    ),
    "step": (
        "then after before next first finally later afterwards remaining remainder left rest total"
        " altogether combined together if twice thrice half double triple more less fewer"
        " additional another also both except still increase increased decrease decreased"
    ),
    "root": "sqrt root roots",
    "negation": (
        "no not never none neither nor nobody nothing nowhere without cannot can't don't doesn't"
        " didn't isn't aren't wasn't weren't won't wouldn't shouldn't couldn't hasn't haven't"
        " hadn't except unless"
    ),
}


_SPACE = members(SPACES)
_UPPER = members(UPPER)
_STOP = members(b".!?")
_CLOSER = members(b"\"')]}*")
_CHOICE = members(b"ABCDEFGHIJ")
_CHOICE_MARK = members(b").:")
_PART = members(b"abcdei")

# Exponents beyond this are clipped: the sum over any text in memory then stays finite.
_EXPONENT = 290
_POWER = np.array([float(f"1e{exponent}") for exponent in range(-_EXPONENT, _EXPONENT + 1)])

# A word's question within its block, and beside it as much of the word's hash as fits.
_ROW_BITS = np.uint64(BLOCK_BYTES.bit_length())
_HASH_BITS = np.uint64(64) - _ROW_BITS
# So few words share these upper bits with a keyword that only they need be looked up.
_PREFIX_SHIFT = np.uint64(64 - 12)
# Which of the word columns, and for or against it: the hash's upper bits, mixed best.
_COLUMN_SHIFT = np.uint64(64 - (2 * WORDS).bit_length() + 1)
_SHORTEST = 1e-9


def _keywords() -> tuple[KeyArray, npt.NDArray[np.bool_]]:
    """Return the hashes of all keywords, ascending, and which lists each is in."""
    words = sorted({word for words in _KEYWORDS.values() for word in words.split()})
    lists = [[word in words.split() for words in _KEYWORDS.values()] for word in words]
    length = np.array([len(word) + 1 for word in words])
    text = np.frombuffer(" ".join(words).encode(), dtype=np.uint8)
    key = hash_words(text, length.cumsum() - length)
    order = key.argsort()
    return key[order], np.array(lists)[order]


_KEYWORD_HASH, _KEYWORD_LISTS = _keywords()
_PREFIX = np.zeros(1 << 12, dtype=np.bool_)
_PREFIX[_KEYWORD_HASH >> _PREFIX_SHIFT] = True

Column: TypeAlias = "FloatArray | IntArray | BoolArray"


def extract(
    text: pa.Array | pa.ChunkedArray,
    *,
    features: str = "paper",
    draft_logprob: FloatArray | None = None,
) -> Float32Array:
    """Compute the features of each text, (N, F), in the order of ``FEATURE_SETS[features]``.

    ``draft_logprob`` is the mean token log-probability of one draft sample of each question, NaN
    where there is none; the entropy estimate is the surprise that it shows, and 0 without it. A
    null text is an empty one.

    >>> import pyarrow as pa
    >>> extract(pa.array(["What is 2 + 3?"]))[0, :5].tolist()
    [14.0, 5.0, 1.0, 1.0, 2.0]
    """
    names = FEATURE_SETS.get(features)
    if names is None:
        known = ", ".join(FEATURE_SETS)
        raise ConfigError(f"there is no feature set {features!r}; the known ones are {known}")
    matrix = np.zeros((len(text), len(names)), dtype=np.float32)
    place = {name: i for i, name in enumerate(names[: len(FEATURES + EXTRA_FEATURES)])}
    row = 0
    for block in blocks(text):
        after = row + len(block)
        words = _Words.of(block)
        columns = _columns(block, words, extra=features == "extended")
        for name, column in columns.items():
            matrix[row:after, place[name]] = column
        if features == "words":
            matrix[row:after, len(FEATURES) :] = words.bag()
        row = after
    if draft_logprob is not None:
        matrix[:, names.index("entropy_estimate")] = _surprise(draft_logprob, len(text))
    return matrix


def _surprise(draft_logprob: FloatArray, questions: int) -> FloatArray:
    """Turn mean log-probabilities into how unsure the draft was, from 0 to 1."""
    logprob = np.asarray(draft_logprob, dtype=np.float64)
    if logprob.shape != (questions,):
        raise DataError(
            f"{questions} questions need as many draft log-probabilities, not {logprob.shape}"
        )
    return np.asarray(1.0 - np.exp(np.where(np.isnan(logprob), 0.0, np.minimum(logprob, 0.0))))


def _columns(block: Block, vocabulary: _Words, *, extra: bool) -> dict[str, Column]:
    """Compute all features of a block but the entropy estimate."""
    signs = block.signs()
    columns = _lengths(block, signs) | _numbers(block)
    columns["unique_word_ratio"], words = vocabulary.distinct(), vocabulary.keywords()
    # A dollar sign also delimits LaTeX, and what closes a formula is rarely before a digit.
    price = signs["price"] * (signs["dollar"] == 0)
    columns["question_marks"] = signs["question"]
    columns["has_percentage"] = (words["percent"] + signs["percent"]) > 0
    columns["has_fraction"] = (signs["ratio"] + signs["fraction"] + signs["frac"]) > 0
    columns["has_time_word"] = words["time"] > 0
    columns["has_money_word"] = (words["money"] + signs["money"] + price) > 0
    columns["has_rate_word"] = words["rate"] > 0
    columns["has_multi_step_word"] = words["step"] > 0
    return columns | _extras(block, signs, words) if extra else columns


def _lengths(block: Block, signs: dict[str, IntArray]) -> dict[str, Column]:
    """Count characters, words and sentences."""
    start, stop = block.words()
    words = block.count(start)
    chars = block.edge[1:] - block.edge[:-1] - signs["continuation"]
    filled = chars - signs["space"] - signs["newline"]
    last = block.data[stop - 1]
    ends = _STOP.take(last)
    ends |= _CLOSER.take(last) & _STOP.take(block.data[stop - 2])
    sentences = block.count(start[ends])
    # Words after the last stop are a sentence too.
    written = words > 0
    sentences[written] += ~ends[words.cumsum()[written] - 1]
    return {
        "prompt_length_chars": chars - 1,
        "prompt_length_words": words,
        "sentence_count": sentences,
        "avg_word_length": filled / np.maximum(words, 1),
    }


def _numbers(block: Block) -> dict[str, Column]:
    """Count numbers, and take the logarithms of one plus their mean and their largest."""
    place, point, comma = block.places("digit"), block.places("point"), block.places("comma")
    inside = np.zeros(len(block.data), dtype=np.bool_)
    inside[place] = True
    if len(comma):
        # A comma groups thousands only before exactly three digits; in (1,2) it separates.
        near = inside.take(comma[:, None] + np.arange(2, 5), mode="clip")
        inside[comma[(near == (True, True, False)).all(axis=1)]] = True
    inside[point] = True
    start, stop = runs(inside)
    count = block.count(start)
    number = start.searchsorted(place, side="right") - 1
    # The whole part ends at the first point within the number, or with the number.
    whole = np.concatenate((point, [len(inside)]))[point.searchsorted(start)]
    units = place.searchsorted(np.minimum(whole, stop)) - 1
    exponent = units[number] - np.arange(len(place))
    power = _POWER.take(exponent + _EXPONENT, mode="clip")
    value = np.bincount(number, (block.data[place] - np.uint8(ord("0"))) * power)
    total = np.bincount(np.arange(len(block)).repeat(count), value, len(block))
    given = count > 0
    largest = np.zeros(len(block))
    largest[given] = np.maximum.reduceat(value, (count.cumsum() - count)[given])
    return {
        "numbers_count": count,
        "number_magnitude_avg": np.log1p(total / np.maximum(count, 1)),
        "number_magnitude_max": np.log1p(largest),
    }


@dataclass(frozen=True, eq=False)
class _Words:
    """The words of N texts, by their hashes: ``count`` of each text, text after text."""

    count: IntArray
    row: IntArray
    key: KeyArray

    @staticmethod
    def of(block: Block) -> _Words:
        start = block.folded_words()
        count = block.count(start)
        return _Words(count, np.arange(len(block)).repeat(count), hash_words(block.data, start))

    def distinct(self) -> FloatArray:
        """Return the share of distinct words."""
        pair = (self.row.astype(np.uint64) << _HASH_BITS) | (self.key >> _ROW_BITS)
        pair.sort()
        # Sorting leaves the rows as they are, for they are the leading part of a pair.
        again = np.bincount(self.row[1:][pair[1:] == pair[:-1]], minlength=len(self.count))
        return np.asarray((self.count - again) / np.maximum(self.count, 1))

    def keywords(self) -> dict[str, IntArray]:
        """Return how many words of each list there are."""
        likely = _PREFIX[self.key >> _PREFIX_SHIFT].nonzero()[0]
        entry = np.minimum(_KEYWORD_HASH.searchsorted(self.key[likely]), len(_KEYWORD_HASH) - 1)
        known = _KEYWORD_HASH[entry] == self.key[likely]
        word, member = _KEYWORD_LISTS[entry[known]].nonzero()
        cell = self.row[likely[known][word]] * len(_KEYWORDS) + member
        size = len(self.count) * len(_KEYWORDS)
        table = np.bincount(cell, minlength=size).reshape(len(self.count), -1)
        return dict(zip(_KEYWORDS, table.T, strict=True))

    def bag(self) -> FloatArray:
        """Count the words of each column, half of them negatively: collisions cancel. Length 1."""
        column = (self.key >> _COLUMN_SHIFT).view(np.int64)
        total = np.bincount(
            self.row * (2 * WORDS) + column, minlength=len(self.count) * 2 * WORDS
        ).reshape(-1, WORDS, 2)
        signed = total[:, :, 0] - total[:, :, 1]
        bag = np.copysign(np.log1p(np.abs(signed)), signed)
        length = np.sqrt(np.einsum("ij,ij->i", bag, bag))
        return np.asarray(bag / np.maximum(length, _SHORTEST)[:, None])


def _extras(
    block: Block, signs: dict[str, IntArray], words: dict[str, IntArray]
) -> dict[str, Column]:
    """Compute what only the larger set has."""
    start, _ = block.words()
    paren = block.places("paren")
    # What opens a part or a choice stands after white space: f(a) is neither.
    paren = paren[_SPACE[block.data[paren - 1]] & (block.at(paren + 2) == ord(")"))]
    label = block.at(paren + 1)
    parts = block.count(paren[_PART[label]])
    line = np.concatenate(([0], block.places("newline")[:-1] + 1))
    marked = _CHOICE[block.data[line]] & _CHOICE_MARK[block.at(line + 1)]
    chars = block.edge[1:] - block.edge[:-1] - signs["continuation"] - 1
    return {
        "has_square_roots": (words["root"] + signs["sqrt"] + signs["root"]) > 0,
        "has_equation": signs["equals"] > 0,
        "has_multi_subproblems": (parts > 1) | (signs["question"] > 1),
        "capitalised_words": block.count(start[_UPPER[block.data[start]]]),
        "latex_commands": signs["command"] + signs["frac"] + signs["sqrt"],
        "newline_count": signs["newline"] - 1,
        "answer_choices": block.count(paren[_CHOICE[label]]) + block.count(line[marked]),
        "digit_share": signs["digit"] / np.maximum(chars, 1),
        "operator_count": signs["operator"] + signs["ratio"] + signs["equals"],
        "negation_words": words["negation"],
    }
