"""Every claim of the paper has a verdict by its rule, or a reason why it has none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from adacompute.core.allocation.cutoff import choose
from adacompute.core.types import FloatArray
from adacompute.evaluation.pool import Pool
from reproduction.archetypes import Compositions, find_archetypes
from reproduction.bisection import Trace
from reproduction.claim_measures import measure_claims
from reproduction.claims import CLAIMS, compare_verdicts, judge_claims, judge_shared_claims
from reproduction.claims_ablation import judge_even_importance
from reproduction.claims_archetypes import judge_easy_archetype, judge_hard_archetype
from reproduction.claims_learned import (
    judge_gain_on_easy_set,
)
from reproduction.claims_oracle import (
    judge_easy_set_cost,
)
from reproduction.claims_prices import (
    judge_falling_prices,
    judge_mixing,
    judge_steps,
)
from reproduction.claims_shared import SHARED_CLAIMS, RunsData, judge_alike_gains
from reproduction.claims_training import (
    judge_routing_time,
)
from reproduction.feature_importance import FeatureImportance
from reproduction.oracle_data import (
    CostByPrice,
    DifficultyGains,
    bisect_prices,
    make_price_grid,
)
from reproduction.run_data import RunData
from reproduction.verdicts import FAILS, HOLDS, NOT_MEASURABLE, NotMeasurable
from test_support.paper_run import MEASURES
from test_support.populations import make_population

LEVELS = (1, 2, 4, 8, 16)


@pytest.fixture(scope="module")
def run() -> RunData:
    population, _ = make_population(60, feature_signal=0.0, seed=4)
    answers = population.sample(32, seed=3)
    key = np.arange(60, dtype=np.uint64)
    pool = Pool(answers, key, key, population.features, np.ones(len(answers.answer)))
    return RunData.from_pool("small", pool)


def test_claims_are_different_and_complete() -> None:
    every = (*CLAIMS, *SHARED_CLAIMS)
    assert len({claim.claim for claim in every}) == len(every) > 80
    assert len({claim.judge for claim in every}) == len(every)
    for claim in every:
        assert claim.source
        assert claim.paper
        assert claim.rule


def test_claims_without_data_are_not_measurable_and_say_why() -> None:
    rows = judge_claims({})
    assert len(rows) == len(CLAIMS) + len(SHARED_CLAIMS)
    assert {row["verdict"] for row in rows} == {NOT_MEASURABLE}
    assert all(len(str(row["reason"])) > 5 for row in rows)
    assert any("main" in str(row["reason"]) for row in rows)


def test_routing_time_needs_recorded_latencies() -> None:
    with pytest.raises(NotMeasurable):
        judge_routing_time({"measures": replace(MEASURES, latency_s=None)})


def test_claims_about_almost_solved_sets_need_such_a_set() -> None:
    cost = CostByPrice(np.array([0.0, 1.0]), np.array([1.7, 1.0]), np.array([1.8, 1.0]))
    data = {"measures": MEASURES, "staircase": cost}
    assert judge_easy_set_cost(data).verdict == HOLDS
    data["measures"] = replace(MEASURES, mean_utility=np.full(5, 0.5))
    for judge in (judge_easy_set_cost, judge_gain_on_easy_set):
        with pytest.raises(NotMeasurable):
            judge(data)


def test_one_dominant_feature_fails_the_claim_of_even_importance() -> None:
    even = np.full(16, 1 / 16)
    names = tuple(f"feature {i}" for i in range(16))
    data = FeatureImportance(names, LEVELS, even, even, even, np.zeros((16, 5)))
    assert judge_even_importance({"features": data}).verdict == HOLDS
    uneven = np.array([0.4, *[0.04] * 15])
    assert judge_even_importance({"features": replace(data, gain=uneven)}).verdict == FAILS
    weak = np.array([0.01, *[0.066] * 15])
    assert judge_even_importance({"features": replace(data, gain=weak)}).verdict == FAILS


def make_trace(cost: FloatArray) -> Trace:
    """Return a bisection with these costs in the middle of its brackets."""
    low, high = np.zeros(len(cost)), np.ones(len(cost))
    return Trace(low, high, (low + high) / 2, cost, cost, cost)


def test_archetypes_and_prices_of_a_population_with_known_archetypes(run: RunData) -> None:
    data: dict[str, Any] = {"archetypes": find_archetypes(run), "bisection": bisect_prices(run)}
    for judge in (judge_easy_archetype, judge_hard_archetype, judge_falling_prices, judge_mixing):
        assert judge(data).verdict == HOLDS
    whole = data["bisection"]
    row = whole.rows[0]
    steps = {"quick": [16.0, 8.0, 1.5, 1.6], "late": [16.0] * 20 + [1.5]}
    quick, late, slack = (
        {"bisection": replace(whole, rows=[row], traces=(make_trace(cost),))}
        for cost in (*map(np.array, steps.values()), np.empty(0))
    )
    assert (judge_steps(quick).verdict, judge_steps(late).verdict) == (HOLDS, FAILS)
    with pytest.raises(NotMeasurable):  # a budget that does not bind needs no step
        judge_steps(slack)
    rows = data["bisection"].rows
    off = [row | {"cost with one question split": 1.0} for row in rows]
    assert judge_mixing({"bisection": replace(data["bisection"], rows=off)}).verdict == FAILS


def test_measures_of_a_run(run: RunData) -> None:
    measures = measure_claims(run)
    assert measures.fit_s > measures.routing_s >= 0
    assert measures.latency_s is None
    assert 0 < measures.label_agreement <= 1
    assert measures.feasibility_slack >= 0  # Theorem 3, part 1
    prices, table = make_price_grid(run.window_table), run.window_table
    last = max(p for p in prices.tolist() if (choose(table, p) > 0).any())
    assert measures.drop_price.max() <= prices[np.searchsorted(prices, last) + 1]
    assert measures.drop_price.min() >= 0


def gains(names: tuple[str, ...], values: list[float]) -> DifficultyGains:
    rows: list[Any] = [{"gain (windows)": value} for value in values]
    return DifficultyGains(names, True, np.array(values), np.zeros(len(values)), rows)


@pytest.mark.parametrize(
    ("second", "verdict"),
    [([0.05, 0.08, 0.03], HOLDS), ([0.05, 0.2, 0.03], FAILS), (None, NOT_MEASURABLE)],
)
def test_gains_alike_need_runs_with_the_same_bands(
    second: list[float] | None, verdict: str
) -> None:
    bands = ("easy", "middle", "hard")
    one = gains(bands, [0.05, 0.07, 0.03])
    other = gains(("a", "b", "c"), [0.05, 0.07, 0.03])
    if second:  # the other run finds another band easiest
        other = gains(("middle", "easy", "hard"), [second[1], second[0], second[2]])
    kinds = Compositions(
        ("x", "y"), ("easy",), (1,), np.ones((1, 1)), np.ones(1, np.int64), np.ones((2, 1))
    )
    data = RunsData({"x": {"difficulty": one}, "y": {"difficulty": other}}, None, kinds)
    rows = judge_shared_claims(data)
    by_claim = dict(zip((claim.judge for claim in SHARED_CLAIMS), rows, strict=True))
    assert by_claim[judge_alike_gains]["verdict"] == verdict
    table = compare_verdicts({"x": judge_claims({}), "y": judge_claims({})}, rows)
    assert len(table) == len(CLAIMS) + len(SHARED_CLAIMS)
    found = {row["claim"]: row["all runs"] for row in table}
    assert found[by_claim[judge_alike_gains]["claim"]] == verdict
