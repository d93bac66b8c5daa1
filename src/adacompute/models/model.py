"""Model: the protocol of everything that can be sampled, and the usage that it reports.

A model has one method. It yields samples as they arrive and reports what every call used, calls
that were cancelled or failed included. The gateway's request, an OpenAI client and a plain
asynchronous function all fit behind it. It knows nothing of budgets, answers or votes.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from adacompute.models.messages import Sample

UNBOUNDED_TOKENS = 4096
"""Completion tokens assumed for a sample that was cut off and had no limit."""

_COUNTED = ("prompt_tokens", "completion_tokens", "total_tokens")
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

    ``is_estimated`` is True where the server did not report all of them, or where
    ``is_contradicted``: where it reported none of a prompt, or of a text that came. Then the tokens
    are an estimate, ``reported_tokens`` are the completion tokens that it did report, and
    ``text_bytes`` are those of the text, of which each token has one at least. ``n_samples`` is the
    number of choices that came, None if that is not known. ``cost`` is in money, None without token
    prices.
    """

    tokens: Mapping[str, Any] = field(default_factory=dict)
    is_estimated: bool = False
    cost: float | None = None
    n_samples: int | None = None
    is_contradicted: bool = False
    reported_tokens: int = 0
    text_bytes: int = 0

    @classmethod
    def of(
        cls,
        usage: Mapping[str, Any],
        *,
        completion_tokens: int | None = None,
        is_counted: bool = True,
        n_samples: int | None = None,
        text_bytes: int = 0,
        prompt_bytes: int = 0,
    ) -> CallUsage:
        """Usage of a call from what ``parse_usage`` found in its reply.

        ``completion_tokens`` is a better count than the server's, if there is one, and
        ``is_counted`` says whether it counts all choices. A server that reports no tokens of a
        text, or none of its prompt, is not believed in any count.

        >>> CallUsage.of({"prompt_tokens": 5, "completion_tokens": 0}, text_bytes=9).is_contradicted
        True
        """
        prompt, reported = usage.get("prompt_tokens"), usage.get("completion_tokens")
        is_contradicted = prompt == 0 or (reported == 0 and text_bytes > 0)
        completion = reported if completion_tokens is None else completion_tokens
        is_known = is_counted and prompt is not None and completion is not None
        tokens = {
            **usage,
            "prompt_tokens": max(prompt or 0, prompt_bytes * (is_contradicted or prompt is None)),
            "completion_tokens": completion or 0,
        }
        if is_known and not is_contradicted:
            return cls(tokens, n_samples=n_samples)
        return cls(
            tokens,
            is_estimated=True,
            n_samples=n_samples,
            is_contradicted=is_contradicted,
            reported_tokens=reported or 0,
            text_bytes=text_bytes,
        )

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


def parse_usage(document: object) -> dict[str, Any]:
    """Return the ``usage`` of a reply of any API in the names of /v1/chat/completions.

    Each count is the largest of its spellings, because some proxies write both and leave one 0.
    What the total has beyond the prompt is completion.

    >>> usage = {"prompt_tokens": 20, "completion_tokens": 9, "input_tokens": 0, "output_tokens": 0}
    >>> parse_usage({"usage": usage})
    {'prompt_tokens': 20, 'completion_tokens': 9}
    """
    tokens = found = merge_usage(document.get("usage") if isinstance(document, dict) else None)
    other = {CHAT_USAGE_NAMES[name]: found.pop(name) for name in CHAT_USAGE_NAMES if name in found}
    if other and "cache_read_input_tokens" in found:  # /v1/messages does not count them as input
        cached = found["cache_read_input_tokens"]
        written = found.get("cache_creation_input_tokens", 0)
        other["prompt_tokens"] = other.get("prompt_tokens", 0) + cached + written
        other["prompt_tokens_details"] = {"cached_tokens": cached}
    if other:
        tokens = merge_usage(found, other)
    if "total_tokens" in tokens and "prompt_tokens" in tokens:  # embeddings complete nothing
        rest = max(0, tokens["total_tokens"] - tokens["prompt_tokens"])
        tokens["completion_tokens"] = max(rest, tokens.get("completion_tokens", 0))
    for name in _COUNTED:
        if type(tokens.get(name)) is float:
            tokens[name] = math.ceil(tokens[name])
    return tokens


def merge_usage(*usages: object) -> dict[str, Any]:
    """Merge usage objects of one reply, by the largest of each count: counts only grow.

    What is no count, and no object of counts, is left out.

    >>> merge_usage({"output_tokens": 9, "x": -1}, {"output_tokens": 0}, None)
    {'output_tokens': 9}
    """
    merged: dict[str, Any] = {}
    for usage in usages:
        for name, value in usage.items() if isinstance(usage, dict) else ():
            known = merged.get(name)
            if value.__class__ is dict and not name.endswith("_tokens"):
                counts = {part: count for part, count in value.items() if _is_count(count)}
                merged[name] = merge_usage(known, counts) if known else counts
            elif _is_count(value) and known.__class__ is not dict:
                merged[name] = value if known is None else max(value, known)
    return merged


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
