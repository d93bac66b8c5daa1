r"""Block: the bytes of many texts, with the words, numbers and signs in them found.

N texts are read as one long run of bytes, each closed by a newline, so that every count is a
handful of array operations over all of them: compiling a regular expression for each would cost
more than reading a text does. The newline keeps what looks ahead or back within its own text, and
leaves no text empty. Words are compared by a polynomial hash of their letters.

A sign is a byte that means something, told by itself and the byte after it (``$5``, ``\frac``).
Only ASCII digits, marks, cases and white space are known: a character of another script is a
letter. A block knows nothing of questions and of what its signs are good for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from adacompute.core.errors import DataError
from adacompute.core.types import hash_keys

if TYPE_CHECKING:
    from collections.abc import Iterator

    from adacompute.core.types import BoolArray, IntArray, KeyArray

ByteArray: TypeAlias = npt.NDArray[np.uint8]

ANY = bytes(range(256))
DIGITS = b"0123456789"
LOWER = b"abcdefghijklmnopqrstuvwxyz"
UPPER = LOWER.upper()
SPACES = b" \t\n\v\f\r\x1c\x1d\x1e\x1f"
_LETTERS = LOWER + UPPER
_WORDLY = _LETTERS + DIGITS + b"'" + ANY[0x80:]

# Of two lines that fit, the later holds.
_SIGNS = (
    ("space", SPACES, ANY),
    ("newline", b"\n", ANY),
    ("continuation", ANY[0x80:0xC0], ANY),
    ("digit", DIGITS, ANY),
    ("question", b"?", ANY),
    ("percent", b"%", ANY),
    ("dollar", b"$", ANY),
    ("price", b"$", DIGITS),
    ("point", b".", DIGITS),
    ("comma", b",", DIGITS),
    ("operator", b"+-*/^<>", ANY),
    ("equals", b"=", ANY),
    ("ratio", b"/", DIGITS),
    ("paren", b"(", ANY),
    ("command", b"\\", _LETTERS),
    ("frac", b"", b""),  # a command, told by its name
    ("sqrt", b"", b""),
    ("money", b"\\", b"$"),
    ("money", b"\xc2", b"\xa3\xa5"),  # £ ¥
    ("fraction", b"\xc2", b"\xbc\xbd\xbe"),  # ¼ ½ ¾
    ("root", b"", b""),
    ("wide", b"\xe2", b"\x82\x85\x88"),
)
# What the second and the third byte make of a sign that is wide: € ⅐ to ⅞ √
_WIDE_SIGNS = (
    ("money", 0x82, b"\xac"),
    ("fraction", 0x85, ANY[0x90:0x9F]),
    ("root", 0x88, b"\x9a"),
)
_CODE = {name: code for code, name in enumerate(dict.fromkeys(name for name, *_ in _SIGNS), 1)}
_CODES = len(_CODE) + 1


def members(group: bytes) -> BoolArray:
    """Tell of each of the 256 bytes whether it is in the group."""
    table = np.zeros(256, dtype=np.bool_)
    table[list(group)] = True
    return table


def _pairs() -> ByteArray:
    """Return the code of the sign that two bytes begin, by 256 times the first plus the second."""
    table = np.zeros((256, 256), dtype=np.uint8)
    for name, first, second in _SIGNS:
        table[np.ix_(list(first), list(second))] = _CODE[name]
    return table.ravel()


_PAIR = _pairs()
# What a point, a comma or a stroke is when no digit comes before it.
_LOOSE = np.arange(_CODES, dtype=np.uint8)
_LOOSE[[_CODE["point"], _CODE["comma"], _CODE["ratio"]]] = 0, 0, _CODE["operator"]
_IS_DIGIT = members(DIGITS)

# Bits of a byte's kind: it may be a sign, it is no white space, it is part of a folded word.
_SIGN, _FILLED, _WORD = np.uint8(1), np.uint8(2), np.uint8(4)
_KIND = np.zeros(256, dtype=np.uint8)
_KIND[_PAIR.reshape(256, 256).any(axis=1)] |= _SIGN
_KIND[~members(SPACES)] |= _FILLED
_KIND[members(_WORDLY)] |= _WORD
_KIND_BYTES = _KIND.tobytes()

BLOCK_BYTES = 1 << 16
"""Enough to hide the cost of the calls, few enough to stay in the processor's cache."""

# Closing the texts must not push the offsets of a 32-bit string array over their limit.
_NARROW_BYTES = 1 << 30

_NARROW, _WIDE = pa.string(), pa.large_string()
_JOIN = pc.get_function("binary_join_element_wise")
_JOIN_NULL = pc.JoinOptions(null_handling="replace", null_replacement="")
_NARROW_CLOSING = [pa.scalar("", _NARROW), pa.scalar("\n", _NARROW)]
_WIDE_CLOSING = [pa.scalar("", _WIDE), pa.scalar("\n", _WIDE)]


@dataclass(frozen=True, eq=False, slots=True)
class Block:
    """The bytes of some texts, where each begins, and the signs in them.

    ``edge`` has one entry more than there are texts. ``kind`` has the bits of each byte, and
    ``sign`` the codes of the signs at the ascending ``place``.
    """

    data: ByteArray
    edge: IntArray
    kind: ByteArray
    place: IntArray
    sign: ByteArray

    def __len__(self) -> int:
        return len(self.edge) - 1

    def count(self, place: IntArray) -> IntArray:
        """How many of these ascending places lie in each text."""
        cut = place.searchsorted(self.edge)
        return np.asarray(cut[1:] - cut[:-1])

    def at(self, place: IntArray) -> ByteArray:
        """Return the bytes at these places; beyond the last it is the last, a newline."""
        return np.asarray(self.data.take(place, mode="clip"))

    def places(self, sign: str) -> IntArray:
        """Return where this sign is."""
        return np.asarray(self.place[self.sign == _CODE[sign]])

    def signs(self) -> dict[str, IntArray]:
        """Count every sign in each text."""
        cells = len(self) * _CODES
        row = np.arange(0, cells, _CODES).repeat(self.count(self.place))
        table = np.bincount(row + self.sign, minlength=cells).reshape(-1, _CODES)
        return dict(zip(_CODE, table.T[1:], strict=True))

    def words(self) -> tuple[IntArray, IntArray]:
        """Return where words, which white space separates, begin and where they have ended."""
        return runs(self.kind & _FILLED)

    def folded_words(self) -> IntArray:
        """Return where words begin when all but letters, digits and apostrophes is white space."""
        return runs(self.kind & _WORD)[0]


def runs(inside: ByteArray | BoolArray) -> tuple[IntArray, IntArray]:
    """Return where runs begin, and where they have ended; the last byte must be outside."""
    turn = (inside[1:] != inside[:-1]).nonzero()[0]
    turn += 1
    if inside[0]:
        turn = np.concatenate(([0], turn))
    return turn[::2], turn[1::2]


def blocks(text: pa.Array | pa.ChunkedArray) -> Iterator[Block]:
    """Cut texts into blocks of whole texts, of about ``BLOCK_BYTES``; a null is an empty text."""
    for chunk in text.chunks if isinstance(text, pa.ChunkedArray) else (text,):
        data, edge = _close(chunk)
        start = 0
        while start < len(chunk):
            low = int(edge[start])
            stop = int(edge.searchsorted(low + BLOCK_BYTES, side="right")) - 1
            stop = max(stop, start + 1)
            yield _read(data[low : edge[stop]], edge[start : stop + 1] - low)
            start = stop


def _close(text: pa.Array) -> tuple[ByteArray, IntArray]:
    """Put a newline after each text."""
    if text.type == pa.null() or (text.type == _NARROW and text.nbytes > _NARROW_BYTES):
        text = text.cast(_WIDE)
    if text.type not in (_NARROW, _WIDE):
        raise DataError(f"texts must be strings, not of Arrow type {text.type}")
    narrow = text.type == _NARROW
    closed = _JOIN.call([text, *(_NARROW_CLOSING if narrow else _WIDE_CLOSING)], _JOIN_NULL)
    _, offsets, buffer = closed.buffers()
    if len(text) == 0:
        return np.zeros(0, dtype=np.uint8), np.zeros(1, dtype=np.int64)
    edge = np.frombuffer(offsets, np.int32 if narrow else np.int64, len(text) + 1)
    return np.frombuffer(buffer, np.uint8, int(edge[-1])), edge.astype(np.int64)


def _read(data: ByteArray, edge: IntArray) -> Block:
    """Find the signs."""
    # Translating bytes is far faster than indexing a table by them.
    kind = np.frombuffer(data.tobytes().translate(_KIND_BYTES), dtype=np.uint8)
    place = (kind & _SIGN).view(np.bool_).nonzero()[0]
    after = data.take(place + 1, mode="clip")
    sign = _PAIR.take(data[place] * np.uint16(256) + after)
    sign = np.where(_IS_DIGIT.take(data[place - 1]), sign, _LOOSE.take(sign))
    block = Block(data, edge, kind, place, sign)
    wide = (sign == _CODE["wide"]).nonzero()[0]
    if len(wide):
        third = block.at(place[wide] + 2)
        decided = np.zeros(len(wide), dtype=np.uint8)
        for name, second, group in _WIDE_SIGNS:
            decided[(after[wide] == second) & members(group)[third]] = _CODE[name]
        sign[wide] = decided
    command = (sign == _CODE["command"]).nonzero()[0]
    if len(command):
        for name in ("frac", "sqrt"):
            sign[command[_named(block, place[command], name.encode())]] = _CODE[name]
    return block


def _named(block: Block, command: IntArray, name: bytes) -> BoolArray:
    r"""Whether a LaTeX command begins with this name, or with one letter and it, as ``\dfrac``."""
    plain = np.ones(len(command), dtype=np.bool_)
    prefixed = plain.copy()
    for step, byte in enumerate(name, start=1):
        plain &= block.at(command + step) == byte
        prefixed &= block.at(command + step + 1) == byte
    return plain | prefixed


def _powers(radix: int, count: int) -> KeyArray:
    """Return the first powers of a number, modulo 2**64."""
    powers = np.full(count, radix, dtype=np.uint64)
    powers[0] = 1
    return np.asarray(np.multiply.accumulate(powers))


_RADIX = 0x9E3779B97F4A7C15
_POWERS = _powers(_RADIX, BLOCK_BYTES)
_INVERSE_POWERS = _powers(pow(_RADIX, -1, 1 << 64), BLOCK_BYTES)
_LETTER_HASH = hash_keys(np.arange(256, dtype=np.uint64))
_LETTER_HASH[list(UPPER)] = _LETTER_HASH[list(LOWER)]
_LETTER_HASH[~members(_WORDLY)] = 0


def hash_words(data: ByteArray, start: IntArray) -> KeyArray:
    """Hash the folded words that begin here, without regard to their case and to where they stand.

    A word ends where the next begins: what is between them adds nothing. The upper bits are good.
    """
    power, inverse = _POWERS, _INVERSE_POWERS
    if len(data) > len(power):  # a block of one long text
        power, inverse = (_powers(int(table[1]), len(data)) for table in (power, inverse))
    letters = _LETTER_HASH.take(data)
    letters *= power[: len(data)]
    return np.asarray(np.add.reduceat(letters, start) * inverse[start])
