"""Token prices: what a call to a model costs, in money.

Prices are per million tokens, as providers list them; amounts are whole nano-units of the currency,
so that sums do not depend on order. A prompt is paid once a call, however many draws share it.
Reasoning tokens are part of the completion: where they have a price of their own it replaces the
output's, it is not added. Token prices know tokens, not texts.
"""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, TypeVar

from adacompute.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from adacompute.core.types import FloatArray

    Tokens = TypeVar("Tokens", float, FloatArray)

NANO = 1_000_000_000
"""Nano-units in one unit of money."""

PER_TOKEN = NANO // 1_000_000
"""Nano-units a token at a price of one unit per million tokens."""

REQUIRED = ("input", "output")
"""Prices that a file must name: one that is forgotten would make tokens look free."""


@dataclass(frozen=True)
class Usage:
    """Tokens of one call, all of its draws together."""

    prompt: int
    completion: int
    cached: int = 0
    reasoning: int = 0


@dataclass(frozen=True)
class TokenPrices:
    """Prices of one model per million tokens, and of a call as such.

    >>> TokenPrices(input=0.15, output=0.6).cost(Usage(prompt=1000, completion=500)) / NANO
    0.00045
    """

    input: float = 0.0
    output: float = 0.0
    cached_input: float | None = None
    reasoning: float | None = None
    call: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            price = getattr(self, field.name)
            if price is not None and not (math.isfinite(price) and price >= 0):
                raise ConfigError(
                    f"a price of {field.name} must be a number from 0 on, not {price}"
                )

    def cost(self, usage: Usage) -> int:
        """Cost of one call, rounded up to whole nano-units."""
        cached = min(usage.cached, usage.prompt)
        reasoning = min(usage.reasoning, usage.completion)
        total = self.tokens(usage.prompt, cached, usage.completion, reasoning)
        # A hair is taken off before rounding up: 0.1 × 3 must not cost one unit more than 0.3.
        return math.ceil(total * PER_TOKEN + self.call * NANO - 1e-6)

    def tokens(
        self, prompt: Tokens, cached: Tokens, completion: Tokens, reasoning: Tokens
    ) -> Tokens:
        """Price of tokens in millionths: cached ones are part of the prompt, as reasoning is."""
        cached_price = self.input if self.cached_input is None else self.cached_input
        reasoning_price = self.output if self.reasoning is None else self.reasoning
        return (
            (prompt - cached) * self.input
            + cached * cached_price
            + (completion - reasoning) * self.output
            + reasoning * reasoning_price
        )

    def most(self, *, prompt_bytes: int, draws: int, max_tokens: int) -> int:
        """What a call can cost at most: a token is at least one byte."""
        prompt = prompt_bytes * max(self.input, self.cached_input or 0.0)
        completion = draws * max_tokens * max(self.output, self.reasoning or 0.0)
        return math.ceil((prompt + completion) * PER_TOKEN + self.call * NANO)

    @property
    def free(self) -> bool:
        """Whether nothing costs anything."""
        return not (self.input or self.output or self.reasoning or self.call)


def split_cost(total: int, parts: int) -> list[int]:
    """Divide a whole amount into whole parts that differ by at most one.

    >>> split_cost(10, 3)
    [4, 3, 3]
    """
    each, rest = divmod(total, parts)
    return [each + (i < rest) for i in range(parts)]


def parse_token_prices(path: Path) -> dict[str, TokenPrices]:
    """Read a TOML file with a table a model: ``[models."name"]``, prices per million tokens."""
    try:
        content = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as TOML: {error}") from None
    known = {field.name for field in fields(TokenPrices)}
    price_list = {}
    models = content.get("models", {})
    for name, table in models.items() if isinstance(models, dict) else ():
        unknown = set(table) - known if isinstance(table, dict) else {"a value"}
        if unknown:
            raise ConfigError(
                f"{path} sets {min(unknown)!r} for {name!r}; "
                f"token prices has {', '.join(sorted(known))}"
            )
        try:
            price_list[name] = TokenPrices(**{key: float(value) for key, value in table.items()})
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{path}: the token prices of {name!r} is wrong: {error}") from None
        for price in (price for price in REQUIRED if price not in table):
            raise ConfigError(f"{path}: {name!r} has no price of {price}; write 0 if it is free")
    if not price_list:
        raise ConfigError(f'{path} has no table such as [models."gpt-4o-mini"]')
    return price_list


def find_token_prices(price_list: Mapping[str, TokenPrices], model: str) -> TokenPrices:
    """Return a model's token prices, or say which models have one."""
    if model not in price_list:
        raise ConfigError(
            f"there is no token price for {model!r}; there are {', '.join(price_list)}"
        )
    return price_list[model]
