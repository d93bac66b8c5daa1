"""Text features: statistics of a question's wording that may predict its difficulty.

The sixteen statistics of the paper's appendix and a bag of words, for N questions at once. Words
are separated by white space; when words are compared, everything but letters, digits and
apostrophes counts as white space, and case is ignored. Keywords are English.

Features depend on the question alone: not on the answer, the model or other questions. They are
finite for every text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from adacompute.core.errors import ConfigError
from adacompute.features.block import (
    BLOCK_BYTES,
    byte_set,
    find_runs,
    hash_words,
    split_blocks,
)

if TYPE_CHECKING:
    from adacompute.core.types import BoolArray, Float32Array, FloatArray, IntArray, KeyArray
    from adacompute.features.block import Block, Texts

VERSION = 1
"""Version of the definitions, recorded in bundles; increase it when any feature changes."""

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
"""The paper's sixteen features, in its order."""

N_WORD_FEATURES = 256
WORD_FEATURES: tuple[str, ...] = tuple(f"word_{i}" for i in range(N_WORD_FEATURES))
"""Hashed bag of words: each word adds to or subtracts from the column of its hash."""

FEATURE_SETS: dict[str, tuple[str, ...]] = {
    "paper": FEATURES,
    "words": FEATURES + WORD_FEATURES,
}
"""Features of each set, in column order."""

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
}


_STOP = byte_set(b".!?")
_CLOSER = byte_set(b"\"')]}*")

# Larger exponents are clipped, so that the sum over any text stays finite.
_MAX_EXPONENT = 290
_POWER = np.array([float(f"1e{i}") for i in range(-_MAX_EXPONENT, _MAX_EXPONENT + 1)])

# The row of a word's question within its block, followed by as much of the word's hash as fits.
_ROW_BITS = np.uint64(BLOCK_BYTES.bit_length())
_HASH_BITS = np.uint64(64) - _ROW_BITS
# Few words share these upper bits with a keyword; only they are looked up.
_PREFIX_SHIFT = np.uint64(64 - 12)
# The upper bits of the hash, which are mixed best, give a word's column and sign.
_COLUMN_SHIFT = np.uint64(64 - (2 * N_WORD_FEATURES).bit_length() + 1)
_MIN_NORM = 1e-9


def _hash_keywords() -> tuple[KeyArray, npt.NDArray[np.bool_]]:
    """Return the hashes of all keywords, ascending, and the lists that each is in."""
    words = sorted({word for words in _KEYWORDS.values() for word in words.split()})
    lists = [[word in words.split() for words in _KEYWORDS.values()] for word in words]
    length = np.array([len(word) + 1 for word in words])
    text = np.frombuffer(" ".join(words).encode(), dtype=np.uint8)
    key = hash_words(text, length.cumsum() - length)
    order = key.argsort()
    return key[order], np.array(lists)[order]


_KEYWORD_HASH, _KEYWORD_LISTS = _hash_keywords()
_PREFIX = np.zeros(1 << 12, dtype=np.bool_)
_PREFIX[_KEYWORD_HASH >> _PREFIX_SHIFT] = True

Column: TypeAlias = "FloatArray | IntArray | BoolArray"


def feature_names(features: str) -> tuple[str, ...]:
    """Return the names of the features of a set, in column order.

    >>> len(feature_names("paper"))
    16
    """
    if features not in FEATURE_SETS:
        known = ", ".join(FEATURE_SETS)
        raise ConfigError(f"there is no feature set {features!r}; the known ones are {known}")
    return FEATURE_SETS[features]


def extract_features(text: Texts, *, features: str = "paper") -> Float32Array:
    """Compute the features of each text, (N, F), in the order of ``feature_names(features)``.

    The entropy estimate, which needs a sample, is 0. A null is an empty text.

    >>> extract_features(["What is 2 + 3?"])[0, :5].tolist()
    [14.0, 5.0, 1.0, 1.0, 2.0]
    """
    names = feature_names(features)
    matrix = np.zeros((len(text), len(names)), dtype=np.float32)
    index = {name: i for i, name in enumerate(FEATURES)}
    row = 0
    for block in split_blocks(text):
        stop = row + len(block)
        words = _Words.of(block)
        for name, column in _columns(block, words).items():
            matrix[row:stop, index[name]] = column
        if features == "words":
            matrix[row:stop, len(FEATURES) :] = words.bag()
        row = stop
    return matrix


def _columns(block: Block, vocabulary: _Words) -> dict[str, Column]:
    """Compute all features of a block except the entropy estimate."""
    signs = block.signs()
    columns = _lengths(block, signs) | _numbers(block)
    columns["unique_word_ratio"], words = vocabulary.distinct(), vocabulary.keywords()
    # A dollar sign also delimits LaTeX, but the one that ends a formula rarely precedes a digit.
    price = signs["price"] * (signs["dollar"] == 0)
    columns["question_marks"] = signs["question"]
    columns["has_percentage"] = (words["percent"] + signs["percent"]) > 0
    columns["has_fraction"] = (signs["ratio"] + signs["fraction"] + signs["frac"]) > 0
    columns["has_time_word"] = words["time"] > 0
    columns["has_money_word"] = (words["money"] + signs["money"] + price) > 0
    columns["has_rate_word"] = words["rate"] > 0
    columns["has_multi_step_word"] = words["step"] > 0
    return columns


def _lengths(block: Block, signs: dict[str, IntArray]) -> dict[str, Column]:
    """Count characters, words and sentences."""
    start, stop = block.words()
    words = block.count(start)
    chars = block.start[1:] - block.start[:-1] - signs["continuation"]
    non_space = chars - signs["space"] - signs["newline"]
    last = block.data[stop - 1]
    ends_sentence = _STOP.take(last)
    ends_sentence |= _CLOSER.take(last) & _STOP.take(block.data[stop - 2])
    sentences = block.count(start[ends_sentence])
    # Words after the last full stop are a sentence too.
    has_words = words > 0
    sentences[has_words] += ~ends_sentence[words.cumsum()[has_words] - 1]
    return {
        "prompt_length_chars": chars - 1,
        "prompt_length_words": words,
        "sentence_count": sentences,
        "avg_word_length": non_space / np.maximum(words, 1),
    }


def _numbers(block: Block) -> dict[str, Column]:
    """Count numbers, and compute the logarithm of 1 plus their mean and their maximum."""
    digit, point, comma = (block.positions(name) for name in ("digit", "point", "comma"))
    inside = np.zeros(len(block.data), dtype=np.bool_)
    inside[digit] = True
    if len(comma):
        # A comma groups thousands only before exactly three digits; in (1,2) it separates.
        following = inside.take(comma[:, None] + np.arange(2, 5), mode="clip")
        inside[comma[(following == (True, True, False)).all(axis=1)]] = True
    inside[point] = True
    start, stop = find_runs(inside)
    count = block.count(start)
    number = start.searchsorted(digit, side="right") - 1
    # The integer part ends at the first point within the number, or with the number.
    integer_end = np.concatenate((point, [len(inside)]))[point.searchsorted(start)]
    units = digit.searchsorted(np.minimum(integer_end, stop)) - 1
    exponent = units[number] - np.arange(len(digit))
    power = _POWER.take(exponent + _MAX_EXPONENT, mode="clip")
    value = np.bincount(number, (block.data[digit] - np.uint8(ord("0"))) * power)
    total = np.bincount(np.arange(len(block)).repeat(count), value, len(block))
    has_numbers = count > 0
    maximum = np.zeros(len(block))
    maximum[has_numbers] = np.maximum.reduceat(value, (count.cumsum() - count)[has_numbers])
    return {
        "numbers_count": count,
        "number_magnitude_avg": np.log1p(total / np.maximum(count, 1)),
        "number_magnitude_max": np.log1p(maximum),
    }


@dataclass(frozen=True, eq=False)
class _Words:
    """Hashes of the words of N texts, one text after the other, ``count`` of each.

    ``row`` is the text of each word and ``key`` its hash.
    """

    count: IntArray
    row: IntArray
    key: KeyArray

    @staticmethod
    def of(block: Block) -> _Words:
        start = block.folded_words()
        count = block.count(start)
        return _Words(count, np.arange(len(block)).repeat(count), hash_words(block.data, start))

    def distinct(self) -> FloatArray:
        """Return the share of distinct words in each text."""
        pair = (self.row.astype(np.uint64) << _HASH_BITS) | (self.key >> _ROW_BITS)
        pair.sort()
        # The rows are the leading bits of the pairs, so sorting does not change their order.
        repeats = np.bincount(self.row[1:][pair[1:] == pair[:-1]], minlength=len(self.count))
        return np.asarray((self.count - repeats) / np.maximum(self.count, 1))

    def keywords(self) -> dict[str, IntArray]:
        """Count the keywords of each list in each text."""
        candidate = _PREFIX[self.key >> _PREFIX_SHIFT].nonzero()[0]
        entry = _KEYWORD_HASH.searchsorted(self.key[candidate])
        entry = np.minimum(entry, len(_KEYWORD_HASH) - 1)
        is_keyword = _KEYWORD_HASH[entry] == self.key[candidate]
        word, list_number = _KEYWORD_LISTS[entry[is_keyword]].nonzero()
        cell = self.row[candidate[is_keyword][word]] * len(_KEYWORDS) + list_number
        size = len(self.count) * len(_KEYWORDS)
        table = np.bincount(cell, minlength=size).reshape(len(self.count), -1)
        return dict(zip(_KEYWORDS, table.T, strict=True))

    def bag(self) -> FloatArray:
        """Return the hashed bag of words of each text, scaled to norm 1.

        Half of the words count negatively, so that collisions cancel on average.
        """
        column = (self.key >> _COLUMN_SHIFT).view(np.int64)
        n_columns = 2 * N_WORD_FEATURES
        total = np.bincount(self.row * n_columns + column, minlength=len(self.count) * n_columns)
        total = total.reshape(-1, N_WORD_FEATURES, 2)
        signed = total[:, :, 0] - total[:, :, 1]
        bag = np.copysign(np.log1p(np.abs(signed)), signed)
        norm = np.sqrt(np.einsum("ij,ij->i", bag, bag))
        return np.asarray(bag / np.maximum(norm, _MIN_NORM)[:, None])
