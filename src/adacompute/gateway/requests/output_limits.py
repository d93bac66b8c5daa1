"""Output limits: how many tokens a completion may have, as a request says it to the upstream.

A limit of the operator is written into the request where the client set none or a larger one. It
reads bodies, and edits nothing itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adacompute.gateway.requests.openai_requests import PATHS, VOTED_PATHS, BadRequest
from adacompute.models.body import DROP, Body, InvalidBody
from adacompute.models.responses_format import RESPONSES

CHAT_FIELDS = ("max_tokens", "max_completion_tokens")
RESPONSES_FIELD = "max_output_tokens"


def limit_output(
    body: Body,
    path: str,
    limit: int | None,
    changes: Mapping[str, Any] | None = None,
    *,
    default: str = CHAT_FIELDS[0],
) -> dict[str, Any]:
    """Return changes to a body after which its completions have at most ``limit`` tokens.

    ``changes`` are those that are made anyway. ``default`` is the member that the server honours,
    if neither they nor the client set one.
    """
    found = dict(changes or {})
    if limit is None:
        return found
    names = (RESPONSES_FIELD,) if path == RESPONSES else CHAT_FIELDS
    given = {name: body.read(name, Any) for name in names if body.is_set(name)}
    given |= {name: found[name] for name in names if name in found}
    given = {name: value for name, value in given.items() if value is not DROP}
    if not given:
        return found | {RESPONSES_FIELD if path == RESPONSES else default: limit}
    return found | {name: limit for name, value in given.items() if not _is_within(value, limit)}


def limit_forwarded(data: bytes, path: str, limit: int | None, *, max_elements: int) -> bytes:
    """Return the body of a forwarded request with at most ``limit`` tokens per completion.

    Where there is a limit, a body that cannot be read is rejected.
    """
    kind = PATHS.get(path)
    if limit is None or kind not in VOTED_PATHS:
        return data
    try:
        body = Body.parse(data, max_elements=max_elements)
    except InvalidBody as error:
        raise BadRequest(str(error)) from None
    if body is None:
        raise BadRequest("the body must be a JSON object")
    changes = limit_output(body, kind, limit)
    return body.edit(changes) if changes else data


def _is_within(value: object, limit: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= limit
