from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adacompute.core.errors import ConfigError
from adacompute.spending.token_prices import (
    TokenPrices,
    Usage,
    find_token_prices,
    parse_token_prices,
    split_cost,
)

COUNTS = st.integers(0, 10**6)


def test_the_prompt_is_paid_once_per_call() -> None:
    token_prices = TokenPrices(input=2.0, output=8.0)
    together = token_prices.cost(Usage(prompt=1000, completion=400))
    apart = 4 * token_prices.cost(Usage(prompt=1000, completion=100))
    assert together == (1000 * 2 + 400 * 8) * 1000
    assert apart - together == 3 * 1000 * 2 * 1000


def test_cached_and_reasoning_prices_replace_the_others() -> None:
    token_prices = TokenPrices(input=1.0, output=2.0, cached_input=0.1, reasoning=3.0)
    usage = Usage(prompt=100, completion=50, cached=40, reasoning=20)
    assert token_prices.cost(usage) == round((60 * 1 + 40 * 0.1 + 30 * 2 + 20 * 3) * 1000)
    same = TokenPrices(input=1.0, output=2.0)
    assert same.cost(usage) == same.cost(Usage(prompt=100, completion=50))


def test_rounding_error_is_not_charged() -> None:
    assert TokenPrices(input=0.1).cost(Usage(prompt=3, completion=0)) == 300


@given(COUNTS, COUNTS, COUNTS, COUNTS)
def test_no_call_costs_more_than_its_worst_case(
    prompt: int, completion: int, cached: int, reasoning: int
) -> None:
    token_prices = TokenPrices(input=0.3, output=1.7, cached_input=0.03, reasoning=2.5, call=0.001)
    cost = token_prices.cost(Usage(prompt, completion, cached, reasoning))
    assert 0 <= cost <= token_prices.max_cost(prompt, completion)


@given(st.integers(0, 10**12), st.integers(1, 100))
def test_parts_add_up_and_differ_by_at_most_one(total: int, parts: int) -> None:
    shares = split_cost(total, parts)
    assert sum(shares) == total
    assert max(shares) - min(shares) <= 1


@pytest.mark.parametrize("price", [-1.0, float("nan"), float("inf")])
def test_a_negative_or_infinite_price_is_rejected(price: float) -> None:
    with pytest.raises(ConfigError, match="output price"):
        TokenPrices(output=price)


def test_token_prices_are_read_from_toml(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text('[models."gpt-4o-mini"]\ninput = 0.15\noutput = 0.6\ncached_input = 0.075\n')
    price_list = parse_token_prices(path)
    assert find_token_prices(price_list, "gpt-4o-mini") == TokenPrices(0.15, 0.6, 0.075)
    assert not price_list["gpt-4o-mini"].is_free
    assert TokenPrices().is_free
    with pytest.raises(ConfigError, match="'other'"):
        find_token_prices(price_list, "other")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("models = 3", "has no table"),
        ("", "has no table"),
        ("[models.a]\ninputs = 1", "sets 'inputs' for 'a'"),
        ('[models.a]\ninput = "x"', "prices of 'a'"),
        ("[models.a]\ninput = -1", "prices of 'a'"),
        ("[models.a]\ninput = 1", "no output price"),
        ("[models.a]\noutput = 1", "no input price"),
        ("[models.a]\ncall = 1", "no input price"),
        ("[models]\na = 1", "sets 'a value' for 'a'"),
        ("[models", "cannot be read as TOML"),
    ],
)
def test_a_wrong_file_is_rejected_in_one_sentence(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=says) as caught:
        parse_token_prices(path)
    assert "\n" not in str(caught.value)


PUBLIC = {
    "sample_spec": {"input_cost_per_token": 0.0, "output_cost_per_token": 0.0, "mode": "one of: …"},
    "gpt-5.2": {
        "input_cost_per_token": 1.75e-06,
        "output_cost_per_token": 1.4e-05,
        "cache_read_input_token_cost": 1.75e-07,
        "mode": "chat",
    },
    "thinker": {
        "input_cost_per_token": 1e-06,
        "output_cost_per_token": 2e-06,
        "output_cost_per_reasoning_token": 3e-06,
        "cache_read_input_token_cost": None,
    },
    "images": {"output_cost_per_image": 0.04, "mode": "image_generation"},
    "odd": {"input_cost_per_token": "free", "output_cost_per_token": 0.0},
    "negative": {"input_cost_per_token": -1.0, "output_cost_per_token": 0.0},
}


@pytest.fixture
def public_list(tmp_path: Path) -> Path:
    path = tmp_path / "model_prices.json"
    path.write_text(json.dumps(PUBLIC))
    return path


def test_a_public_list_is_in_prices_per_token(public_list: Path) -> None:
    assert parse_token_prices(public_list) == {
        "gpt-5.2": TokenPrices(input=1.75, output=14.0, cached_input=0.175),
        "thinker": TokenPrices(input=1.0, output=2.0, reasoning=3.0),
    }


def test_a_model_that_is_not_listed_is_priced_as_one_that_is(public_list: Path) -> None:
    dated = "gpt-5.2-2025-12-11"
    listed = parse_token_prices(public_list)
    with pytest.raises(ConfigError, match=f"--config price-as={dated}=LISTED") as caught:
        find_token_prices(listed, dated)
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"'openai/gpt-5\.2'"):
        find_token_prices(listed, "openai/gpt-5.2")
    prices = parse_token_prices(public_list, {dated: "gpt-5.2"})
    assert find_token_prices(prices, dated) == listed["gpt-5.2"]
    with pytest.raises(ConfigError, match="'gpt-9'"):
        parse_token_prices(public_list, {dated: "gpt-9"})


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"a": {"mode": "chat"}}', "[" * 99_999])
def test_a_wrong_list_is_rejected_in_one_sentence(tmp_path: Path, content: str) -> None:
    path = tmp_path / "list.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"list\.json") as caught:
        parse_token_prices(path)
    assert "\n" not in str(caught.value)
