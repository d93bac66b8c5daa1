"""Failures: which replies are worth a retry, and which error the others become.

A reply is a document, a transient failure, or a rejection. Messages are kept in full here, because
the API key must be redacted before a message is shortened. This module sends nothing and waits for
nothing, and its exceptions never leave the models package.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from adacompute.core.errors import ModelError, RateLimited, RequestRejected
from adacompute.models.formats.openai_format import (
    MalformedReply,
    parse_error_message,
    parse_json,
    parse_retry_after,
)
from adacompute.models.messages import Reply

RETRIED_STATUSES = frozenset({408, 409, 429, 500, 502, 503, 504, 529})
"""Statuses of transient failures; every other failure is final."""

INTERMEDIARY_STATUSES = frozenset({502, 504})
"""Statuses of a proxy that lost the reply of the server behind it: that may be billed."""

_RATE_LIMITED = frozenset({429, 529})
_SUCCESS = range(200, 300)
_REDIRECT = range(300, 400)
_CLIENT_ERROR = range(400, 500)


class Failure(Exception):  # noqa: N818 - the others name what happened
    """What went wrong, and the type of the error to raise for it.

    ``may_be_billed`` says that the server may have generated a reply and may charge for it, and
    ``advice`` is the end of the message that says what an operator can do.
    """

    def __init__(
        self, cause: str, error_type: type[ModelError] = ModelError, *, may_be_billed: bool = False
    ) -> None:
        super().__init__(cause)
        self.error_type = error_type
        self.may_be_billed = may_be_billed
        self.advice = ""


class TransientFailure(Failure):
    """A failure worth a retry.

    `retry_after_s` is how long the server asked to wait. `connection_lost` says that the connection
    was lost before a reply began, as happens to idle connections; the first time, the retry is
    immediate. `is_stale` says that the server had closed the connection before the request arrived.
    """

    def __init__(
        self,
        cause: str,
        error_type: type[ModelError] = ModelError,
        *,
        retry_after_s: float | None = None,
        connection_lost: bool = False,
        is_stale: bool = False,
        may_be_billed: bool = False,
    ) -> None:
        super().__init__(cause, error_type, may_be_billed=may_be_billed)
        self.retry_after_s = retry_after_s
        self.connection_lost = connection_lost
        self.is_stale = is_stale


class Rejection(Failure):
    """A request that the server rejects, with its status and document."""

    def __init__(self, cause: str, status: int, document: object = None) -> None:
        super().__init__(cause, RequestRejected)
        self.reply = Reply(status, document, cause)


class PermanentFailure(Failure):
    """A server failure that a retry would not change."""


def parse_reply(status: int, headers: Mapping[str, str], body: bytes) -> Any:  # noqa: ANN401
    """Return the JSON of a successful reply, or raise the failure that it is."""
    check_reply(status, headers, body, content_type="json")
    try:
        return parse_json(body)
    except MalformedReply as error:
        raise TransientFailure(f"cannot be parsed: {error}", may_be_billed=True) from None


def check_reply(status: int, headers: Mapping[str, str], body: bytes, *, content_type: str) -> None:
    """Raise the failure that a reply is, if it is no success with this content type."""
    if status in _SUCCESS:
        actual = headers.get("Content-Type", content_type)
        if content_type not in actual.lower():
            raise TransientFailure(
                f"cannot be parsed: its content type is {actual}", may_be_billed=True
            )
        return
    cause = f"answered {status}: {parse_error_message(body)}"
    if status in RETRIED_STATUSES:
        retry_after_s = parse_retry_after(headers.get("Retry-After"), datetime.now(UTC))
        error_type = RateLimited if status in _RATE_LIMITED else ModelError
        is_lost = status in INTERMEDIARY_STATUSES
        raise TransientFailure(
            cause, error_type, retry_after_s=retry_after_s, may_be_billed=is_lost
        )
    if status in _REDIRECT:
        location = headers.get("Location", "another address")
        raise Rejection(f"answered {status}: it moved to {location}; change the base URL", status)
    if status in _CLIENT_ERROR:
        raise Rejection(cause, status, _document(body))
    raise PermanentFailure(cause)


def _document(body: bytes) -> Any:  # noqa: ANN401 - JSON
    try:
        return parse_json(body)
    except MalformedReply:
        return None
