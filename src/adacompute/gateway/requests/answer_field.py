"""Answer field: the member of a JSON answer that is graded, named by a JSON pointer (RFC 6901).

It is used for requests that ask for JSON. It knows nothing of graders or of requests.
"""

from __future__ import annotations

import json
import re
from typing import Any

from adacompute.core.errors import ConfigError
from adacompute.models.formats.openai_format import MalformedReply, parse_json

_POINTER = re.compile(r"(/([^~/]|~[01])*)*")
_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")


def check_pointer(pointer: str, name: str) -> None:
    """Raise ConfigError if a setting is no JSON pointer."""
    if not _POINTER.fullmatch(pointer):
        raise ConfigError(f"{name} must be a JSON pointer, such as /answer, not {pointer!r}")


def find_answer(text: str, pointer: str) -> str:
    """Return the value that a pointer names in a JSON text; empty if there is none.

    A string is returned as it is, any other value as JSON.

    >>> find_answer('{"steps": ["7 + 8"], "answer": 15}', "/answer")
    '15'
    """
    try:
        value = parse_json(text)
    except MalformedReply:
        return ""
    for part in pointer.split("/")[1:]:
        value = _member(value, part.replace("~1", "/").replace("~0", "~"))
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False)


def _member(value: Any, name: str) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, dict):
        return value.get(name)
    if isinstance(value, list) and _INDEX.fullmatch(name) and int(name) < len(value):
        return value[int(name)]
    return None
