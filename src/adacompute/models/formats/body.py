r"""Body: a JSON object as its sender wrote it, of which single fields can be read and changed.

A gateway must forward what it received: fields it does not know, numbers as they were written, the
order of everything. So a body is never serialised again. Fields that must change are replaced in
the bytes, and every other byte stays. A body is parsed once, by the parser of Python's
standard library, which is written in C. No object may have a field twice, at any depth, because
parsers differ on which one counts; at the top, not even in upper and lower case.
This is the only module that uses msgspec, by which values become types. It knows nothing of what
the fields mean.

>>> Body.parse(b'{"model": "a@2",  "seed": 1.50}').edit({"model": "a", "n": 2})
b'{"model": "a",  "seed": 1.50, "n": 2}'
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from json.decoder import scanstring  # type: ignore[attr-defined]  # not in the stubs
from typing import Any, Final, NamedTuple, NoReturn

import msgspec


class _Drop(Enum):
    DROP = "DROP"


DROP: Final = _Drop.DROP
"""As the new value of a field: leave the field out."""

INVALID: Final = object()
"""Read instead of a value that is not of the type that was asked for."""

MAX_FIELDS = 4_096
"""Fields that a body may have, those of the objects in it not counted."""

MAX_ELEMENTS = 300_000
"""Brackets and commas of a part of a reply that is parsed."""

_DECODER = msgspec.json.Decoder()
_ELEMENTS = msgspec.json.Decoder(list[msgspec.Raw])
_SHOWN = 100
_OPEN = re.compile(r"[ \t\n\r]*\{[ \t\n\r]*")
_COLON = re.compile(r"[ \t\n\r]*:[ \t\n\r]*")
_NEXT = re.compile(r"[ \t\n\r]*,[ \t\n\r]*")
_CLOSE = re.compile(r"[ \t\n\r]*\}[ \t\n\r]*")
_PAIR = r"u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_NO_SURROGATE = r"[^\\]|\\(?:" + _PAIR + r"|u(?![dD][89a-fA-F][0-9a-fA-F]{2})|[^u])"
_ESCAPE = re.compile(f"((?:{_NO_SURROGATE})++)|\\\\u....", re.DOTALL)


class InvalidBody(ValueError):  # noqa: N818 - it says what the body is
    """A body that is not parsed, because parsers would differ on it or because it is too large.

    ``field`` names the part that is wrong, if it is one.
    """

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class TooManyFields(InvalidBody):
    """A body with more fields than are parsed."""


class WrongType(ValueError):  # noqa: N818 - it says what the field has
    """A field that is of another type; ``field`` is its name."""

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message)
        self.field = field


class _Member(NamedTuple):
    """Positions of a field in the bytes: its name, its value and the end of its value."""

    name: str
    begin: int
    value: int
    end: int


def count_elements(data: bytes) -> int:
    """Count the brackets and commas of a body or of a part of it, those in texts included."""
    return data.count(b",") + data.count(b"[") + data.count(b"{")


@dataclass(frozen=True, eq=False)
class Body:
    """A JSON object: its bytes, the values of its fields, and where they are in its bytes."""

    data: bytes
    fields: Mapping[str, Any]
    _members: tuple[_Member, ...]

    @staticmethod
    def parse(data: bytes) -> Body | None:
        """Parse a body; None if it is not a JSON object.

        Raises InvalidBody if it has a field twice in one object, and TooManyFields.
        """
        try:
            text = data.decode()
            if "\\u" in text:
                text = _without_lone_surrogates(text)
            fields, members = _parse_object(text)
            if len(text) < len(data):
                members = _to_bytes(text, members)
        except InvalidBody:
            raise
        except (ValueError, RecursionError, StopIteration):
            return None
        return Body(data, fields, members)

    def read(self, name: str, kind: Any) -> Any:  # noqa: ANN401 - a type, and a value of it
        """Return a field as a type, None if it is missing, INVALID if it is of another type."""
        if name not in self.fields:
            return None
        try:
            return msgspec.convert(self.fields[name], kind)
        except (ValueError, RecursionError):
            return INVALID

    def is_set(self, name: str) -> bool:
        """Whether a field is there and neither null, false, 0 nor empty."""
        return bool(self.fields.get(name))

    def raw(self, name: str) -> bytes:
        """Return the value of a field as it is written; empty if it is missing."""
        for member in self._members:
            if member.name == name:
                return self.data[member.value : member.end]
        return b""

    def edit(self, changes: Mapping[str, Any]) -> bytes:
        """Return the body with some fields changed, left out, or added at its end."""
        data, members = memoryview(self.data), self._members
        after = members[0].begin if members else self.data.index(b"{") + 1
        written: list[bytes | memoryview] = [data[:after]]
        for member in members:
            space, after = data[after : member.begin], member.end
            value: bytes | memoryview = data[member.value : member.end]
            if member.name in changes:
                if changes[member.name] is DROP:
                    continue
                value = _write(changes[member.name])
            written += [space if len(written) > 1 else b"", data[member.begin : member.value]]
            written += [value]
        names = {member.name for member in members}
        for name, new in changes.items():
            if name not in names and new is not DROP:
                written += [b", " if len(written) > 1 else b"", _write(name), b": ", _write(new)]
        return b"".join([*written, data[after:]])


def check_types(values: Mapping[str, Any], types: Mapping[str, Any]) -> None:
    """Raise WrongType for the first of some values that is of another type; null is of any.

    >>> check_types({"n": "60"}, {"n": int})
    Traceback (most recent call last):
    adacompute.models.formats.body.WrongType: 'n' is of the wrong type: expected int, got str
    """
    for name, value in values.items():
        if value is None or name not in types:
            continue
        try:
            msgspec.convert(value, types[name])
        except (ValueError, RecursionError) as error:
            problem = str(error).replace("`", "").replace("$", name)
            expected = problem[0].lower() + problem[1:]
            message = f"{name[:_SHOWN]!r} is of the wrong type: {expected}"
            raise WrongType(message, name) from None


def read_members(data: bytes, names: tuple[str, ...]) -> dict[str, bytes]:
    """Return the values of some members of an object as they are written; empty if it is none.

    The other members are skipped, which takes no memory. The last of equal names counts.

    >>> read_members(b'{"a": [1, 2], "b": {"c": 1.50}}', ("b", "x"))
    {'b': b'{"c": 1.50}'}
    """
    decode, empty = _struct_decoder(names)
    try:
        found = decode(data)
    except (ValueError, RecursionError):
        return {}
    return {name: bytes(value) for name in names if (value := getattr(found, name)) is not empty}


def read_elements(data: bytes) -> list[bytes]:
    """Return the elements of an array as they are written; empty if it is none.

    >>> read_elements(b'[{"a": 1.50}, 2]')
    [b'{"a": 1.50}', b'2']
    """
    try:
        return [bytes(one) for one in _ELEMENTS.decode(data)]
    except (ValueError, RecursionError):
        return []


def read_json(value: bytes) -> Any:  # noqa: ANN401 - JSON
    """Parse a value; None if it is not valid."""
    try:
        return _DECODER.decode(value)
    except (ValueError, RecursionError):
        return None


@lru_cache
def _struct_decoder(names: tuple[str, ...]) -> tuple[Any, Any]:
    """Return a function that decodes these members, and what it returns for missing ones."""
    empty = msgspec.Raw()
    members = [(name, msgspec.Raw, empty) for name in names]
    return msgspec.json.Decoder(msgspec.defstruct("Members", members)).decode, empty


def _parse_object(text: str) -> tuple[dict[str, Any], tuple[_Member, ...]]:
    """Parse an object; any other ValueError means that the text is none."""
    opened = _OPEN.match(text)
    if opened is None:
        raise ValueError
    at, closed = opened.end(), _CLOSE.fullmatch(text, opened.end())
    fields: dict[str, Any] = {}
    names: set[str] = set()  # some servers do not tell upper from lower case
    members: list[_Member] = []
    while closed is None:
        if text[at : at + 1] != '"':
            raise ValueError
        name, after = scanstring(text, at + 1)
        colon = _COLON.match(text, after)
        if colon is None:
            raise ValueError
        value, end = _JSON.scan_once(text, colon.end())  # type: ignore[attr-defined]
        if (folded := name.casefold()) in names:
            _refuse_twice(name)
        names.add(folded)
        fields[name] = value
        members.append(_Member(name, at, colon.end(), end))
        if len(fields) > MAX_FIELDS:
            raise TooManyFields(f"the body has more than {MAX_FIELDS:,} fields")
        if (following := _NEXT.match(text, end)) is not None:
            at = following.end()
        elif (closed := _CLOSE.fullmatch(text, end)) is None:
            raise ValueError
    return fields, tuple(members)


def _collect(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        _refuse_twice(next(name for name, count in counts.items() if count > 1))
    return found


def _refuse_twice(name: str) -> NoReturn:
    raise InvalidBody(f"the field {name[:_SHOWN]!r} occurs twice", name[:_SHOWN])


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


_JSON = json.JSONDecoder(object_pairs_hook=_collect, parse_constant=_refuse_constant)


def _without_lone_surrogates(text: str) -> str:
    r"""Replace escaped halves of surrogate pairs, which are no text; every length stays the same.

    >>> _without_lone_surrogates(r'"\ud83d\ude00 \ud83d \\ud83d"')
    '"\\ud83d\\ude00 \\ufffd \\\\ud83d"'
    """
    return _ESCAPE.sub(lambda match: match.group(1) or r"\ufffd", text)


def _to_bytes(text: str, members: tuple[_Member, ...]) -> tuple[_Member, ...]:
    """Return positions in a text as those in its bytes."""
    at, at_byte = 0, 0
    found: list[_Member] = []
    for member in members:
        places = []
        for place in (member.begin, member.value, member.end):
            at_byte += len(text[at:place].encode())
            at = place
            places.append(at_byte)
        found.append(_Member(member.name, *places))
    return tuple(found)


def _write(value: Any) -> bytes:  # noqa: ANN401 - JSON
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair can only be written escaped
        return json.dumps(value, separators=(",", ":")).encode()
