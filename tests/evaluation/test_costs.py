from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adacompute as ada
from adacompute.core.errors import ConfigError, DataError, InfeasibleBudget
from adacompute.evaluation.costs import CostModel, call_costs, sample_costs
from adacompute.policies.bundles.bundle import load_bundle
from adacompute.spending.token_prices import NANO, TokenPrices, Usage
from adacompute.stages.calibrate import calibrate_run
from adacompute.stages.evaluate import evaluate_run
from adacompute.stages.inputs import read_pool
from adacompute.stages.solve import solve_source
from adacompute.stages.train import train_run
from adacompute.storage.store import Run, SampleSet, encode_samples

Rows = list[dict[str, Any]]
Make = Callable[[Rows], Path]

TOKENS = {"prompt_tokens": 100, "cached_tokens": 40, "completion_tokens": 30, "reasoning_tokens": 6}
TOKEN_PRICES = TokenPrices(input=2.0, output=8.0, cached_input=0.5, reasoning=10.0, call=0.001)
PRICES = """[models."small"]
input = 2
output = 8
"""


def tokens(rows: Rows, **more: Any) -> Rows:
    return [{**row, **TOKENS, "model": "small", **more} for row in rows]


def recorded(run: Path) -> SampleSet:
    return encode_samples(Run(run).samples())


@pytest.fixture
def prices(tmp_path: Path) -> Path:
    (tmp_path / "prices.toml").write_text(PRICES)
    return tmp_path / "prices.toml"


def test_token_costs_add_up_to_the_cost_of_the_call(make_run: Make, rows: Rows) -> None:
    whole = TOKEN_PRICES.cost(Usage(prompt=100, completion=30, cached=40, reasoning=6)) / NANO
    apart = sample_costs(recorded(make_run(tokens(rows))), "money", {"small": TOKEN_PRICES})
    assert apart == pytest.approx(np.full(len(rows), whole))
    four = TOKEN_PRICES.cost(Usage(prompt=100, completion=120, cached=40, reasoning=24)) / NANO
    together = sample_costs(
        recorded(make_run(tokens(rows, samples_per_call=4))), "money", {"small": TOKEN_PRICES}
    )
    assert together == pytest.approx(np.full(len(rows), four / 4)), "one prompt for four"


def test_each_model_has_its_own_token_prices(make_run: Make, rows: Rows) -> None:
    mixed = [{**row, "model": "ab"[row["sample"] % 2]} for row in tokens(rows)]
    price_list = {"a": TokenPrices(output=1e6), "b": TokenPrices(output=2e6), "c": TokenPrices()}
    found = sample_costs(recorded(make_run(mixed)), "money", price_list)
    assert found.tolist() == [30.0, 30.0, 30.0, 30.0, 60.0, 60.0, 60.0, 60.0] * (len(rows) // 8)
    with pytest.raises(ConfigError, match=r"small.*a, b, c"):
        sample_costs(recorded(make_run(tokens(rows))), "money", price_list)
    unnamed = recorded(make_run(tokens(rows, model=None)))
    assert sample_costs(unnamed, "money", {"a": TokenPrices(output=1e6)}).tolist() == [30.0] * len(
        rows
    )
    with pytest.raises(DataError, match="prices of a, b, c"):
        sample_costs(unnamed, "money", price_list)


def test_without_token_prices_money_is_what_was_paid(make_run: Make, rows: Rows) -> None:
    paid = [{**row, "cost": 0.5 + row["sample"]} for row in rows]
    costs = sample_costs(recorded(make_run(paid)), "money")
    assert costs.tolist() == [one["cost"] for one in paid]
    gaps = [{**row, "cost": None if i == 3 else 1.0} for i, row in enumerate(rows)]
    with pytest.raises(DataError, match="1 of 192 samples have no cost"):
        sample_costs(recorded(make_run(gaps)), "money")


@pytest.mark.parametrize("cost", [None, 0.0])
def test_money_without_prices_is_refused(make_run: Make, rows: Rows, cost: float | None) -> None:
    unpaid = recorded(make_run(tokens(rows, cost=cost)))
    with pytest.raises(ConfigError, match="--token-prices"):
        sample_costs(unpaid, "money")


def test_only_token_counts_with_a_price_are_needed(make_run: Make, rows: Rows) -> None:
    bare = recorded(make_run([{**row, "completion_tokens": 5} for row in rows]))
    assert sample_costs(bare, "money", {"m": TokenPrices(output=1e6)}).tolist() == [5.0] * len(rows)
    with pytest.raises(DataError, match="192 of 192 samples have no prompt_tokens"):
        sample_costs(bare, "money", {"m": TokenPrices(input=1.0)})
    wrong = recorded(make_run(tokens(rows, cached_tokens=-1)))
    with pytest.raises(DataError, match=r"cached_tokens .* -1"):
        sample_costs(wrong, "money", {"small": TOKEN_PRICES})


def test_stages_use_token_prices_and_notice_changes(
    make_run: Make, rows: Rows, prices: Path
) -> None:
    run = make_run(tokens(rows))
    known: dict[str, Any] = {"levels": (1, 2, 4), "unit": "money", "token_prices": prices}
    solved = solve_source(run, budget=1e-3, **known)
    assert 44e-5 <= solved["cost"] <= solved["mixed_cost"] <= 1e-3
    prices.write_text(PRICES.replace("8", "80"))
    assert solve_source(run, budget=1e-2, **known)["cost"] > 26e-4


def test_evaluation_uses_token_prices_and_notices_changes(
    make_run: Make, rows: Rows, prices: Path
) -> None:
    run = make_run(tokens(rows))

    def cost(budget: float) -> float:
        scores = evaluate_run(
            run,
            budgets=(budget,),
            levels=(1, 2, 4),
            policies=("mixture",),
            unit="money",
            token_prices=prices,
        )
        assert scores["unit"] == "money"
        (row,) = scores["rows"]
        return float(row["cost"])

    assert cost(88e-5) == pytest.approx(88e-5)
    prices.write_text(PRICES.replace("2", "20"))
    with pytest.raises(InfeasibleBudget, match=r"0\.00088"):
        cost(88e-5)


def test_only_the_models_of_a_run_are_kept_of_a_public_list(
    make_run: Make, rows: Rows, tmp_path: Path
) -> None:
    run = make_run([{**row, "model": "m-2026"} for row in tokens(rows)])
    listed = {"input_cost_per_token": 0.0, "output_cost_per_token": 2e-06}
    path = tmp_path / "list.json"
    path.write_text(json.dumps({f"m{i}": listed for i in range(99)}))
    known: dict[str, Any] = {"levels": (1, 2), "unit": "money", "token_prices": path}
    with pytest.raises(ConfigError, match=r"'m-2026', only for 99 other models"):
        solve_source(run, budget=1.0, **known)
    found = solve_source(run, budget=31 * 2e-06, price_as={"m-2026": "m7"}, **known)
    assert found["cost"] == pytest.approx(30 * 2e-06, rel=0.04)
    with pytest.raises(ConfigError, match="--token-prices"):
        solve_source(run, budget=1.0, levels=(1, 2), price_as={"m-2026": "m7"})
    with pytest.raises(ConfigError, match="no model"):
        solve_source(make_run(rows), budget=1.0, **known)
    priced: dict[str, Any] = {"unit": "money", "token_prices": path, "price_as": {"m-2026": "m7"}}
    assert list(ada.read_samples(run, **priced).costs.token_prices or ()) == ["m-2026"]
    with pytest.raises(ConfigError, match="price_as"):
        ada.read_samples(run, unit="money", price_as={"a": "b"})


def test_token_prices_need_the_unit_money(make_run: Make, rows: Rows, prices: Path) -> None:
    run = make_run(rows)
    with pytest.raises(ConfigError, match="the unit money"):
        solve_source(run, budget=1.0, token_prices=prices)
    with pytest.raises(ConfigError, match="cannot be read as TOML"):
        solve_source(run, budget=1.0, unit="money", token_prices=prices.with_name("nowhere.toml"))


def test_with_native_n_a_prompt_is_paid_once_per_round(make_run: Make, rows: Rows) -> None:
    place = make_run(tokens(rows, samples_per_call=4))
    sample, prompt = call_costs(recorded(place), {"small": TOKEN_PRICES})
    call = TOKEN_PRICES.cost(Usage(prompt=100, completion=0, cached=40)) / NANO
    own = TOKEN_PRICES.cost(Usage(prompt=0, completion=30, reasoning=6)) / NANO - TOKEN_PRICES.call
    assert prompt == pytest.approx(np.full(len(prompt), call))
    assert sample == pytest.approx(np.full(len(rows), own))
    costs = CostModel("money", {"small": TOKEN_PRICES}, native_n=True)
    pool = read_pool(Run(place), costs=costs)
    four = pool.level_cost((4,))
    assert four == pytest.approx(call + 4 * own)
    kept = CostModel.from_dict("money", costs.to_dict())
    assert kept == costs


def test_a_bundle_records_its_token_prices(
    make_run: Make, rows: Rows, prices: Path, tmp_path: Path
) -> None:
    names = ("question_id", "question")
    more = [{**row, **{name: f"{row[name]} again" for name in names}} for row in rows]
    place = make_run(tokens([*rows, *more]))
    options: dict[str, Any] = {"unit": "money", "token_prices": prices, "native_n": True}
    options |= {"policy": "decided-votes", "levels": (1, 2, 4)}
    train_run(place, out=tmp_path / "bundle", **options)
    bundle = load_bundle(tmp_path / "bundle")
    assert bundle.unit == "money"
    assert bundle.notes["costs"]["token_prices"]["small"]["output"] == 8
    round_cost, sample_cost = 2 * 100 / 1e6, 8 * 30 / 1e6
    found = calibrate_run(
        place, bundle=tmp_path / "bundle", budget=3 * round_cost + 4 * sample_cost
    )
    assert round_cost + sample_cost <= found["cost"] <= 3 * round_cost + 4 * sample_cost
    points = load_bundle(tmp_path / "bundle").frontier
    assert round_cost + sample_cost <= points[0].cost < round_cost + 2 * sample_cost


def test_a_few_missing_costs_are_the_mean_of_their_question(make_run: Make, rows: Rows) -> None:
    ids = sorted({row["question_id"] for row in rows})
    many: Rows = [
        {
            **rows[0],
            "question_id": name,
            "sample": i,
            "completion_tokens": 10 * (k + 1) + i % 2,
        }
        for k, name in enumerate(ids[:2])
        for i in range(100)
    ]
    many[7]["completion_tokens"] = None
    costs = sample_costs(recorded(make_run(many)), "tokens")
    expected = np.mean([row["completion_tokens"] for row in many[:100] if row is not many[7]])
    assert costs[7] == pytest.approx(expected)
    assert costs[8] == many[8]["completion_tokens"]
    for row in many[:3]:
        row["completion_tokens"] = None
    with pytest.raises(DataError, match="completion_tokens"):
        sample_costs(recorded(make_run(many)), "tokens")
