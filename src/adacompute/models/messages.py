"""Messages: the data that goes to a model and comes back, and what its server supports.

A *prompt* and *settings* are sent; *samples* come back, each with its own token count, however the
server reports usage. *Capabilities* hold what a probe found out about a server. Their defaults
assume nothing: one sample per call. These are frozen dataclasses: nothing here opens a connection
or knows a price.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self, get_args, get_type_hints

from adacompute.core.errors import ConfigError, DataError
from adacompute.core.signals import is_given, is_value
from adacompute.models.logprobs import answer_logprob

UpstreamKind = Literal["openai", "vllm", "llama.cpp", "ollama", "generic"]
"""Kinds of servers that differ in the fields they take; a generic one may be of any kind."""

_FIRST_ERROR = 300  # redirects count as errors: they are not followed


@dataclass(frozen=True)
class Prompt:
    """Input of a model: either chat messages or the text to complete.

    >>> Prompt(text="7 + 6 =").path
    'completions'
    """

    messages: tuple[Mapping[str, Any], ...] | None = None
    text: str | None = None

    def __post_init__(self) -> None:
        if (self.messages is None) == (self.text is None):
            raise ConfigError("a prompt must be either messages or text, not both or neither")
        if self.messages is not None and not self.messages:
            raise ConfigError("a prompt of messages must have at least one message")

    @property
    def path(self) -> str:
        """Path of the endpoint for this kind of prompt, relative to the base URL."""
        return "completions" if self.messages is None else "chat/completions"


@dataclass(frozen=True)
class Settings:
    """Sampling parameters; `extra` holds further request fields, which override the others."""

    temperature: float = 0.7
    top_p: float | None = None
    max_tokens: int | None = 1024
    stop: tuple[str, ...] = ()
    effort: str | None = None
    logprobs: bool = True
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise ConfigError(f"temperature must be 0 or more, not {self.temperature}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p must lie in (0, 1], not {self.top_p}")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ConfigError(f"max_tokens must be 1 or more, not {self.max_tokens}")
        if "stream" in self.extra:
            raise ConfigError("extra must not set stream: samples are read when complete")

    def canonical(self) -> str:
        """Canonical JSON of these settings, for use as a key.

        Unset fields are left out, so that a field added later does not change existing keys.

        >>> Settings(temperature=1, max_tokens=None).canonical()
        '{"logprobs":true,"temperature":1.0}'
        """
        fields: dict[str, Any] = {
            "temperature": float(self.temperature),
            "top_p": None if self.top_p is None else float(self.top_p),
            "max_tokens": self.max_tokens,
            "stop": list(self.stop) or None,
            "effort": self.effort,
            "logprobs": self.logprobs,
            "extra": dict(self.extra) or None,
        }
        is_set = {name: value for name, value in fields.items() if value is not None}
        try:
            return json.dumps(is_set, sort_keys=True, separators=(",", ":"), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"settings must be plain JSON: {error}") from None


@dataclass(frozen=True, slots=True)
class Sample:
    """One response of a model, with its tokens.

    `prompt_tokens` and `cached_tokens` belong to the whole call, which returned `samples_per_call`
    samples; they are None and 0 if the server did not report them. `completion_tokens` are this
    sample's own and include its `reasoning_tokens`; `is_estimated` says that they were not
    reported. `mean_logprob` is the mean log-probability of the tokens, and `min_logprob_window` the
    lowest mean over 16 consecutive ones. `entropy` is the mean of their entropies, from 0 to 1,
    estimated from the `top_logprobs` likeliest tokens in each place. `token_logprobs` holds the
    tokens of the text in packed form, for `answer_logprob`. `signals` are what you know beside the
    reply: a `score`, and numbers named `signal_…`. `latency_s` is the duration of the successful
    attempt, without queueing and earlier attempts.
    """

    text: str
    mean_logprob: float | None = None
    completion_tokens: int | None = None
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    is_estimated: bool = False
    latency_s: float = 0.0
    samples_per_call: int = 1
    entropy: float | None = None
    top_logprobs: int | None = None
    min_logprob_window: float | None = None
    token_logprobs: bytes | None = field(default=None, repr=False)
    signals: Mapping[str, float] = field(default_factory=dict, hash=False)
    raw: Any = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        for name, value in self.signals.items():
            if not is_given(name) or not is_value(value):
                raise DataError(
                    f"a sample has the signal {name!r} = {value!r:.80}: give finite numbers, named "
                    "'score' or 'signal_' and up to 40 letters, digits and underscores"
                )

    @property
    def ran_out_of_tokens(self) -> bool:
        """Whether hidden reasoning used up the token limit, so that there is no text."""
        return self.finish_reason == "length" and not self.text.strip()

    def answer_logprob(self, answer: str | None) -> float | None:
        """Return the mean log-probability of the tokens that spell an answer in the text.

        The answer is as a grader extracts it; its last occurrence counts. None if it is None, if
        the text does not contain it, or if the server did not report the tokens of the text.
        """
        return answer_logprob(self.text, answer, self.token_logprobs)


@dataclass(frozen=True)
class Reply:
    """Reply to one request: a JSON document, or a rejection that a retry would not change.

    ``samples`` are parsed from the document if the request asked for any.
    """

    status: int
    document: Any
    message: str = ""
    latency_s: float = 0.0
    samples: tuple[Sample, ...] = ()

    @property
    def is_rejected(self) -> bool:
        """Whether the server rejected the request."""
        return self.status >= _FIRST_ERROR


@dataclass(frozen=True)
class Capabilities:
    """How a server treats optional features; "unknown" before a probe.

    `max_n` is the largest number of choices per call, None if no limit was found. `usage` says
    whether the reported tokens count all choices of a call or one. `cancel` says whether closing
    the connection stops the generation.
    """

    kind: UpstreamKind = "generic"
    chat: Literal["available", "unavailable", "unknown"] = "unknown"
    completions: Literal["available", "unavailable", "unknown"] = "unknown"
    n: Literal["native", "limited", "ignored", "rejected", "unknown"] = "unknown"
    max_n: int | None = None
    n_at_temperature_0: Literal["accepted", "rejected", "unknown"] = "unknown"
    seed: Literal["reproducible", "ignored", "rejected", "unknown"] = "unknown"
    seed_with_n: Literal["distinct", "identical", "unknown"] = "unknown"
    logprobs: Literal["returned", "missing", "rejected", "unknown"] = "unknown"
    usage: Literal["all", "one", "missing", "unknown"] = "unknown"
    stream_usage: Literal["returned", "missing", "rejected", "unknown"] = "unknown"
    cancel: Literal["stops", "continues", "unknown"] = "unknown"
    max_tokens: Literal["honoured", "ignored", "rejected", "unknown"] = "unknown"
    max_completion_tokens: Literal["honoured", "ignored", "rejected", "unknown"] = "unknown"
    reasoning_effort: Literal["effective", "ignored", "rejected", "unknown"] = "unknown"

    @property
    def max_tokens_field(self) -> str:
        """Request field in which this server takes the token limit.

        ``max_tokens`` if both work or neither is known, because more servers support it.
        """
        if self.max_tokens != "honoured" and self.max_completion_tokens == "honoured":
            return "max_completion_tokens"
        is_unusable = self.max_tokens == "rejected" and self.max_completion_tokens != "rejected"
        return "max_completion_tokens" if is_unusable else "max_tokens"

    def choices(self, count: int, *, temperature: float, seeded: bool) -> int:
        """Number of samples to request in one call, of `count` that are needed.

        More than 1 only if the server is known to return different samples. It is 1 for a server
        that may return copies for one seed, or reject several choices at temperature 0.
        """
        if self.n not in {"native", "limited"}:
            return 1
        if temperature == 0 and self.n_at_temperature_0 != "accepted":
            return 1
        if seeded and self.seed != "rejected" and self.seed_with_n != "distinct":
            return 1
        return max(1, count if self.max_n is None else min(count, self.max_n))

    def to_json(self) -> dict[str, Any]:
        """Return the capabilities as a JSON object."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, document: object) -> Self:
        """Parse the result of `to_json`; missing fields are unknown."""
        if not isinstance(document, Mapping):
            raise DataError(f"capabilities must be a JSON object, not {type(document).__name__}")
        types = get_type_hints(cls)
        if unknown := sorted(str(name) for name in document if name not in types):
            raise DataError(f"capabilities have no field {unknown[0]!r}")
        for name, value in document.items():
            if name == "max_n":
                if value is not None and (type(value) is not int or value < 1):
                    raise DataError(f"max_n must be null or 1 or more, not {value!r}")
            elif value not in get_args(types[name]):
                allowed = ", ".join(get_args(types[name]))
                raise DataError(f"{name} must be one of {allowed}, not {value!r}")
        return cls(**document)


def find_kind(document: object) -> UpstreamKind:
    """Return the kind of the server that wrote a completion, by what only it writes.

    >>> find_kind({"choices": [], "timings": {"prompt_n": 1}})
    'llama.cpp'
    """
    found = document if isinstance(document, Mapping) else {}
    if found.get("system_fingerprint") == "fp_ollama":
        return "ollama"
    if "timings" in found:
        return "llama.cpp"
    if "prompt_logprobs" in found or "kv_transfer_params" in found:
        return "vllm"
    return "openai" if "service_tier" in found else "generic"


@dataclass(frozen=True)
class Timeouts:
    """Time limits of one attempt: to connect, to the first byte, and in total.

    `first_byte_s` also limits every later pause within a reply.
    """

    connect_s: float = 10.0
    first_byte_s: float = 120.0
    total_s: float = 600.0

    def __post_init__(self) -> None:
        if not min(self.connect_s, self.first_byte_s, self.total_s) > 0:
            raise ConfigError(f"timeouts must be above 0 seconds, not {self}")


@dataclass(frozen=True)
class RetryPolicy:
    """How many times to attempt a call, and how long to wait between attempts.

    Waits have full jitter: uniform between 0 and `initial_wait_s`, which doubles after each attempt
    up to `max_wait_s`. A longer Retry-After is honoured up to `max_wait_s`; beyond that the call
    fails. The first lost connection is retried without a wait, because servers close idle
    connections at any time.
    """

    max_attempts: int = 6
    initial_wait_s: float = 0.5
    max_wait_s: float = 60.0

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise ConfigError(f"max_attempts must be 1 or more, not {self.max_attempts}")
        if not 0 <= self.initial_wait_s <= self.max_wait_s:
            raise ConfigError(f"waits need 0 <= initial_wait_s <= max_wait_s, not {self}")
