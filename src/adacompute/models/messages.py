"""Upstream words: what is asked, what comes back, and what a server really does with it.

A *prompt* and *settings* go out, *draws* come back: one draw is one response, counted in tokens of
its own whatever the server's bill looks like. *Capabilities* say what was found out about a server;
their defaults are those of one that nobody has asked yet, so nothing is trusted: one response a
call, no more. Plain frozen data: it opens no connection and knows no price.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self, get_args, get_type_hints

from adacompute.core.errors import ConfigError, DataError

_REFUSED = 300  # redirections too: they are not followed


@dataclass(frozen=True)
class Prompt:
    """What a model is given: chat messages, or the text to complete. Exactly one of them.

    >>> Prompt(text="7 + 6 =").path
    'completions'
    """

    messages: tuple[Mapping[str, Any], ...] | None = None
    text: str | None = None

    def __post_init__(self) -> None:
        if (self.messages is None) == (self.text is None):
            raise ConfigError("a prompt is either messages or text: give exactly one of them")
        if self.messages is not None and not self.messages:
            raise ConfigError("a prompt of messages needs at least one message")

    @property
    def path(self) -> str:
        """The endpoint that takes such a prompt, below the base URL."""
        return "completions" if self.messages is None else "chat/completions"


@dataclass(frozen=True)
class Settings:
    """How a model is to sample; `extra` holds fields of the server's own and is merged last."""

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
            raise ConfigError("extra must not set stream: a draw is read when it is complete")

    def canonical(self) -> str:
        """These settings as JSON that is equal exactly when they are, for keys.

        What is not set is left out, so a setting added to the library later changes no old key.

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
        given = {name: value for name, value in fields.items() if value is not None}
        try:
            return json.dumps(given, sort_keys=True, separators=(",", ":"), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"settings must be plain JSON: {error}") from None


@dataclass(frozen=True, slots=True)
class Sample:
    """One response, with what it cost.

    Prompt and cached tokens are those of its whole call, which `shared` draws paid for together;
    they are None and 0 where the server did not say. Completion tokens are this draw's own and
    include its reasoning tokens. `logprob` is the mean log-probability of its tokens. `estimated`
    says that a count of completion tokens was worked out here, not reported. `latency_s` is the
    time of the attempt that succeeded, waiting in our own queue and earlier attempts left out.
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
    raw: Any = field(default=None, compare=False, repr=False)

    @property
    def failed(self) -> bool:
        """Whether hidden reasoning ate the whole limit: paid for, and nothing to read."""
        return self.finish_reason == "length" and not self.text.strip()


@dataclass(frozen=True)
class Reply:
    """What one request brought: a document, or the refusal that asking again cannot mend.

    ``draws`` are read from it where draws were asked for.
    """

    status: int
    document: Any
    message: str = ""
    latency_s: float = 0.0
    draws: tuple[Sample, ...] = ()

    @property
    def refused(self) -> bool:
        """Whether the server will not take this request."""
        return self.status >= _REFUSED


@dataclass(frozen=True)
class Capabilities:
    """What an upstream really does; the defaults say that nobody has asked it yet.

    `max_n` is the largest number of choices it gave in one call, None where no limit was met.
    """

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
        """The name under which this server takes a limit of tokens.

        The old name wins where both work or neither is known: more servers know it.
        """
        if self.max_tokens != "honoured" and self.max_completion_tokens == "honoured":
            return "max_completion_tokens"
        unusable = self.max_tokens == "rejected" and self.max_completion_tokens != "rejected"
        return "max_completion_tokens" if unusable else "max_tokens"

    def choices(self, count: int, *, temperature: float, seeded: bool) -> int:
        """How many draws one call may ask for, of `count` that are wanted.

        More than one only where that is known to give draws that differ: a server that may answer
        one seed with copies, or refuse several choices at temperature 0, is asked for one.
        """
        if self.n not in {"native", "limited"}:
            return 1
        if temperature == 0 and self.n_at_temperature_0 != "accepted":
            return 1
        if seeded and self.seed != "rejected" and self.seed_with_n != "distinct":
            return 1
        return max(1, count if self.max_n is None else min(count, self.max_n))

    def to_json(self) -> dict[str, Any]:
        """These capabilities as a JSON object."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, document: object) -> Self:
        """Read what `to_json` gave; fields it does not have stay unknown."""
        if not isinstance(document, Mapping):
            raise DataError(f"capabilities must be a JSON object, not {type(document).__name__}")
        types = get_type_hints(cls)
        if strange := sorted(str(name) for name in document if name not in types):
            raise DataError(f"capabilities have no field {strange[0]!r}")
        for name, value in document.items():
            if name == "max_n":
                if value is not None and (type(value) is not int or value < 1):
                    raise DataError(f"max_n must be null or 1 or more, not {value!r}")
            elif value not in get_args(types[name]):
                allowed = ", ".join(get_args(types[name]))
                raise DataError(f"{name} must be one of {allowed}, not {value!r}")
        return cls(**document)


@dataclass(frozen=True)
class Timeouts:
    """How long one attempt may take: to connect, to its first byte, and in all.

    A server that has begun to answer may be silent for as long as it may take to begin.
    """

    connect_s: float = 10.0
    first_byte_s: float = 120.0
    total_s: float = 600.0

    def __post_init__(self) -> None:
        if not min(self.connect_s, self.first_byte_s, self.total_s) > 0:
            raise ConfigError(f"time-outs must be above 0 seconds, not {self}")


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
