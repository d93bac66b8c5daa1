"""Failures: which replies are worth another attempt, and what the others become.

A reply is a document, a failure that may pass, or a refusal. Texts are kept whole here, because
secrets are cut out of them before their length is. It sends nothing, waits for nothing, and lets
none of its own exceptions out of the models room.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from adacompute.core.errors import ModelError, RateLimited, RequestRejected
from adacompute.models.messages import Reply
from adacompute.models.openai_format import (
    MalformedReply,
    parse_json,
    read_message,
    read_retry_after,
)

RETRIED = frozenset({408, 409, 429, 500, 502, 503, 504, 529})
"""The statuses that may pass; every other failure is final."""

_LIMITED = frozenset({429, 529})
_GOOD = range(200, 300)
_MOVED = range(300, 400)
_WRONG = range(400, 500)


class Failure(Exception):  # noqa: N818 - the others name what happened
    """What went wrong, and the error it becomes when it leaves.

    ``paid`` says that the server may have drawn, and may send a bill, all the same.
    """

    def __init__(
        self, cause: str, error: type[ModelError] = ModelError, *, paid: bool = False
    ) -> None:
        super().__init__(cause)
        self.error = error
        self.paid = paid


class TransientFailure(Failure):
    """A failure worth another attempt.

    `retry_after_s` is how long the server asked to wait. `lost` says that the connection was lost
    before
    a reply began, as happens to idle ones; the first time that is worth another attempt at once.
    `stale` says that it had been closed before the request came.
    """

    stale = False

    def __init__(
        self,
        cause: str,
        error: type[ModelError] = ModelError,
        *,
        retry_after_s: float | None = None,
        lost: bool = False,
        paid: bool = False,
    ) -> None:
        super().__init__(cause, error, paid=paid)
        self.retry_after_s = retry_after_s
        self.lost = lost


class Refused(Failure):
    """A request that the server will not take, with its status and what it sent."""

    def __init__(self, cause: str, status: int, document: object = None) -> None:
        super().__init__(cause, RequestRejected)
        self.reply = Reply(status, document, cause)


class PermanentFailure(Failure):
    """A server that failed in a way that asking again does not mend."""


def read_reply(status: int, headers: Mapping[str, str], body: bytes) -> Any:  # noqa: ANN401
    """Return the JSON of a good reply; any other is raised as what it is."""
    check_reply(status, headers, body, kind="json")
    try:
        return parse_json(body)
    except MalformedReply as error:
        raise TransientFailure(f"cannot be understood: {error}", paid=True) from None


def check_reply(status: int, headers: Mapping[str, str], body: bytes, *, kind: str) -> None:
    """Raise what is no good reply of a kind of content."""
    if status in _GOOD:
        given = headers.get("Content-Type", kind)
        if kind not in given.lower():
            raise TransientFailure(f"cannot be understood: its content type is {given}", paid=True)
        return
    said = f"answered {status}: {read_message(body)}"
    if status in RETRIED:
        retry_after_s = read_retry_after(headers.get("Retry-After"), datetime.now(UTC))
        raise TransientFailure(
            said, RateLimited if status in _LIMITED else ModelError, retry_after_s=retry_after_s
        )
    if status in _MOVED:
        to = headers.get("Location", "another address")
        raise Refused(f"answered {status}: it moved to {to}; change the base URL", status)
    if status in _WRONG:
        raise Refused(said, status, _document(body))
    raise PermanentFailure(said)


def _document(body: bytes) -> Any:  # noqa: ANN401 - JSON
    try:
        return parse_json(body)
    except MalformedReply:
        return None
