"""Modes: whom a collection asks, how, how often, and what that costs at most.

A mode is one operating level. Models and scorers are what they do, not what they are: tests bring
their own. It draws nothing itself.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Protocol

from adacompute.models.messages import Prompt, Sample, Settings
from adacompute.models.templates import Template
from adacompute.spending.token_prices import TokenPrices

WRAPPING = 32
"""Tokens that a server's own form adds to a message, as a rule fewer."""

SEEDS = 2**31
"""Seeds that every server takes."""

MOST_TOKENS = 32_768
"""Length of a completion where no limit is set, for the worst case."""


class Model(Protocol):
    """What draws: one call, as many samples as it returns."""

    async def call(
        self, prompt: Prompt, settings: Settings, *, count: int = 1, seed: int | None = None
    ) -> list[Sample]:
        """Draw up to ``count`` samples in one call."""


def prompt_size(prompt: Prompt) -> int:
    """Bytes of a prompt, and what a server may wrap a message in: no model makes more tokens."""
    if prompt.text is not None:
        return len(prompt.text.encode())
    return sum(
        len(str(message["content"]).encode()) + WRAPPING for message in prompt.messages or ()
    )


class Scorer(Protocol):
    """What says how good a text answers a question."""

    async def score(self, question: str, text: str) -> float:
        """Score a text as an answer to a question."""


@dataclass(frozen=True, eq=False)
class CollectionLevel:
    """One operating level: a model, how it is asked, how often, and what it costs."""

    level: str
    model_name: str
    model: Model
    template: Template
    settings: Settings
    tariff: TokenPrices
    draws: int
    at_once: int = 1
    seed: int | None = 0
    scorer: Scorer | None = None
    score_price: int = 0

    def seed_of(self, question: str, draw: int) -> int | None:
        """The seed of a draw, or of a call whose first draw it is.

        Each question has seeds of its own: with the same ones, a draw would be lucky or unlucky on
        all questions at once, and means over questions would vary far more than they seem to.
        """
        if self.seed is None:
            return None
        own = hashlib.blake2b(f"{self.level}\n{question}".encode(), digest_size=4).digest()
        return (self.seed + int.from_bytes(own, "big") + draw) % SEEDS

    def most(self, prompt_bytes: int, draws: int) -> int:
        """What a call can cost at most, without the scores of its draws."""
        length = self.settings.max_tokens or MOST_TOKENS
        return self.tariff.most(prompt_bytes=prompt_bytes, draws=draws, max_tokens=length)
