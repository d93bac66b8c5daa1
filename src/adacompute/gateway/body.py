r"""Body: a JSON object as its sender wrote it, of which single members can be changed.

A gateway must forward what it received: members it does not know, numbers as they were written, the
order of everything. So a body is never serialised again. Members that must change are replaced in
the text, and every other byte stays. It knows nothing of what the members mean.

>>> Body.parse(b'{"model": "a@2",  "seed": 1.50}').edit({"model": "a", "n": 2})
b'{"model": "a",  "seed": 1.50, "n": 2}'
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from json.decoder import JSONDecodeError
from typing import Any, Final

DROP: Final = object()
"""As the new value of a member: leave the member out."""

_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\n\r]*")
_MAX_MEMBERS = 1000


@dataclass(frozen=True, slots=True)
class _Member:
    """Positions of a member in the text: its name, its value and the end of its value."""

    name: str
    begin: int
    value: int
    end: int


@dataclass(frozen=True, eq=False)
class Body:
    """A JSON object: its text, its content and the positions of its members."""

    text: str
    content: Mapping[str, Any]
    _members: tuple[_Member, ...]

    @staticmethod
    def parse(data: bytes) -> Body | None:
        """Parse a body; None if it is not a JSON object or has more than 1000 members."""
        try:
            text = data.decode("utf-8")
            content, members = _scan(text)
        except (ValueError, IndexError, RecursionError):
            return None
        return Body(text, content, members)

    def edit(self, changes: Mapping[str, Any]) -> bytes:
        """Return the body with some members changed, left out, or added at its end.

        Parsers differ on a name that occurs twice: if it is changed, only one occurrence stays.
        """
        last = {member.name: member for member in self._members}
        after = self._members[0].begin if self._members else self.text.index("{") + 1
        written = [self.text[:after]]
        for member in self._members:
            space, after = self.text[after : member.begin], member.end
            value = self.text[member.value : member.end]
            if member.name in changes:
                if member is not last[member.name] or changes[member.name] is DROP:
                    continue
                value = _write(changes[member.name])
            written += [space if len(written) > 1 else "", self.text[member.begin : member.value]]
            written += [value]
        for name, value in changes.items():
            if name not in last and value is not DROP:
                written += [", " if len(written) > 1 else "", f"{_write(name)}: {_write(value)}"]
        return "".join([*written, self.text[after:]]).encode()


def _write(value: Any) -> str:  # noqa: ANN401 - JSON
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair can only be written escaped
        return json.dumps(value, separators=(",", ":"))
    return text


def _scan(text: str) -> tuple[dict[str, Any], tuple[_Member, ...]]:
    """Parse an object member by member; errors are ValueError or IndexError."""
    at = _skip(text, 0)
    if text[at] != "{":
        raise JSONDecodeError("no object", text, at)
    content: dict[str, Any] = {}
    members: list[_Member] = []
    at = _skip(text, at + 1)
    while text[at] != "}":
        if len(members) == _MAX_MEMBERS:
            raise JSONDecodeError("too many members", text, at)
        if members:
            at = _skip(text, _expect(text, at, ","))
        name, after = _DECODER.raw_decode(text, at)
        if not isinstance(name, str):
            raise JSONDecodeError("no name", text, at)
        value_at = _skip(text, _expect(text, _skip(text, after), ":"))
        value, end = _DECODER.raw_decode(text, value_at)
        members.append(_Member(name, at, value_at, end))
        content[name] = value
        at = _skip(text, end)
    if _skip(text, at + 1) != len(text):
        raise JSONDecodeError("more than an object", text, at)
    return content, tuple(members)


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _expect(text: str, at: int, sign: str) -> int:
    if text[at] != sign:
        raise JSONDecodeError(f"no {sign!r}", text, at)
    return at + 1
