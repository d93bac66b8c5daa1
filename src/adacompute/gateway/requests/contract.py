"""Contract: what the fields of a request mean for caps and limits.

A request that is voted on, or to which a cap or a limit applies, is *judged*: the number
and the length of its completions are written by the gateway, in the one spelling that the upstream
takes; fields that are not known, of the wrong type, or that choose a price, a payer or stored data
are refused by name. It knows fields, not bytes, and sends nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from adacompute.gateway.requests.contents import IMAGE_TOKENS, count_images
from adacompute.gateway.requests.fields import (
    COMPLETIONS,
    EMBEDDINGS,
    LENGTH_FIELDS,
    LENGTHS,
    OPTIONS,
    THINKING,
    names_with,
    types_of,
)
from adacompute.gateway.requests.references import check_stored
from adacompute.gateway.requests.refusals import BadRequest, Forbidden, show
from adacompute.models.formats.body import DROP, WrongType, check_types
from adacompute.models.formats.responses_format import RESPONSES
from adacompute.models.messages import UpstreamKind
from adacompute.spending.attempts import CallBound

FREE_TIERS = (None, "auto", "default", "flex")
"""Service tiers that cost at most the listed price."""

TIER_SEPARATOR, TOOL_PREFIX = "@", "tool:"
"""Names in a file of token prices: ``MODEL@TIER`` and ``tool:TYPE``."""

MAX_TOOL_CALLS, TOOL_TOKENS = 8, 16_384
"""Calls of hosted tools in one request, and tokens of a prompt that one is taken to add at most."""

TOOL_PREAMBLE = 1_024
"""Tokens that a template is taken to add at most to the prompt of a request with tools."""

MAX_COUNT = 10**9
"""Largest number of samples or tokens that is taken for one."""

_PAYER = names_with("payer")
_PRICED = sorted(names_with("price") | (names_with("length") - {*LENGTHS, *THINKING}))
_TOOL_NAMES = frozenset(
    {
        "type",
        "function",
        "custom",
        "name",
        "description",
        "parameters",
        "input_schema",
        "strict",
        "format",
        "defer_loading",
    }
)
_MAX_TEMPLATE_TEXT = 200


@dataclass(frozen=True)
class Limits:
    """What applies to a request, by its model.

    ``bounds_prompt`` says that a cap counts the tokens of prompts.
    """

    max_samples: int | None = None
    max_output_tokens: int | None = None
    is_capped: bool = False
    bounds_prompt: bool = False
    allows_stored: bool = False

    @property
    def judges(self) -> bool:
        """Whether requests are judged even if they are not voted on."""
        is_limited = self.max_samples is not None or self.max_output_tokens is not None
        return is_limited or self.is_capped


@dataclass(frozen=True)
class Terms:
    """What the operator and the upstream make of fields.

    ``length_fields`` is the spelling in which the upstream takes the largest output of a chat, and
    ``known_lengths`` that of models of which more is known.
    ``tool_costs`` are the prices of hosted tools, in billionths, and ``tiers`` the service tiers
    that have a price, by the model that a client asks for.
    """

    kind: UpstreamKind = "generic"
    length_fields: tuple[str, ...] = ("max_tokens",)
    known_lengths: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    allowed_fields: frozenset[str] = frozenset()
    tool_costs: Mapping[str, int] = field(default_factory=dict)
    tiers: Mapping[str, Collection[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Judged:
    """A request that may be sent with some changes, and what it can use at most.

    ``n`` are the samples of one prompt. ``extra_tokens`` are those of the prompt that are not in
    the body. Hosted tools may be called ``n_tool_calls`` times, at ``extra_cost``; after each call
    the prompt is read again, with all results so far.
    """

    changes: Mapping[str, Any]
    n: int = 1
    n_prompts: int = 1
    max_tokens: int | None = None
    extra_tokens: int = 0
    n_tool_calls: int = 0
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
    n_calls, size = judged.n_tool_calls, body_bytes + judged.extra_tokens
    size = size * (n_calls + 1) + TOOL_TOKENS * n_calls * (n_calls + 1) // 2
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
    _check_fields(fields, path, terms)
    _check_payer(fields, terms.allowed_fields)
    if limits.bounds_prompt or not limits.allows_stored:
        check_stored(fields, path, terms.allowed_fields)
    tier = _check_prices(fields, terms, model)
    changes, n, n_prompts = _count_samples(fields, path, limits)
    spellings = terms.known_lengths.get(model, terms.length_fields)
    length, max_tokens = limit_output(fields, path, limits.max_output_tokens, spellings)
    changes |= length | _limit_thinking(fields, limits.max_output_tokens)
    n_images = count_images(fields, path) if limits.bounds_prompt else 0
    tool_cost, n_tool_calls = _price_tools(fields, path, terms)
    if n_tool_calls:
        changes["max_tool_calls"] = n_tool_calls
    known = types_of(terms.kind, path)
    changes |= {name: DROP for name, value in fields.items() if value is None and name not in known}
    if OPTIONS in fields:
        changes[OPTIONS] = DROP
    return Judged(
        changes,
        n=n,
        n_prompts=n_prompts,
        max_tokens=max_tokens,
        extra_tokens=n_images * IMAGE_TOKENS + (TOOL_PREAMBLE if fields.get("tools") else 0),
        n_tool_calls=n_tool_calls,
        extra_cost=tool_cost,
        tier=tier,
    )


def _check_fields(fields: Mapping[str, Any], path: str, terms: Terms) -> None:
    """Raise BadRequest if a field is not known, or of the wrong type."""
    types = types_of(terms.kind, path)
    for name, value in fields.items():
        if name not in types and value is not None and name not in terms.allowed_fields:
            raise BadRequest(f"the field {show(name)} is not known, so it is not allowed", name)
    try:
        check_types(fields, types)
    except WrongType as error:
        raise BadRequest(str(error), error.field) from None
    if str(fields.get("model")).startswith(TOOL_PREFIX):
        raise BadRequest("this is no name of a model", "model")
    for name, value in (fields.get("chat_template_kwargs") or {}).items():
        if name == "chat_template" or len(str(value)) > _MAX_TEMPLATE_TEXT:
            message = "'chat_template_kwargs' is not allowed: it can change the template"
            raise Forbidden(message, "field_not_allowed", param="chat_template_kwargs")


def _check_payer(fields: Mapping[str, Any], allowed: Collection[str]) -> None:
    """Raise Forbidden if a request chooses who is asked, or who pays."""
    for name in fields:
        if name in _PAYER and fields[name] is not None and name not in allowed:
            message = f"{name!r} is not allowed: it chooses who is asked, or who pays"
            raise Forbidden(message, "field_not_allowed", param=name)


def limit_output(
    fields: Mapping[str, Any], path: str, limit: int | None, spellings: tuple[str, ...]
) -> tuple[dict[str, Any], int | None]:
    """Return changes after which completions have at most ``limit`` tokens, and the most they have.

    ``spellings`` are the fields that the upstream takes for a chat; others are removed. A limit of
    0 means the prompt alone to one server and no limit to another: it is taken for 1.
    """
    given = {name: fields[name] for name in LENGTHS if name in fields}
    valid = [max(value, 1) for value in given.values() if type(value) is int and value >= 0]
    if limit is None:
        found = min(valid, default=None)
        return {}, None if found is None or found > MAX_COUNT else found
    if path == EMBEDDINGS:
        return dict.fromkeys(given, DROP), None
    names, written = LENGTH_FIELDS.get(path, spellings), min([*valid, limit])
    changes: dict[str, Any] = dict.fromkeys(given.keys() - set(names), DROP)
    for name in names:
        if given.get(name) != written or type(given[name]) is not int:
            changes[name] = written
    return changes, written


def _limit_thinking(fields: Mapping[str, Any], limit: int | None) -> dict[str, int]:
    """Return changes after which hidden reasoning has at most ``limit`` tokens."""
    if limit is None:
        return {}
    for name, inner in (("thinking", "budget_tokens"), ("reasoning", "max_tokens")):
        value = (fields.get(name) or {}).get(inner) or 0
        if type(value) is not int or not 0 <= value <= limit:
            message = f"'{name}.{inner}' must be at most {limit}"
            raise Forbidden(message, "field_not_allowed", param=name)
    given = {name: fields[name] for name in THINKING if fields.get(name) is not None}
    return {name: limit for name, value in given.items() if not 0 <= value <= limit}


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


def _count_samples(
    fields: Mapping[str, Any], path: str, limits: Limits
) -> tuple[dict[str, Any], int, int]:
    """Return changes that write the number of samples, that number, and the number of prompts."""
    given = fields.get("n") if fields.get("n") is not None else fields.get("n_cmpl")
    counts = {"n": given, "best_of": fields.get("best_of")}
    for name, value in counts.items():
        if value is not None and not 1 <= value <= MAX_COUNT:
            raise BadRequest(f"{name} must be from 1 to {MAX_COUNT:,}", name)
    if fields.get("use_beam_search"):
        message = "'use_beam_search' is not allowed: it changes the number of samples"
        raise Forbidden(message, "field_not_allowed", param="use_beam_search")
    n = max(value or 1 for value in counts.values())
    n_prompts = 1
    if path in {COMPLETIONS, EMBEDDINGS}:
        n_prompts = count_prompts(fields.get("prompt" if path == COMPLETIONS else "input"))
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
    for name in _PRICED:
        value = fields.get(name)
        if value is not None and value is not False and name not in free:
            message = f"{name!r} is not allowed: what it costs is not known"
            raise Forbidden(message, "field_not_allowed", param=name)
    if set(fields.get("modalities") or ()) - {"text"}:
        message = "'modalities' is not allowed: what it costs is not known"
        raise Forbidden(message, "field_not_allowed", param="modalities")
    tier = fields.get("service_tier")
    priced = None if "service_tier" in free else priced_tier(tier)
    if priced is not None and priced not in terms.tiers.get(model, ()):
        message = f"the service tier {show(tier)} is not allowed: it has no price"
        raise Forbidden(message, "field_not_allowed", param="service_tier")
    return priced


def priced_tier(tier: object) -> str | None:
    """Return a service tier with a price of its own, None if it has the price of the model."""
    return None if tier in FREE_TIERS else str(tier)


def _price_tools(fields: Mapping[str, Any], path: str, terms: Terms) -> tuple[int, int]:
    """Return the most that hosted tools cost, and how often they may be called."""
    costs, hosted = terms.tool_costs, []
    for tool in fields.get("tools") or ():
        kind = tool.get("type")
        if isinstance(kind, str) and kind in {"function", "custom"} and tool.keys() <= _TOOL_NAMES:
            continue
        if not isinstance(kind, str) or kind not in costs or path != RESPONSES:
            message = f"the tool {show(kind)} is not allowed: it has no price"
            raise Forbidden(message, "field_not_allowed", param="tools")
        hosted.append(costs[kind])
    if not hosted:
        return 0, 0
    n_calls = fields.get("max_tool_calls")
    n_calls = MAX_TOOL_CALLS if n_calls is None else min(max(n_calls, 1), MAX_TOOL_CALLS)
    return n_calls * max(hosted), n_calls
