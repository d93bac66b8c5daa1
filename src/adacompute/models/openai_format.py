"""Wire: the OpenAI format, written and read by pure functions.

Requests are plain dictionaries. Replies are read with suspicion: whatever JSON a server sends, the
result is draws or `Malformed`, nothing else. Tokens are counted for each choice, because servers
differ in what their `usage` sums; where it cannot be known, the count is estimated and says so.
It opens no connection and decides no retry.
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
from adacompute.models.messages import Capabilities, Prompt, Sample, Settings

SHOWN = 300
"""How many characters of an upstream's message are shown."""

CHARACTERS_PER_TOKEN = 4
_ENCODER = json.JSONEncoder(allow_nan=False)
_MOST_TOKENS = 10**12  # more is no count
_LEAST_LOGPROB = -1e6
_MOST_LOGPROB = 1.0  # rounding may lift one a little above 0


class MalformedReply(ValueError):  # noqa: N818 - it says what the reply is
    """A reply that cannot be read; it never leaves the models room."""


def request_body(
    model: str,
    prompt: Prompt,
    settings: Settings,
    capabilities: Capabilities,
    *,
    count: int = 1,
    seed: int | None = None,
) -> dict[str, Any]:
    """Build the JSON object to send; what the server is known to refuse is left out.

    An effort is sent even where the server refuses it: without it the draw would be another level.
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
        # One alternative a token: some servers take 0 for none at all, and their default is 20.
        body |= (
            {"logprobs": 1} if prompt.messages is None else {"logprobs": True, "top_logprobs": 1}
        )
    if seed is not None and capabilities.seed != "rejected":
        body["seed"] = seed
    if count > 1:
        body["n"] = count
    return {**body, **settings.extra}


def encode(body: Mapping[str, Any]) -> bytes:
    """Encode a request."""
    try:
        return _ENCODER.encode(body).encode()
    except (TypeError, ValueError) as error:
        raise ConfigError(f"a request must be plain JSON: {error}") from None


def check_url(base_url: str) -> str:
    """Return a base URL as requests need it, or say what is wrong with it."""
    try:
        parts = urlsplit(base_url)
        usable = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ConfigError(f"a base URL looks like http://host:port/v1, not {base_url!r}")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ConfigError("a base URL holds no credentials, query or fragment: give the key apart")
    return base_url.rstrip("/")


def parse_json(body: bytes | str) -> Any:  # noqa: ANN401 - JSON has no narrower type
    """Decode a body, or say that it is malformed."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise MalformedReply(f"its body is no JSON: {error}") from None


def parse_samples(
    document: object, *, usage_counts: str = "unknown", latency_s: float = 0.0
) -> list[Sample]:
    """Read every choice of a reply, chat or completion, in the order of their indices.

    A choice that cannot be read is left out, and a reply without any is malformed.
    """
    choices = read_choices(document)
    usage = parse_usage(document)
    reported = _count(usage.get("completion_tokens"))
    if reported == 0 and any(choice.characters for choice in choices):
        reported = None  # some gateways fill in zeros
    tokens, estimated = completion_tokens(choices, reported, usage_counts)
    thought = _count(_mapping(usage.get("completion_tokens_details")).get("reasoning_tokens")) or 0
    reasoning = share(min(thought, sum(tokens)), tokens) if thought else [0] * len(tokens)
    cached = _count(_mapping(usage.get("prompt_tokens_details")).get("cached_tokens")) or 0
    return [
        Sample(
            text=choice.text,
            finish_reason=choice.finish,
            prompt_tokens=_count(usage.get("prompt_tokens")) or None,
            cached_tokens=cached,
            completion_tokens=own,
            reasoning_tokens=hidden,
            mean_logprob=choice.logprob,
            is_estimated=estimated,
            latency_s=latency_s,
            samples_per_call=len(choices),
        )
        for choice, own, hidden in zip(choices, tokens, reasoning, strict=True)
    ]


def read_choices(document: object) -> list[Choice]:
    """Read the choices of a reply as they stand, in the order of their indices."""
    return [choice for choice, _ in pair_choices(document)]


def pair_choices(document: object) -> list[tuple[Choice, Mapping[str, Any]]]:
    """Read the choices of a reply, each beside the object it was read from."""
    if not isinstance(document, dict):
        raise MalformedReply(f"its reply is a JSON {type(document).__name__}, no object")
    raw = document.get("choices")
    found = [(_read_choice(given), given) for given in raw] if isinstance(raw, list) else []
    choices = [(choice, given) for choice, given in found if choice is not None]
    if not choices:
        said = _message_of(document)
        raise MalformedReply(f"its reply holds no choices{': ' if said else ''}{said}")
    return sorted(choices, key=lambda pair: pair[0].index)  # stable: all 0 where there are none


def parse_usage(document: object) -> Mapping[str, Any]:
    """Read the bill of a reply or of an event, empty where there is none."""
    return _mapping(_mapping(document).get("usage"))


def read_count(usage: Mapping[str, Any], name: str) -> int | None:
    """Read one count of a bill, None where it is none."""
    return _count(usage.get(name))


@dataclass(frozen=True, slots=True)
class Choice:
    """One choice as it stands in a reply; `tokens` only where its log-probabilities show them."""

    text: str
    finish: str | None = None
    index: int = 0
    characters: int = 0
    tokens: int | None = None
    logprob: float | None = None


def completion_tokens(
    choices: Sequence[Choice], reported: int | None, usage_counts: str
) -> tuple[list[int], bool]:
    """Count the tokens of each choice, and say whether that was estimated.

    `reported` is the bill. It is right for a single choice. For several it is their sum, or, where
    `usage_counts` is "one", the count of the first; log-probabilities, one for each token, settle
    it, unless the bill is higher still: then there were tokens they do not show.
    """
    shown = [choice.tokens or 0 for choice in choices]
    seen = all(shown)
    if reported is None:
        return (shown, False) if seen else ([_estimate(c.characters) for c in choices], True)
    if len(choices) == 1:
        return [max(reported, shown[0])], False
    if seen and (usage_counts == "one" or reported <= sum(shown)):
        return shown, False
    if seen:
        return share(reported, shown), True
    if usage_counts != "one":
        return share(reported, [choice.characters for choice in choices]), True
    first, *rest = (choice.characters for choice in choices)
    others = [-(-reported * own // first) if first else _estimate(own) for own in rest]
    return [reported, *others], True


def share(total: int, weights: Sequence[int]) -> list[int]:
    """Split a total into integers in proportion to weights; they add up to it exactly.

    >>> share(10, [1, 1, 1])
    [4, 3, 3]
    """
    weights = weights if sum(weights) else [1] * len(weights)
    whole = sum(weights)
    parts = [total * weight // whole for weight in weights]
    largest = sorted(range(len(weights)), key=lambda i: -(total * weights[i] % whole))
    for i in largest[: total - sum(parts)]:
        parts[i] += 1
    return parts


def estimate_tokens(text: str) -> int:
    """Guess how many tokens a text has: a quarter of its characters, at least 1.

    >>> estimate_tokens("The answer is 42.")
    5
    """
    return _estimate(len(text))


def read_event(line: bytes) -> Mapping[str, Any] | None:
    """Read one line of a stream: its JSON object, or None for what carries no data."""
    name, _, data = line.partition(b":")
    if name.strip() != b"data" or data.strip() in {b"", b"[DONE]"}:
        return None
    document = parse_json(data)
    if not isinstance(document, dict):
        raise MalformedReply(
            f"an event of its stream is a JSON {type(document).__name__}, no object"
        )
    return document


def read_text(document: Mapping[str, Any]) -> tuple[str, str | None]:
    """Read the text that one event of a stream adds to the first choice, and its finish."""
    raw = document.get("choices")
    choice = _mapping(raw[0]) if isinstance(raw, list) and raw else {}
    text = choice.get("text")
    if not isinstance(text, str):
        delta = _mapping(choice.get("delta"))
        text = _text_of(delta.get("content")) + _reasoning_of(delta)
    finish = choice.get("finish_reason")
    return text, finish if isinstance(finish, str) else None


def read_message(body: bytes) -> str:
    """Read what an upstream says of an error: all of it, for secrets are cut out before length."""
    try:
        document = parse_json(body)
    except MalformedReply:
        return body.decode("utf-8", "replace")
    return _message_of(document)


def read_retry_after(value: str | None, now: datetime) -> float | None:
    """Read a Retry-After header, seconds or a date, as seconds from now; None if it is neither."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            date = email.utils.parsedate_to_datetime(value)
            zoned = date if date.tzinfo else date.replace(tzinfo=UTC)
            seconds = (zoned - now).total_seconds()
        except (ValueError, TypeError, OverflowError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


def one_line(text: str) -> str:
    """Fold white space, and cut what is too long to show."""
    line = " ".join(text.split())
    return line if len(line) <= SHOWN else line[: SHOWN - 1] + "…"


def _message_of(document: object) -> str:
    fields = _mapping(document)
    for name in ("error", "message", "detail"):
        value = fields.get(name)
        said = _mapping(value).get("message", value)
        if said:
            return said if isinstance(said, str) else _dump(said)
    return _dump(document) if document and "choices" not in fields else ""


def _dump(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:
        return "(nested too deeply to show)"


def _read_choice(raw: object) -> Choice | None:
    choice = _mapping(raw)
    message = choice.get("message")
    text = choice.get("text")
    hidden = 0
    if isinstance(message, dict):
        text = _text_of(message.get("content"))
        hidden = len(_reasoning_of(message))
    if not isinstance(text, str):
        return None
    finish = choice.get("finish_reason")
    tokens, logprob = _read_logprobs(choice.get("logprobs"))
    return Choice(
        text=text,
        finish=finish if isinstance(finish, str) else None,
        index=_count(choice.get("index")) or 0,
        characters=len(text) + hidden,
        tokens=tokens,
        logprob=logprob,
    )


def _text_of(content: object) -> str:
    parts = [_mapping(part).get("text") for part in content] if isinstance(content, list) else []
    return "".join(part for part in (content, *parts) if isinstance(part, str))


def _reasoning_of(message: Mapping[str, Any]) -> str:
    for name in ("reasoning_content", "reasoning"):
        if isinstance(message.get(name), str):
            return str(message[name])
    return ""


def _read_logprobs(raw: object) -> tuple[int | None, float | None]:
    """Number of tokens and mean log-probability: a list of objects, or the old parallel lists."""
    fields = _mapping(raw)
    values = fields.get("token_logprobs")
    if not isinstance(values, list):
        content = fields.get("content")
        content = content if isinstance(content, list) else []
        values = [_mapping(token).get("logprob") for token in content]
    given = [
        float(value)
        for value in values
        if type(value) in {int, float} and _LEAST_LOGPROB <= value <= _MOST_LOGPROB
    ]
    return len(values) or None, math.fsum(given) / len(given) if given else None


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _count(value: object) -> int | None:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 <= value <= _MOST_TOKENS else None


def _estimate(characters: int) -> int:
    return max(1, -(-characters // CHARACTERS_PER_TOKEN))
