"""Fake answers: the content of the fake upstream's replies, as pure functions of prompt and seed.

An answer reads "The answer is 42.", followed by filler words up to the requested length. One word
is one token. The number depends on the prompt and the seed, so samples differ and are
reproducible. The score of a text depends on the text alone. On request, answers are those that a
small model gave to the questions of the shipped example. This module does no networking and injects
no faults.
"""

from __future__ import annotations

import json
import math
import random
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal

from adacompute.core.errors import ConfigError
from adacompute.datasets.example import find_example
from adacompute.testing.fake_usage import BROKEN_USAGE, MIDDLE, break_usage

FAULTS = {
    "429": "asks to slow down",
    "500": "fails",
    "502": "cannot reach its backend",
    "503": "is not available",
    "reset": "resets the connection",
    "half": "sends half of the announced body and closes the connection",
    "garbled": "sends half of the JSON document with a matching Content-Length",
    "shape": "sends valid JSON that is no completion",
    "type": "sends an HTML page",
    "stall": "sends nothing at all",
    "hang": "sends half of the body, then nothing",
    "few": "sends half of the requested choices",
}
"""Faults that the fake can inject, and what it does in each case."""

_FILLER = ("so", "we", "add", "both", "and", "take", "one", "half", "of", "it", "then", "look")


class UnknownQuestionError(ValueError):
    """A question of which no samples were recorded."""


@dataclass(frozen=True)
class FakeSettings:
    """Behaviour of the fake server. By default it does everything right and without delay.

    `n` is "native", "ignored", "rejected" or "limit:4". At most `max_concurrency` calls are
    processed at a time; a client that disconnects frees its slot immediately only if `cancel` is
    "honoured". `seed_support` "identical" gives all choices of a call the same text.
    `reasoning_effort` "none" rejects that field, and `rejected_fields` names further request fields
    to reject. `fault_script` lists the outcome of the first calls ("ok" or a name in ``FAULTS``);
    after that each call meets a fault with the probabilities of `fault_rates`, drawn from `seed` in
    order of arrival. With `vary_tokens`, the length of an answer is a number up to
    `completion_tokens` that depends on its seed. With the probabilities of `usage_rates`, the usage
    of a call is broken in a way of ``BROKEN_USAGE``. With `record_calls`, /calls lists every call.
    With `recorded`, answers are samples of the shipped example, and other questions get status 404.
    With `lockstep`, the calls of the script are answered in groups of that many, in order of
    arrival, and a smaller group when no other call arrives for `lockstep_s`: a client with that
    many calls at a time has the same calls under way at each fault, in every run.
    """

    latency_s: float = 0.0
    token_latency_s: float = 0.0
    completion_tokens: int = 4
    reasoning_tokens: int = 0
    max_concurrency: int | None = None
    n: str = "native"
    usage: Literal["all", "one", "none"] = "all"
    stream_usage: bool = True
    seed_support: Literal["honoured", "ignored", "identical"] = "honoured"
    logprobs: bool = True
    top_logprobs: int = 20
    max_completion_tokens: bool = True
    cancel: Literal["honoured", "ignored"] = "honoured"
    n_at_temperature_0: Literal["accepted", "rejected"] = "accepted"
    reasoning_effort: Literal["none", "accepted", "changes"] = "accepted"
    endpoints: tuple[str, ...] = (
        "chat/completions",
        "completions",
        "responses",
        "embeddings",
        "score",
    )
    rejected_fields: tuple[str, ...] = ()
    fault_script: tuple[str, ...] = ()
    fault_rates: Mapping[str, float] = field(default_factory=dict)
    usage_rates: Mapping[str, float] = field(default_factory=dict)
    retry_after_s: float | None = None
    retry_after_date: bool = False
    vary_tokens: bool = False
    record_calls: bool = False
    recorded: bool = False
    lockstep: int = 0
    lockstep_s: float = 5.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in (*self.fault_script, *self.fault_rates):
            if name not in FAULTS and name != "ok":
                raise ConfigError(f"there is no fault {name!r}, only {', '.join(FAULTS)}")
        for name in self.usage_rates:
            if name not in BROKEN_USAGE:
                raise ConfigError(f"no usage is broken as {name!r}, only {', '.join(BROKEN_USAGE)}")
        if sum(self.fault_rates.values()) > 1:
            raise ConfigError("fault_rates must add up to at most 1")
        rule, _, bound = self.n.partition(":")
        if rule not in {"native", "ignored", "rejected"} and not (
            rule == "limit" and bound.isdigit()
        ):
            raise ConfigError(f"n must be native, ignored, rejected or limit:K, not {self.n!r}")


@dataclass
class FakeRequest:
    """One parsed request; `seeds` has one entry per choice of the reply.

    `answer_tokens` is the length of an answer without a limit, and `max_tokens` the limit. `texts`
    are the answers of recorded choices.
    """

    chat: bool
    prompt: str
    seeds: list[Any]
    answer_tokens: int
    reasoning_tokens: int
    max_tokens: int | None
    logprobs: bool
    include_usage: bool
    top_logprobs: int = 0
    texts: tuple[str, ...] = ()

    @property
    def tokens(self) -> int:
        """Tokens per choice, including hidden reasoning tokens."""
        unlimited = self.answer_tokens + self.reasoning_tokens
        return unlimited if self.max_tokens is None else min(unlimited, self.max_tokens)

    @property
    def finish_reason(self) -> str:
        """``length`` if the limit cuts the choices off, else ``stop``."""
        return "length" if self.tokens < self.answer_tokens + self.reasoning_tokens else "stop"

    def words(self, seed: object) -> list[str]:
        """Visible tokens of the choice with this seed; a recorded answer is one piece."""
        if self.texts:
            return [self.texts[self.seeds.index(seed)]]
        n_visible = max(0, self.tokens - self.reasoning_tokens)
        number = zlib.crc32(f"{self.prompt}|{seed}".encode())
        words = ["The", " answer", " is", f" {number % 100}."]
        n_filler = range(n_visible - len(words))
        filler = (" " + _FILLER[(number >> i) % len(_FILLER)] for i in n_filler)
        return [*words, *filler][:n_visible]

    def document(self, usage: str) -> dict[str, Any]:
        """The reply as one JSON document."""
        choices = [self._choice(i, self.words(seed)) for i, seed in enumerate(self.seeds)]
        kind = "chat.completion" if self.chat else "text_completion"
        document = {"id": "fake", "object": kind, "model": "fake", "choices": choices}
        return document if usage == "none" else {**document, "usage": self.usage(usage)}

    def events(self, usage: str) -> Iterator[tuple[bool, dict[str, Any]]]:
        """The reply as stream events, choice by choice, each with whether it carries a token."""
        reports_usage = self.include_usage and usage != "none"
        for i, seed in enumerate(self.seeds):
            for _ in range(min(self.reasoning_tokens, self.tokens)):
                yield True, self._chunk(i, "", None)
            for place, word in enumerate(self.words(seed)):
                yield True, self._chunk(i, word, None)
                if reports_usage and usage == MIDDLE and i == place == 0:
                    one = {"prompt_tokens": len(self.prompt.split()), "completion_tokens": 1}
                    yield False, {"object": "chunk", "choices": [], "usage": one}
            yield False, self._chunk(i, "", self.finish_reason)
        if reports_usage and usage != MIDDLE:
            yield False, {"object": "chunk", "choices": [], "usage": self.usage(usage)}

    def encode_event(self, event: Mapping[str, Any]) -> bytes:
        """Write an event of a stream."""
        return b"data: " + json.dumps(event).encode() + b"\n\n"

    @property
    def end(self) -> bytes:
        """What follows the last event of a stream."""
        return b"data: [DONE]\n\n"

    def usage(self, counts: str) -> Any:  # noqa: ANN401 - broken in any way
        """The ``usage`` object, counting all choices or (``counts`` "one") a single one.

        Any other ``counts`` names how it is broken.
        """
        n_counted = 1 if counts == "one" else len(self.seeds)
        hidden = min(self.reasoning_tokens, self.tokens)
        prompt = len(self.prompt.split())
        counted = {
            "prompt_tokens": prompt,
            "completion_tokens": n_counted * self.tokens,
            "total_tokens": prompt + n_counted * self.tokens,
            "completion_tokens_details": {"reasoning_tokens": n_counted * hidden},
        }
        return break_usage(counted, counts)

    def _choice(self, index: int, words: list[str]) -> dict[str, Any]:
        text = "".join(words)
        body = {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
        choice: dict[str, Any] = {"index": index, **body, "finish_reason": self.finish_reason}
        if self.logprobs:
            choice["logprobs"] = describe_logprobs(
                words, chat=self.chat, top_logprobs=self.top_logprobs
            )
        return choice

    def _chunk(self, index: int, text: str, finish_reason: str | None) -> dict[str, Any]:
        body = {"delta": {"content": text}} if self.chat else {"text": text}
        choice = {"index": index, **body, "finish_reason": finish_reason}
        return {"object": "chunk", "model": "fake", "choices": [choice]}


@dataclass
class FakeScoreRequest(FakeRequest):
    """A request to the score endpoint; the statistics count it as one choice of one token."""

    def document(self, usage: str) -> dict[str, Any]:
        """The reply, which never has a ``usage`` object."""
        del usage
        return {"score": fake_score(self.prompt)}


@dataclass
class FakeEmbeddingRequest(FakeRequest):
    """A request to the embeddings endpoint, which completes nothing."""

    @property
    def tokens(self) -> int:
        """No tokens are generated."""
        return 0

    def document(self, usage: str) -> dict[str, Any]:
        """The reply, with an embedding of two numbers."""
        data = [{"object": "embedding", "index": 0, "embedding": [0.5, fake_score(self.prompt)]}]
        document: dict[str, Any] = {"object": "list", "model": "fake", "data": data}
        n_tokens = len(self.prompt.split())
        counted = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
        return document if usage == "none" else {**document, "usage": break_usage(counted, usage)}


def fake_score(text: str) -> float:
    """Score of a text from 0 to 1, a function of its checksum.

    >>> fake_score("The answer is 42.")
    0.65
    """
    return zlib.crc32(text.encode()) % 101 / 100


def parse_score_request(body: Mapping[str, Any]) -> FakeScoreRequest:
    """Parse a request to the score endpoint; KeyError if it lacks a question or a text."""
    return FakeScoreRequest(
        chat=False,
        prompt=str(body["text"]) if body["question"] else "",
        seeds=[0],
        answer_tokens=1,
        reasoning_tokens=0,
        max_tokens=None,
        logprobs=False,
        include_usage=False,
    )


def parse_embedding_request(body: Mapping[str, Any]) -> FakeEmbeddingRequest:
    """Parse a request to the embeddings endpoint; KeyError if it has no input."""
    return FakeEmbeddingRequest(
        chat=False,
        prompt=str(body["input"]),
        seeds=[0],
        answer_tokens=0,
        reasoning_tokens=0,
        max_tokens=None,
        logprobs=False,
        include_usage=False,
    )


def parse_fake_request(
    body: Mapping[str, Any], settings: FakeSettings, new_seeds: Iterator[int], *, chat: bool
) -> FakeRequest:
    """Parse a request as a server with these settings would.

    ValueError if such a server rejects it. Requests without a seed take theirs from `new_seeds`.
    """
    if rejected := [name for name in settings.rejected_fields if name in body]:
        raise ValueError(f"Unsupported parameter: '{rejected[0]}'")
    n = _n_choices(int(body.get("n") or 1), settings.n)
    temperature = body.get("temperature", 1.0)
    if temperature == 0 and n > 1 and settings.n_at_temperature_0 == "rejected":
        raise ValueError("n must be 1 when using greedy sampling")
    effort = body.get("reasoning_effort")
    if effort is not None and settings.reasoning_effort == "none":
        raise ValueError("Unknown parameter: 'reasoning_effort'")
    first = None if settings.seed_support == "ignored" else body.get("seed")
    if temperature == 0:
        seeds: list[Any] = ["greedy"] * n
    elif first is None:
        seeds = [next(new_seeds) for _ in range(n)]
    else:
        seeds = [first + i * (settings.seed_support == "honoured") for i in range(n)]
    max_tokens = body.get("max_tokens")
    if max_tokens is None and settings.max_completion_tokens:
        max_tokens = body.get("max_completion_tokens")
    longer = effort == "high" and settings.reasoning_effort == "changes"
    answer_tokens = settings.completion_tokens * (4 if longer else 1)
    if settings.vary_tokens:
        answer_tokens = 1 + zlib.crc32(f"{seeds[0]}".encode()) % answer_tokens
    found = FakeRequest(
        chat=chat,
        prompt=json.dumps(body["messages"]) if chat else str(body["prompt"]),
        seeds=seeds,
        answer_tokens=answer_tokens,
        reasoning_tokens=settings.reasoning_tokens,
        max_tokens=max_tokens,
        logprobs=bool(body.get("logprobs")) and settings.logprobs,
        include_usage=bool((body.get("stream_options") or {}).get("include_usage")),
        top_logprobs=min(settings.top_logprobs, _n_top_logprobs(body, chat=chat)),
    )
    return _draw_recorded(found, body) if settings.recorded else found


def _draw_recorded(request: FakeRequest, body: Mapping[str, Any]) -> FakeRequest:
    """Answer with recorded samples; each choice has their mean number of tokens."""
    text = str(body["messages"][-1]["content"] if request.chat else body["prompt"])
    question = text.rpartition("Question: ")[2].partition("\nAnswer:")[0].strip()
    if question not in (samples := read_recorded()):
        raise UnknownQuestionError(f"no samples of the question {question!r} were recorded")
    drawn = [random.Random(f"{text}|{seed}").choice(samples[question]) for seed in request.seeds]  # noqa: S311 - no secrets
    tokens = round(sum(n_tokens for _, n_tokens in drawn) / len(drawn))
    texts = tuple(text for text, _ in drawn)
    return replace(request, texts=texts, answer_tokens=tokens, max_tokens=None)


@cache
def read_recorded() -> dict[str, list[tuple[str, int]]]:
    """Return the answers to each question of the shipped example, and their numbers of tokens."""
    import pyarrow.parquet as pq

    found: dict[str, list[tuple[str, int]]] = {}
    columns = ["question", "completion", "completion_tokens"]
    for row in pq.read_table(find_example(), columns=columns).to_pylist():
        found.setdefault(row["question"], []).append((row["completion"], row["completion_tokens"]))
    return found


def describe_logprobs(words: list[str], *, chat: bool, top_logprobs: int) -> dict[str, Any]:
    """Return the log-probabilities of words, a function of their lengths, and the likeliest ones.

    The other words in the place of each have half of the remaining probability between them.
    """
    values = [-0.1 * len(word) for word in words]
    tops: list[dict[str, float]] = []
    for word, value in zip(words, values, strict=True) if top_logprobs else ():
        left = math.log(max(1e-9, 1 - math.exp(value)) / 2 / max(1, top_logprobs - 1))
        tops.append({word: value} | {f"other {i}": left for i in range(top_logprobs - 1)})
    if not chat:
        return {"tokens": words, "token_logprobs": values, "top_logprobs": tops or None}
    content: list[dict[str, Any]] = [
        {"token": word, "logprob": value} for word, value in zip(words, values, strict=True)
    ]
    for token, top in zip(content, tops, strict=False):
        token["top_logprobs"] = [{"token": w, "logprob": value} for w, value in top.items()]
    return {"content": content}


def _n_top_logprobs(body: Mapping[str, Any], *, chat: bool) -> int:
    """Likeliest tokens that a request asks for in each place."""
    return int(body.get("top_logprobs" if chat else "logprobs") or 0)


def _n_choices(requested: int, rule: str) -> int:
    """Choices to reply with under the ``n`` rule of the settings; ValueError above its limit."""
    name, _, bound = rule.partition(":")
    if name == "ignored":
        return 1
    limit = {"rejected": 1, "limit": int(bound or 0)}.get(name, requested)
    if not 1 <= requested <= limit:
        raise ValueError(
            f"Field 'n': Value must be between 1 <= value <= {limit}, but got {requested}"
        )
    return requested
