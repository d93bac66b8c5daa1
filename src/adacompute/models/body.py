r"""Body: a JSON object as its sender wrote it, of which single members can be read and changed.

A gateway must forward what it received: members it does not know, numbers as they were written, the
order of everything. So a body is never serialised again. Members that must change are replaced in
the bytes, and every other byte stays. Values are parsed only when they are read, into the type that
is asked for, so that a large member that nobody reads takes no memory. This is the only module that
uses msgspec. It knows nothing of what the members mean.

>>> Body.parse(b'{"model": "a@2",  "seed": 1.50}').edit({"model": "a", "n": 2})
b'{"model": "a",  "seed": 1.50, "n": 2}'
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

from adacompute.core.errors import needs_extra

DROP: Final = object()
"""As the new value of a member: leave the member out."""

INVALID: Final = object()
"""Read instead of a value that is not of the type that was asked for."""

MAX_ELEMENTS = 300_000
"""Brackets and commas that a body may have if no other limit is given."""

_SPACE = rb"[ \t\n\r]*+"
_NAME = re.compile(_SPACE + rb'("(?:[^"\\]++|\\.)*+")' + _SPACE + b":" + _SPACE, re.DOTALL)
_NEXT = re.compile(_SPACE + b"," + _SPACE)
_OPEN = re.compile(_SPACE + rb"\{" + _SPACE)
_CLOSE = re.compile(_SPACE + rb"\}" + _SPACE)
_PAIR = rb"u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_ESCAPE = re.compile(rb"\\(?:" + _PAIR + rb"|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL)
_EMPTY = frozenset({b"null", b"false", b"0", b'""', b"[]", b"{}"})


class InvalidBody(ValueError):  # noqa: N818 - it says what the body is
    """A body that is not parsed, because parsers would differ on it or because it is too large."""


class _Member(NamedTuple):
    """Positions of a member in the body: its name, its value and the end of its value."""

    name: str
    begin: int
    value: int
    end: int


def count_elements(data: bytes) -> int:
    """Count the brackets and commas of a body or of a part of it, those in texts included."""
    return data.count(b",") + data.count(b"[") + data.count(b"{")


@dataclass(frozen=True, eq=False)
class Body:
    """A JSON object: its bytes, its values as bytes, and the positions of its members."""

    data: bytes
    values: Mapping[str, bytes]
    _members: tuple[_Member, ...]

    @staticmethod
    def parse(data: bytes, *, max_elements: int = MAX_ELEMENTS) -> Body | None:
        """Parse a body; None if it is not a JSON object.

        Raises InvalidBody if it has more brackets and commas than allowed, counted before it is
        parsed and also inside texts, or if a name occurs twice: parsers differ on which one counts.
        """
        if count_elements(data) > max_elements:
            raise InvalidBody(f"the body has more than {max_elements} brackets and commas")
        try:
            data.decode()
            plain, values = _decode_members(data)
        except (ValueError, RecursionError):
            return None
        return Body(data, values, _locate(plain, values))

    def read(self, name: str, kind: Any) -> Any:  # noqa: ANN401 - a type, and a value of it
        """Return a member as a type, None if it is missing, INVALID if it is of another type."""
        value = self.values.get(name)
        if value is None:
            return None
        try:
            return _decoder(kind).decode(value)
        except (ValueError, RecursionError):
            return INVALID

    def is_set(self, name: str) -> bool:
        """Whether a member is there and neither null, false, 0 nor empty."""
        return self.values.get(name, b"null") not in _EMPTY

    def edit(self, changes: Mapping[str, Any]) -> bytes:
        """Return the body with some members changed, left out, or added at its end."""
        data, members = self.data, self._members
        after = members[0].begin if members else data.index(b"{") + 1
        written = [data[:after]]
        for member in members:
            space, after = data[after : member.begin], member.end
            value = data[member.value : member.end]
            if member.name in changes:
                if changes[member.name] is DROP:
                    continue
                value = _write(changes[member.name])
            written += [space if len(written) > 1 else b"", data[member.begin : member.value]]
            written += [value]
        for name, value in changes.items():
            if name not in self.values and value is not DROP:
                written += [b", " if len(written) > 1 else b"", _write(name), b": ", _write(value)]
        return b"".join([*written, data[after:]])


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
    values = {name: getattr(found, name) for name in names}
    return {name: bytes(value) for name, value in values.items() if value is not empty}


def read_elements(data: bytes) -> list[bytes]:
    """Return the elements of an array as they are written; empty if it is none.

    >>> read_elements(b'[{"a": 1.50}, 2]')
    [b'{"a": 1.50}', b'2']
    """
    try:
        return [bytes(one) for one in _elements_decoder().decode(data)]
    except (ValueError, RecursionError):
        return []


def read_json(value: bytes) -> Any:  # noqa: ANN401 - JSON
    """Parse a value; None if it is not valid."""
    try:
        return _decoder(Any).decode(value)
    except (ValueError, RecursionError):
        return None


@lru_cache
def _struct_decoder(names: tuple[str, ...]) -> tuple[Any, Any]:
    """Return a function that decodes these members, and what it returns for missing ones."""
    with needs_extra("serve"):
        import msgspec

    empty = msgspec.Raw()
    members = [(name, msgspec.Raw, empty) for name in names]
    return msgspec.json.Decoder(msgspec.defstruct("Members", members)).decode, empty


@lru_cache
def _decoder(kind: Any) -> Any:  # noqa: ANN401 - msgspec's
    with needs_extra("serve"):
        import msgspec

    return msgspec.json.Decoder(kind)


@lru_cache
def _members_decoder() -> Any:  # noqa: ANN401 - msgspec's
    with needs_extra("serve"):
        import msgspec

    return msgspec.json.Decoder(dict[str, msgspec.Raw])


@lru_cache
def _elements_decoder() -> Any:  # noqa: ANN401 - msgspec's
    with needs_extra("serve"):
        import msgspec

    return msgspec.json.Decoder(list[msgspec.Raw])


def _decode_members(data: bytes) -> tuple[bytes, dict[str, bytes]]:
    """Split an object into its members, and return it without halves of surrogate pairs.

    Errors are ValueError or RecursionError.
    """
    try:
        found = _members_decoder().decode(data)
    except ValueError:
        data = _without_lone_surrogates(data)
        found = _members_decoder().decode(data)
    return data, {name: bytes(value) for name, value in found.items()}


def _without_lone_surrogates(data: bytes) -> bytes:
    r"""Replace escaped halves of surrogate pairs, which are no text; every length stays the same.

    >>> _without_lone_surrogates(rb'"\ud83d\ude00 \ud83d \\ud83d"')
    b'"\\ud83d\\ude00 \\ufffd \\\\ud83d"'
    """
    return _ESCAPE.sub(lambda match: rb"\ufffd" if match.group(1) else match.group(), data)


def _locate(data: bytes, values: Mapping[str, bytes]) -> tuple[_Member, ...]:
    """Find the members of a parsed object; raise InvalidBody if there are others besides them.

    Without duplicates the values follow each other in this order. A duplicate breaks that: a value
    is not where it should be, or something follows the last one.
    """
    opened = _OPEN.match(data)
    at = opened.end() if opened else 0
    members: list[_Member] = []
    for name, value in values.items():
        found = _NEXT.match(data, at) if members else None
        begin = found.end() if found else at
        named = _NAME.match(data, begin)
        if named is None or (members and found is None):
            raise InvalidBody("a member of the body occurs twice")
        end = named.end() + len(value)
        if data[named.end() : end] != value:
            raise InvalidBody("a member of the body occurs twice")
        members.append(_Member(name, begin, named.end(), end))
        at = end
    if _CLOSE.fullmatch(data, at) is None:
        raise InvalidBody("a member of the body occurs twice")
    return tuple(members)


def _write(value: Any) -> bytes:  # noqa: ANN401 - JSON
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair can only be written escaped
        return json.dumps(value, separators=(",", ":")).encode()
