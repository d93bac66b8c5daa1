"""Call log: the account of every call to the upstream, from its start to its end.

Everything that costs money goes through here: samples, forwarded requests, retries, probes and
scorers. A call whose usage arrived is charged to the token; any other is charged its upper
bound and flagged as estimated. The metrics of calls, tokens and cost are counted here and nowhere
else. A disk that cannot be written loses rows, which are counted and recorded later, and never a
request. It reads no replies and decides nothing.
"""

from __future__ import annotations

import itertools
import json
import logging
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

from adacompute.gateway.accounting.caps import CapReached, Caps
from adacompute.gateway.accounting.metrics import Metrics
from adacompute.gateway.processes.logs import log
from adacompute.models.calls import NO_USAGE
from adacompute.models.model import CallUsage, OnUsage
from adacompute.spending.attempts import MAX_TEXT_CHARS, Attempt, CallBound
from adacompute.spending.call_costs import count_samples, price_usage
from adacompute.spending.caps.counters import Charge
from adacompute.spending.caps.meter import Reservation
from adacompute.spending.token_prices import NANO, TokenPriceList, TokenPrices
from adacompute.storage.calls import LOST, CallFile

Purpose = Literal["vote", "forward", "probe", "scorer"]
"""What a call is for: samples of a decision, or something else."""

WARN_S = 60.0
"""Least time between two warnings that something is lost."""

LOST_S = 1.0
"""Least time between two rows of losses."""


class CallOrigin(NamedTuple):
    """Whose call it is: the request, the virtual model, the purpose."""

    request_id: str
    model: str
    purpose: Purpose


def _quote(text: str) -> str:
    """Write a text as JSON."""
    return f'"{text}"' if text.isascii() and text.isalnum() else json.dumps(text)


_cached_quote = lru_cache(maxsize=1024)(_quote)


def _number(value: float | None) -> str:
    return "null" if value is None else repr(value)


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
        self._warned_at = dict.fromkeys(LOST, -WARN_S)
        self._lost = dict.fromkeys(LOST, 0)
        """What is lost and not yet recorded."""
        self._wrote_lost_at = 0.0

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
        prices = self._prices(origin.model, bound.model)
        number = f"{self._prefix}-{next(self._numbers):x}"
        call = Call(self, number, origin, bound, prices, on_usage)
        call.reservation = await self._reserve(call, bound)
        # Encoded by hand: json.dumps of a row takes as long as the rest of its recording.
        self._write(
            f'{{"call":"{number}","request":{_quote(origin.request_id)},'
            f'"model":{_cached_quote(origin.model)},'
            f'"upstream_model":{_cached_quote(bound.model)},'
            f'"path":{_cached_quote(path[:MAX_TEXT_CHARS])},"purpose":"{origin.purpose}",'
            f'"attempt":{attempt},"started_at":{time.time():.3f},'
            f'"max_prompt_tokens":{bound.prompt_tokens},'
            f'"max_completion_tokens":{bound.completion_tokens},'
            f'"max_cost":{_number(call.max_cost)}}}'
        )
        return call

    async def check(self, origin: CallOrigin, bound: CallBound) -> None:
        """Raise CapReached if a call could not be started now."""
        prices = self._prices(origin.model, bound.model)
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
        if charged.is_contradicted:
            metrics.count("contradicted_usage_total", *labels)
        tokens = {"prompt": charged.prompt_tokens, "completion": charged.completion_tokens}
        for kind, n in tokens.items():
            metrics.count("tokens_total", *labels, kind, by=n)
            if charged.is_estimated:
                metrics.count("estimated_tokens_total", *labels, kind, by=n)
        if charged.cost is not None:
            metrics.count("cost_total", *labels, by=charged.cost)

    def record_loss(self, kind: str, directory: Path, error: str = "") -> None:
        """Count what could not be written, and warn of it at most once per minute."""
        self._lost[kind] += 1
        self._metrics.count(f"lost_{kind}_total")
        if time.monotonic() - self._warned_at[kind] >= WARN_S:
            self._warned_at[kind] = time.monotonic()
            log(
                logging.WARNING,
                f"{kind.replace('_', ' ')} are lost: is the disk full, or the directory read-only?",
                directory=str(directory),
                error=error or None,
            )

    def close(self) -> None:
        """Record what was lost, and close the file."""
        self._write_lost()
        self._file.close()

    def _prices(self, model: str, upstream_model: str) -> TokenPrices | None:
        own = self._price_lists.get(model, {}).get(upstream_model)
        return own or self._price_lists.get("-", {}).get(upstream_model)

    def _write(self, row: str) -> None:
        if not self._file.append_text(row):
            self.record_loss("call_rows", self._file.directory)
        elif any(self._lost.values()) and time.monotonic() - self._wrote_lost_at > LOST_S:
            self._write_lost()

    def _write_lost(self) -> None:
        """Record what was lost, now that there is room for it."""
        row = {"lost": self._lost, "time": time.time()}
        if any(self._lost.values()) and self._file.append(row):
            self._lost = dict.fromkeys(LOST, 0)
            self._wrote_lost_at = time.monotonic()


class Call(Attempt):
    """An attempt of the gateway: reserved in caps, and recorded when it starts and ends."""

    __slots__ = ("_log", "_on_usage", "_prices", "id", "origin", "reservation")

    def __init__(
        self,
        log: CallLog,
        number: str,
        origin: CallOrigin,
        bound: CallBound,
        prices: TokenPrices | None,
        on_usage: OnUsage | None,
    ) -> None:
        super().__init__(bound)
        self.id = number
        self.origin = origin
        self._log = log
        self._prices = prices
        self._on_usage = on_usage
        self.reservation: Reservation | None = None

    @property
    def max_cost(self) -> float | None:
        """The most that the call can cost; None without token prices."""
        return None if self._prices is None else self._cost(self.bound.charge(None))

    def _settle(self, charged: CallUsage) -> None:
        """Replace what was reserved by what is charged, and record the end."""
        if charged is NO_USAGE:
            if self.reservation is not None:
                self.reservation.release()
            self._log.record_end(self, charged)
            return
        if self._prices is not None:
            charged = replace(charged, cost=self._cost(charged))
        if self.reservation is not None:
            self.reservation.settle(
                {
                    "samples": count_samples(self.bound, charged),
                    "tokens": charged.prompt_tokens + charged.completion_tokens,
                    "money": round((charged.cost or 0.0) * NANO),
                }
            )
        self._log.record_end(self, charged)
        if self._on_usage is not None:
            self._on_usage(charged)

    def _cost(self, charged: CallUsage) -> float | None:
        if self._prices is None:
            return None
        return (price_usage(self._prices, charged) + self.bound.extra_cost) / NANO


@dataclass(frozen=True)
class CallRecorder:
    """A tracker that records every attempt for one origin.

    ``on_usage`` receives what each attempt is charged, unless the server refused it.
    ``scorer`` is the name of the scorer that is called, which completes nothing. ``bound`` is what
    an attempt can use at most; by default it is read from the body. ``on_start`` receives it.
    """

    log: CallLog
    origin: CallOrigin
    on_usage: OnUsage | None = None
    scorer: str | None = None
    bound: CallBound | None = None
    on_start: Callable[[CallBound], None] | None = None

    async def start(self, path: str, payload: bytes, attempt: int) -> Call:
        """Record the start of an attempt; CapReached if it may not be made."""
        path, bound = _without_prefix(path), self.bound
        if self.scorer is not None:
            bound = CallBound(self.scorer, len(payload), 0)
        elif bound is None:
            bound = CallBound.read(path, payload)
        if self.on_start is not None and self.scorer is None:
            self.on_start(bound)
        return await self.log.start(self.origin, path, bound, attempt, self.on_usage)

    async def check(self, path: str, payload: bytes) -> None:
        """Raise CapReached if an attempt could not be made now."""
        bound = self.bound or CallBound.read(_without_prefix(path), payload)
        await self.log.check(self.origin, bound)

    def for_scorer(self, url: str) -> CallRecorder:
        """Return a recorder of calls to a scorer."""
        origin = self.origin._replace(purpose="scorer")
        return replace(self, origin=origin, scorer=url, on_usage=None)
