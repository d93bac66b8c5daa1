"""Savings: the cost at the accuracy of what is run today, on pools whose truth is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adacompute.core.answers import Answers
from adacompute.core.errors import ConfigError
from adacompute.core.utility import estimate
from adacompute.evaluation.experiment import Experiment
from adacompute.evaluation.factories import find_factory
from adacompute.evaluation.intervals import Band
from adacompute.evaluation.pool import Pool
from adacompute.evaluation.scoring.baseline import BASELINE, EQUAL_VOTES, score_baseline
from adacompute.evaluation.scoring.frontier import CalibrationSettings, PriceFrontier, spread_points
from adacompute.evaluation.scoring.policy_score import score_policy
from adacompute.evaluation.scoring.saving_text import describe_advice, describe_saving
from adacompute.evaluation.scoring.savings import (
    Differences,
    choose_way,
    compare_policy,
    find_equal_cost,
    state_saving,
)
from adacompute.evaluation.scoring.today import Today, TodayScore, read_today
from adacompute.evaluation.scoring.verdict import calibrate
from test_support.pools import score_pool
from test_support.populations import Population

LEVELS = (1, 2, 3, 4, 5, 8)


def easy_and_hard(n_questions: int, *, unparsed: float = 0.0) -> Population:
    """Return questions of which most need one sample, and the others many."""
    is_easy = np.arange(n_questions) % 4 != 0
    chance = np.where(is_easy[:, None], [1.0, 0.0, 0.0], [0.62, 0.19, 0.19])
    return Population(chance, np.zeros((n_questions, 1), dtype=np.float32), unparsed)


@pytest.fixture(scope="module")
def easy(pool_of: Callable[..., Pool]) -> Experiment:
    return Experiment(pool_of(easy_and_hard(400), 16), LEVELS, (2.0,), n_permutations=20)


def state(experiment: Experiment, today: Today, **options: Any) -> dict[str, Any]:
    """State what a sequential policy saves."""
    score = score_policy(experiment, "sequential")
    final = experiment.fit_final(find_factory("sequential"))
    return state_saving(
        PriceFrontier(score, final, CalibrationSettings(**options)), TodayScore(experiment, today)
    )[1]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("5", Today(5)),
        (5, Today(5)),
        ("5:weighted", Today(5, votes="weighted")),
        ("large:3", Today(3, "large")),
        ("xhigh", Today(1, "xhigh")),
        ("a:b:2", Today(2, "a:b")),
        ("large:weighted", Today(1, "large", "weighted")),
    ],
)
def test_today_is_read(text: str | int, found: Today) -> None:
    assert read_today(text) == found


def test_accuracy_of_today_is_exact(easy: Experiment) -> None:
    now = TodayScore(easy, Today(5))
    exact = estimate(easy.pool.answers, (5,), standard_errors=False).utility[:, 0]
    assert now.accuracy.tolist() == exact.tolist()
    assert now.cost.tolist() == [5.0] * 400


def test_a_policy_that_stops_early_saves(easy: Experiment) -> None:
    found = state(easy, Today(5))
    assert found["verdict"] == "saves"
    assert found["advice"] == "policy"
    assert 1.0 < found["delivered_cost"] < 3.0
    assert found["difference"] >= 0
    assert found["difference_low"] >= -0.005
    assert found["saving_low"] <= found["saving"] <= found["saving_high"]
    assert found["same_accuracy_cost"] <= found["delivered_cost"] + 1e-9
    assert found["saving"] == pytest.approx(
        found["saving_by_votes"] + found["saving_by_allocation"]
    )
    lines = describe_saving(found, "samples")
    assert lines[0].startswith("5 samples → ")
    assert "use this policy" in describe_advice(found, "samples")


def test_a_vote_that_is_cut_off_by_rounds_is_not_decided(easy: Experiment) -> None:
    limited = replace(easy, max_rounds=2)
    for experiment, has_way in ((easy, True), (limited, False)):
        found = state(experiment, Today(5))
        assert ("decided votes" in [way["way"] for way in found["ways"]]) == has_way


def test_more_than_was_recorded_is_said_and_does_not_fail(easy: Experiment) -> None:
    found = state(easy, Today(40))
    assert (found["samples"], found["wanted_samples"]) == (16, 40)
    assert any("40" in line and "16" in line for line in describe_saving(found, "samples"))


def test_where_more_samples_never_help_fewer_are_advised(pool_of: Callable[..., Pool]) -> None:
    chance = np.tile([0.7, 0.3], (120, 1))
    population = Population(chance, np.zeros((120, 1), dtype=np.float32))
    experiment = Experiment(pool_of(population, 8), (1, 2, 4), (2.0,), n_permutations=10)
    found = state(experiment, Today(2))  # without a third answer, two samples are worth one
    assert found["advice"] == "fewer samples"
    assert describe_saving(found, "samples")[0].startswith("1 sample per question")


def test_delivered_is_the_cheapest_setting_that_passes() -> None:
    band = Band(np.array([0.01, 0.001, 0.001, 0.001]), 2.0, 2.2)
    value = np.array([0.001, 0.0005, 0.001, 0.01])
    found = Differences(np.array([1.0, 2.0, 3.0, 4.0]), value, band)
    assert found.passing(0.005).tolist() == [False, False, True, True]
    assert found.choose(0.005) == 2
    assert found.choose(0.0005) == 3
    assert found.choose(0.0) == 3
    assert Differences(found.cost[:2], value[:2], Band(np.zeros(2), 0.0, 0.0)).choose(0.0) == 0
    strict = Differences(found.cost, value - 0.02, band)
    assert strict.choose(0.0) == 3  # the largest lower bound
    assert found.judge(5.0, 0.005) == "saves"
    assert found.judge(3.0, 0.005) == "inconclusive"
    assert found.judge(1.0, 0.005) == "no saving"  # nothing is cheaper
    worse = Differences(found.cost, value - 0.05, band)
    assert worse.judge(5.0, 0.005) == "no saving"


def test_the_number_of_questions_that_decides() -> None:
    band = Band(np.array([0.01]), 2.0, 2.0)
    near = Differences(np.array([1.0]), np.array([0.005]), band)
    assert near.judge(5.0, 0.005) == "inconclusive"
    assert near.questions_needed(5.0, 0.005, 100) == 401
    below = Differences(np.array([1.0]), np.array([-0.01]), band)
    assert below.questions_needed(5.0, 0.005, 100) == 401


def test_the_simplest_way_is_advised_unless_another_costs_clearly_less() -> None:
    def way(name: str, cost: float, *, passes: bool = True) -> dict[str, Any]:
        return {"way": name, "cost": cost, "passes": passes}

    assert choose_way([way("fewer samples", 4.0), way("policy", 3.9)], 5.0) == "fewer samples"
    assert choose_way([way("fewer samples", 4.0), way("policy", 3.8)], 5.0) == "policy"
    assert choose_way([way("fewer samples", 4.0, passes=False)], 5.0) == "today"
    assert choose_way([way("policy", 4.9)], 5.0) == "today"


@given(
    value=st.lists(st.floats(-1, 1), min_size=1, max_size=8),
)
def test_the_cost_of_equal_accuracy_is_where_the_difference_crosses_zero(
    value: list[float],
) -> None:
    cost, difference = np.arange(1.0, len(value) + 1), np.array(value)
    found = find_equal_cost(cost, difference)
    if found is None:
        assert (difference < 0).all()
    else:
        assert np.interp(found, cost, difference) >= -1e-9
        assert (difference[cost < found - 1e-9] < 0).all()


def test_weighted_votes_of_today_need_signals(easy: Experiment) -> None:
    with pytest.raises(ConfigError, match="log-probabilities"):
        state(easy, Today(5, votes="weighted"))
    with pytest.raises(ConfigError, match="large"):
        state(easy, Today(5, "large"))


def make_signalled(seed: int, n_questions: int = 60, n_samples: int = 8) -> Pool:
    """Return questions with a log-probability that tells correct samples from others."""
    rng = np.random.default_rng(seed)
    chance = rng.beta(1, 1, n_questions)
    right = rng.random((n_questions, n_samples)) < chance[:, None]
    answer = np.where(right, 0, rng.integers(1, 4, right.shape))
    answer[rng.random(right.shape) < 0.1] = -1
    right &= answer == 0
    signal = rng.normal(size=right.shape) + rng.uniform(0, 3) * right
    return Pool(
        answers=Answers.of(answer.tolist(), correct=right.tolist()),
        key=np.arange(n_questions, dtype=np.uint64),
        group=np.arange(n_questions, dtype=np.uint64),
        features=rng.random((n_questions, 1), dtype=np.float32),
        sample_cost=np.ones(answer.size),
        signal_names=("mean_logprob",),
        signals=signal.reshape(-1, 1),
    )


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 1000), budget=st.sampled_from([1.5, 2.0, 3.0]))
def test_a_gain_is_a_row_above_the_baseline_and_all_say_the_same(seed: int, budget: float) -> None:
    pool = make_signalled(seed)
    names = ("mixture", "adaptive-consistency", "sequential-votes", "retry", "sequential")
    known: dict[str, Any] = {"levels": (1, 2, 4, 8), "n_permutations": 6}
    rows = {
        row["policy"]: row
        for row in score_pool(pool, budgets=[budget], policies=names, **known).rows
    }
    experiment = Experiment(pool, (1, 2, 4, 8), (budget,), 6)
    for name in names[1:]:
        final = experiment.fit_final(find_factory(name))
        found = calibrate(score_policy(experiment, name), final, budget=budget)
        above = rows[name]["accuracy"] - rows["mixture"]["accuracy"]
        assert found["gain"] == pytest.approx(rows[name]["difference"], abs=1e-12)
        if rows[name]["cost"] == pytest.approx(budget):
            assert found["gain"] == pytest.approx(above, abs=1e-9)
        assert found["verdict"] == rows[name]["verdict"]
        assert (found["verdict"] != "gain") or above > 0
        assert found["gain_total"] == pytest.approx(found["gain"] + found["gain_by_votes"])


def test_the_gain_by_votes_is_the_same_for_every_policy() -> None:
    experiment = Experiment(make_signalled(3, 120), (1, 2, 4, 8), (2.0,), 8)
    found = [
        calibrate(
            score_policy(experiment, name), experiment.fit_final(find_factory(name)), budget=2.0
        )
        for name in ("adaptive-consistency", "sequential")
    ]
    assert found[0]["gain_by_votes"] == pytest.approx(found[1]["gain_by_votes"], abs=1e-9)
    weighted, equal = (score_baseline(experiment, name) for name in (BASELINE, EQUAL_VOTES))
    expected = weighted.read(2.0).accuracy - equal.read(2.0).accuracy
    assert found[0]["gain_by_votes"] == pytest.approx(expected, abs=1e-9)


def test_without_evidence_every_vote_counts_once() -> None:
    pool = make_signalled(3, 120)
    plain = Experiment(pool, (1, 2, 4, 8), (2.0,), 8, use_confidence=False)
    assert score_baseline(plain) is score_baseline(plain, EQUAL_VOTES)
    score = score_policy(plain, "adaptive-consistency")
    found = calibrate(score, plain.fit_final(score.factory), budget=2.0)
    assert found["gain_by_votes"] == found["gain_by_votes_low"] == 0.0


def test_the_baseline_has_weighted_votes_where_rounds_cost_something() -> None:
    pool = make_signalled(3, 120)
    free, paid = Experiment(pool, (1, 2, 4), (2.0,), 8), replace(pool, round_cost=0.5)
    costly = Experiment(paid, (1, 2, 4), (2.0,), 8)
    assert costly.weighs_votes
    one, other = (score_baseline(experiment) for experiment in (free, costly))
    assert other.read(2.5).accuracy == pytest.approx(one.read(2.0).accuracy)


def priced(n_samples: int = 8) -> Pool:
    """Return questions with prompts of 1,500 and answers of 150 tokens, at 0.15 and 0.60."""
    prompt, completion = 1500 * 0.15 / 1e6, 150 * 0.60 / 1e6
    pool = make_signalled(1, 80, n_samples)
    cost = np.full(len(pool.sample_cost), prompt + completion)
    return replace(
        pool, signals=None, signal_names=(), sample_cost=cost, prompt_cost=np.full(80, prompt)
    )


def test_five_samples_in_one_call_pay_the_prompt_once() -> None:
    experiment = Experiment(priced(), (1, 2, 4, 5), (0.001,), 6)
    one, many = (TodayScore(experiment, Today(5, calls=calls)) for calls in ("one", "N"))
    assert one.cost == pytest.approx(np.full(80, 675e-6))
    assert many.cost == pytest.approx(np.full(80, 1575e-6))
    single_calls = 2.7 * experiment.sample_cost(np.arange(80))
    assert single_calls / one.cost.mean() == pytest.approx(1.26)
    score = score_policy(experiment, "retry")
    points = spread_points(score.curve)
    against_one, against_many = (
        compare_policy(score, points, now, CalibrationSettings())[1] for now in (one, many)
    )
    assert against_many["delivered_saving"] > against_one["delivered_saving"]


def test_with_native_n_a_round_pays_the_prompt_once() -> None:
    pool = priced()
    assert pool.prompt_cost is not None
    native = replace(
        pool,
        sample_cost=pool.sample_cost - pool.prompt_cost[0],
        round_cost=pool.prompt_cost,
        prompt_per_round=True,
    )
    experiment = Experiment(native, (1, 2, 4, 5), (0.001,), 6)
    for calls, cost in (("one", 675e-6), ("N", 1575e-6), (None, 675e-6)):
        assert TodayScore(experiment, Today(5, calls=calls)).cost == pytest.approx(
            np.full(80, cost)
        )
