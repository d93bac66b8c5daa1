"""Costs: what a call costs in the unit of a batch's total, before it is made and after.

Amounts are integers: samples, completion tokens, or billionths of the currency unit. Before a call
its cost is bounded from above, by the size of the request and the limit of output tokens. It knows
nothing of questions or answers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from adacompute.core.errors import ConfigError
from adacompute.models.model import CallUsage
from adacompute.spending.token_prices import NANO, TokenPriceList, Usage, find_token_prices

SAMPLES, TOKENS, MONEY = "samples", "tokens", "money"
UNITS = (SAMPLES, TOKENS, MONEY)


@dataclass(frozen=True)
class CallCosts:
    """Costs of calls in one unit. Money needs the token prices of every model that is called.

    >>> CallCosts("tokens").max_cost("m", n=2, max_tokens=100, prompt_bytes=50)
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
                f"a total in {self.unit} needs a limit of output tokens: give --max-output-tokens"
            )
        if self.unit == MONEY:
            find_token_prices(self.token_prices, model)

    def max_cost(self, model: str, *, n: int, max_tokens: int | None, prompt_bytes: int) -> int:
        """Return the maximum cost of a call for ``n`` samples."""
        if self.unit == SAMPLES:
            return n
        if max_tokens is None:
            raise ConfigError("a call without a limit of output tokens has no maximum cost")
        if self.unit == TOKENS:
            return n * max_tokens
        prices = find_token_prices(self.token_prices, model)
        return prices.max_cost(prompt_bytes=prompt_bytes, n_samples=n, max_tokens=max_tokens)

    def cost(self, model: str, usage: CallUsage, *, n: int) -> int:
        """Return the cost of a call that returned ``n`` samples."""
        if self.unit == SAMPLES:
            return n
        if self.unit == TOKENS:
            return usage.completion_tokens
        tokens = Usage(
            prompt=usage.prompt_tokens,
            completion=usage.completion_tokens,
            cached=usage.cached_tokens,
            reasoning=usage.reasoning_tokens,
        )
        return find_token_prices(self.token_prices, model).cost(tokens)
