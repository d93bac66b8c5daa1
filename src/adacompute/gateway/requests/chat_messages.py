"""Chat messages: the parts of a conversation that are read, and why one cannot be voted on.

Requests of the chat and of the Responses API become the same messages. It knows nothing of the
other members of a request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from adacompute.models.formats.body import INVALID, Body

_TEXTS = frozenset({"text", "input_text", "output_text"})
_MESSAGE = "message"


@dataclass(frozen=True)
class Part:
    """A part of a message."""

    type: str
    text: str = ""


@dataclass(frozen=True)
class Message:
    """A message of a chat, with the members that are read here."""

    role: str
    content: str | list[Part] | None = None
    tool_calls: Any = None


@dataclass(frozen=True)
class InputItem:
    """An item of the input of the Responses API, with the members that are read here."""

    type: str = _MESSAGE
    role: str = ""
    content: str | list[Part] | None = None


def read_messages(body: Body) -> list[Message] | None:
    """Return the messages of a chat request; None if there are none, or if they are invalid."""
    found = body.read("messages", list[Message])
    return None if found is INVALID else found


def read_input(body: Body) -> list[Message] | None:
    """Return the input of a request of the Responses API as messages, the instructions first.

    Items that are no messages, such as calls of tools and their results, become messages of tools.
    """
    found = body.read("input", str | list[InputItem])
    instructions = body.read("instructions", str | None)
    if found is INVALID or instructions is INVALID or not found:
        return None
    before = [Message("system", instructions)] if instructions else []
    if isinstance(found, str):
        return [*before, Message("user", found)]
    return [*before, *map(_to_message, found)]


def _to_message(item: InputItem) -> Message:
    if item.type != _MESSAGE:
        return Message("tool")
    parts = item.content
    if isinstance(parts, list) and all(part.type in _TEXTS for part in parts):
        return Message(item.role, "".join(part.text for part in parts))
    return Message(item.role, parts)


def messages_reason(messages: Sequence[Message] | None) -> str | None:
    """Return why a conversation cannot be voted on; None if it can."""
    if not messages:
        return "prompt"
    for message in messages:
        if message.role in {"tool", "function"} or message.tool_calls:
            return "tools"
        parts = message.content
        if isinstance(parts, list) and not all(part.type == "text" for part in parts):
            return "images"
        if parts is None:
            return "prompt"
    return None


def to_json(messages: Sequence[Message]) -> tuple[dict[str, Any], ...]:
    """Return the roles and contents of messages as JSON objects."""
    return tuple({"role": one.role, "content": _plain(one.content)} for one in messages)


def last_user_text(messages: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the text of the last message of the user."""
    for message in reversed(messages):
        if message.get("role") == "user":
            content = message["content"]
            parts = content if isinstance(content, list) else [{"text": content}]
            return "".join(str(part.get("text", "")) for part in parts)
    return None


def _plain(content: str | list[Part] | None) -> Any:  # noqa: ANN401 - JSON
    return [asdict(part) for part in content] if isinstance(content, list) else content
