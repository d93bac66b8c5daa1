"""Model: the protocol of everything that can be sampled.

A model has one method. It yields samples as they arrive and reports what every call used, calls
that were cancelled or failed included. The gateway's request, an OpenAI-compatible client and a
plain asynchronous function all fit behind it. It knows nothing of budgets, answers or votes.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from adacompute.models.messages import Sample


@dataclass(frozen=True)
class CallUsage:
    """Tokens of one call, in the fields of OpenAI's ``usage`` object.

    ``is_estimated`` is True where the server did not report them: then they are an upper bound, or
    missing where nothing bounds them.
    """

    tokens: Mapping[str, Any] = field(default_factory=dict)
    is_estimated: bool = False

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return int(self.tokens.get("prompt_tokens") or 0)

    @property
    def completion_tokens(self) -> int:
        """Tokens of all completions of the call."""
        return int(self.tokens.get("completion_tokens") or 0)


OnUsage = Callable[[CallUsage], None]
"""Receives the usage of each call when it is known."""


class Model(Protocol):
    """Something that can be sampled."""

    def sample(
        self, prompt: str, n: int, *, arm: str | None = None, on_usage: OnUsage
    ) -> AsyncGenerator[Sample, None]:
        """Yield up to ``n`` samples as they arrive; closing the iterator cancels the rest.

        ``prompt`` is the text of the question: a model that needs a template applies its own.
        ``arm`` names another model to sample instead of the usual one. ``on_usage`` is called once
        for every call that was made, before the iterator ends, whatever became of the call. Samples
        of one call come one after another and say in ``samples_per_call`` how many they are. There
        may be more of them than were asked for; all of them are yielded, because all are paid for.
        When a call fails, the samples of the others are yielded first, and then its error is
        raised as a ``ModelError``.
        """
        ...
