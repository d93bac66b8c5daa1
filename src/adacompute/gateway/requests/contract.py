"""Contract: what the fields of a request mean for caps, limits and isolation.

A request that is voted on, or to which a cap, a limit or isolation applies, is *judged*: the number
and the length of its completions are written by the gateway, in the one spelling that the upstream
takes; fields that are not known, of the wrong type, or that choose a price, a payer or stored data
are refused by name. References to stored data are found at any depth. It knows fields, not bytes,
and sends nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from adacompute.gateway.requests.fields import (
    COMPLETIONS,
    EMBEDDINGS,
    OPTIONS,
    Effect,
    Field,
    describe,
    names_with,
    types_of,
)
from adacompute.models.body import DROP, WrongType, check_types
from adacompute.models.messages import UpstreamKind
from adacompute.models.responses_format import RESPONSES
from adacompute.spending.attempts import CallBound

FREE_TIERS = (None, "auto", "default", "flex")
"""Service tiers that cost at most the listed price."""

TIER_SEPARATOR, TOOL_PREFIX = "@", "tool:"
"""Names in a file of token prices: ``MODEL@TIER`` and ``tool:TYPE``."""

IMAGE_TOKENS = 50_000
"""Tokens of a prompt that one image is taken to have at most."""

MAX_TOOL_CALLS, TOOL_TOKENS = 8, 16_384
"""Calls of hosted tools in one request, and tokens of a prompt that one is taken to add at most."""

_LENGTHS, _NUMBERS = names_with("length"), names_with("number")
_LENGTH_SPELLINGS = frozenset(
    name for name, one in describe("generic", RESPONSES).items() if one == Field(int, "length")
)
_STORED = frozenset(
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
    }
)
_NOT_REFERENCES = frozenset({"parameters", "schema", "json_schema", "metadata", "arguments"})
_CALLS = frozenset({"function_call", "custom_tool_call"})
_INLINE_ITEMS = _CALLS | {"message", *(f"{name}_output" for name in _CALLS)}
_TEXT_PARTS = frozenset(
    {"text", "input_text", "output_text", "refusal", "input_audio", "reasoning_text"}
)
_IMAGES = frozenset({"image_url", "input_image"})
_SHOWN = 100


class BadRequest(Exception):  # noqa: N818 - it names what the client sent
    """A request that is wrong; ``param`` names the wrong part."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class Forbidden(BadRequest):
    """A request that the client may not send."""

    def __init__(self, message: str, code: str, *, param: str | None = None) -> None:
        super().__init__(message, param)
        self.code = code


@dataclass(frozen=True)
class Limits:
    """What applies to a request, by its client and its model.

    ``bounds_prompt`` says that a cap counts the tokens of prompts.
    """

    max_samples: int | None = None
    max_output_tokens: int | None = None
    is_capped: bool = False
    bounds_prompt: bool = False
    is_isolated: bool = False
    allows_stored: bool = False

    @property
    def judges(self) -> bool:
        """Whether requests are judged even if they are not voted on."""
        is_limited = self.max_samples is not None or self.max_output_tokens is not None
        return is_limited or self.is_capped or self.is_isolated


@dataclass(frozen=True)
class Terms:
    """What the operator and the upstream make of fields.

    ``length_field`` is the spelling in which the upstream takes the largest output of a chat.
    ``tool_costs`` are the prices of hosted tools, in billionths, and ``tiers`` the service tiers
    that have a price, by the model that a client asks for.
    """

    kind: UpstreamKind = "generic"
    length_field: str = "max_tokens"
    allowed_fields: frozenset[str] = frozenset()
    tool_costs: Mapping[str, int] = field(default_factory=dict)
    tiers: Mapping[str, Collection[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Judged:
    """A request that may be sent with some changes, and what it can use at most.

    ``n`` are the samples of one prompt. ``extra_tokens`` are those of the prompt that are not in
    the body: of images and of the results of hosted tools, which have ``extra_cost``.
    """

    changes: Mapping[str, Any]
    n: int = 1
    n_prompts: int = 1
    max_tokens: int | None = None
    extra_tokens: int = 0
    extra_cost: int = 0
    tier: str | None = None

    def bound(self, path: str, model: str, body_bytes: int) -> CallBound:
        """Return the upper bound of the request as it is sent."""
        return bound_call(
            self, path, model, n=self.n, max_tokens=self.max_tokens, body_bytes=body_bytes
        )


def bound_call(
    judged: Judged, path: str, model: str, *, n: int, max_tokens: int | None, body_bytes: int
) -> CallBound:
    """Return the upper bound of a call for ``n`` samples of each prompt of a judged request."""
    name = model if judged.tier is None else f"{model}{TIER_SEPARATOR}{judged.tier}"
    size = body_bytes + judged.extra_tokens
    if path == EMBEDDINGS:
        return CallBound(name, size, 0)
    n_samples = n * judged.n_prompts
    bound = CallBound.of(name, n=n_samples, max_tokens=max_tokens, body_bytes=size)
    return bound._replace(extra_cost=judged.extra_cost)


def judge(
    fields: Mapping[str, Any], path: str, limits: Limits, terms: Terms, model: str = ""
) -> Judged:
    """Judge a request for a model; raise BadRequest or Forbidden if it may not be sent.

    The length of completions is written here only where there is a limit.
    """
    types = types_of(terms.kind, path)
    for name, value in fields.items():
        if name not in types and value is not None and name not in terms.allowed_fields:
            shown = name[:_SHOWN]
            raise BadRequest(f"the field {shown!r} is not known, so it is not allowed", shown)
    try:
        check_types(fields, types)
    except WrongType as error:
        raise BadRequest(str(error), error.field) from None
    tier = _check_prices(fields, terms, model)
    _refuse_set(fields, "payer", terms, "chooses who is asked, or who pays")
    if not limits.allows_stored:
        check_stored(fields, path, terms)
    if limits.is_isolated and fields.get("store"):
        raise Forbidden("'store' is not allowed", "stored_member", param="store")
    changes, n, n_prompts = _count_samples(fields, path, limits)
    length, max_tokens = limit_output(fields, path, limits.max_output_tokens, terms.length_field)
    n_images = _count_images(fields, path) if limits.bounds_prompt else 0
    tool_cost, n_tool_calls = _price_tools(fields, path, terms)
    if n_tool_calls:
        changes["max_tool_calls"] = n_tool_calls
    return Judged(
        {**changes, **length, OPTIONS: DROP} if OPTIONS in fields else {**changes, **length},
        n=n,
        n_prompts=n_prompts,
        max_tokens=max_tokens,
        extra_tokens=n_images * IMAGE_TOKENS + n_tool_calls * TOOL_TOKENS,
        extra_cost=tool_cost,
        tier=tier,
    )


def limit_output(
    fields: Mapping[str, Any], path: str, limit: int | None, spelling: str
) -> tuple[dict[str, Any], int | None]:
    """Return changes after which completions have at most ``limit`` tokens, and the most they have.

    ``spelling`` is the field that the upstream takes for a chat; other spellings are removed.
    """
    given = {name: fields[name] for name in _LENGTH_SPELLINGS & fields.keys()}
    valid = [value for value in given.values() if type(value) is int and value > 0]
    if limit is None:
        return {}, min(valid, default=None)
    if path == EMBEDDINGS:
        return dict.fromkeys(given, DROP), None
    name = {COMPLETIONS: "max_tokens", RESPONSES: "max_output_tokens"}.get(path, spelling)
    written = min([*valid, limit])
    changes: dict[str, Any] = dict.fromkeys(given.keys() - {name}, DROP)
    if given.get(name) != written or type(given[name]) is not int:
        changes[name] = written
    return changes, written


def check_stored(fields: Mapping[str, Any], path: str, terms: Terms | None = None) -> None:
    """Raise Forbidden if a request refers to what the upstream stores, for whichever client."""
    _refuse_set(fields, "stored", terms or Terms(), "refers to stored data", path)
    for part in ("input", "messages", "tools", "tool_choice"):
        for found in _walk(fields.get(part)):
            names = [name for name in _STORED & found.keys() if found[name] is not None]
            if names:
                _refuse_stored(min(names))
            if found.get("type") == "item_reference":
                _refuse_stored("item_reference")
    items = fields.get("input") if path == RESPONSES else None
    for item in items if isinstance(items, list) else ():
        if isinstance(item, dict) and _is_reference(item):
            _refuse_stored("id")


def count_prompts(prompt: object) -> int:
    """Return the number of prompts in a field; a list of token numbers is one.

    >>> count_prompts(["a", "b"]), count_prompts([1, 2, 3]), count_prompts("a")
    (2, 1, 1)
    """
    if prompt is None or isinstance(prompt, str):
        return 1
    prompts = prompt if isinstance(prompt, list) else [{}]
    types = set(map(type, prompts))
    if types <= {int}:
        return 1
    if types == {str}:
        return len(prompts)
    if types == {list} and all(set(map(type, one)) <= {int} for one in prompts):
        return len(prompts)
    raise BadRequest(
        "a prompt must be a text, a list of token numbers, or a list of one of them", "prompt"
    )


def _refuse_set(
    fields: Mapping[str, Any],
    effect: Effect,
    terms: Terms,
    why: str,
    path: str = RESPONSES,
) -> None:
    """Raise Forbidden for a field with an effect that is set, unless the operator allows it."""
    known = describe("generic", path)
    for name in fields.keys() - terms.allowed_fields:
        is_set = fields[name] not in (None, False) and name != "store"
        if is_set and name in known and known[name].effect == effect:
            code = {"stored": "stored_member"}.get(effect, "field_not_allowed")
            raise Forbidden(f"{name!r} is not allowed: it {why}", code, param=name)


def _refuse_stored(name: str) -> None:
    raise Forbidden(
        f"{name!r} is not allowed: it refers to stored data", "stored_member", param=name
    )


def _is_reference(item: Mapping[str, Any]) -> bool:
    """Whether an item of the input has an id, and not all of its content."""
    kind = item.get("type")
    if kind == "reasoning":
        return not item.get("encrypted_content")
    if kind is None:
        return "content" not in item
    return kind not in _INLINE_ITEMS


def _walk(value: object) -> Iterator[Mapping[str, Any]]:
    """Yield all objects in a value, but not those in which a client defines names of its own."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            yield one
            waiting += [inner for name, inner in one.items() if name not in _NOT_REFERENCES]
        elif isinstance(one, list):
            waiting += [inner for inner in one if type(inner) in (dict, list)]


def _count_samples(
    fields: Mapping[str, Any], path: str, limits: Limits
) -> tuple[dict[str, Any], int, int]:
    """Return changes that write the number of samples, that number, and the number of prompts."""
    given = fields.get("n") if fields.get("n") is not None else fields.get("n_cmpl")
    counts = {"n": given, "best_of": fields.get("best_of")}
    for name, value in counts.items():
        if value is not None and value < 1:
            raise BadRequest(f"{name} must be 1 or more, got {value}", name)
    if fields.get("use_beam_search"):
        message = "'use_beam_search' is not allowed: it changes the number of samples"
        raise Forbidden(message, "field_not_allowed", param="use_beam_search")
    n = max(value or 1 for value in counts.values())
    n_prompts = count_prompts(fields.get("prompt")) if path == COMPLETIONS else 1
    limit = limits.max_samples
    if limit is not None and path != EMBEDDINGS and n * n_prompts > limit:
        name = "n" if n_prompts == 1 else "prompt"
        raise Forbidden(
            f"at most {limit} samples are allowed, got {n_prompts} prompts × {n}",
            "samples_not_allowed",
            param=name,
        )
    changes: dict[str, Any] = {}
    if "n_cmpl" in fields:
        changes = {"n": DROP if given is None else given, "n_cmpl": DROP}
    return changes, n, n_prompts


def _check_prices(fields: Mapping[str, Any], terms: Terms, model: str) -> str | None:
    """Return the service tier if it has a price of its own; Forbidden if a price is not known."""
    free = terms.allowed_fields
    for name in ("web_search_options", "audio", "priority", "lora", *_LENGTHS - _LENGTH_SPELLINGS):
        if fields.get(name) not in (None, False) and name not in free:
            message = f"{name!r} is not allowed: what it costs is not known"
            raise Forbidden(message, "field_not_allowed", param=name)
    if set(fields.get("modalities") or ()) - {"text"}:
        message = "'modalities' is not allowed: what it costs is not known"
        raise Forbidden(message, "field_not_allowed", param="modalities")
    tier = fields.get("service_tier")
    if tier in FREE_TIERS or "service_tier" in free:
        return None
    if not isinstance(tier, str) or tier not in terms.tiers.get(model, ()):
        message = f"the service tier {str(tier)[:_SHOWN]!r} is not allowed: it has no price"
        raise Forbidden(message, "field_not_allowed", param="service_tier")
    return tier


def _price_tools(fields: Mapping[str, Any], path: str, terms: Terms) -> tuple[int, int]:
    """Return the most that hosted tools cost, and how often they may be called."""
    costs, hosted = terms.tool_costs, []
    for tool in fields.get("tools") or ():
        kind = tool.get("type", "function")
        if kind in {"function", "custom"}:
            continue
        if not isinstance(kind, str) or kind not in costs or path != RESPONSES:
            message = f"the tool {str(kind)[:_SHOWN]!r} is not allowed: it has no price"
            raise Forbidden(message, "field_not_allowed", param="tools")
        hosted.append(costs[kind])
    if not hosted:
        return 0, 0
    n_calls = fields.get("max_tool_calls")
    n_calls = MAX_TOOL_CALLS if n_calls is None else min(max(n_calls, 1), MAX_TOOL_CALLS)
    return n_calls * max(hosted), n_calls


def _count_images(fields: Mapping[str, Any], path: str) -> int:
    """Return the number of images in a prompt; Forbidden for content whose size is not known."""
    n_images = 0
    items = fields.get("input" if path == RESPONSES else "messages")
    for item in items if isinstance(items, list) else ():
        for content in (item.get("content"), item.get("output")):
            for part in content if isinstance(content, list) else ():
                kind = part.get("type", "text") if isinstance(part, dict) else "text"
                if kind in _IMAGES:
                    n_images += 1
                elif kind not in _TEXT_PARTS:
                    message = f"content of type {str(kind)[:_SHOWN]!r} is not allowed under a cap"
                    raise Forbidden(message, "field_not_allowed", param="content")
    return n_images
