"""Call costs: what a call costs in one unit, before it is made and after.

Amounts are integers: samples, completion tokens, or billionths of the currency unit. It knows
nothing of questions, answers or limits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from adacompute.core.errors import ConfigError
from adacompute.models.model import CallUsage
from adacompute.spending.attempts import CallBound
from adacompute.spending.token_prices import (
    NANO,
    TokenPriceList,
    TokenPrices,
    Usage,
    find_token_prices,
)

SAMPLES, TOKENS, MONEY = "samples", "tokens", "money"
UNITS = (SAMPLES, TOKENS, MONEY)


@dataclass(frozen=True)
class CallCosts:
    """Costs of calls in one unit. Money needs the token prices of every model that is called.

    >>> CallCosts("tokens").max_cost(CallBound.of("m", n=2, max_tokens=100, body_bytes=50))
    200
    """

    unit: str
    token_prices: TokenPriceList = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise ConfigError(
                f"a total in {self.unit} cannot be held: train the policy with --unit samples, "
                "tokens or money"
            )

    @property
    def per_unit(self) -> int:
        """Integer amounts in one unit."""
        return NANO if self.unit == MONEY else 1

    def to_amount(self, value: float) -> int:
        """Return a value in the unit as an integer amount, rounded down."""
        return math.floor(value * self.per_unit + 1e-6)

    def check(self, model: str, max_tokens: int | None) -> None:
        """Raise ConfigError if the cost of a call to a model has no upper bound."""
        if self.unit != SAMPLES and max_tokens is None:
            raise ConfigError(
                f"a total in {self.unit} needs a limit of output tokens: give "
                "--config max-output-tokens=N"
            )
        if self.unit == MONEY:
            find_token_prices(self.token_prices, model)

    def max_cost(self, bound: CallBound) -> int:
        """Return the maximum cost of an attempt."""
        if self.unit == SAMPLES:
            return bound.n_samples
        if self.unit == TOKENS:
            return bound.completion_tokens
        prices = find_token_prices(self.token_prices, bound.model)
        return prices.max_cost(bound.prompt_tokens, bound.completion_tokens)

    def cost(self, bound: CallBound, charged: CallUsage) -> int:
        """Return the cost of an attempt by the usage that it is charged."""
        if self.unit == SAMPLES:
            return count_samples(bound, charged)
        if self.unit == TOKENS:
            return charged.completion_tokens
        return price_usage(find_token_prices(self.token_prices, bound.model), charged)


def count_samples(bound: CallBound, charged: CallUsage) -> int:
    """Return the samples of an attempt: the choices that came, if that is known."""
    return bound.n_samples if charged.n_samples is None else charged.n_samples


def price_usage(prices: TokenPrices, charged: CallUsage) -> int:
    """Return what the usage that an attempt is charged costs, in billionths."""
    if charged.is_estimated:
        return prices.max_cost(charged.prompt_tokens, charged.completion_tokens)
    return prices.cost(
        Usage(
            prompt=charged.prompt_tokens,
            completion=charged.completion_tokens,
            cached=charged.cached_tokens,
            reasoning=charged.reasoning_tokens,
        )
    )
