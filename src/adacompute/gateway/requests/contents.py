"""Contents: how many tokens the prompt of a request has beside those of its bytes.

A text has at most one token per byte. An image is taken to have at most ``IMAGE_TOKENS``, whatever
its size. Other content, and objects with names that are not known here, have no bound, so they are
refused. It knows nothing of prices.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from adacompute.gateway.requests.refusals import Forbidden, show
from adacompute.models.formats.responses_format import RESPONSES

IMAGE_TOKENS = 50_000
"""Tokens of a prompt that one image is taken to have at most."""

_TEXTS = frozenset({"text", "input_text", "output_text", "refusal", "reasoning_text"})
_TEXT_NAMES = frozenset({"type", "text", "refusal", "annotations", "logprobs"})
_IMAGES = frozenset({"image_url", "input_image"})
_IMAGE_NAMES = frozenset({"type", "image_url", "detail"})
_MESSAGE_NAMES = frozenset(
    {
        "role",
        "content",
        "name",
        "tool_calls",
        "tool_call_id",
        "function_call",
        "refusal",
        "reasoning",
        "reasoning_content",
        "reasoning_details",
        "annotations",
        "parsed",
        "prefix",
        "partial",
        "id",
        "type",
        "status",
    }
)
_PART_LISTS = ("content", "output")


def count_images(fields: Mapping[str, Any], path: str) -> int:
    """Return the number of images in a prompt; Forbidden for content that has no bound."""
    items = fields.get("input" if path == RESPONSES else "messages")
    return sum(_count_item(item, path) for item in items) if isinstance(items, list) else 0


def _count_item(item: object, path: str) -> int:
    if not isinstance(item, dict):
        _refuse("a prompt of another form")
    if path != RESPONSES:
        for name in item:
            if name not in _MESSAGE_NAMES and item[name] is not None:
                _refuse(f"{show(name)} in a message")
    is_image = isinstance(item.get("type"), str) and item["type"] in _IMAGES
    return is_image + sum(_count_parts(item.get(name)) for name in _PART_LISTS)


def _count_parts(content: object) -> int:
    """Return the number of images among the parts of a content."""
    if content is None or isinstance(content, str):
        return 0
    if not isinstance(content, list):
        _refuse("content that is neither a text nor a list")
    return sum(_is_image(part) for part in content if not isinstance(part, str))


def _is_image(part: object) -> bool:
    """Whether a part is an image; Forbidden if it is neither that nor a text."""
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part, dict) or not isinstance(kind, str):
        _refuse("a part of a content without a type")
    names = {name for name, value in part.items() if value is not None}
    if kind in _TEXTS and names <= _TEXT_NAMES:
        return False
    if kind not in _IMAGES or not names <= _IMAGE_NAMES:
        _refuse(f"content of type {show(kind)}, or with other fields,")
    return True


def _refuse(what: str) -> NoReturn:
    message = f"{what} is not allowed under a cap: its tokens are not known"
    raise Forbidden(message, "field_not_allowed", param="content")
