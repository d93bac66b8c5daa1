"""What calls cost in each unit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from adacompute.core.errors import ConfigError
from adacompute.models.model import CallUsage
from adacompute.spending.attempts import CallBound
from adacompute.spending.call_costs import CallCosts
from adacompute.spending.token_prices import TokenPrices


def test_costs_of_calls() -> None:
    usage = CallUsage({"prompt_tokens": 100, "completion_tokens": 20})
    prices = {"m": TokenPrices(input=1.0, output=10.0)}
    bound = CallBound.of("m", n=3, max_tokens=50, body_bytes=400)
    assert CallCosts("samples").cost(bound, usage) == 3
    assert CallCosts("samples").cost(bound, replace(usage, n_samples=2)) == 2
    assert CallCosts("tokens").cost(bound, usage) == 20
    money = CallCosts("money", prices)
    assert money.cost(bound, usage) == 300_000
    assert money.max_cost(bound) == 1_900_000
    assert money.cost(bound, bound.charge(None)) == 1_900_000
    assert money.to_amount(0.25) == 250_000_000


def test_costs_without_a_bound_are_refused() -> None:
    with pytest.raises(ConfigError, match="--config max-output-tokens"):
        CallCosts("tokens").check("m", None)
    with pytest.raises(ConfigError, match="seconds"):
        CallCosts("seconds")
    with pytest.raises(ConfigError, match="token prices"):
        CallCosts("money").check("m", 10)
