"""Attempts: what every HTTP request that may cost money goes through, whoever sends it.

An attempt is reserved at its maximum; it is open from before its first byte is sent; it ends
settled, by what came back, or lost, at its maximum; and what it cost is stored. A request that was
refused or never sent costs nothing. The upper bound of an attempt and what it is charged are
defined here and nowhere else. Where amounts are held and stored is the business of the account that
an attempt belongs to: that of a directory (``account``), of a gateway, or of a caller in Python.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import NamedTuple

from adacompute.models.calls import NO_USAGE
from adacompute.models.formats.body import read_members
from adacompute.models.model import UNBOUNDED_TOKENS, CallUsage, OnUsage

MAX_TEXT_CHARS = 200
"""Length to which names that a client chooses are shortened."""

_MAX_COUNT = 10**9
_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
_COUNTS = ("n", "best_of")
_MEMBERS = ("model", *_LIMITS, *_COUNTS, "prompt")
_NO_COMPLETION = frozenset({"embeddings", "moderations"})


class CallBound(NamedTuple):
    """The model that is called, and upper bounds of what one attempt can use.

    ``extra_cost`` is what it costs besides its tokens at most, in billionths: hosted tools.
    """

    model: str
    prompt_tokens: int
    completion_tokens: int
    n_samples: int = 0
    is_limited: bool = True
    extra_cost: int = 0

    @classmethod
    def of(cls, model: str, *, n: int, max_tokens: int | None, body_bytes: int) -> CallBound:
        """Return the bound of a request for ``n`` samples.

        A token of the prompt is at least one byte of the body. Without a limit, a completion is
        taken to have at most ``UNBOUNDED_TOKENS``, and ``is_limited`` is False.

        >>> CallBound.of("m", n=3, max_tokens=20, body_bytes=40).completion_tokens
        60
        """
        limit = UNBOUNDED_TOKENS if max_tokens is None else max_tokens
        return cls(model, body_bytes, n * limit, n, max_tokens is not None)

    @classmethod
    def read(cls, path: str, body: bytes) -> CallBound:
        """Read the bound of a request from its body; ``path`` is without /v1/ and query.

        >>> CallBound.read("chat/completions", b'{"model": "m", "max_tokens": 20, "n": 3}')[1:4]
        (40, 60, 3)
        """
        found = read_members(body, _MEMBERS)
        limit, n = -1, 1
        for name, value in found.items():
            if name in _LIMITS:
                limit = max(limit, _count(value))
            elif name in _COUNTS:
                n = max(n, _count(value))
        if "prompt" in found:
            n *= _count_prompts(found["prompt"])
        model = _text(found.get("model", b'"-"'))
        if path in _NO_COMPLETION:
            return cls(model, len(body), 0)
        return cls.of(model, n=n, max_tokens=None if limit < 0 else limit, body_bytes=len(body))

    def charge(self, usage: CallUsage | None) -> CallUsage:
        """Return the usage that an attempt is charged: what the server reports, if it is believed.

        Where the usage is not known or estimated, it is the bound, whatever text came: hidden
        reasoning is not in the text. It is never below what the server reported. A request without
        a limit has no bound, only an assumption, so it is also never below the bytes of the text.
        """
        if usage is NO_USAGE:
            return usage
        usage = CallUsage(is_estimated=True) if usage is None else usage
        if not usage.is_estimated:
            return usage
        prompt = max(self.prompt_tokens, usage.prompt_tokens)
        completion = max(self.completion_tokens, usage.reported_tokens)
        if not self.is_limited:
            completion = max(completion, usage.completion_tokens, usage.text_bytes)
        tokens = {"prompt_tokens": prompt, "completion_tokens": completion}
        return replace(usage, tokens=tokens)


class Attempt:
    """One attempt, open until it ends; only its first end counts."""

    __slots__ = ("bound", "has_ended")

    def __init__(self, bound: CallBound) -> None:
        self.bound = bound
        self.has_ended = False

    def end(self, usage: CallUsage | None) -> None:
        """Settle by what came back, None if that is not known, NO_USAGE if it cost nothing."""
        if not self.has_ended:
            self.has_ended = True
            self._settle(self.bound.charge(usage))

    def _settle(self, charged: CallUsage) -> None:
        """Replace what was reserved by what is charged."""
        raise NotImplementedError


class ReportedAttempt(Attempt):
    """An attempt whose account is kept by whoever called: it only reports what it is charged."""

    __slots__ = ("_on_usage",)

    def __init__(self, bound: CallBound, on_usage: OnUsage) -> None:
        super().__init__(bound)
        self._on_usage = on_usage

    def _settle(self, charged: CallUsage) -> None:
        if charged is not NO_USAGE:
            self._on_usage(charged)


class UsageTracker:
    """A tracker that passes on what every attempt is charged; the bound is by default read."""

    def __init__(self, on_usage: OnUsage, bound: CallBound | None = None) -> None:
        self._bound = bound
        self._on_usage = on_usage

    async def start(self, path: str, payload: bytes, attempt: int) -> Attempt:
        """Start an attempt."""
        del attempt
        return ReportedAttempt(self._bound or CallBound.read(path, payload), self._on_usage)


def _count(value: bytes) -> int:
    """Return a count, −1 if it is none."""
    try:
        number = float(value)
    except ValueError:
        return -1
    return int(number) if 0 <= number <= _MAX_COUNT else -1


def _count_prompts(value: bytes) -> int:
    """Number of prompts in a list of them, at most; a list of tokens is one prompt."""
    inner = value[1:].lstrip()
    if not value.startswith(b"[") or not inner.startswith((b'"', b"[")):
        return 1
    return 1 + value.count(b",")


def _text(value: bytes) -> str:
    text = json.loads(value) if b"\\" in value else value.decode("utf-8", "replace").strip('"')
    return str(text)[:MAX_TEXT_CHARS]
