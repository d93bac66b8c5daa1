"""Call log: the account of every call to the upstream, from its start to its end.

Everything that costs money goes through here: samples, forwarded requests, audits, retries, probes
and scorers. A call whose usage arrived is charged to the token; any other is charged its upper
bound and flagged as estimated. The metrics of calls, tokens and cost are counted here and nowhere
else. A disk that cannot be written loses rows, which are counted, and never a request. It reads no
replies and decides nothing.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from adacompute.gateway.body import read_members
from adacompute.gateway.caps import CapReached, Caps
from adacompute.gateway.logs import LOG
from adacompute.gateway.metrics import Metrics
from adacompute.models.calls import NO_USAGE
from adacompute.models.model import UNBOUNDED_TOKENS, CallUsage, OnUsage
from adacompute.spending.counters import Charge
from adacompute.spending.meter import Reservation
from adacompute.spending.token_prices import NANO, TokenPriceList, TokenPrices, Usage
from adacompute.storage.calls import CallFile

Purpose = Literal["vote", "audit", "forward", "probe", "scorer"]
"""What a call is for: samples of a decision, of an audit, or something else."""

WARN_S = 60.0
"""Least time between two warnings that rows are lost."""

MAX_TEXT_CHARS = 200
"""Length to which names that a client chooses are shortened."""

_MAX_COUNT = 10**9
_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
_COUNTS = ("n", "best_of")
_MEMBERS = ("model", *_LIMITS, *_COUNTS, "prompt")
_NO_COMPLETION = frozenset({"embeddings", "moderations"})


class CallOrigin(NamedTuple):
    """Whose call it is: the request, the name of the client, the virtual model, the purpose."""

    request_id: str
    client: str
    model: str
    purpose: Purpose


class CallBound(NamedTuple):
    """The model that a body asks for, and upper bounds of what it can use."""

    upstream_model: str
    prompt_tokens: int
    completion_tokens: int
    n_samples: int = 0

    @classmethod
    def of(cls, path: str, body: bytes) -> CallBound:
        """Read the bound from the body of a request.

        A token of the prompt is at least one byte. Without a limit, a completion is taken to have
        at most ``UNBOUNDED_TOKENS``.

        >>> CallBound.of("chat/completions", b'{"model": "m", "max_tokens": 20, "n": 3}')
        CallBound(upstream_model='m', prompt_tokens=40, completion_tokens=60, n_samples=3)
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
        limit = UNBOUNDED_TOKENS if limit < 0 else limit
        n = 0 if path in _NO_COMPLETION else n
        return cls(_text(found.get("model", b'"-"')), len(body), n * limit, n)


def _text(value: bytes) -> str:
    text = json.loads(value) if b"\\" in value else value.decode("utf-8", "replace").strip('"')
    return str(text)[:MAX_TEXT_CHARS]


def _quote(text: str) -> str:
    """Write a text as JSON."""
    return f'"{text}"' if text.isascii() and text.isalnum() else json.dumps(text)


_cached_quote = lru_cache(maxsize=1024)(_quote)


def _number(value: float | None) -> str:
    return "null" if value is None else repr(value)


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


def _without_prefix(path: str) -> str:
    """Return a path without its query and version."""
    return path.partition("?")[0].removeprefix("/v1/").removeprefix("v1/")


class CallLog:
    """The account of one process.

    ``price_lists`` has the token prices of each virtual model; those of "-" are for all others.
    With ``caps``, a call that does not fit under one of them is not started.
    """

    def __init__(
        self,
        file: CallFile,
        metrics: Metrics,
        price_lists: Mapping[str, TokenPriceList] | None = None,
    ) -> None:
        self.caps: Caps | None = None
        self._file = file
        self._metrics = metrics
        self._price_lists = price_lists or {}
        self._prefix = f"{time.time_ns():x}-{os.getpid():x}"
        self._numbers = itertools.count()
        self._warned_at = -WARN_S

    async def start(
        self,
        origin: CallOrigin,
        path: str,
        bound: CallBound,
        attempt: int = 1,
        on_usage: OnUsage | None = None,
    ) -> Call:
        """Record that a call starts; ``on_usage`` receives what it is charged, unless refused.

        Its largest charge is reserved first; CapReached if it does not fit under a cap.
        """
        prices = self._prices(origin.model, bound.upstream_model)
        number = f"{self._prefix}-{next(self._numbers):x}"
        call = Call(self, number, origin, bound, prices, on_usage)
        call.reservation = await self._reserve(call, bound)
        # Encoded by hand: json.dumps of a row takes as long as the rest of its recording.
        self._write(
            f'{{"call":"{number}","request":{_quote(origin.request_id[:MAX_TEXT_CHARS])},'
            f'"client":{_cached_quote(origin.client)},"model":{_cached_quote(origin.model)},'
            f'"upstream_model":{_cached_quote(bound.upstream_model)},'
            f'"path":{_cached_quote(path[:MAX_TEXT_CHARS])},"purpose":"{origin.purpose}",'
            f'"attempt":{attempt},"started_at":{time.time():.3f},'
            f'"max_prompt_tokens":{bound.prompt_tokens},'
            f'"max_completion_tokens":{bound.completion_tokens},'
            f'"max_cost":{_number(call.max_cost)}}}'
        )
        return call

    async def check(self, origin: CallOrigin, bound: CallBound) -> None:
        """Raise CapReached if a call could not be started now."""
        prices = self._prices(origin.model, bound.upstream_model)
        reservation = await self._reserve(Call(self, "", origin, bound, prices, None), bound)
        if reservation is not None:
            reservation.release()

    async def _reserve(self, call: Call, bound: CallBound) -> Reservation | None:
        """Reserve the largest charge of a call; its money is not known without token prices."""
        if self.caps is None:
            return None
        n_tokens, max_cost = bound.prompt_tokens + bound.completion_tokens, call.max_cost
        worst: Charge = {"samples": bound.n_samples, "tokens": n_tokens}
        if max_cost is not None:
            worst = {**worst, "money": math.ceil(max_cost * NANO)}
        try:
            return await self.caps.reserve(call.origin, worst)
        except CapReached as refusal:
            counter = refusal.counter
            self._metrics.count("cap_refusals_total", "?" if counter is None else counter.cap)
            raise

    def record_end(self, call: Call, charged: CallUsage) -> None:
        """Record that a call ended, and count what it is charged."""
        self._write(
            f'{{"call":"{call.id}","ended_at":{time.time():.3f},'
            f'"prompt_tokens":{charged.prompt_tokens},'
            f'"completion_tokens":{charged.completion_tokens},'
            f'"cached_tokens":{charged.cached_tokens},'
            f'"reasoning_tokens":{charged.reasoning_tokens},'
            f'"is_estimated":{"true" if charged.is_estimated else "false"},'
            f'"cost":{_number(charged.cost)}}}'
        )
        metrics, labels = self._metrics, (call.origin.model, call.origin.purpose)
        metrics.count("calls_total", *labels)
        if charged is NO_USAGE:
            return
        tokens = {"prompt": charged.prompt_tokens, "completion": charged.completion_tokens}
        for kind, n in tokens.items():
            metrics.count("tokens_total", *labels, kind, by=n)
            if charged.is_estimated:
                metrics.count("estimated_tokens_total", *labels, kind, by=n)
        if charged.cost is not None:
            metrics.count("cost_total", *labels, by=charged.cost)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _prices(self, model: str, upstream_model: str) -> TokenPrices | None:
        own = self._price_lists.get(model, {}).get(upstream_model)
        return own or self._price_lists.get("-", {}).get(upstream_model)

    def _write(self, row: str) -> None:
        if self._file.append_text(row):
            return
        self._metrics.count("lost_call_rows_total")
        if time.monotonic() - self._warned_at >= WARN_S:
            self._warned_at = time.monotonic()
            LOG.warning(
                "calls cannot be recorded in %s: is the disk full, or the directory read-only?",
                self._file.directory,
            )


class Call:
    """A call in progress."""

    __slots__ = (
        "_bound",
        "_has_ended",
        "_log",
        "_on_usage",
        "_prices",
        "id",
        "origin",
        "reservation",
    )

    def __init__(
        self,
        log: CallLog,
        number: str,
        origin: CallOrigin,
        bound: CallBound,
        prices: TokenPrices | None,
        on_usage: OnUsage | None,
    ) -> None:
        self.id = number
        self.origin = origin
        self._log = log
        self._bound = bound
        self._prices = prices
        self._on_usage = on_usage
        self._has_ended = False
        self.reservation: Reservation | None = None

    @property
    def max_cost(self) -> float | None:
        """The most that the call can cost; None without token prices."""
        return self._max_cost(self._bound.prompt_tokens, self._bound.completion_tokens)

    def end(self, usage: CallUsage | None) -> None:
        """Record the end, unless it was before; ``usage`` is None if it is not known."""
        if self._has_ended:
            return
        self._has_ended = True
        charged = self._charge(usage)
        if self.reservation is not None:
            self._settle(self.reservation, charged)
        self._log.record_end(self, charged)
        if self._on_usage is not None and charged is not NO_USAGE:
            self._on_usage(charged)

    def _settle(self, reservation: Reservation, charged: CallUsage) -> None:
        """Replace what was reserved by what is charged."""
        if charged is NO_USAGE:
            reservation.release()
            return
        reservation.settle(
            {
                "samples": self._bound.n_samples,
                "tokens": charged.prompt_tokens + charged.completion_tokens,
                "money": round((charged.cost or 0.0) * NANO),
            }
        )

    def _charge(self, usage: CallUsage | None) -> CallUsage:
        if usage is NO_USAGE:
            return usage
        if usage is not None and not usage.is_estimated:
            return replace(usage, cost=self._exact_cost(usage))
        prompt, completion = self._bound.prompt_tokens, self._bound.completion_tokens
        if usage is not None:  # an estimate may be above the bound of a call without a limit
            prompt = max(prompt, usage.prompt_tokens)
            completion = max(completion, usage.completion_tokens)
        tokens = {"prompt_tokens": prompt, "completion_tokens": completion}
        return CallUsage(tokens, is_estimated=True, cost=self._max_cost(prompt, completion))

    def _exact_cost(self, usage: CallUsage) -> float | None:
        if self._prices is None:
            return None
        counts = (usage.prompt_tokens, usage.completion_tokens)
        return self._prices.cost(Usage(*counts, usage.cached_tokens, usage.reasoning_tokens)) / NANO

    def _max_cost(self, prompt: int, completion: int) -> float | None:
        if self._prices is None:
            return None
        return self._prices.max_cost(prompt_bytes=prompt, n_samples=1, max_tokens=completion) / NANO


@dataclass(frozen=True)
class CallRecorder:
    """A tracker that records every attempt for one origin.

    ``on_usage`` receives what each attempt is charged, unless the server refused it.
    ``scorer`` is the name of the scorer that is called, which completes nothing.
    """

    log: CallLog
    origin: CallOrigin
    on_usage: OnUsage | None = None
    scorer: str | None = None

    async def start(self, path: str, payload: bytes, attempt: int) -> Call:
        """Record the start of an attempt; CapReached if it may not be made."""
        path = _without_prefix(path)
        bound = CallBound.of(path, payload)
        if self.scorer is not None:
            bound = CallBound(self.scorer, len(payload), 0)
        return await self.log.start(self.origin, path, bound, attempt, self.on_usage)

    async def check(self, path: str, payload: bytes) -> None:
        """Raise CapReached if an attempt could not be made now."""
        await self.log.check(self.origin, CallBound.of(_without_prefix(path), payload))

    def for_purpose(self, purpose: Purpose, **changes: Any) -> CallRecorder:  # noqa: ANN401
        """Return a recorder of calls with another purpose."""
        return replace(self, origin=self.origin._replace(purpose=purpose), **changes)
