"""OpenAI format: pure functions that build requests and parse replies.

Requests are plain dictionaries. Replies are not trusted: whatever JSON a server sends, the result
is samples or ``MalformedReply``. Tokens are counted per choice, because servers differ in what
their ``usage`` sums up; if they cannot be counted, they are estimated and marked as such. This
module opens no connection and decides on no retry.
"""

from __future__ import annotations

import email.utils
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from adacompute.core.errors import ConfigError
from adacompute.models.logprobs import TOP_LOGPROBS, parse_logprobs
from adacompute.models.messages import Capabilities, Prompt, Sample, Settings
from adacompute.models.model import CallUsage, parse_usage

MAX_MESSAGE_CHARS = 300
"""Length to which a server's error message is shortened."""

MAX_ELEMENTS = 2_000_000
"""Brackets and commas that a reply may have: a short text can become many objects."""

CHARS_PER_TOKEN = 4
_CONTENT = frozenset(
    {
        *("content", "text", "reasoning_content", "reasoning", "refusal", "thinking"),
        *("name", "arguments", "partial_json", "delta"),
    }
)
_ENCODER = json.JSONEncoder(allow_nan=False)
_MAX_TOKENS = 10**12  # larger counts are taken as missing


class MalformedReply(ValueError):  # noqa: N818 - it says what the reply is
    """A reply that cannot be parsed; it never leaves the models package."""


def request_body(
    model: str,
    prompt: Prompt,
    settings: Settings,
    capabilities: Capabilities,
    *,
    count: int = 1,
    seed: int | None = None,
) -> dict[str, Any]:
    """Build the JSON object to send, without fields that the server is known to reject.

    The reasoning effort is sent even if the server rejects it, because a sample without it would
    belong to another arm.
    """
    body: dict[str, Any] = {"model": model}
    if prompt.messages is None:
        body["prompt"] = prompt.text
    else:
        body["messages"] = [dict(message) for message in prompt.messages]
    body["temperature"] = settings.temperature
    if settings.top_p is not None:
        body["top_p"] = settings.top_p
    if settings.max_tokens is not None:
        body[capabilities.max_tokens_field] = settings.max_tokens
    if settings.stop:
        body["stop"] = list(settings.stop)
    if settings.effort is not None:
        body["reasoning_effort"] = settings.effort
    if settings.logprobs and capabilities.logprobs not in {"rejected", "missing"}:
        body |= logprob_fields(is_chat=prompt.messages is not None)
    if seed is not None and capabilities.seed != "rejected":
        body["seed"] = seed
    if count > 1:
        body["n"] = count
    return {**body, **settings.extra}


def logprob_fields(*, is_chat: bool) -> dict[str, Any]:
    """Return the fields that request log-probabilities of each token and of the likeliest ones."""
    if is_chat:
        return {"logprobs": True, "top_logprobs": TOP_LOGPROBS}
    return {"logprobs": TOP_LOGPROBS}


def encode(body: Mapping[str, Any]) -> bytes:
    """Encode a request as JSON."""
    try:
        return _ENCODER.encode(body).encode()
    except (TypeError, ValueError) as error:
        raise ConfigError(f"a request must be plain JSON: {error}") from None


def check_url(base_url: str) -> str:
    """Return a base URL without trailing slashes; ConfigError if it cannot be used."""
    try:
        parts = urlsplit(base_url)
        is_valid = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        is_valid = False
    if not is_valid:
        raise ConfigError(f"a base URL must look like http://host:port/v1, not {base_url!r}")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ConfigError(
            "a base URL must not contain credentials, a query or a fragment: give the API key "
            "separately"
        )
    return base_url.rstrip("/")


def parse_json(body: bytes | str) -> Any:  # noqa: ANN401 - JSON has no narrower type
    """Parse a body as JSON; MalformedReply if it is none, or has too many elements."""
    data = body.encode("utf-8", "replace") if isinstance(body, str) else body
    if data.count(b"[") + data.count(b"{") + data.count(b",") > MAX_ELEMENTS:
        raise MalformedReply(f"its body has more than {MAX_ELEMENTS} brackets and commas")
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise MalformedReply(f"its body is no JSON: {error}") from None


def parse_samples(
    document: object, *, usage_counts: str = "unknown", latency_s: float = 0.0
) -> list[Sample]:
    """Parse every choice of a reply, chat or completion, in the order of their indices.

    A choice that cannot be parsed is left out; a reply without any choice is malformed.
    ``usage_counts`` is the capability ``usage`` of the server.
    """
    choices = parse_choices(document)
    usage = parse_usage(document)
    reported = _count(usage.get("completion_tokens"))
    if reported == 0 and any(choice.n_chars for choice in choices):
        reported = None  # some gateways fill in zeros
    tokens, is_estimated = count_completion_tokens(choices, reported, usage_counts)
    hidden = _count(_mapping(usage.get("completion_tokens_details")).get("reasoning_tokens")) or 0
    reasoning = split_by_weight(min(hidden, sum(tokens)), tokens) if hidden else [0] * len(tokens)
    cached = _count(_mapping(usage.get("prompt_tokens_details")).get("cached_tokens")) or 0
    return [
        Sample(
            text=choice.text,
            finish_reason=choice.finish_reason,
            prompt_tokens=_count(usage.get("prompt_tokens")) or None,
            cached_tokens=cached,
            completion_tokens=n_tokens,
            reasoning_tokens=n_reasoning,
            mean_logprob=choice.mean_logprob,
            min_logprob_window=choice.min_logprob_window,
            token_logprobs=choice.token_logprobs,
            entropy=choice.entropy,
            top_logprobs=choice.top_logprobs,
            is_estimated=is_estimated,
            latency_s=latency_s,
            samples_per_call=len(choices),
        )
        for choice, n_tokens, n_reasoning in zip(choices, tokens, reasoning, strict=True)
    ]


def parse_choices(document: object) -> list[Choice]:
    """Parse the choices of a reply, in the order of their indices."""
    return [choice for choice, _ in parse_choices_with_source(document)]


def parse_choices_with_source(document: object) -> list[tuple[Choice, Mapping[str, Any]]]:
    """Parse the choices of a reply, each with the JSON object it was parsed from."""
    if not isinstance(document, dict):
        raise MalformedReply(f"its reply is a JSON {type(document).__name__}, not an object")
    raw = document.get("choices")
    parsed = [(_parse_choice(source), source) for source in raw] if isinstance(raw, list) else []
    choices = [(choice, source) for choice, source in parsed if choice is not None]
    if not choices:
        message = _message_of(document)
        hint = f": {message}" if message else ""
        raise MalformedReply(f"its reply holds no choices; does the base URL end in /v1?{hint}")
    return sorted(choices, key=lambda pair: pair[0].index)  # stable: missing indices are all 0


def sampled_usage(
    document: object, samples: Sequence[Sample], *, prompt_bytes: int, usage_counts: str = "unknown"
) -> CallUsage:
    """Return the usage of a reply from which samples were parsed.

    ``usage_counts`` is the capability ``usage`` of the server.
    """
    usage, choices = parse_usage(document), _mapping(document).get("choices")
    completion = sum(sample.completion_tokens or 0 for sample in samples)
    counts_all = usage_counts == "all" and usage.get("completion_tokens") == completion
    return CallUsage.of(
        usage,
        completion_tokens=completion,
        is_counted=counts_all or not any(sample.is_estimated for sample in samples),
        n_samples=len(choices) if isinstance(choices, list) else len(samples),
        text_bytes=content_bytes(choices),
        prompt_bytes=prompt_bytes,
    )


def content_bytes(content: object) -> int:
    """Bytes of the texts, tool calls and reasoning in a reply, an event or a part of one.

    >>> content_bytes([{"message": {"role": "assistant", "content": "h\u00e9"}}])
    3
    """
    n_bytes, parts = 0, [content]
    while parts:
        part = parts.pop()
        if isinstance(part, list):
            parts += part
        elif isinstance(part, dict):
            for name, value in part.items():
                if name in _CONTENT and isinstance(value, str):
                    n_bytes += len(value if value.isascii() else value.encode(errors="replace"))
                elif value.__class__ in {dict, list} and name not in {"logprobs", "usage"}:
                    parts.append(value)
    return n_bytes


@dataclass(frozen=True, slots=True)
class Choice:
    """One choice of a reply; `tokens` is known only from its log-probabilities.

    `n_chars` counts the text and visible reasoning.
    """

    text: str
    finish_reason: str | None = None
    index: int = 0
    n_chars: int = 0
    tokens: int | None = None
    mean_logprob: float | None = None
    min_logprob_window: float | None = None
    token_logprobs: bytes | None = None
    entropy: float | None = None
    top_logprobs: int | None = None


def count_completion_tokens(
    choices: Sequence[Choice], reported: int | None, usage_counts: str
) -> tuple[list[int], bool]:
    """Count the tokens of each choice, and say whether the counts are estimates.

    `reported` is the server's count. It is right for a single choice. For several it is their sum
    or, if `usage_counts` is "one", the count of the first. Log-probabilities, one per token, give
    exact counts unless `reported` exceeds their number: then some tokens have none.
    """
    visible = [choice.tokens or 0 for choice in choices]
    all_visible = all(visible)
    if reported is None:
        estimates = [_estimate_tokens(choice.n_chars) for choice in choices]
        return (visible, False) if all_visible else (estimates, True)
    if len(choices) == 1:
        return [max(reported, visible[0])], False
    if all_visible and (usage_counts == "one" or reported <= sum(visible)):
        return visible, False
    if all_visible:
        return split_by_weight(reported, visible), True
    if usage_counts != "one":
        return split_by_weight(reported, [choice.n_chars for choice in choices]), True
    first, *rest = (choice.n_chars for choice in choices)
    others = [-(-reported * n // first) if first else _estimate_tokens(n) for n in rest]
    return [reported, *others], True


def split_by_weight(total: int, weights: Sequence[int]) -> list[int]:
    """Split a total into integers in proportion to weights; they add up to it exactly.

    >>> split_by_weight(10, [1, 1, 1])
    [4, 3, 3]
    """
    weights = weights if sum(weights) else [1] * len(weights)
    weight_sum = sum(weights)
    parts = [total * weight // weight_sum for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda i: -(total * weights[i] % weight_sum))
    for i in by_remainder[: total - sum(parts)]:
        parts[i] += 1
    return parts


def parse_error_message(body: bytes) -> str:
    """Return a server's error message in full; redact secrets before shortening it."""
    try:
        document = parse_json(body)
    except MalformedReply:
        return body.decode("utf-8", "replace")
    return _message_of(document)


def parse_retry_after(value: str | None, now: datetime) -> float | None:
    """Parse a Retry-After header, seconds or a date, as seconds from now; None if it is neither."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            date = email.utils.parsedate_to_datetime(value)
            date = date if date.tzinfo else date.replace(tzinfo=UTC)
            seconds = (date - now).total_seconds()
        except (ValueError, TypeError, OverflowError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


def shorten(text: str) -> str:
    """Put a text on one line of at most ``MAX_MESSAGE_CHARS`` characters."""
    line = " ".join(text.split())
    return line if len(line) <= MAX_MESSAGE_CHARS else line[: MAX_MESSAGE_CHARS - 1] + "…"


def _message_of(document: object) -> str:
    fields = _mapping(document)
    for name in ("error", "message", "detail"):
        value = fields.get(name)
        message = _mapping(value).get("message", value)
        if message:
            return message if isinstance(message, str) else _dump(message)
    return _dump(document) if document and "choices" not in fields else ""


def _dump(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:
        return "(nested too deeply to show)"


def _parse_choice(raw: object) -> Choice | None:
    choice = _mapping(raw)
    message = choice.get("message")
    text = choice.get("text")
    n_reasoning_chars = 0
    if isinstance(message, dict):
        text = text_of(message.get("content"))
        n_reasoning_chars = len(reasoning_of(message))
    if not isinstance(text, str):
        return None
    finish_reason = choice.get("finish_reason")
    logprobs = parse_logprobs(choice.get("logprobs"), text)
    return Choice(
        text=text,
        finish_reason=finish_reason if isinstance(finish_reason, str) else None,
        index=_count(choice.get("index")) or 0,
        n_chars=len(text) + n_reasoning_chars,
        tokens=logprobs.n_tokens,
        mean_logprob=logprobs.mean_logprob,
        min_logprob_window=logprobs.min_logprob_window,
        token_logprobs=logprobs.packed,
        entropy=logprobs.entropy,
        top_logprobs=logprobs.top_logprobs,
    )


def text_of(content: object) -> str:
    """Return the text of a message's content, which is a text or a list of parts."""
    parts = [_mapping(part).get("text") for part in content] if isinstance(content, list) else []
    return "".join(part for part in (content, *parts) if isinstance(part, str))


def reasoning_of(message: Mapping[str, Any]) -> str:
    """Return the reasoning that a message shows, under either of its names."""
    for name in ("reasoning_content", "reasoning"):
        if isinstance(message.get(name), str):
            return str(message[name])
    return ""


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _count(value: object) -> int | None:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 <= value <= _MAX_TOKENS else None


def _estimate_tokens(n_chars: int) -> int:
    return max(1, -(-n_chars // CHARS_PER_TOKEN))
