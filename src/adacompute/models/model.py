"""Model: the protocol of everything that can be sampled, and the usage that it reports.

A model has one method. It yields samples as they arrive and reports what every call used, calls
that were cancelled or failed included. The gateway's request, an OpenAI client and a plain
asynchronous function all fit behind it. It knows nothing of budgets, answers or votes.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from adacompute.models.messages import Sample

UNBOUNDED_TOKENS = 4096
"""Completion tokens assumed for a sample that was cut off and had no limit."""

_TOKEN_COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")
_MAX_TOKENS = 10**12  # a larger number is not a count
CHAT_USAGE_NAMES = {
    "input_tokens": "prompt_tokens",
    "output_tokens": "completion_tokens",
    "input_tokens_details": "prompt_tokens_details",
    "output_tokens_details": "completion_tokens_details",
}
"""Members of the usage of /v1/responses, and their names in that of /v1/chat/completions."""


@dataclass(frozen=True)
class CallUsage:
    """Tokens of one call, in the fields of OpenAI's ``usage`` object.

    ``is_estimated`` is True where the server did not report all of them. Then they are an upper
    bound, or missing where nothing is known. ``cost`` is in money, None without token prices.
    """

    tokens: Mapping[str, Any] = field(default_factory=dict)
    is_estimated: bool = False
    cost: float | None = None

    @classmethod
    def reported(cls, usage: Mapping[str, Any]) -> CallUsage | None:
        """Usage as a server reports it, in the names of any of its APIs; None if it is incomplete.

        >>> CallUsage.reported({"input_tokens": 5, "output_tokens": 2}).completion_tokens
        2
        """
        tokens = _chat_usage(usage)
        if "total_tokens" in tokens and "prompt_tokens" in tokens:  # embeddings complete nothing
            rest = max(0, tokens["total_tokens"] - tokens["prompt_tokens"])
            tokens.setdefault("completion_tokens", rest)
        is_complete = "prompt_tokens" in tokens and "completion_tokens" in tokens
        return cls(tokens) if is_complete else None

    @classmethod
    def of(
        cls,
        usage: Mapping[str, Any],
        samples: Iterable[Sample],
        *,
        prompt_bytes: int,
        counts_all: bool = False,
    ) -> CallUsage:
        """Usage of a call that returned samples; a token of the prompt is at least one byte.

        ``counts_all`` says that the server's usage is known to count all samples of a call.
        """
        known, samples = _chat_usage(usage), list(samples)
        completion = sum(sample.completion_tokens or 0 for sample in samples)
        is_reported = counts_all and known.get("completion_tokens") == completion
        is_counted = is_reported or not any(one.is_estimated for one in samples)
        estimated = "prompt_tokens" not in known or not is_counted
        tokens = {"prompt_tokens": prompt_bytes, **known, "completion_tokens": completion}
        return cls(tokens, is_estimated=estimated)

    @classmethod
    def bound(cls, n: int, *, max_tokens: int | None, prompt_bytes: int) -> CallUsage:
        """Upper bound of the usage of a call for ``n`` samples that was cut off."""
        limit = UNBOUNDED_TOKENS if max_tokens is None else max_tokens
        tokens = {"prompt_tokens": prompt_bytes, "completion_tokens": n * limit}
        return cls(tokens, is_estimated=True)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return int(self.tokens.get("prompt_tokens") or 0)

    @property
    def completion_tokens(self) -> int:
        """Tokens of all completions of the call."""
        return int(self.tokens.get("completion_tokens") or 0)

    @property
    def cached_tokens(self) -> int:
        """Tokens of the prompt that the server had cached."""
        return self._detail("prompt_tokens_details", "cached_tokens")

    @property
    def reasoning_tokens(self) -> int:
        """Tokens of the completions that are reasoning."""
        return self._detail("completion_tokens_details", "reasoning_tokens")

    def _detail(self, name: str, part: str) -> int:
        details = self.tokens.get(name)
        return int(details.get(part) or 0) if isinstance(details, Mapping) else 0


OnUsage = Callable[[CallUsage], None]
"""Receives the usage of each call when it is known."""


class Model(Protocol):
    """Something that can be sampled."""

    def sample(
        self, prompt: str, n: int, *, arm: str | None = None, on_usage: OnUsage
    ) -> AsyncGenerator[Sample, None]:
        """Yield ``n`` samples as they arrive; closing the generator cancels the rest.

        ``prompt`` is the text of the question: a model that needs a template applies its own.
        ``arm`` names another model to sample instead of the usual one. ``on_usage`` is called once
        for every call that was made, whatever became of it, before the generator ends. Samples of
        one call come one after another and say in ``samples_per_call`` how many they are. There
        may be more of them than were asked for; all are yielded, because all are paid for. When a
        call fails, the samples of the others are yielded first, and then its error is raised as a
        ``ModelError``.
        """
        ...


def _chat_usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Return a usage object of any API in the names of /v1/chat/completions."""
    known = clean_usage(usage)
    if not known.keys() & CHAT_USAGE_NAMES.keys():
        return known
    tokens = {CHAT_USAGE_NAMES.get(name, name): value for name, value in known.items()}
    if "cache_read_input_tokens" in tokens:  # /v1/messages does not count them as input
        cached = tokens["cache_read_input_tokens"]
        written = tokens.get("cache_creation_input_tokens", 0)
        tokens["prompt_tokens"] = tokens.get("prompt_tokens", 0) + cached + written
        tokens["prompt_tokens_details"] = {"cached_tokens": cached}
    return tokens


def clean_usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Keep the parts of a usage object that can be added: numbers, and details that are numbers."""
    details = {
        name: {part: count for part, count in value.items() if _is_count(count)}
        for name, value in usage.items()
        if isinstance(value, Mapping) and name not in _TOKEN_COUNTS
    }
    return {name: value for name, value in usage.items() if _is_count(value)} | details


def _is_count(value: object) -> bool:
    return type(value) in {int, float} and 0 <= value <= _MAX_TOKENS  # type: ignore[operator]


def sum_usage(calls: Sequence[CallUsage]) -> dict[str, Any]:
    """Add the usage of several calls, with the number of calls.

    >>> sum_usage([CallUsage({"prompt_tokens": 5, "completion_tokens": 2})] * 2)["total_tokens"]
    14
    """
    total: dict[str, Any] = {"prompt_tokens": 0, "completion_tokens": 0}
    for call in calls:
        for name, value in call.tokens.items():
            if isinstance(value, Mapping) and isinstance(total.setdefault(name, {}), dict):
                _add(total[name], value)
        _add(total, call.tokens)
    total["total_tokens"] = total["prompt_tokens"] + total["completion_tokens"]
    total["num_calls"] = len(calls)
    return total


def _add(total: dict[str, Any], usage: Mapping[str, Any]) -> None:
    for name, value in usage.items():
        if type(value) in {int, float} and type(total.get(name, 0)) in {int, float}:
            total[name] = total.get(name, 0) + value
