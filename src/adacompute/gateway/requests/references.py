"""References: whether a request refers to what the upstream stores, for whichever client.

Stored responses, conversations, files, containers, vector stores, cached media and servers of tools
are found by their names at any depth, except where a client defines names of its own: the schemas
of functions and of answers, and metadata. It knows nothing of limits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from adacompute.gateway.requests.fields import describe
from adacompute.gateway.requests.refusals import BadRequest, Forbidden
from adacompute.models.formats.responses_format import RESPONSES

NAMES = frozenset(
    {
        "file_id",
        "file_ids",
        "vector_store_id",
        "vector_store_ids",
        "container",
        "container_id",
        "server_url",
        "connector_id",
        "previous_response_id",
        "conversation",
        "conversation_id",
        "thread_id",
        "assistant_id",
        "uuid",
    }
)
"""Names of fields that refer to stored data."""

MARKS = (
    *(name.encode() for name in sorted(NAMES)),
    b'"audio"',
    b"://",
    b"\\u00",
)
"""What the bytes of a chat contain if it refers to stored data."""

_OWN_NAMES = frozenset(
    {
        "parameters",
        "schema",
        "json_schema",
        "input_schema",
        "annotations",
        "parsed",
        "parsed_arguments",
        "guided_json",
        "structured_outputs",
        "metadata",
        "documents",
    }
)
_SCHEMES = ("https:", "http:", "data:")
_EMPTY_ITEM = frozenset({"id", "type", "status", "role"})


def check_stored(fields: Mapping[str, Any], path: str, allowed: Collection[str] = ()) -> None:
    """Raise Forbidden if a request refers to stored data; ``allowed`` fields may."""
    known = describe("generic", path)
    for name, value in fields.items():
        plain = name.casefold()  # some servers do not tell upper from lower case
        is_off = value is None or (value is False and plain != "id_slot")
        if is_off or name in allowed or plain == "store":
            continue
        if plain in NAMES or (plain in known and known[plain].effect == "stored"):
            _refuse(name)
    if path == RESPONSES:
        _check_items(fields.get("input"))
    for name, value in fields.items():
        if name in _OWN_NAMES or name in allowed:
            continue
        for found in _walk(value):
            _check_object(found)


def _check_items(items: object) -> None:
    """Raise BadRequest or Forbidden if the items of an input are not all there."""
    if items is None or isinstance(items, str):
        return
    if not isinstance(items, list) or not all(isinstance(one, dict) for one in items):
        raise BadRequest("'input' must be a text or a list of objects", "input")
    for item in items:
        own = [name for name, value in item.items() if name not in _EMPTY_ITEM and value]
        if item.get("id") is not None and not own:
            _refuse("id")


def _check_object(found: Mapping[str, Any]) -> None:
    names = [name for name in found if name.casefold() in NAMES and found[name] is not None]
    if names:
        _refuse(min(names))
    if found.get("type") == "item_reference":
        _refuse("item_reference")
    audio = found.get("audio")
    if isinstance(audio, dict) and audio.get("id") is not None:
        _refuse("audio.id")
    for name in ("url", "image_url", "file_url", "video_url", "audio_url"):
        url = found.get(name)
        if isinstance(url, str) and not url.strip().lower().startswith(_SCHEMES):
            _refuse(name)


def _walk(value: object) -> Iterator[Mapping[str, Any]]:
    """Yield all objects in a value, but not those in which a client defines names of its own.

    The schema of a hosted tool is none of the client's: it is walked.
    """
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            yield one
            is_hosted = "type" in one and one["type"] not in ("function", "custom", "json_schema")
            waiting += [
                inner
                for name, inner in one.items()
                if name not in _OWN_NAMES or (is_hosted and name == "parameters")
            ]
        elif isinstance(one, list):
            waiting += [inner for inner in one if type(inner) in (dict, list)]


def _refuse(name: str) -> None:
    raise Forbidden(
        f"{name!r} is not allowed: it refers to stored data", "stored_member", param=name
    )
