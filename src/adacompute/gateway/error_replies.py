"""Error replies: failures as clients see them, in OpenAI's format with the correct status.

It decides nothing and counts nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping

from adacompute.core.errors import AdaComputeError, ModelError, ModelTimeout, RateLimited
from adacompute.gateway.accounting.caps import NotPriced
from adacompute.gateway.connection.exchange import JSON, Exchange, TooLarge
from adacompute.gateway.requests.openai_replies import write_error
from adacompute.gateway.requests.refusals import BadRequest, Forbidden, NotSure
from adacompute.gateway.voting.request_model import UpstreamRejected
from adacompute.models.connection.endpoint import Unavailable, Unreachable
from adacompute.models.formats.body import TooManyFields
from adacompute.spending.caps.meter import CapReached

EXPECTED = (AdaComputeError, BadRequest, TooLarge, TooManyFields, TimeoutError)
"""Failures that are answered with a message of their own."""

BAD_REQUEST = 400
BODY_TIMEOUT_S = 30.0
"""Time in which the body of a request must arrive."""

MAX_RETRY_AFTER_S = 31 * 86_400.0
"""Longest wait that a client is asked for: that to the end of a month."""

ERROR_CODES: Mapping[str, tuple[int, str]] = {
    "invalid_api_key": (401, "the bearer token is missing or not valid"),
    "budget_not_allowed": (403, "the budget is above ``max_budget`` of the model"),
    "field_not_allowed": (403, "a field chooses a price, a payer or a target: see its ``param``"),
    "invalid_host": (403, "without a token, ``Host`` must be a name of this machine"),
    "no_token_prices": (403, "a cap in money, and the model has no token prices"),
    "path_not_allowed": (403, "the method and path are not in ``allowed_paths``"),
    "samples_not_allowed": (403, "prompts × ``n`` is above ``max_samples``"),
    "stored_member": (403, "a field refers to stored data: see ``allow_stored_responses``"),
    "framing_too_large": (400, "the chunks of the body have too much framing"),
    "invalid_http": (400, "the request is not valid HTTP"),
    "invalid_path": (400, "the path contains ``..``"),
    "invalid_transfer_coding": (400, "the ``Transfer-Encoding`` is another than ``chunked``"),
    "pipelining": (400, "too many requests are pipelined on one connection"),
    "unread_body": (400, "the body goes on after the reply"),
    "invalid_method": (405, "the method is not supported"),
    "slow": (408, f"the body did not arrive within {BODY_TIMEOUT_S:g} s"),
    "too_large": (413, "the body is larger than ``max_body_mb``, or has more than 4,096 fields"),
    "cap_reached": (429, "a cap is spent until the end of its period"),
    "cap_unavailable": (429, "a cap cannot be checked now; try again"),
    "too_many_connections": (429, "the address has 100 connections"),
    "not_sure": (422, "the answer is not sure enough, and ``unsure`` refuses such answers"),
    "headers_too_large": (431, "the headers have more than 32 KiB, or are more than 100"),
    "url_too_long": (431, "the URL has more than 8 KiB"),
    "internal_error": (500, "the gateway itself failed; its log has the cause"),
    "overloaded": (503, "more than ``max_concurrency`` requests are in flight"),
    "upstream_unreachable": (503, "there is no connection to the upstream"),
    "timeout": (504, "the upstream did not answer in time, or ``timeout_s`` is over"),
}
"""Status and meaning of every code in the gateway's own errors."""

ADVICE: Mapping[str, str] = {
    "path_not_allowed": "see allowed_paths",
    "invalid_host": "see bearer_tokens",
    "no_token_prices": "see token_prices",
    "overloaded": "see max_concurrency",
}
"""What an operator can do, by code: for the log, because clients can do nothing about it."""

_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
}
_HEADERS = {
    429: [(b"retry-after", b"1")],
    503: [(b"retry-after", b"1")],
    # The rest of the body is not read.
    400: [(b"connection", b"close")],
    408: [(b"connection", b"close")],
}


async def send_rejection(
    exchange: Exchange, status: int, message: str, code: str, param: str | None = None
) -> None:
    """Send an error for a request that the gateway does not serve."""
    exchange.error_code = code
    if code in ADVICE:
        exchange.error = f"{exchange.error or message}: {ADVICE[code]}"
    kind = _KINDS.get(status, "invalid_request_error")
    headers = _HEADERS.get(status, [])
    await exchange.fail(status, message, kind, code=code, param=param, headers=headers)


async def send_error(
    exchange: Exchange, error: Exception, redact: Callable[[bytes], bytes]
) -> str | None:
    """Send a failure with the status of its type; return the code of a rejection.

    ``redact`` removes the upstream's key from its messages.
    """
    exchange.error = str(error)
    match error:
        case UpstreamRejected() if _has_reply(error) and exchange.status == 0:
            await _send_upstream_error(exchange, error, redact)
        case Forbidden():
            await send_rejection(exchange, 403, str(error), error.code, error.param)
        case NotSure():
            exchange.error_fields = {"refused": error.refused}
            await send_rejection(exchange, 422, str(error), "not_sure")
        case BadRequest():
            await exchange.fail(400, str(error), "invalid_request_error", param=error.param)
        case TooLarge() | TooManyFields():
            await send_rejection(exchange, 413, str(error), "too_large")
        case TimeoutError():
            await send_rejection(exchange, 408, "the request took too long to arrive", "slow")
        case NotPriced():
            await send_rejection(exchange, 403, str(error), "no_token_prices")
        case CapReached():
            await _send_cap_reached(exchange, error)
        case RateLimited():
            after = [(b"retry-after", b"%d" % max(1, math.ceil(error.retry_after_s)))]
            is_down = isinstance(error, Unavailable)
            status, kind = (503, "upstream_error") if is_down else (429, "rate_limit_error")
            await exchange.fail(status, error.without_advice, kind, headers=after)
        case Unreachable():
            await send_rejection(
                exchange, 503, "the upstream cannot be reached", "upstream_unreachable"
            )
        case ModelTimeout():
            await exchange.fail(504, str(error), "upstream_error", code="timeout")
        case UpstreamRejected() if _is_redirected(error):
            await exchange.fail(502, "the upstream sent a redirection", "upstream_error")
        case ModelError():
            await exchange.fail(502, error.without_advice, "upstream_error")
        case _:
            await send_internal_error(exchange)
    return exchange.error_code


async def send_internal_error(exchange: Exchange) -> None:
    """Say that the gateway itself failed; the cause is for its log."""
    await send_rejection(exchange, 500, "internal error of the gateway", "internal_error")


async def _send_cap_reached(exchange: Exchange, error: CapReached) -> None:
    """Say that a cap is reached; OpenAI's clients retry only where that can help soon."""
    wait_s = min(error.retry_after_s, MAX_RETRY_AFTER_S)
    exchange.error_code = "cap_reached" if error.is_spent else "cap_unavailable"
    await exchange.fail(
        429,
        error.without_advice,
        "insufficient_quota" if error.is_spent else "rate_limit_error",
        code=exchange.error_code,
        headers=[
            (b"retry-after", b"%d" % max(1, math.ceil(wait_s))),
            (b"x-should-retry", b"false" if error.is_spent else b"true"),
        ],
    )


def _is_redirected(error: UpstreamRejected) -> bool:
    """Whether the upstream moved; its message says to where, which clients need not know."""
    return error.reply is not None and error.reply.status < BAD_REQUEST


def _has_reply(error: UpstreamRejected) -> bool:
    return error.reply is not None and error.reply.status >= BAD_REQUEST


async def _send_upstream_error(
    exchange: Exchange, error: UpstreamRejected, redact: Callable[[bytes], bytes]
) -> None:
    """Send the error of the upstream as it is, if it has OpenAI's format."""
    if error.reply is None:
        raise error
    document = error.reply.document
    has_error = isinstance(document, dict) and "error" in document
    data = (
        redact(json.dumps(document).encode())
        if has_error
        else write_error(exchange.redact(str(error)), "upstream_error")
    )
    await exchange.reply(error.reply.status, [JSON], data)
