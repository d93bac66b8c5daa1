"""Data of the oracle's tables and figures, on synthetic questions with known utilities."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from adacompute.core.allocation.cutoff import choose
from adacompute.core.allocation.oracle import frontier, solve
from adacompute.core.types import UtilityTable
from adacompute.evaluation.pool import Pool
from reproduction.archetypes import (
    NAMES,
    cluster_curves,
    find_archetypes,
    trace_scaling,
)
from reproduction.oracle_data import (
    bisect_prices,
    count_levels,
    measure_difficulties,
    oracle_cost,
    scatter_levels,
    trace_cost,
    trace_price_effect,
)
from reproduction.run_data import (
    BUDGETS,
    MAIN_BUDGET,
    RunData,
    never_rises,
    parse_bands,
    quantile_groups,
)
from reproduction.verdicts import middle_excess
from test_support.populations import ARCHETYPES, Population, make_population

N_SAMPLES = 48
TRUE_NAMES = dict(zip(NAMES, ("easy", "responsive", "diminishing", "hopeless"), strict=True))


def make_run(population: Population, n_samples: int = N_SAMPLES, **known: Any) -> RunData:
    answers = population.sample(n_samples, seed=1)
    key = np.arange(len(population), dtype=np.uint64)
    pool = Pool(answers, key, key, population.features, np.ones(len(answers.answer)))
    return RunData.from_pool("synthetic", pool, **known)


POPULATION, ARCHETYPE = make_population(400, feature_signal=1.0)
TRUE_ARCHETYPES = list(ARCHETYPES)


@pytest.fixture(scope="module")
def run() -> RunData:
    return make_run(POPULATION, difficulty=[TRUE_ARCHETYPES[kind] for kind in ARCHETYPE])


def test_scaling_curves_match_the_true_utilities(run: RunData) -> None:
    found = trace_scaling(run)
    truth = POPULATION.true_utility(found.levels)
    assert found.names == NAMES
    for i, name in enumerate(found.names):
        question = int(found.question[i])
        if name != "diminishing":  # a few responsive questions are in this cluster
            assert TRUE_ARCHETYPES[ARCHETYPE[question]] == TRUE_NAMES[name]
        spread = np.sqrt(np.nan_to_num(found.standard_error[i]) ** 2 + 0.03**2)
        assert (np.abs(found.exact[i] - truth[question]) < 4 * spread).all()
    assert len(found.rows) == 4 * len(found.levels)
    everywhere = run.exact_table.utility - truth
    error = everywhere.std(axis=0) / np.sqrt(len(everywhere))
    assert (np.abs(everywhere.mean(axis=0)) < 4 * error).all()


def test_oracle_cost_never_rises_with_the_price(run: RunData) -> None:
    costs = trace_cost(run)
    for i in (0, 60, 120, 200):
        price = float(costs.price[i])
        assert costs.windows[i] == run.window_table.cost_of(choose(run.window_table, price)).mean()
    assert never_rises(costs.windows)
    assert never_rises(costs.exact)
    assert costs.windows[-1] == costs.exact[-1] == 1.0
    curve = frontier(run.exact_table)
    assert costs.exact[0] == pytest.approx(curve.cost[-1])
    for budget in BUDGETS:
        price = solve(run.exact_table, budget).price
        below, above = oracle_cost(run.exact_table, np.array([price * 1.000001, price * 0.999999]))
        assert below <= budget <= above


def test_voting_gains_most_on_responsive_questions(run: RunData) -> None:
    found = measure_difficulties(run)
    assert found.is_recorded
    assert set(found.names) == set(TRUE_ARCHETYPES)
    truth = POPULATION.true_utility((1, 16))
    for name, gain, error in zip(found.names, found.gain, found.standard_error, strict=True):
        mine = TRUE_ARCHETYPES.index(name) == ARCHETYPE
        assert abs(gain - (truth[mine, 1] - truth[mine, 0]).mean()) < 4 * error + 0.01
    assert found.names[int(found.gain.argmax())] == "responsive"
    assert found.gain[found.names.index("hopeless")] < 0
    assert sum(int(row["questions"] or 0) for row in found.rows) == len(run)


def test_bands_are_measured_on_the_other_half() -> None:
    """Identical questions are in bands only by chance, so all bands gain the same."""
    identical = Population(np.tile([0.5, 0.3, 0.2], (300, 1)), np.zeros((300, 2), dtype=np.float32))
    found = measure_difficulties(make_run(identical))
    assert not found.is_recorded
    assert found.names == ("easy", "middle", "hard")
    assert np.ptp(found.gain) < 4 * found.standard_error.max()
    lowest = [float(row["level 1 (subsets)"] or 0) for row in found.rows]
    assert np.ptp(lowest) < 0.06


def test_level_shares_sum_to_one_within_the_budget(run: RunData) -> None:
    found = count_levels(run)
    assert found.windows.sum(axis=1) == pytest.approx(1)
    assert found.exact.sum(axis=1) == pytest.approx(1)
    assert (found.cost <= np.asarray(BUDGETS)[:, None]).all()
    assert found.windows[0, 0] > found.windows[-1, 0]
    expected = np.bincount(solve(run.window_table, MAIN_BUDGET).choice, minlength=5) / len(run)
    assert found.windows[found.budgets.index(MAIN_BUDGET)].tolist() == expected.tolist()


def test_level_two_is_used_only_with_unparsed_samples(run: RunData) -> None:
    found = count_levels(run)
    level = found.levels.index(2)
    assert found.windows[:, level].sum() == found.exact[:, level].sum() == 0
    unparsed, _ = make_population(200, feature_signal=1.0, unparsed_rate=0.3)
    assert count_levels(make_run(unparsed)).exact[:, level].sum() > 0


def test_middle_difficulty_gets_most_of_the_budget(run: RunData) -> None:
    found = scatter_levels(run)
    for groups in (found.same, found.other):
        assert (groups.cost.mean(axis=1) <= np.asarray(BUDGETS) + 1e-9).all()
        assert middle_excess(groups.cost[-1]) > 0
        assert groups.shares.sum(axis=2) == pytest.approx(1)
    truth = UtilityTable(POPULATION.true_utility(run.levels), run.window_table.cost)
    cost = truth.cost_of(solve(truth, BUDGETS[-1]).choice)
    middle = np.isin(
        ARCHETYPE, [TRUE_ARCHETYPES.index("responsive"), TRUE_ARCHETYPES.index("diminishing")]
    )
    assert cost[middle].mean() > cost[~middle].mean()
    assert (found.gain >= 0).all()
    assert len(found.rows) == len(BUDGETS) * 2 * 5


def test_no_inverted_u_where_the_hardest_gain_most() -> None:
    chance = np.where(np.arange(300)[:, None] % 2, [0.96, 0.02, 0.02], [0.46, 0.27, 0.27])
    plain = Population(chance, np.zeros((300, 2), dtype=np.float32))
    found = scatter_levels(make_run(plain))
    cost = found.other.cost[-1]
    assert cost.argmax() < 3
    assert cost[0] > 2 * cost[4]


def test_bisection_ends_at_the_exact_price(run: RunData) -> None:
    found = bisect_prices(run)
    for row, trace in zip(found.rows, found.traces, strict=True):
        budget, price = float(row["B"] or 0), float(row["price (exact)"] or 0)
        assert row["price (bisection)"] == pytest.approx(price, rel=1e-9)
        assert row["steps"] == len(trace.middle) == 50
        assert (trace.low[0], trace.high[0]) == (0.0, 5.0)
        assert float(row["cost (bisection)"] or 0) <= float(row["cost (exact)"] or 0) <= budget
        assert row["cost with one question split"] == pytest.approx(budget)
        assert row["monotone"] is True
        assert float(row["duality gap"] or 0) <= 1 / len(run)
        assert (trace.low[1:] >= trace.low[:-1]).all()
        assert (trace.high[1:] <= trace.high[:-1]).all()
        assert (trace.cost_high <= budget).all()
        assert (trace.cost_low > budget).all()


def test_price_lowers_every_level_to_the_largest_net_value(run: RunData) -> None:
    found = trace_price_effect(run)
    assert found.shares.sum(axis=1) == pytest.approx(1)
    assert (np.diff(found.choice, axis=1) <= 0).all()
    assert (found.choice[:, -1] == 0).all()
    assert found.shares[0, -1] < 1.0  # ties go to the cheaper level, also at a price of 0
    for price, net in zip(found.prices, found.net, strict=True):
        chosen = int(choose(run.window_table, price)[found.question])
        assert net[chosen] == pytest.approx(net.max())


def test_k_means_finds_the_four_archetypes(run: RunData) -> None:
    found = find_archetypes(run)
    assert found.names == NAMES
    expected = np.array([TRUE_ARCHETYPES.index(TRUE_NAMES[name]) for name in found.names])[
        found.cluster
    ]
    assert (expected == ARCHETYPE).mean() > 0.8
    ends = np.isin(ARCHETYPE, [TRUE_ARCHETYPES.index("easy"), TRUE_ARCHETYPES.index("hopeless")])
    assert (expected == ARCHETYPE)[ends].mean() > 0.98
    assert int(found.size.sum()) == len(run)
    for shares in (found.composition, found.level_shares, found.other_level_shares):
        assert shares.sum(axis=1) == pytest.approx(1)
    truth = POPULATION.true_utility(run.half_levels)
    easy = np.isin(ARCHETYPE, [TRUE_ARCHETYPES.index("easy")])
    assert found.other_curve[0] == pytest.approx(truth[easy].mean(axis=0), abs=0.04)
    assert 0 <= found.responsive_share <= 1
    assert found.level_shares[found.names.index("hard"), 0] > 0.9
    assert found.level_shares[found.names.index("responsive"), 0] < 0.5


def test_chance_clusters_disappear_on_the_other_half() -> None:
    """Identical questions are clustered by chance; the clusters do not differ on the other half."""
    identical = Population(np.tile([0.5, 0.5, 0.0], (200, 1)), np.zeros((200, 2), dtype=np.float32))
    found = find_archetypes(make_run(identical, 16))
    assert np.ptp(found.half_curve[:, -1]) > 0.5
    assert np.ptp(found.other_curve[:, -1]) < 0.25


def test_few_different_curves_give_few_clusters() -> None:
    found = cluster_curves(np.array([[1.0, 1.0], [0.0, 0.0], [1.0, 1.0]]))
    assert found.names == ("easy", "hard")
    assert found.cluster.tolist() == [0, 1, 0]


def test_bands_from_recorded_difficulty() -> None:
    single = np.array([0.9, 0.1, 0.8, 0.2])
    named = parse_bands(["b", "a", "b", "a"], single)
    assert named is not None
    assert (named.names, named.band.tolist()) == (("b", "a"), [0, 1, 0, 1])
    numbered = parse_bands(["level 2", "level 10", "level 2", "level 3"], single)
    assert numbered is not None
    assert numbered.names == ("level 2", "level 3", "level 10")
    many = parse_bands([f"problem {i} of 15" for i in range(15)], np.zeros(15))
    assert many is not None
    assert many.names == ("0 to 4", "5 to 9", "10 to 14")
    barred = parse_bands([f"{'ab'[i % 2]} | {i} {'x' * i}" for i in range(20)], np.zeros(20))
    assert barred is not None
    assert set(barred.names) == {"a", "b"}
    assert parse_bands(["a", None], single[:2]) is None
    assert parse_bands(["a", "a"], single[:2]) is None
    assert parse_bands([f"name {'x' * i}" for i in range(20)], np.zeros(20)) is None


def test_quantile_groups_differ_by_one_at_most() -> None:
    parts = np.bincount(quantile_groups(np.random.default_rng(0).random(103), 5))
    assert parts.max() - parts.min() <= 1
