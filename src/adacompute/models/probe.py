"""Probe: find out how a server treats optional features, by sending it small requests.

Servers with the same API differ in what they do with n, seeds, token limits, usage and closed
connections, and their documentation does not say. A few dozen small requests show it. A result that
cannot be determined is "unknown", which every user of the capabilities treats as the worst case.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from adacompute.core.errors import ModelError, RequestRejected
from adacompute.models.formats.openai_format import (
    Choice,
    MalformedReply,
    logprob_fields,
    parse_choices,
)
from adacompute.models.formats.stream_events import parse_delta
from adacompute.models.messages import Capabilities, Reply, UpstreamKind, find_kind
from adacompute.models.model import parse_usage
from adacompute.models.openai import Upstream

MAX_CHOICES = 64
"""Largest number of choices that is tried in one call."""
MAX_CALLS, MAX_PROMPT_TOKENS, MAX_COMPLETION_TOKENS = 64, 12_800, 8_000
"""The most that one probe needs of a server that takes token limits and does not fail."""

_COUNTING_PROMPT = "Count from 1 to 50, with commas."
_VARIED_PROMPT = "Write one short sentence about anything you like."
_SUM_PROMPT = "What is 17 + 25? Answer with the number only."
_STORY_PROMPT = "Write a very long story about a voyage at sea, with many chapters."

_MIN_TOKENS = 16  # the smallest limit that no known server rejects
_LINE_TOKENS = 12  # enough for two samples to differ
_SHORT_TOKENS = 8
_REASONING_TOKENS = 256
_STORY_TOKENS = 512
_ONE_TOKEN_CHARS = 12  # a single token is rarely longer
_N_STORIES, _N_TIMINGS = 3, 3
_NOISE_S, _RELATIVE_NOISE = 0.02, 0.3
_UNAUTHORIZED = frozenset({401, 403})
_NO_ENDPOINT = frozenset({404, 405})


async def probe(upstream: Upstream) -> Capabilities:
    """Send a server one request after the other and return its capabilities.

    Only behaviour counts, not what the server says about itself. If it rejects every request, the
    rejection is raised. The cost is about thirty requests of a few tokens, and a few long streams
    that are cancelled.
    """
    prober = _Prober(upstream)
    found: dict[str, Any] = await prober.endpoints()
    found |= await prober.token_limits()
    prober.limit_field = Capabilities(**found).max_tokens_field
    if found[prober.limit_field] == "rejected":
        prober.limit_field = None
    found |= await prober.choices()
    has_n = found["n"] in {"native", "limited"}
    found |= await prober.logprobs()
    found |= await prober.usage(has_n=has_n, has_logprobs=found["logprobs"] == "returned")
    found |= await prober.seeds(has_n=has_n)
    found |= await prober.stream_usage()
    found |= await prober.reasoning_effort()
    found |= await prober.cancel()
    return Capabilities(**found)


class _Prober:
    """A probe in progress: the endpoint to use, and the field for its token limit."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self.path = "chat/completions"
        self.limit_field: str | None = "max_tokens"
        self.kind: UpstreamKind = "generic"

    @property
    def _is_chat(self) -> bool:
        return self.path == "chat/completions"

    def body(self, prompt: str, tokens: int, **fields: Any) -> dict[str, Any]:  # noqa: ANN401
        """Request body for a prompt with a token limit."""
        messages = [{"role": "user", "content": prompt}]
        question = {"messages": messages} if self._is_chat else {"prompt": prompt}
        limit = {} if self.limit_field is None else {self.limit_field: tokens}
        return {"model": self._upstream.model, **question, "temperature": 1.0, **limit, **fields}

    async def ask(self, prompt: str, tokens: int, **fields: Any) -> Reply | None:  # noqa: ANN401
        """Send one request; None if it failed for other reasons than a rejection."""
        try:
            return await self._upstream.post(self.path, self.body(prompt, tokens, **fields))
        except ModelError:
            return None

    async def texts(self, prompt: str, tokens: int, **fields: Any) -> list[str] | None:  # noqa: ANN401
        """Texts of a reply; None if there is none."""
        reply = await self.ask(prompt, tokens, **fields)
        return None if reply is None or reply.is_rejected else [c.text for c in _choices(reply)]

    @asynccontextmanager
    async def stream(
        self,
        prompt: str,
        tokens: int,
        **fields: Any,  # noqa: ANN401
    ) -> AsyncIterator[AsyncIterator[Mapping[str, Any]]]:
        """Open a stream."""
        body = self.body(prompt, tokens, stream=True, **fields)
        async with self._upstream.stream(self.path, body) as events:
            yield events

    async def endpoints(self) -> dict[str, Any]:
        """Test which endpoints answer; later requests use chat if it does."""
        found = {"completions": "unavailable", "chat": "unavailable"}
        failure: ModelError | None = None
        for name, path in (("completions", "completions"), ("chat", "chat/completions")):
            try:
                problem = await self._try_endpoint(path)
            except RequestRejected:
                raise
            except ModelError as error:
                failure, found[name] = error, "unknown"
            else:
                found[name] = "unavailable" if problem else "available"
                if problem:
                    failure = RequestRejected(f"{self._upstream.base_url} {problem}")
        if failure is not None and "available" not in found.values():
            raise failure
        return {**found, "kind": self.kind}

    async def _try_endpoint(self, path: str) -> str:
        """Use an endpoint and the limit field that it accepts, or return why it cannot be used."""
        before = self.path, self.limit_field
        problem = ""
        for field in ("max_tokens", "max_completion_tokens", None):
            self.path, self.limit_field = path, field
            reply = await self._upstream.post(path, self.body(_SUM_PROMPT, _MIN_TOKENS))
            if _choices(reply):
                self.kind = find_kind(reply.document)
                return ""
            problem = reply.message or "answered without any choice"
            if reply.status in _UNAUTHORIZED:
                raise RequestRejected(f"{self._upstream.base_url} {problem}")
            if reply.status in _NO_ENDPOINT:
                break
        self.path, self.limit_field = before
        return problem

    async def token_limits(self) -> dict[str, Any]:
        """Test both fields for the token limit: a limit of 1 must give one token."""
        found = {}
        for field in ("max_tokens", "max_completion_tokens"):
            self.limit_field = field
            found[field] = await self._token_limit()
        return found

    async def _token_limit(self) -> str:
        text, finish_reason = "", None
        try:
            async with self.stream(_COUNTING_PROMPT, 1) as events:
                async for event in events:
                    delta, reason = parse_delta(event)
                    text, finish_reason = text + delta, reason or finish_reason
                    if len(text) > _ONE_TOKEN_CHARS:
                        break  # it may go on for long
        except RequestRejected:
            return await self._token_limit_without_stream()
        except ModelError:
            return "unknown"
        if finish_reason is None and not text:
            return await self._token_limit_without_stream()
        is_cut = finish_reason == "length" and len(text) <= _ONE_TOKEN_CHARS
        return "honoured" if is_cut else "ignored"

    async def _token_limit_without_stream(self) -> str:
        reply = await self.ask(_COUNTING_PROMPT, 1)
        if reply is None:
            return "unknown"
        if reply.is_rejected:
            return "rejected"
        is_cut = any(
            choice.finish_reason == "length" and len(choice.text) <= _ONE_TOKEN_CHARS
            for choice in _choices(reply)
        )
        return "honoured" if is_cut else "ignored"

    async def choices(self) -> dict[str, Any]:
        """Test how many choices one call returns, also at temperature 0."""
        reply = await self.ask(_COUNTING_PROMPT, 1, n=2)
        if reply is None:
            return {"n": "unknown"}
        if reply.is_rejected:
            return {"n": "rejected"}
        if len(_choices(reply)) <= 1:
            return {"n": "ignored"}
        greedy = await self.ask(_COUNTING_PROMPT, 1, n=2, temperature=0.0)
        at_0 = "unknown" if greedy is None else "rejected" if greedy.is_rejected else "accepted"
        max_n = await self._max_choices()
        support = "native" if max_n is None else "limited"
        return {"n": support, "max_n": max_n, "n_at_temperature_0": at_0}

    async def _max_choices(self) -> int | None:
        """Largest number of choices, by bisection; None if ``MAX_CHOICES`` works."""
        low, high = 2, MAX_CHOICES + 1
        tried = MAX_CHOICES
        while high - low > 1:
            reply = await self.ask(_COUNTING_PROMPT, 1, n=tried)
            returned = 0 if reply is None or reply.is_rejected else len(_choices(reply))
            if returned >= tried == MAX_CHOICES:
                return None
            low, high = (tried, high) if returned >= tried else (max(low, returned), tried)
            tried = (low + high) // 2
        return low

    async def logprobs(self) -> dict[str, Any]:
        """Test whether tokens come with log-probabilities."""
        reply = await self.ask(_COUNTING_PROMPT, 2, **logprob_fields(is_chat=self._is_chat))
        if reply is None:
            return {"logprobs": "unknown"}
        if reply.is_rejected:
            return {"logprobs": "rejected"}
        has_logprobs = any(choice.mean_logprob is not None for choice in _choices(reply))
        return {"logprobs": "returned" if has_logprobs else "missing"}

    async def usage(self, *, has_n: bool, has_logprobs: bool) -> dict[str, Any]:
        """Test whether the usage counts the tokens of all choices or of one."""
        fields: dict[str, Any] = {"n": 2} if has_n else {}
        if has_logprobs:
            fields |= {"logprobs": True} if self._is_chat else {"logprobs": 1}
        reply = await self.ask(_COUNTING_PROMPT, 4, **fields)
        choices = [] if reply is None else _choices(reply)
        if not choices or reply is None:
            return {"usage": "unknown"}
        reported = parse_usage(reply.document).get("completion_tokens")
        if not isinstance(reported, int) or reported <= 0:
            return {"usage": "missing"}
        if len(choices) == 1:
            return {"usage": "unknown" if has_n else "all"}
        sizes = [c.tokens or (4 if c.finish_reason == "length" else None) for c in choices]
        known = [size for size in sizes if size is not None]
        if len(known) < len(sizes):
            single = await self.ask(_COUNTING_PROMPT, 4)
            usage = {} if single is None else parse_usage(single.document)
            known = [usage.get("completion_tokens", 0)] * len(sizes)
        threshold = sum(known) * (1 + 1 / len(known)) / 2  # between one choice and all of them
        return {"usage": "all" if reported > threshold else "one"}

    async def seeds(self, *, has_n: bool) -> dict[str, Any]:
        """Test whether a seed repeats a sample, and whether several choices of one seed differ."""
        # A first request fills the prompt cache, which may change the rounding.
        warm = await self.ask(_VARIED_PROMPT, _LINE_TOKENS, seed=1)
        if warm is None or warm.is_rejected:
            return {} if warm is None else {"seed": "rejected"}
        first, again, *others = [
            await self.texts(_VARIED_PROMPT, _LINE_TOKENS, seed=seed) for seed in (1, 1, 2, 3)
        ]
        found = {}
        if first and again and first != again:
            found["seed"] = "ignored"
        elif first and again and any(other and other != first for other in others):
            found["seed"] = "reproducible"
        if has_n:
            found["seed_with_n"] = await self._seed_with_n()
        return found

    async def _seed_with_n(self) -> str:
        for seed in (1, 2):  # twice: short answers may be equal by chance
            texts = await self.texts(_VARIED_PROMPT, _LINE_TOKENS, seed=seed, n=2)
            if not texts or len(texts) == 1:
                return "unknown"
            if len(set(texts)) > 1:
                return "distinct"
        return "identical"

    async def stream_usage(self) -> dict[str, Any]:
        """Test whether a stream ends with its usage when that is requested."""
        options = {"include_usage": True}
        try:
            async with self.stream(_COUNTING_PROMPT, 2, stream_options=options) as events:
                with_usage = [event async for event in events if parse_usage(event)]
        except RequestRejected:
            return {"stream_usage": "rejected"}
        except ModelError:
            return {"stream_usage": "unknown"}
        return {"stream_usage": "returned" if with_usage else "missing"}

    async def reasoning_effort(self) -> dict[str, Any]:
        """Test whether the reasoning effort is accepted and changes the answer."""
        if not self._is_chat:
            return {}
        fields: dict[str, Any] = {"temperature": 0.0}
        low = await self._answer_with("low", fields)
        if low == "rejected":  # perhaps only the temperature: some reasoning models fix it
            fields = {"temperature": 1.0}
            low = await self._answer_with("low", fields)
        high = await self._answer_with("high", fields)
        if "rejected" in {low, high}:
            return {"reasoning_effort": "rejected"}
        if isinstance(low, str) or isinstance(high, str):
            return {}
        if high == low:
            # Without text both were cut off while reasoning, and could still have differed.
            return {"reasoning_effort": "ignored" if low[0] else "unknown"}
        again = await self._answer_with("low", fields)
        if again == low:
            return {"reasoning_effort": "effective"}
        is_noise = isinstance(again, str) or high[1] <= 1.5 * max(low[1], again[1])
        return {"reasoning_effort": "unknown" if is_noise else "effective"}

    async def _answer_with(self, effort: str, fields: dict[str, Any]) -> tuple[str, int] | str:
        """Return the text and number of tokens, or "rejected" or "unknown"."""
        reply = await self.ask(_SUM_PROMPT, _REASONING_TOKENS, reasoning_effort=effort, **fields)
        if reply is None or reply.is_rejected:
            return "unknown" if reply is None else "rejected"
        text = "".join(choice.text for choice in _choices(reply))
        reported = parse_usage(reply.document).get("completion_tokens")
        return text, reported if isinstance(reported, int) else len(text)

    async def cancel(self) -> dict[str, Any]:
        """Test whether closing a connection stops the generation, by its effect on other requests.

        A short request is timed while the server is idle, while it generates long streams, and
        after such streams were cancelled. If streams slow the request down, the third time shows
        whether they still run. The result must be the same twice, because timings are noisy.
        """
        try:
            first, second = await self._cancel_once(), await self._cancel_once()
        except ModelError:
            return {}
        return {"cancel": first} if first == second else {}

    async def _cancel_once(self) -> str:
        idle_s = await self._time_request(max_s=60.0)
        max_s = max(4 * idle_s, idle_s + 0.25)
        async with self.long_streams() as streams:
            busy_s = await self._time_request(max_s=max_s)
            if any(stream.done() for stream in streams):
                return "unknown"  # too short, or no streams at all
        async with self.long_streams():
            pass
        await asyncio.sleep(min(0.2, idle_s))
        after_s = await self._time_request(max_s=max_s)
        if busy_s - idle_s < max(_NOISE_S, _RELATIVE_NOISE * idle_s):
            return "unknown"
        slowdown = (after_s - idle_s) / (busy_s - idle_s)
        if slowdown < 1 / 3:
            return "stops"
        return "continues" if slowdown > 2 / 3 else "unknown"

    @asynccontextmanager
    async def long_streams(self) -> AsyncIterator[list[asyncio.Task[None]]]:
        """Run long streams, at least one of which has begun; leaving cancels them."""
        has_begun = asyncio.Event()

        async def consume() -> None:
            async with self.stream(_STORY_PROMPT, _STORY_TOKENS) as events:
                async for _ in events:
                    has_begun.set()

        streams = [asyncio.create_task(consume()) for _ in range(_N_STORIES)]
        first_event = asyncio.create_task(has_begun.wait())
        try:
            await asyncio.wait({*streams, first_event}, return_when=asyncio.FIRST_COMPLETED)
            yield streams
        finally:
            for task in (*streams, first_event):
                task.cancel()
            await asyncio.gather(*streams, first_event, return_exceptions=True)

    async def _time_request(self, *, max_s: float) -> float:
        """Duration of a short request: the shortest of a few, at most `max_s`.

        The shortest is used because disturbances only make a request slower.
        """
        durations: list[float] = []
        while len(durations) < _N_TIMINGS and durations[-2:] != [max_s, max_s]:
            start = time.perf_counter()
            try:
                async with asyncio.timeout(max_s):
                    body = self.body(_COUNTING_PROMPT, _SHORT_TOKENS)
                    await self._upstream.post(self.path, body)
            except TimeoutError:
                durations.append(max_s)
            else:
                durations.append(time.perf_counter() - start)
        return min(durations)


def _choices(reply: Reply) -> list[Choice]:
    try:
        return [] if reply.is_rejected else parse_choices(reply.document)
    except MalformedReply:
        return []
