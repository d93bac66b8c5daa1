"""Probe: find out what an upstream really does, by asking it.

Servers that speak the same format differ in what they do with n, seeds, limits, usage and lost
connections, and their documentation is no help to whoever pays. A few dozen small requests tell.
Whatever cannot be told is "unknown", which every user of the capabilities takes for the worst. It
does not know what the server runs on, and what it found holds for a while: see `findings`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from adacompute.core.errors import ModelError, RequestRejected
from adacompute.models.capabilities_cache import describe, load_cached, save_cached
from adacompute.models.messages import Capabilities, Reply
from adacompute.models.openai import Upstream
from adacompute.models.openai_format import (
    Choice,
    MalformedReply,
    parse_usage,
    read_choices,
    read_text,
)

__all__ = ["MOST_CHOICES", "describe", "load_cached", "probe", "save_cached"]

MOST_CHOICES = 64
"""The largest number of choices that is tried in one call."""

_COUNT = "Count from 1 to 50, with commas."
_VARIED = "Write one short sentence about anything you like."
_SUM = "What is 17 + 25? Answer with the number only."
_LONG = "Write a very long story about a voyage at sea, with many chapters."

_FEW = 16  # tokens: the least that no server is known to refuse
_LINE = 12  # tokens: enough for two samples to differ
_SHORT = 8
_THOUGHT = 256
_STORY = 512
_ONE_TOKEN = 12  # characters: a single token is rarely longer
_STORIES = 3
_TIMES = 3
_NOISE_S = 0.02
_NOISE = 0.3  # of a time
_DENIED = frozenset({401, 403})
_NOWHERE = frozenset({404, 405})


async def probe(upstream: Upstream) -> Capabilities:
    """Ask a server, one request after the other, what it does.

    What it says is not believed, only what it does. A server that takes no request at all raises
    its refusal. It costs about thirty requests of a few tokens, and a few stories that are cut off.
    """
    asker = _Asker(upstream)
    found: dict[str, Any] = await asker.endpoints()
    found |= await asker.limits()
    asker.max_tokens_field = Capabilities(**found).max_tokens_field
    if found[asker.max_tokens_field] == "rejected":
        asker.max_tokens_field = None
    found |= await asker.choices()
    several = found["n"] in {"native", "limited"}
    found |= await asker.logprobs()
    found |= await asker.usage(several=several, logprobs=found["logprobs"] == "returned")
    found |= await asker.seeds(several=several)
    found |= await asker.stream_usage()
    found |= await asker.effort()
    found |= await asker.cancel()
    return Capabilities(**found)


class _Asker:
    """One probe under way: where it asks, and under which name it bounds its answers."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self.path = "chat/completions"
        self.max_tokens_field: str | None = "max_tokens"

    def body(self, text: str, tokens: int, **fields: Any) -> dict[str, Any]:  # noqa: ANN401
        chat = self.path == "chat/completions"
        said = {"messages": [{"role": "user", "content": text}]} if chat else {"prompt": text}
        limit = {} if self.max_tokens_field is None else {self.max_tokens_field: tokens}
        return {"model": self._upstream.model, **said, "temperature": 1.0, **limit, **fields}

    async def ask(self, text: str, tokens: int, **fields: Any) -> Reply | None:  # noqa: ANN401
        """Send one request; None where it failed for reasons of its own."""
        try:
            return await self._upstream.post(self.path, self.body(text, tokens, **fields))
        except ModelError:
            return None

    async def texts(self, text: str, tokens: int, **fields: Any) -> list[str] | None:  # noqa: ANN401
        """The texts of a reply; None where there is none."""
        reply = await self.ask(text, tokens, **fields)
        return None if reply is None or reply.refused else [c.text for c in _choices(reply)]

    @asynccontextmanager
    async def stream(
        self,
        text: str,
        tokens: int,
        **fields: Any,  # noqa: ANN401
    ) -> AsyncIterator[AsyncIterator[Mapping[str, Any]]]:
        body = self.body(text, tokens, stream=True, **fields)
        async with self._upstream.stream(self.path, body) as events:
            yield events

    async def endpoints(self) -> dict[str, Any]:
        """Which of the two endpoints answer; later questions go to chat where it does."""
        found = {"completions": "unavailable", "chat": "unavailable"}
        failure: ModelError | None = None
        for name, path in (("completions", "completions"), ("chat", "chat/completions")):
            try:
                said = await self._endpoint(path)
            except RequestRejected:
                raise
            except ModelError as error:
                failure, found[name] = error, "unknown"
            else:
                found[name] = "unavailable" if said else "available"
                failure = RequestRejected(f"{self._upstream.base_url} {said}") if said else failure
        if failure is not None and "available" not in found.values():
            raise failure
        return found

    async def _endpoint(self, path: str) -> str:
        """Settle on an endpoint that answers, under some name of the limit, or say why not."""
        before = self.path, self.max_tokens_field
        said = ""
        for limit in ("max_tokens", "max_completion_tokens", None):
            self.path, self.max_tokens_field = path, limit
            reply = await self._upstream.post(path, self.body(_SUM, _FEW))
            if _choices(reply):
                return ""
            said = reply.message or "answered without any choice"
            if reply.status in _DENIED:
                raise RequestRejected(f"{self._upstream.base_url} {said}")
            if reply.status in _NOWHERE:
                break
        self.path, self.max_tokens_field = before
        return said

    async def limits(self) -> dict[str, Any]:
        """What each name of the limit does: a limit of 1 must give one token."""
        found = {}
        for name in ("max_tokens", "max_completion_tokens"):
            self.max_tokens_field = name
            found[name] = await self._limit()
        return found

    async def _limit(self) -> str:
        text, finish = "", None
        try:
            async with self.stream(_COUNT, 1) as events:
                async for event in events:
                    more, ends = read_text(event)
                    text, finish = text + more, ends or finish
                    if len(text) > _ONE_TOKEN:
                        break  # it may go on for long
        except RequestRejected:
            return await self._limit_without_stream()
        except ModelError:
            return "unknown"
        if finish is None and not text:
            return await self._limit_without_stream()
        return "honoured" if finish == "length" and len(text) <= _ONE_TOKEN else "ignored"

    async def _limit_without_stream(self) -> str:
        reply = await self.ask(_COUNT, 1)
        if reply is None:
            return "unknown"
        if reply.refused:
            return "rejected"
        cut = [c for c in _choices(reply) if c.finish == "length" and len(c.text) <= _ONE_TOKEN]
        return "honoured" if cut else "ignored"

    async def choices(self) -> dict[str, Any]:
        """How many choices one call brings, and whether several at temperature 0 are refused."""
        reply = await self.ask(_COUNT, 1, n=2)
        if reply is None:
            return {"n": "unknown"}
        if reply.refused:
            return {"n": "rejected"}
        if len(_choices(reply)) <= 1:
            return {"n": "ignored"}
        zero = await self.ask(_COUNT, 1, n=2, temperature=0.0)
        at_zero = "unknown" if zero is None else "rejected" if zero.refused else "accepted"
        limit = await self._most_choices()
        kind = "native" if limit is None else "limited"
        return {"n": kind, "max_n": limit, "n_at_temperature_0": at_zero}

    async def _most_choices(self) -> int | None:
        low, high = 2, MOST_CHOICES + 1
        tried = MOST_CHOICES
        while high - low > 1:
            reply = await self.ask(_COUNT, 1, n=tried)
            given = 0 if reply is None or reply.refused else len(_choices(reply))
            if given >= tried == MOST_CHOICES:
                return None
            low, high = (tried, high) if given >= tried else (max(low, given), tried)
            tried = (low + high) // 2
        return low

    async def logprobs(self) -> dict[str, Any]:
        """Whether tokens come with log-probabilities."""
        chat = self.path == "chat/completions"
        asked: dict[str, Any] = {"logprobs": True, "top_logprobs": 1} if chat else {"logprobs": 1}
        reply = await self.ask(_COUNT, 2, **asked)
        if reply is None:
            return {"logprobs": "unknown"}
        if reply.refused:
            return {"logprobs": "rejected"}
        seen = any(choice.logprob is not None for choice in _choices(reply))
        return {"logprobs": "returned" if seen else "missing"}

    async def usage(self, *, several: bool, logprobs: bool) -> dict[str, Any]:
        """What the bill counts: the tokens of all choices, or of one of them."""
        asked: dict[str, Any] = {"n": 2} if several else {}
        if logprobs:
            asked |= {"logprobs": True} if self.path == "chat/completions" else {"logprobs": 1}
        reply = await self.ask(_COUNT, 4, **asked)
        choices = [] if reply is None else _choices(reply)
        if not choices or reply is None:
            return {"usage": "unknown"}
        billed = parse_usage(reply.document).get("completion_tokens")
        if not isinstance(billed, int) or billed <= 0:
            return {"usage": "missing"}
        if len(choices) == 1:
            return {"usage": "unknown" if several else "all"}
        sizes = [c.tokens or (4 if c.finish == "length" else None) for c in choices]
        known = [size for size in sizes if size is not None]
        if len(known) < len(sizes):
            alone = await self.ask(_COUNT, 4)
            one = 0 if alone is None else parse_usage(alone.document).get("completion_tokens", 0)
            known = [one] * len(sizes)
        half = sum(known) * (1 + 1 / len(known)) / 2  # between the bill of one and of all
        return {"usage": "all" if billed > half else "one"}

    async def seeds(self, *, several: bool) -> dict[str, Any]:
        """Whether a seed repeats a draw, and whether several choices of one seed are copies."""
        warm = await self.ask(_VARIED, _LINE, seed=1)  # a cached prompt may change the rounding
        if warm is None or warm.refused:
            return {} if warm is None else {"seed": "rejected"}
        first, again, *others = [
            await self.texts(_VARIED, _LINE, seed=seed) for seed in (1, 1, 2, 3)
        ]
        found = {}
        if first and again and first != again:
            found["seed"] = "ignored"
        elif first and again and any(other and other != first for other in others):
            found["seed"] = "reproducible"
        if several:
            found["seed_with_n"] = await self._together()
        return found

    async def _together(self) -> str:
        for seed in (1, 2):  # twice: short answers may be equal by chance
            texts = await self.texts(_VARIED, _LINE, seed=seed, n=2)
            if not texts or len(texts) == 1:
                return "unknown"
            if len(set(texts)) > 1:
                return "distinct"
        return "identical"

    async def stream_usage(self) -> dict[str, Any]:
        """Whether a stream ends with its bill when asked to."""
        try:
            async with self.stream(_COUNT, 2, stream_options={"include_usage": True}) as events:
                billed = [event async for event in events if parse_usage(event)]
        except RequestRejected:
            return {"stream_usage": "rejected"}
        except ModelError:
            return {"stream_usage": "unknown"}
        return {"stream_usage": "returned" if billed else "missing"}

    async def effort(self) -> dict[str, Any]:
        """Whether the effort of reasoning can be set, and whether that changes anything."""
        if self.path != "chat/completions":
            return {}
        fields: dict[str, Any] = {"temperature": 0.0}
        low = await self._effort("low", fields)
        if low == "rejected":  # perhaps only for the temperature: reasoning models have their own
            fields = {"temperature": 1.0}
            low = await self._effort("low", fields)
        high = await self._effort("high", fields)
        if "rejected" in {low, high}:
            return {"reasoning_effort": "rejected"}
        if isinstance(low, str) or isinstance(high, str):
            return {}
        if high == low:
            # Cut off while still thinking, both look the same whatever they would have become.
            return {"reasoning_effort": "ignored" if low[0] else "unknown"}
        again = await self._effort("low", fields)
        if again == low:
            return {"reasoning_effort": "effective"}
        noisy = isinstance(again, str) or high[1] <= 1.5 * max(low[1], again[1])
        return {"reasoning_effort": "unknown" if noisy else "effective"}

    async def _effort(self, effort: str, fields: dict[str, Any]) -> tuple[str, int] | str:
        """Text and number of tokens, or what went wrong."""
        reply = await self.ask(_SUM, _THOUGHT, reasoning_effort=effort, **fields)
        if reply is None or reply.refused:
            return "unknown" if reply is None else "rejected"
        choices = _choices(reply)
        billed = parse_usage(reply.document).get("completion_tokens")
        size = billed if isinstance(billed, int) else sum(len(choice.text) for choice in choices)
        return "".join(choice.text for choice in choices), size

    async def cancel(self) -> dict[str, Any]:
        """Whether closing the connection stops the work, as far as others can feel it.

        A short request is timed while the server rests, while it tells stories, and after hanging
        up on stories. If they slow it down, the third time tells which of the two it is like. It
        must tell the same twice: times on a busy machine are easily misread.
        """
        try:
            told = {await self._hang_up(), await self._hang_up()}
        except ModelError:
            return {}
        return {"cancel": told.pop()} if len(told) == 1 else {}

    async def _hang_up(self) -> str:
        rest_s = await self._timed(longest_s=60.0)
        bound_s = max(4 * rest_s, rest_s + 0.25)
        async with self.stories() as told:
            busy_s = await self._timed(longest_s=bound_s)
            if any(story.done() for story in told):
                return "unknown"  # too short, or no streams at all
        async with self.stories():
            pass
        await asyncio.sleep(min(0.2, rest_s))
        after_s = await self._timed(longest_s=bound_s)
        if busy_s - rest_s < max(_NOISE_S, _NOISE * rest_s):
            return "unknown"
        likeness = (after_s - rest_s) / (busy_s - rest_s)
        if likeness < 1 / 3:
            return "stops"
        return "continues" if likeness > 2 / 3 else "unknown"

    @asynccontextmanager
    async def stories(self) -> AsyncIterator[list[asyncio.Task[None]]]:
        """Long streams under way, the first of which has begun; leaving hangs up."""
        begun = asyncio.Event()

        async def tell() -> None:
            async with self.stream(_LONG, _STORY) as events:
                async for _ in events:
                    begun.set()

        told = [asyncio.create_task(tell()) for _ in range(_STORIES)]
        heard = asyncio.create_task(begun.wait())
        try:
            await asyncio.wait({*told, heard}, return_when=asyncio.FIRST_COMPLETED)
            yield told
        finally:
            for task in (*told, heard):
                task.cancel()
            await asyncio.gather(*told, heard, return_exceptions=True)

    async def _timed(self, *, longest_s: float) -> float:
        """How long a short request takes: the shortest of a few, or `longest_s` if that is less.

        The shortest, because what disturbs a time makes it longer: other work, a cold cache.
        """
        taken: list[float] = []
        while len(taken) < _TIMES and taken[-2:] != [longest_s, longest_s]:
            start = time.perf_counter()
            try:
                async with asyncio.timeout(longest_s):
                    await self._upstream.post(self.path, self.body(_COUNT, _SHORT))
            except TimeoutError:
                taken.append(longest_s)
            else:
                taken.append(time.perf_counter() - start)
        return min(taken)


def _choices(reply: Reply) -> list[Choice]:
    try:
        return [] if reply.refused else read_choices(reply.document)
    except MalformedReply:
        return []
