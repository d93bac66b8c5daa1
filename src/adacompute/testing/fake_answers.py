"""Fake answers: what the fake upstream makes of a request, as pure functions of prompt and seed.

Answers read "The answer is 42." and go on in filler words when more tokens are wanted; a token is a
word. The number depends on the prompt and the seed, so samples differ and can be repeated; the
score of a text depends on the text. It knows nothing of sockets, time or faults.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from adacompute.core.errors import ConfigError

FAULTS = {
    "429": "asks to slow down",
    "500": "fails",
    "502": "cannot reach what is behind it",
    "503": "is not available",
    "reset": "resets the connection",
    "half": "sends half of the announced body and closes the connection",
    "garbled": "sends half of the JSON, properly announced",
    "shape": "sends JSON of another shape",
    "type": "sends a page of HTML",
    "stall": "sends nothing at all",
    "hang": "sends half of the body, then nothing",
    "few": "sends half of the choices that were asked for",
}
"""What a call may meet."""

_FILLER = ("so", "we", "add", "both", "and", "take", "one", "half", "of", "it", "then", "look")


@dataclass(frozen=True)
class FakeSettings:
    """How the fake behaves; the defaults are a server that does everything right, at once.

    `n` is "native", "ignored", "refused" or "limit:4". `slots` bounds how many calls are worked on
    at once; a lost connection frees its slot at once only where `cancel` is "honoured". `effort`
    "none" means that there is no such knob, and `refuses` names other fields of a request that are
    refused. `script` names what the first calls meet ("ok" or a fault), `faults` the chances of
    faults after that, drawn in the order of arrival from `seed`.
    """

    latency_s: float = 0.0
    token_s: float = 0.0
    tokens: int = 4
    reasoning: int = 0
    slots: int | None = None
    n: str = "native"
    usage: Literal["all", "one", "none"] = "all"
    stream_usage: bool = True
    seeds: Literal["honoured", "ignored", "identical"] = "honoured"
    logprobs: bool = True
    max_completion_tokens: bool = True
    cancel: Literal["honoured", "ignored"] = "honoured"
    zero_with_n: Literal["accepted", "refused"] = "accepted"
    effort: Literal["none", "accepted", "changes"] = "accepted"
    endpoints: tuple[str, ...] = ("chat/completions", "completions", "score")
    refuses: tuple[str, ...] = ()
    script: tuple[str, ...] = ()
    faults: Mapping[str, float] = field(default_factory=dict)
    retry_after_s: float | None = None
    retry_after_date: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name in (*self.script, *self.faults):
            if name not in FAULTS and name != "ok":
                raise ConfigError(f"there is no fault {name!r}, only {', '.join(FAULTS)}")
        if sum(self.faults.values()) > 1:
            raise ConfigError("the chances of faults add up to more than 1")
        kind, _, bound = self.n.partition(":")
        if kind not in {"native", "ignored", "refused"} and not (
            kind == "limit" and bound.isdigit()
        ):
            raise ConfigError(f"n is native, ignored, refused or limit:K, not {self.n!r}")


@dataclass
class Ask:
    """One request as the fake understands it: `seeds` has one entry for each choice."""

    chat: bool
    prompt: str
    seeds: list[Any]
    natural: int
    reasoning: int
    limit: int | None
    logprobs: bool
    include_usage: bool

    @property
    def tokens(self) -> int:
        """How many tokens each choice has, hidden ones included."""
        whole = self.natural + self.reasoning
        return whole if self.limit is None else min(whole, self.limit)

    @property
    def finish(self) -> str:
        """Why each choice ends."""
        return "length" if self.tokens < self.natural + self.reasoning else "stop"

    def words(self, seed: object) -> list[str]:
        """The visible tokens of the choice with this seed."""
        shown = max(0, self.tokens - self.reasoning)
        number = zlib.crc32(f"{self.prompt}|{seed}".encode())
        words = ["The", " answer", " is", f" {number % 100}."]
        more = range(shown - len(words))
        return [*words, *(" " + _FILLER[(number >> i) % len(_FILLER)] for i in more)][:shown]

    def document(self, usage: str) -> dict[str, Any]:
        """The whole reply."""
        choices = [self._choice(i, self.words(seed)) for i, seed in enumerate(self.seeds)]
        kind = "chat.completion" if self.chat else "text_completion"
        document = {"id": "fake", "object": kind, "model": "fake", "choices": choices}
        return document if usage == "none" else {**document, "usage": self.usage(usage)}

    def events(self, usage: str) -> Iterator[tuple[bool, dict[str, Any]]]:
        """The reply as a stream, choice by choice, and whether an event took a token's time."""
        for i, seed in enumerate(self.seeds):
            for _ in range(min(self.reasoning, self.tokens)):
                yield True, self._chunk(i, "", None)
            for word in self.words(seed):
                yield True, self._chunk(i, word, None)
            yield False, self._chunk(i, "", self.finish)
        if self.include_usage and usage != "none":
            yield False, {"object": "chunk", "choices": [], "usage": self.usage(usage)}

    def usage(self, counts: str) -> dict[str, Any]:
        """The bill, for all choices or for one of them."""
        times = 1 if counts == "one" else len(self.seeds)
        hidden = min(self.reasoning, self.tokens)
        prompt = len(self.prompt.split())
        return {
            "prompt_tokens": prompt,
            "completion_tokens": times * self.tokens,
            "total_tokens": prompt + times * self.tokens,
            "completion_tokens_details": {"reasoning_tokens": times * hidden},
        }

    def _choice(self, index: int, words: list[str]) -> dict[str, Any]:
        text = "".join(words)
        said = {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
        choice: dict[str, Any] = {"index": index, **said, "finish_reason": self.finish}
        if self.logprobs:
            values = [-0.1 * len(word) for word in words]
            if self.chat:
                pairs = zip(words, values, strict=True)
                content = [{"token": word, "logprob": value} for word, value in pairs]
                choice["logprobs"] = {"content": content}
            else:
                choice["logprobs"] = {"tokens": words, "token_logprobs": values}
        return choice

    def _chunk(self, index: int, text: str, finish: str | None) -> dict[str, Any]:
        said = {"delta": {"content": text}} if self.chat else {"text": text}
        choice = {"index": index, **said, "finish_reason": finish}
        return {"object": "chunk", "model": "fake", "choices": [choice]}


@dataclass
class Rating(Ask):
    """A request for a score: one choice of one token, so that it counts as such."""

    def document(self, usage: str) -> dict[str, Any]:
        """The whole reply, which has no bill whatever `usage` is."""
        del usage
        return {"score": score_of(self.prompt)}


def score_of(text: str) -> float:
    """The score that the fake gives a text, from 0 to 1.

    >>> score_of("The answer is 42.")
    0.65
    """
    return zlib.crc32(text.encode()) % 101 / 100


def read_rating(body: Mapping[str, Any]) -> Rating:
    """Understand a request for a score; one without a question and a text is a KeyError."""
    return Rating(
        chat=False,
        prompt=str(body["text"]) if body["question"] else "",
        seeds=[0],
        natural=1,
        reasoning=0,
        limit=None,
        logprobs=False,
        include_usage=False,
    )


def read_ask(
    body: Mapping[str, Any], own: FakeSettings, fresh: Iterator[int], *, chat: bool
) -> Ask:
    """Understand a request as a server with these settings does.

    What such a server refuses is a ValueError; seeds that nobody gave are taken from `fresh`.
    """
    if refused := [name for name in own.refuses if name in body]:
        raise ValueError(f"Unsupported parameter: '{refused[0]}'")
    count = _count(int(body.get("n") or 1), own.n)
    temperature = body.get("temperature", 1.0)
    if temperature == 0 and count > 1 and own.zero_with_n == "refused":
        raise ValueError("n must be 1 when using greedy sampling")
    effort = body.get("reasoning_effort")
    if effort is not None and own.effort == "none":
        raise ValueError("Unknown parameter: 'reasoning_effort'")
    first = None if own.seeds == "ignored" else body.get("seed")
    if temperature == 0:
        seeds: list[Any] = ["greedy"] * count
    elif first is None:
        seeds = [next(fresh) for _ in range(count)]
    else:
        seeds = [first + i * (own.seeds == "honoured") for i in range(count)]
    limit = body.get("max_tokens")
    if limit is None and own.max_completion_tokens:
        limit = body.get("max_completion_tokens")
    return Ask(
        chat=chat,
        prompt=json.dumps(body["messages"]) if chat else str(body["prompt"]),
        seeds=seeds,
        natural=own.tokens * (4 if effort == "high" and own.effort == "changes" else 1),
        reasoning=own.reasoning,
        limit=limit,
        logprobs=bool(body.get("logprobs")) and own.logprobs,
        include_usage=bool((body.get("stream_options") or {}).get("include_usage")),
    )


def _count(asked: int, rule: str) -> int:
    kind, _, bound = rule.partition(":")
    if kind == "ignored":
        return 1
    most = {"refused": 1, "limit": int(bound or 0)}.get(kind, asked)
    if not 1 <= asked <= most:
        raise ValueError(f"Field 'n': Value must be between 1 <= value <= {most}, but got {asked}")
    return asked
