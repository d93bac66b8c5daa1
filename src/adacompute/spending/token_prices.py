"""Token prices: what a call to a model costs, in money.

Prices are per million tokens, as providers list them. Amounts are integers in billionths of the
currency unit, so that sums do not depend on the order. The prompt is paid once per call, however
many samples the call returns. Reasoning tokens are part of the completion: if they have a price of
their own, it replaces the output price. This module counts tokens; it knows nothing of texts.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar

from adacompute.core.errors import ConfigError
from adacompute.core.memory import check_memory

if TYPE_CHECKING:
    from pathlib import Path

    from adacompute.core.types import FloatArray

    Tokens = TypeVar("Tokens", float, FloatArray)

NANO = 1_000_000_000
"""Billionths in one unit of money."""

PER_TOKEN = NANO // 1_000_000
"""Billionths per token at a price of 1 per million tokens."""

REQUIRED = ("input", "output")
"""Prices that every model in a file must have, so that a forgotten one is not taken as free."""

PUBLIC_SUFFIX, PUBLIC_EXAMPLE = ".json", "sample_spec"
"""Suffix of LiteLLM's public price list, and the entry in it that explains the others."""

PUBLIC_KEYS = {
    "input": "input_cost_per_token",
    "output": "output_cost_per_token",
    "cached_input": "cache_read_input_token_cost",
    "reasoning": "output_cost_per_reasoning_token",
}
"""Our prices, and their names in LiteLLM's public price list."""

MAX_BYTES = 1 << 24
"""Maximum size of a file of prices."""

MAX_PRICE = 1e15
"""Maximum price of a token; a higher one is no price."""

MAX_NAMED = 8
"""Number of models up to which an error names all of them."""


@dataclass(frozen=True)
class Usage:
    """Tokens of one call, over all of its samples."""

    prompt: int
    completion: int
    cached: int = 0
    reasoning: int = 0


@dataclass(frozen=True)
class TokenPrices:
    """Prices of one model: per million tokens, and a fixed price per call.

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
                raise ConfigError(f"the {field.name} price must be 0 or more, not {price}")

    def cost(self, usage: Usage) -> int:
        """Cost of one call in billionths, rounded up."""
        cached = min(usage.cached, usage.prompt)
        reasoning = min(usage.reasoning, usage.completion)
        total = self.token_cost(usage.prompt, cached, usage.completion, reasoning)
        # Subtract the rounding error before rounding up: 0.1 × 3 must not cost more than 0.3.
        return math.ceil(total * PER_TOKEN + self.call * NANO - 1e-6)

    def token_cost(
        self, prompt: Tokens, cached: Tokens, completion: Tokens, reasoning: Tokens
    ) -> Tokens:
        """Cost of tokens in millionths, for numbers or arrays.

        ``prompt`` includes the cached tokens and ``completion`` the reasoning tokens.
        """
        cached_price = self.input if self.cached_input is None else self.cached_input
        reasoning_price = self.output if self.reasoning is None else self.reasoning
        return (
            (prompt - cached) * self.input
            + cached * cached_price
            + (completion - reasoning) * self.output
            + reasoning * reasoning_price
        )

    def max_cost(self, prompt: int, completion: int) -> int:
        """Maximum cost of one call with at most so many tokens, in billionths."""
        highest_input = max(self.input, self.cached_input or 0.0)
        highest_output = max(self.output, self.reasoning or 0.0)
        tokens = prompt * highest_input + completion * highest_output
        return math.ceil(tokens * PER_TOKEN + self.call * NANO)

    @property
    def is_free(self) -> bool:
        """Whether all prices are 0."""
        return not (self.input or self.output or self.reasoning or self.call)


TokenPriceList = Mapping[str, TokenPrices]
"""Token prices by the name of the model."""


def split_cost(total: int, parts: int) -> list[int]:
    """Divide an integer into integers that differ by at most one.

    >>> split_cost(10, 3)
    [4, 3, 3]
    """
    each, rest = divmod(total, parts)
    return [each + (i < rest) for i in range(parts)]


def parse_token_prices(
    path: Path, price_as: Mapping[str, str] | None = None
) -> dict[str, TokenPrices]:
    """Read a file of token prices: a TOML file of ours, or LiteLLM's public list (``.json``).

    ``price_as`` gives models the prices of listed ones. Names are never guessed: a date or a
    provider in a name makes it another model.
    """
    is_public = path.suffix.lower() == PUBLIC_SUFFIX
    price_list = _parse_public(path) if is_public else _parse_toml(path)
    for model, listed in (price_as or {}).items():
        if listed not in price_list:
            raise ConfigError(
                f"{path} lists no {listed!r}, so {model!r} cannot be priced as it: name a model "
                "exactly as the file does"
            )
    return price_list | {model: price_list[listed] for model, listed in (price_as or {}).items()}


def _parse(path: Path, parse: Callable[[str], Any], form: str) -> Any:  # noqa: ANN401 - any JSON
    """Parse a file of prices; ConfigError if it is too large or cannot be parsed."""
    try:
        check_memory(path.stat().st_size, "it", limit=MAX_BYTES)
        return parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read as {form}: {error}") from None


def _parse_public(path: Path) -> dict[str, TokenPrices]:
    """Read LiteLLM's list, in prices per token; models without token prices are left out."""
    content = _parse(path, json.loads, "JSON")
    price_list: dict[str, TokenPrices] = {}
    for name, entry in content.items() if isinstance(content, dict) else ():
        prices = _parse_public_entry(entry) if name != PUBLIC_EXAMPLE else None
        if prices is not None:
            price_list[name] = prices
    if not price_list:
        raise ConfigError(
            f'{path} has no model with token prices, such as {{"gpt-4o-mini": '
            '{"input_cost_per_token": 1.5e-07, "output_cost_per_token": 6e-07}}'
        )
    return price_list


def _parse_public_entry(entry: object) -> TokenPrices | None:
    """Return the prices of one model per million tokens; None if they are missing or invalid."""
    fields = entry if isinstance(entry, dict) else {}
    found = {name: fields.get(key) for name, key in PUBLIC_KEYS.items() if key in fields}
    prices = {name: value for name, value in found.items() if value is not None}
    if not all(key in prices for key in REQUIRED) or not all(map(_is_price, prices.values())):
        return None
    # Twelve digits, because 1e6 × 1.75e-06 is not quite 1.75.
    return TokenPrices(**{name: float(f"{1e6 * value:.12g}") for name, value in prices.items()})


def _is_price(value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return 0 <= value <= MAX_PRICE


def _parse_toml(path: Path) -> dict[str, TokenPrices]:
    """Read a TOML file with one table per model, ``[models."name"]``, in prices per million."""
    content = _parse(path, tomllib.loads, "TOML")
    keys = {field.name for field in fields(TokenPrices)}
    price_list: dict[str, TokenPrices] = {}
    models = content.get("models", {})
    for name, table in models.items() if isinstance(models, dict) else ():
        unknown = set(table) - keys if isinstance(table, dict) else {"a value"}
        if unknown:
            raise ConfigError(
                f"{path} sets {min(unknown)!r} for {name!r}; the keys are {', '.join(sorted(keys))}"
            )
        try:
            price_list[name] = TokenPrices(**{key: float(value) for key, value in table.items()})
        except (TypeError, ValueError, OverflowError) as error:
            raise ConfigError(f"{path}: the prices of {name!r} are wrong: {error}") from None
        if missing := [key for key in REQUIRED if key not in table]:
            raise ConfigError(f"{path}: {name!r} has no {missing[0]} price; write 0 if it is free")
    if not price_list:
        raise ConfigError(f'{path} has no table such as [models."gpt-4o-mini"]')
    return price_list


def find_token_prices(price_list: TokenPriceList, model: str) -> TokenPrices:
    """Return a model's token prices; ConfigError, saying what to do, if it has none."""
    if model not in price_list:
        is_short = len(price_list) <= MAX_NAMED
        known = ", ".join(price_list) if is_short else f"{len(price_list)} other models"
        raise ConfigError(
            f"there are no token prices for {model!r}, only for {known}: add them to the file, or "
            f"name the listed model whose prices it has (--config price-as={model}=LISTED)"
        )
    return price_list[model]
