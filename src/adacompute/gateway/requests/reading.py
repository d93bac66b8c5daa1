"""Reading: what a request is, from its bytes: for which model, under which limits, and judged.

A body is parsed if it may name a virtual model or if something in it is restricted; any other is
forwarded byte for byte. It is a pure function of the request and of the rules, and sends nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from adacompute.gateway.requests.contract import (
    Judged,
    Limits,
    judge,
)
from adacompute.gateway.requests.fields import CHAT
from adacompute.gateway.requests.openai_requests import (
    PATHS,
    REFUSED_PATHS,
    VirtualRequest,
    may_name,
    parse_request,
    passthrough_reason,
)
from adacompute.gateway.requests.references import MARKS, check_stored
from adacompute.gateway.requests.refusals import BadRequest, Forbidden
from adacompute.gateway.requests.rules import ModelRules, Rules
from adacompute.models.formats.body import Body, InvalidBody, TooManyFields
from adacompute.models.formats.responses_format import RESPONSES
from adacompute.spending.attempts import MAX_TEXT_CHARS, CallBound

MAX_SAMPLES = 64
"""Samples that one voted request may draw if no other limit is set."""

_READS = ("GET", "HEAD")
_ENCODED = re.compile(rb"\xff\xfe|\xfe\xff|.{0,3}\0", re.DOTALL)
"""Beginnings of texts that are not plain UTF-8, which some servers decode."""


class Arrival(NamedTuple):
    """A request before its body is read.

    ``budget`` is a header, and ``coding`` how the body is compressed.
    """

    method: str
    path: str
    budget: str | None = None
    coding: str = "identity"


@dataclass(frozen=True)
class ReadRequest:
    """A request that may be served: voted on if ``virtual`` is given and ``reason`` is None.

    ``body`` is None if it was not parsed, and ``judged`` if the request was not judged. A request
    that is restricted may not choose its payer or target by headers either.
    ``model`` is what a forwarded request asks for. ``max_samples`` are those that a voted request
    may draw.
    """

    path: str = ""
    model: str = "-"
    body: Body | None = None
    virtual: VirtualRequest | None = None
    judged: Judged | None = None
    reason: str | None = "path"
    max_samples: int = MAX_SAMPLES
    is_restricted: bool = False

    def for_upstream(self, data: bytes) -> tuple[bytes, CallBound | None]:
        """Return the body that is forwarded, and its bound if the request was judged."""
        if self.judged is None or self.body is None:
            return data, None
        changes = self.judged.changes
        sent = self.body.edit(changes) if changes else data
        return sent, self.judged.bound(self.path, self.model, len(sent))


def read_request(rules: Rules, arrival: Arrival, data: bytes) -> ReadRequest:
    """Read a request; raise BadRequest or Forbidden if it may not be served."""
    path = PATHS.get(arrival.path)
    reason: str | None = "path" if path is None else "model"
    limits = rules.limits_of(None)
    _check_path(rules, arrival, limits)
    must_be_json = _must_be_json(rules, arrival, data)
    if not must_be_json and not _may_be_read(rules, arrival, data):
        return ReadRequest(reason=reason, is_restricted=limits.judges)
    if must_be_json and arrival.coding != "identity":
        raise BadRequest("the body must not be compressed")
    body = _parse(data, is_needed=must_be_json)
    if body is None:
        return ReadRequest(reason=reason, is_restricted=limits.judges)
    virtual = None
    if path is not None or arrival.path in REFUSED_PATHS:
        virtual = parse_request(arrival.path, body, rules.models, arrival.budget)
    if path is None:
        _check_number(limits, body)
        return ReadRequest(body=body, reason=reason, is_restricted=limits.judges)
    model = None if virtual is None else virtual.model
    if virtual is not None:
        _check_budget(rules.models[virtual.model], virtual)
        limits = rules.limits_of(model)
        reason = passthrough_reason(virtual, rules.models[virtual.model].answer_field)
    max_samples = MAX_SAMPLES if limits.max_samples is None else limits.max_samples
    judged, asked = None, model or str(body.fields.get("model"))[:MAX_TEXT_CHARS]
    if reason is None or limits.judges:
        judged = judge(body.fields, path, limits, rules.terms, asked)
        if virtual is not None:
            virtual.judged = judged
    elif not limits.allows_stored:
        check_stored(body.fields, path)
    is_restricted = judged is not None
    return ReadRequest(path, asked, body, virtual, judged, reason, max_samples, is_restricted)


def _may_be_read(rules: Rules, arrival: Arrival, data: bytes) -> bool:
    """Whether a body is read if it is a JSON object, and forwarded if it is not."""
    if arrival.method != "POST":
        return False
    if arrival.path in PATHS or arrival.path in REFUSED_PATHS:
        return may_name(data, rules.models)
    return rules.limits_of(None).judges


def _must_be_json(rules: Rules, arrival: Arrival, data: bytes) -> bool:
    """Whether a body must be a JSON object, because something in it is restricted."""
    if arrival.method != "POST":
        return False
    path, limits = PATHS.get(arrival.path), rules.limits_of(None)
    if path is None:
        return False
    if limits.judges or rules.restricts_models:
        return True
    if limits.allows_stored:
        return False
    is_plain = arrival.coding == "identity" and not _ENCODED.match(data)
    return path == RESPONSES or (
        path == CHAT and (not is_plain or any(map(data.__contains__, MARKS)))
    )


def _parse(data: bytes, *, is_needed: bool) -> Body | None:
    """Parse a body; None if it is no JSON object and need not be one."""
    try:
        body = Body.parse(data)
    except TooManyFields:
        raise
    except InvalidBody as error:
        raise BadRequest(str(error), error.field) from None
    if body is None and is_needed:
        raise BadRequest("the body must be a JSON object")
    return body


def _check_path(rules: Rules, arrival: Arrival, limits: Limits) -> None:
    """Raise Forbidden if a client may not send a request to a path that is not described here.

    Under limits, such a path must be allowed by its name: servers take other spellings of a path.
    """
    is_read = arrival.method in _READS
    if arrival.method == "POST" and arrival.path in PATHS:
        return
    is_named = f"{arrival.method} {arrival.path}" in rules.paths
    if (limits.is_capped or (limits.judges and not is_named)) and not is_read:
        raise Forbidden("this method and path are not allowed", "path_not_allowed")


def _check_number(limits: Limits, body: Body) -> None:
    """Raise BadRequest or Forbidden if a path that is not described is asked for too many."""
    limit, n = limits.max_samples, body.fields.get("n")
    if limit is None or n is None:
        return
    if type(n) is not int:
        raise BadRequest(f"'n' must be an integer, got {type(n).__name__}", "n")
    if n > limit:
        raise Forbidden(f"n must be at most {limit}, got {n}", "samples_not_allowed", param="n")


def _check_budget(model: ModelRules, request: VirtualRequest) -> None:
    """Raise Forbidden if a request sets a budget above that of its model."""
    limit = model.max_budget
    if request.budget is not None and limit is not None and request.budget > limit:
        message = f"the budget must be at most {limit:g}, got {request.budget:g}"
        raise Forbidden(message, "budget_not_allowed")
