r"""Body: a JSON object as its sender wrote it, of which single members can be changed.

A gateway must send on what it got: members it does not know, numbers in their own spelling, the
order of everything. So a body is never written anew; the members that must change are cut out of
the text and replaced, and every other byte stays. It knows nothing of what the members mean.

>>> Body.read(b'{"model": "a@2",  "seed": 1.50}').edit({"model": "a", "n": 2})
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
"""In place of a member's new value: leave the member out."""

_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\n\r]*")
_MOST_MEMBERS = 1000


@dataclass(frozen=True, slots=True)
class _Member:
    """Where a member stands: from its name to the end of its value."""

    name: str
    begin: int
    value: int
    end: int


@dataclass(frozen=True, eq=False)
class Body:
    """A JSON object: its text, what it says, and where each member stands."""

    text: str
    content: Mapping[str, Any]
    _members: tuple[_Member, ...]

    @staticmethod
    def read(data: bytes) -> Body | None:
        """Read a body; None for what is no JSON object, or has more members than any request."""
        try:
            text = data.decode("utf-8")
            content, members = _scan(text)
        except (ValueError, IndexError, RecursionError):
            return None
        return Body(text, content, members)

    def edit(self, changes: Mapping[str, Any]) -> bytes:
        """Write the body with some members changed, left out, or added at its end.

        A name that stands in it twice means different things to different readers: where it is
        changed, one stays.
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
    except UnicodeEncodeError:  # half a pair of surrogates, which only an escape can spell
        return json.dumps(value, separators=(",", ":"))
    return text


def _scan(text: str) -> tuple[dict[str, Any], tuple[_Member, ...]]:
    """Read an object member by member; what is wrong raises ValueError or IndexError."""
    at = _skip(text, 0)
    if text[at] != "{":
        raise JSONDecodeError("no object", text, at)
    content: dict[str, Any] = {}
    members: list[_Member] = []
    at = _skip(text, at + 1)
    while text[at] != "}":
        if len(members) == _MOST_MEMBERS:
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
