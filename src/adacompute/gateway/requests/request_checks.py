"""Request checks: what a client may ask for, by the body of its request.

A body that cannot be parsed is forwarded only where nothing in it is restricted. It sends nothing.
"""

from __future__ import annotations

from adacompute.gateway.requests.clients import NO_LIMITS
from adacompute.gateway.requests.openai_requests import BadRequest, VirtualRequest, split_budget
from adacompute.gateway.settings.config import Config
from adacompute.models.body import Body, InvalidBody

RESPONSES = "/v1/responses"
STORED_MEMBERS = ("previous_response_id", "conversation", "background")
"""Members that make a response refer to what the upstream stores, for whichever client."""


class Forbidden(BadRequest):
    """A request that the client may not send."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


def check_request(config: Config, client: str, method: str, path: str, data: bytes) -> None:
    """Raise Forbidden or BadRequest if the client may not send this body."""
    limits = config.client_limits.get(client, NO_LIMITS)
    is_stored = path == RESPONSES and not config.allow_stored_responses
    if method in {"GET", "HEAD"} or not (limits.models or is_stored):
        return
    try:
        body = Body.parse(data, max_elements=config.max_json_elements)
    except InvalidBody as error:
        raise BadRequest(str(error)) from None
    if body is None:
        raise BadRequest("the body must be a JSON object")
    if is_stored and (given := next((one for one in STORED_MEMBERS if body.is_set(one)), None)):
        raise Forbidden(f"{given!r} is not allowed: it refers to stored responses", "stored_member")
    if limits.models:
        model = body.read("model", str)
        names = {model, split_budget(model)[0]} if isinstance(model, str) else set()
        if not names & set(limits.models):
            raise Forbidden("this model is not allowed for the API key", "model_not_allowed")


def check_budget(config: Config, client: str, request: VirtualRequest) -> None:
    """Raise Forbidden if a request sets a budget above that of its client or of its model."""
    if request.budget is None:
        return
    model = config.models.get(request.model)
    limits = [config.client_limits.get(client, NO_LIMITS).max_budget]
    if model is not None:  # clients may ask for less than the operator set, not for more
        limits.append(model.budget if model.max_budget is None else model.max_budget)
    limit = min((one for one in limits if one is not None), default=None)
    if limit is not None and request.budget > limit:
        message = f"the budget must be at most {limit:g}, got {request.budget:g}"
        raise Forbidden(message, "budget_not_allowed")


def max_samples(config: Config, client: str, model: str) -> int:
    """Return how many samples one request may draw."""
    limits = [config.max_samples, config.client_limits.get(client, NO_LIMITS).max_samples]
    if (virtual := config.models.get(model)) is not None:
        limits.append(virtual.max_samples)
    return min(one for one in limits if one is not None)


def check_choices(data: bytes, limit: int) -> None:
    """Raise Forbidden if a body asks for more choices than one request may draw.

    Elements are not limited here: bodies that are no JSON, such as sound files, are forwarded too.
    """
    if b'"n"' not in data and b"best_of" not in data and b"\\u" not in data:
        return
    try:
        body = Body.parse(data, max_elements=len(data))
    except InvalidBody as error:
        raise BadRequest(str(error)) from None
    if body is None:
        return
    for name in ("n", "best_of"):
        given = body.read(name, float | None) if name in body.values else None
        if isinstance(given, float | int) and given > limit:
            raise Forbidden(f"{name} must be at most {limit}, got {given:g}", "samples_not_allowed")
