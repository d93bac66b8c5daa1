"""Question groups: which questions are copies of each other.

Copies are not independent: one of them tells a policy how the other goes. They share a group, and
groups are held out, resampled and left out together. Two texts are copies if they have the same
words after normalisation, or if at least nine tenths of their different word triples are shared, or
if both are copies of a third text. Normalisation ignores case, spaces, closing punctuation and the
words at the beginning and at the end that more than half of the questions share, such as an
instruction. Numbers, operators and signs always count: texts in which their sequences differ are
never copies. This module does not know answers.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from adacompute.core.similar_sets import join_linked, join_similar
from adacompute.core.types import hash_keys, hash_strings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from adacompute.core.types import IntArray, KeyArray

CodeArray: TypeAlias = npt.NDArray[np.int32]
CODE = np.int32
"""Type of the number of a token."""

MAX_COMPARED = 200_000
"""Different texts that are compared by their triples; of more, only equal ones are copies."""

TRIPLE = 3
"""Consecutive words that are compared."""

MIN_TEXTS = 3
"""Different texts that are needed to tell what most of them share."""

TOKEN = re.compile(
    r"""
    (?<!\w)\.\d+ | \d+(?:[.,:]\d+)*     # a number
    | [^\W\d_]+                         # a word
    | (?<=\w)'+\s*[(=]                  # the prime of a derivative
    | [^\w\s] | _
    """,
    re.VERBOSE,
)

PROSE = frozenset(".,;:?\"'`‘’“”„«»…。，、；：？")
"""Marks between words that are no operators."""

CLOSING = PROSE | frozenset("!！")
"""Marks that may end a question or not."""

BRACKETS = frozenset("()[]{}")

COUNTED_WORDS = frozenset(
    re.findall(
        r"\w+",
        "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
        "fifteen sixteen seventeen eighteen nineteen twenty thirty forty fifty sixty seventy "
        "eighty ninety hundred thousand million billion dozen half third thirds quarter "
        "quarters fourth fifth sixth seventh eighth ninth tenth first second once twice thrice "
        "double triple ii iii iv vi vii viii ix xi xii plus minus times divided multiplied "
        "squared cubed percent sum difference product quotient more less fewer greater smaller "
        "larger least most not no except",
    )
)
"""Words that are numbers or operators."""

WORD, COUNTED, OPERATOR, IGNORED = range(4)
"""Kinds of tokens. Which token follows an operator matters as well."""


def group_questions(
    texts: Sequence[str | None], ids: Sequence[str], names: Sequence[str | None] | None = None
) -> KeyArray:
    """Return the group of each question: equal for copies, whatever the order of the questions.

    A question without text is a group by its id. ``names`` are groups that somebody gave: they take
    the place of the text.

    >>> group = group_questions(["What is 2 + 3?", "what is 2+3", "What is 2 - 3?"], "abc")
    >>> bool(group[0] == group[1]), bool(group[0] == group[2])
    (True, False)
    """
    given = [None] * len(ids) if names is None else names
    own = [i if t is None or not t.strip() else t for t, i in zip(texts, ids, strict=True)]
    # Names must not meet texts: the separator is in no name that a person would give.
    key = hash_strings(
        [o if name is None else f"group\0{name}" for o, name in zip(own, given, strict=True)]
    )
    rows = [
        row
        for row, (text, name) in enumerate(zip(texts, given, strict=True))
        if name is None and text is not None and text.strip()
    ]
    distinct = list(dict.fromkeys(own[row] for row in rows))
    number = {text: i for i, text in enumerate(distinct)}
    label = find_copies(distinct)[[number[own[row]] for row in rows]]
    smallest = np.full(len(distinct), np.iinfo(np.uint64).max, dtype=np.uint64)
    np.minimum.at(smallest, label, key[rows])
    key[rows] = smallest[label]
    return key


def find_copies(texts: Sequence[str]) -> IntArray:
    """Return a label of each text; copies have the same."""
    codes, kinds = _read_tokens(texts)
    bare = _drop_shared(codes)
    signs = [_find_signs(one, kinds) for one in codes]
    # Equal texts after normalisation; from here on, one of each is enough.
    first: dict[tuple[bytes, bytes], int] = {}
    label = np.array(
        [
            first.setdefault((sign, own.tobytes()), row)
            for row, (sign, own) in enumerate(zip(signs, bare, strict=True))
        ],
        dtype=np.int64,
    )
    alike: dict[bytes, list[int]] = {}
    for row in first.values():
        alike.setdefault(signs[row], []).append(row)
    links = []
    for members in alike.values():
        if len(members) > 1 and len(first) <= MAX_COMPARED:
            rows = np.array(members, dtype=np.int64)
            copies = join_similar([_find_triples(bare[row], kinds) for row in members])
            links.append((rows, rows[copies]))
    return join_linked(len(texts), links)[label]


def _read_tokens(texts: Sequence[str]) -> tuple[list[CodeArray], IntArray]:
    """Return the tokens of each text as codes, without closing marks, and the kind of each code."""
    vocabulary: dict[str, int] = {}
    codes = []
    for text in texts:
        tokens = TOKEN.findall(text.casefold())
        while tokens and tokens[-1] in CLOSING and not _is_factorial(tokens):
            tokens.pop()
        own = [vocabulary.setdefault(token, len(vocabulary)) for token in tokens]
        codes.append(np.array(own, dtype=CODE))
    return codes, np.array([_find_kind(token) for token in vocabulary], dtype=np.int64)


def _is_factorial(tokens: Sequence[str]) -> bool:
    """Whether the last token is an exclamation mark after a number, a letter or a bracket."""
    before = tokens[-2] if len(tokens) > 1 else ""
    operand = before == ")" or before[-1:].isdigit() or (len(before) == 1 and before.isalpha())
    return tokens[-1] == "!" and operand


def _find_kind(token: str) -> int:
    if token in PROSE:
        return IGNORED
    if token in BRACKETS or token in COUNTED_WORDS or any(map(str.isnumeric, token)):
        return COUNTED
    return WORD if token.isalpha() else OPERATOR


def _find_signs(codes: CodeArray, kinds: IntArray) -> bytes:
    """Return the sequence of numbers, operators and signs, with what follows each operator."""
    kind = kinds[codes]
    counts = (kind == COUNTED) | (kind == OPERATOR)
    after = np.where(kind == OPERATOR, np.append(codes[1:], -1)[: len(codes)], -1)
    return np.stack([codes[counts], after[counts]]).tobytes()


def _drop_shared(codes: Sequence[CodeArray]) -> list[CodeArray]:
    """Return texts without the tokens at the beginning and at the end that most of them share."""
    for _ in range(2):
        prefix = _find_prefix(codes)
        # Twice reversed, the texts are in their order again.
        codes = [one[_count_prefix(one, prefix) :][::-1] for one in codes]
    return list(codes)


def _count_prefix(codes: CodeArray, prefix: CodeArray) -> int:
    """Return how many tokens of a text are the end of a shared prefix; others must follow.

    If most questions begin with "Question: How many", another one may begin with "How many".
    """
    for start in np.flatnonzero(prefix == (codes[0] if len(codes) else -1)).tolist():
        size = len(prefix) - start
        if size < len(codes) and np.array_equal(codes[:size], prefix[start:]):
            return size
    return 0


def _find_prefix(codes: Sequence[CodeArray]) -> CodeArray:
    """Return the longest prefix of more than half of the different texts.

    Texts with the same prefix are next to each other in the order of their tokens, so a prefix of
    more than half of them is one of the text in the middle.
    """
    ordered = sorted({one.astype(">i4").tobytes() for one in codes})
    if len(ordered) < MIN_TEXTS:
        return np.empty(0, dtype=CODE)
    texts = [np.frombuffer(one, dtype=">i4") for one in ordered]
    middle = texts[len(texts) // 2]
    shared = sorted(_count_shared(one, middle) for one in texts)
    return middle[: shared[(len(texts) - 1) // 2]].astype(CODE)


def _count_shared(one: CodeArray, other: CodeArray) -> int:
    """Return the length of the longest common prefix."""
    size = min(len(one), len(other))
    differs = one[:size] != other[:size]
    return int(differs.argmax()) if differs.any() else size


def _find_triples(codes: CodeArray, kinds: IntArray) -> KeyArray:
    """Return the hashes of the different triples of consecutive words and numbers."""
    kind = kinds[codes]
    word = codes[(kind == WORD) | (kind == COUNTED)].astype(np.uint64)
    size = max(0, len(word) - TRIPLE + 1)
    found = np.zeros(size, dtype=np.uint64)
    for place in range(TRIPLE):
        found = hash_keys(found ^ hash_keys(word[place : place + size]))
    return np.unique(found)
