r"""Block: the bytes of many texts, and the positions of words, numbers and signs in them.

N texts are joined into one byte array, each followed by a newline, so that every count is a few
array operations over all texts; regular expressions per text would be slower. The newline keeps
look-ahead and look-behind within a text, and makes every text non-empty. Words are compared by a
polynomial hash of their letters.

A sign is a byte with a meaning, determined by itself and the next byte (``$5``, ``\frac``). Only
ASCII digits, punctuation, case and white space are recognised: a character of another script counts
as a letter. A block knows nothing of questions or of how its signs are used.
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
    from collections.abc import Iterator, Sequence

    from adacompute.core.types import BoolArray, IntArray, KeyArray

ByteArray: TypeAlias = npt.NDArray[np.uint8]

ANY = bytes(range(256))
DIGITS = b"0123456789"
LOWER = b"abcdefghijklmnopqrstuvwxyz"
UPPER = LOWER.upper()
SPACES = b" \t\n\v\f\r\x1c\x1d\x1e\x1f"
_LETTERS = LOWER + UPPER
_WORD_BYTES = _LETTERS + DIGITS + b"'" + ANY[0x80:]

# Name, first byte, second byte; if two lines match, the later one counts.
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
    ("operator", b"/", ANY),
    ("ratio", b"/", DIGITS),
    ("command", b"\\", _LETTERS),
    ("frac", b"", b""),  # a command, recognised by its name
    ("money", b"\\", b"$"),
    ("money", b"\xc2", b"\xa3\xa5"),  # £ ¥
    ("fraction", b"\xc2", b"\xbc\xbd\xbe"),  # ¼ ½ ¾
    ("wide", b"\xe2", b"\x82\x85"),
)
# Signs of three bytes, by their second and third byte: €, ⅐ to ⅞
_WIDE_SIGNS = (
    ("money", 0x82, b"\xac"),
    ("fraction", 0x85, ANY[0x90:0x9F]),
)
_CODE = {name: code for code, name in enumerate(dict.fromkeys(name for name, *_ in _SIGNS), 1)}
_N_CODES = len(_CODE) + 1


def byte_set(members: bytes) -> BoolArray:
    """Return a table of the 256 bytes that is True for the members."""
    table = np.zeros(256, dtype=np.bool_)
    table[list(members)] = True
    return table


def _pair_codes() -> ByteArray:
    """Return the sign codes of all pairs of bytes, at 256 times the first plus the second."""
    table = np.zeros((256, 256), dtype=np.uint8)
    for name, first, second in _SIGNS:
        table[np.ix_(list(first), list(second))] = _CODE[name]
    return table.ravel()


_PAIR_CODE = _pair_codes()
# The code of a point, a comma or a slash that does not follow a digit.
_CODE_WITHOUT_DIGIT = np.arange(_N_CODES, dtype=np.uint8)
_CODE_WITHOUT_DIGIT[[_CODE["point"], _CODE["comma"], _CODE["ratio"]]] = 0, 0, _CODE["operator"]
_IS_DIGIT = byte_set(DIGITS)

# Flags of a byte: it may begin a sign, it is no white space, it is part of a folded word.
_SIGN, _NON_SPACE, _WORD = np.uint8(1), np.uint8(2), np.uint8(4)
_FLAGS = np.zeros(256, dtype=np.uint8)
_FLAGS[_PAIR_CODE.reshape(256, 256).any(axis=1)] |= _SIGN
_FLAGS[~byte_set(SPACES)] |= _NON_SPACE
_FLAGS[byte_set(_WORD_BYTES)] |= _WORD
_FLAG_BYTES = _FLAGS.tobytes()

BLOCK_BYTES = 1 << 16
"""Large enough that the overhead of calls is small, small enough for the processor's cache."""

# Adding the newlines must not push the offsets of a 32-bit string array over their limit.
_MAX_STRING_BYTES = 1 << 30

_STRING, _LARGE_STRING = pa.string(), pa.large_string()
_JOIN = pc.get_function("binary_join_element_wise")
_JOIN_NULL = pc.JoinOptions(null_handling="replace", null_replacement="")
_STRING_NEWLINE = [pa.scalar("", _STRING), pa.scalar("\n", _STRING)]
_LARGE_STRING_NEWLINE = [pa.scalar("", _LARGE_STRING), pa.scalar("\n", _LARGE_STRING)]

Texts: TypeAlias = "pa.Array | pa.ChunkedArray | Sequence[str | None]"


@dataclass(frozen=True, eq=False, slots=True)
class Block:
    """The bytes of some texts, the start of each, and the signs in them.

    ``start`` has one entry more than there are texts. ``flags`` has the flags of each byte, and
    ``sign`` the codes of the signs at the ascending ``position``.
    """

    data: ByteArray
    start: IntArray
    flags: ByteArray
    position: IntArray
    sign: ByteArray

    def __len__(self) -> int:
        return len(self.start) - 1

    def count(self, position: IntArray) -> IntArray:
        """Count how many of these ascending positions lie in each text."""
        index = position.searchsorted(self.start)
        return np.asarray(index[1:] - index[:-1])

    def at(self, position: IntArray) -> ByteArray:
        """Return the bytes at these positions; beyond the end it is the final newline."""
        return np.asarray(self.data.take(position, mode="clip"))

    def positions(self, sign: str) -> IntArray:
        """Return the positions of this sign."""
        return np.asarray(self.position[self.sign == _CODE[sign]])

    def signs(self) -> dict[str, IntArray]:
        """Count every sign in each text."""
        n_cells = len(self) * _N_CODES
        row = np.arange(0, n_cells, _N_CODES).repeat(self.count(self.position))
        table = np.bincount(row + self.sign, minlength=n_cells).reshape(-1, _N_CODES)
        return dict(zip(_CODE, table.T[1:], strict=True))

    def words(self) -> tuple[IntArray, IntArray]:
        """Return the starts and ends of words, which are separated by white space."""
        return find_runs(self.flags & _NON_SPACE)

    def folded_words(self) -> IntArray:
        """Return the starts of words of letters, digits and apostrophes only."""
        return find_runs(self.flags & _WORD)[0]


def find_runs(inside: ByteArray | BoolArray) -> tuple[IntArray, IntArray]:
    """Return the starts and ends of runs of non-zero bytes; the last byte must be zero."""
    change = (inside[1:] != inside[:-1]).nonzero()[0]
    change += 1
    if inside[0]:
        change = np.concatenate(([0], change))
    return change[::2], change[1::2]


def split_blocks(text: Texts) -> Iterator[Block]:
    """Split texts into blocks of about ``BLOCK_BYTES``; a null is an empty text."""
    if not isinstance(text, pa.Array | pa.ChunkedArray):
        text = pa.array(text, _STRING)
    for chunk in text.chunks if isinstance(text, pa.ChunkedArray) else (text,):
        data, start = _add_newlines(chunk)
        first = 0
        while first < len(chunk):
            low = int(start[first])
            stop = int(start.searchsorted(low + BLOCK_BYTES, side="right")) - 1
            stop = max(stop, first + 1)
            yield _make_block(data[low : start[stop]], start[first : stop + 1] - low)
            first = stop


def _add_newlines(text: pa.Array) -> tuple[ByteArray, IntArray]:
    """Join texts, with a newline after each; return the bytes and the start of each text."""
    if text.type == pa.null() or (text.type == _STRING and text.nbytes > _MAX_STRING_BYTES):
        text = text.cast(_LARGE_STRING)
    if text.type not in (_STRING, _LARGE_STRING):
        raise DataError(f"texts must be strings, not of Arrow type {text.type}")
    is_narrow = text.type == _STRING
    newline = _STRING_NEWLINE if is_narrow else _LARGE_STRING_NEWLINE
    joined = _JOIN.call([text, *newline], _JOIN_NULL)
    _, offsets, buffer = joined.buffers()
    if len(text) == 0:
        return np.zeros(0, dtype=np.uint8), np.zeros(1, dtype=np.int64)
    start = np.frombuffer(offsets, np.int32 if is_narrow else np.int64, len(text) + 1)
    return np.frombuffer(buffer, np.uint8, int(start[-1])), start.astype(np.int64)


def _make_block(data: ByteArray, start: IntArray) -> Block:
    """Find the signs in the bytes of some texts."""
    # Translating bytes is far faster than indexing a table by them.
    flags = np.frombuffer(data.tobytes().translate(_FLAG_BYTES), dtype=np.uint8)
    position = (flags & _SIGN).view(np.bool_).nonzero()[0]
    after = data.take(position + 1, mode="clip")
    sign = _PAIR_CODE.take(data[position] * np.uint16(256) + after)
    sign = np.where(_IS_DIGIT.take(data[position - 1]), sign, _CODE_WITHOUT_DIGIT.take(sign))
    block = Block(data, start, flags, position, sign)
    wide = (sign == _CODE["wide"]).nonzero()[0]
    if len(wide):
        third = block.at(position[wide] + 2)
        code = np.zeros(len(wide), dtype=np.uint8)
        for name, second, group in _WIDE_SIGNS:
            code[(after[wide] == second) & byte_set(group)[third]] = _CODE[name]
        sign[wide] = code
    command = (sign == _CODE["command"]).nonzero()[0]
    if len(command):
        sign[command[_is_command(block, position[command], b"frac")]] = _CODE["frac"]
    return block


def _is_command(block: Block, position: IntArray, name: bytes) -> BoolArray:
    r"""Whether a LaTeX command begins with this name, or with a letter and it (``\dfrac``)."""
    plain = np.ones(len(position), dtype=np.bool_)
    prefixed = plain.copy()
    for step, byte in enumerate(name, start=1):
        plain &= block.at(position + step) == byte
        prefixed &= block.at(position + step + 1) == byte
    return plain | prefixed


def _powers(radix: int, count: int) -> KeyArray:
    """Return the first ``count`` powers of a number, modulo 2**64."""
    powers = np.full(count, radix, dtype=np.uint64)
    powers[0] = 1
    return np.asarray(np.multiply.accumulate(powers))


_RADIX = 0x9E3779B97F4A7C15
_POWERS = _powers(_RADIX, BLOCK_BYTES)
_INVERSE_POWERS = _powers(pow(_RADIX, -1, 1 << 64), BLOCK_BYTES)
_LETTER_HASH = hash_keys(np.arange(256, dtype=np.uint64))
_LETTER_HASH[list(UPPER)] = _LETTER_HASH[list(LOWER)]
_LETTER_HASH[~byte_set(_WORD_BYTES)] = 0


def hash_words(data: ByteArray, start: IntArray) -> KeyArray:
    """Hash the folded words that begin at these positions, ignoring case.

    A word extends to the start of the next; the bytes between them do not count. The upper bits of
    the hash are mixed best.
    """
    power, inverse = _POWERS, _INVERSE_POWERS
    if len(data) > len(power):  # a block of one long text
        power, inverse = (_powers(int(table[1]), len(data)) for table in (power, inverse))
    letters = _LETTER_HASH.take(data)
    letters *= power[: len(data)]
    return np.asarray(np.add.reduceat(letters, start) * inverse[start])
