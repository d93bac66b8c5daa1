"""Refusals: what is wrong with a request, or what its client may not ask for.

They carry the message for the client. It knows nothing of requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MAX_SHOWN = 100
"""Characters of a client's text that a message repeats."""


class BadRequest(Exception):  # noqa: N818 - it names what the client sent
    """A request that is wrong; ``param`` names the wrong part."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = None if param is None else param[:MAX_SHOWN]


class Forbidden(BadRequest):
    """A request that the client may not send."""

    def __init__(self, message: str, code: str, *, param: str | None = None) -> None:
        super().__init__(message, param)
        self.code = code


class NotSure(BadRequest):
    """A request whose answer is not sure enough to be sent; ``refused`` is what is said of it."""

    def __init__(self, message: str, refused: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.refused = refused


def show(value: object) -> str:
    """Return a client's value as a message repeats it.

    >>> show("x" * 1000) == repr("x" * 100)
    True
    """
    return repr(value[:MAX_SHOWN]) if isinstance(value, str) else f"a {type(value).__name__}"
