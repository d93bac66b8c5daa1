"""Votes that stop early answer as all N samples do, and the bounds on that hold without grades."""

from __future__ import annotations

import itertools
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta

from adacompute.core.answers import Answers
from adacompute.core.errors import ConfigError, DataError
from adacompute.datasets.rows import read_samples
from adacompute.evaluation.pool import Pool
from adacompute.evaluation.replay import Replay
from adacompute.evaluation.scoring.same_answer import (
    DISJOINT,
    REDRAWN,
    answer_of,
    bound_leads,
    bound_share,
    choose_lead,
    compare_with_today,
    largest_change,
    measure_repeats,
    replay_leads,
)
from adacompute.policies.policy import ObservedSamples, SampleMatrix
from adacompute.policies.stopping import VoteLeadRule, lead_grid
from adacompute.stages.inputs import make_pool
from adacompute.storage.store import encode_samples

DATA = Path(__file__).parents[2] / os.environ.get("ADACOMPUTE_DATA", "../shared/data") / "samples"
SETS = (
    "svamp141__qwen2.5-coder-1.5b",
    "arith110__smollm2-135m",
    "mcqa-comprehensive100__gpt-4",
    "mcqa-comprehensive100__llama-2-70b-chat",
    "game24__gpt-4-cot",
    "gpqa-diamond__claude-2.0",
    "gpqa-diamond__gpt-3.5-turbo-1106",
    "otis-mock-aime__phi-4",
    "n8/math500__deepseek-r1-distill-qwen-7b",
    "n8/math500__qwen2.5-math-1.5b-instruct",
)
SAVED = {"svamp141": 0.26, "arith110": 0.08, "mcqa-comprehensive100__gpt-4": 0.32}
"""What decided votes of five save on some of them."""


def pool_of(answers: list[list[int]], *, cost: float = 1.0) -> Pool:
    size, total = len(answers), sum(map(len, answers))
    key = np.arange(size, dtype=np.uint64)
    return Pool(
        answers=Answers.of(answers, [[False] * len(row) for row in answers]),
        key=key,
        group=key,
        features=np.zeros((size, 1), dtype=np.float32),
        sample_cost=np.full(total, cost),
    )


def some_pool(n_questions: int = 200, n_samples: int = 8, seed: int = 0) -> Pool:
    rng = np.random.default_rng(seed)
    agree = rng.beta(2, 1, (n_questions, 1))
    answer = np.where(rng.random((n_questions, n_samples)) < agree, 0, rng.integers(-1, 4, 1))
    noise = rng.integers(-1, 4, answer.shape)
    return pool_of(np.where(rng.random(answer.shape) < agree, answer, noise).tolist())


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6])
def test_no_question_is_answered_otherwise_more_often_than_the_largest_change(size: int) -> None:
    for rule in lead_grid(size)[:-1]:
        worst = 0.0
        for counts in itertools.combinations_with_replacement(range(-1, size), size):
            orders = np.array(sorted(set(itertools.permutations(counts))))
            stop = np.zeros(len(orders), dtype=np.int64)
            samples = SampleMatrix(orders)
            for _ in range(size):
                seen = ObservedSamples(samples, np.arange(len(orders)), stop)
                stop = rule.target_samples(seen)
            worst = max(worst, float((answer_of(orders, stop) != answer_of(orders)).mean()))
        assert worst <= largest_change(rule) <= 2 * worst
        assert (worst == 0) == (2 * rule.lead == size)  # a tie goes to the leader, seen first


@pytest.mark.parametrize(("size", "count"), [(40, 0), (40, 3), (300, 0), (300, 17), (5, 5)])
def test_the_bound_of_a_count_is_exact(size: int, count: int) -> None:
    values, group = np.zeros(size), np.arange(size, dtype=np.uint64)
    values[:count] = 1.0
    expected = 1.0 if count == size else float(beta.ppf(0.95, count + 1, size - count))
    assert bound_share(values, group, 0.05) == pytest.approx(expected, abs=1e-9)


def test_copies_of_a_question_are_one_observation() -> None:
    values = np.array([0.0, 0.5, 0.5, 0.5])
    group = np.array([1, 2, 2, 2], dtype=np.uint64)
    once = bound_share(values[:2], group[:2], 0.05)
    assert bound_share(values, group, 0.05) == once
    pool = some_pool()
    leads = replay_leads(pool, 5)
    alone = bound_leads(leads, pool.group)
    together = bound_leads(leads, pool.group // np.uint64(4))
    for rule in list(leads)[:-1]:
        assert together[rule] < alone[rule]


def test_bounds_are_below_the_shares_and_the_decided_vote_has_none() -> None:
    pool = some_pool()
    leads = replay_leads(pool, 5)
    low = bound_leads(leads, pool.group)
    assert [rule.lead for rule in leads] == [1, 2, 5]
    same = [lead.accuracy.mean() for lead in leads.values()]
    cost = [lead.cost.mean() for lead in leads.values()]
    assert same[0] < same[1] < same[2] == low[VoteLeadRule(5, 5)] == 1
    assert all(bound < share for bound, share in zip(low.values(), same[:2], strict=False))
    assert cost[0] < cost[1] < cost[2] < 5


def test_equal_answers_on_few_questions_prove_little() -> None:
    few, many = (replay_leads(pool_of([[0] * 5] * size), 5) for size in (10, 2000))
    lows = [bound_leads(one, np.arange(n, dtype=np.uint64)) for one, n in ((few, 10), (many, 2000))]
    rule = VoteLeadRule(2, 5)
    assert few[rule].accuracy.mean() == many[rule].accuracy.mean() == 1.0
    assert lows[0][rule] < 0.98
    assert lows[1][rule] > 0.999
    assert choose_lead(few, lows[0]) == VoteLeadRule(5, 5)
    assert choose_lead(many, lows[1]) == VoteLeadRule(1, 5)


def test_the_cheapest_rule_that_passes_is_chosen() -> None:
    leads = replay_leads(some_pool(400), 5)
    low = bound_leads(leads, some_pool(400).group)
    assert choose_lead(leads, low, 1.0).lead == 5
    assert choose_lead(leads, low, low[VoteLeadRule(2, 5)]).lead == 2
    assert choose_lead(leads, low, low[VoteLeadRule(1, 5)]).lead == 1
    for wrong in (0.0, 1.1, float("nan")):
        with pytest.raises(ConfigError, match="share of same answers"):
            choose_lead(leads, low, wrong)


@pytest.mark.slow
def test_the_lower_bounds_hold_all_at_once() -> None:
    """Of 300 draws of 150 questions, at most 5 % have a bound above the share of the population."""
    population = some_pool(20_000, 5, seed=1)
    leads = replay_leads(population, 5)
    unsure = list(leads)[:-1]
    rng, missed = np.random.default_rng(2), 0
    for _ in range(300):
        rows = rng.choice(len(population), 150, replace=False)
        drawn = {rule: result.take(rows) for rule, result in leads.items()}
        low = bound_leads(drawn, population.group[rows])
        missed += any(low[rule] > leads[rule].accuracy.mean() for rule in unsure)
    assert missed <= 15


@given(st.integers(0, 10_000), st.integers(1, 7))
def test_the_change_of_accuracy_is_within_the_bound_whatever_is_right(seed: int, size: int) -> None:
    pool = some_pool(30, size + 1, seed)
    found = compare_with_today(pool, size, share=0.5, seed=seed % 7)
    right = np.random.default_rng(seed).integers(0, 4, len(pool))
    replay = Replay(pool, 40, size, seed % 7)
    answer = replay.samples.answer
    stop, _ = replay.play_rule(VoteLeadRule(found["lead"], size))
    truth = np.repeat(right, 40)
    change = (answer_of(answer, stop) == truth).mean() - (answer_of(answer) == truth).mean()
    assert abs(change) <= found["difference_bound"] + 1e-12
    if 2 * found["lead"] >= size:
        assert change == found["difference_bound"] == 0


def test_two_runs_agree_by_disjoint_samples_where_there_are_enough() -> None:
    rows = [[0] * 10, [0, 0, 0, 0, 0, 1, 1, 1, 1, 1]] * 50
    agreement, found_by = measure_repeats(pool_of(rows), 5)
    # Of five and five samples one half has the majority of 0 and the other that of 1: never equal.
    assert (agreement, found_by) == (0.5, DISJOINT)
    assert measure_repeats(pool_of([[0] * 6] * 20), 5) == (1.0, REDRAWN)
    agreement, found_by = measure_repeats(pool_of([[0, 1]] * 400), 1)
    assert (agreement, found_by) == (0.0, DISJOINT)
    agreement, found_by = measure_repeats(pool_of([[0, 1, 2]] * 400), 2)
    assert found_by == REDRAWN
    assert agreement == pytest.approx(1 / 3, abs=0.02)  # of two, ties go to the answer seen first


def test_costs_are_in_the_unit_and_rounds_cost_too() -> None:
    pool = pool_of([[0] * 5] * 100, cost=7.0)
    found = compare_with_today(pool, 5, share=1.0)
    assert (found["cost"], found["delivered_cost"], found["delivered_samples"]) == (35, 21, 3)
    assert found["delivered_saving"] == pytest.approx(0.4)
    found = compare_with_today(replace(pool, round_cost=10.0), 5, share=1.0)
    assert (found["cost"], found["delivered_cost"]) == (45, 31)
    with pytest.raises(DataError, match="cost nothing"):
        compare_with_today(replace(pool, sample_cost=np.zeros(500)), 5)


def test_latencies_are_those_of_the_rounds_and_of_all_samples_in_parallel() -> None:
    pool = pool_of([[0, 0, 0, 1, 1]] * 40)
    assert compare_with_today(pool, 5)["latency_p50_s"] is None
    found = compare_with_today(replace(pool, latency_s=np.full(200, 2.0)), 5, share=1.0)
    assert found["today_latency_p50_s"] == found["today_latency_p95_s"] == 2.0
    assert found["latency_p95_s"] == 6.0  # three, one and one
    assert found["rounds"] > 1


def test_questions_with_too_few_samples_are_left_out() -> None:
    found = compare_with_today(pool_of([[0] * 5, [0] * 4, [0] * 9]), 5)
    assert (found["questions"], found["excluded"]) == (2, 1)
    with pytest.raises(DataError, match="no question has 10 samples, the most are 9"):
        compare_with_today(pool_of([[0] * 5, [0] * 9]), 10)
    with pytest.raises(ConfigError, match="1 or more"):
        compare_with_today(pool_of([[0] * 5]), 0)
    arms = replace(pool_of([[0] * 5]), arm=np.array([0, 0, 0, 1, 1]), arms=("low", "high"))
    with pytest.raises(DataError, match=r"several arms \(low, high\)"):
        compare_with_today(arms, 2)


@pytest.mark.skipif(not DATA.is_dir(), reason="recorded samples are not there: ADACOMPUTE_DATA")
@pytest.mark.parametrize("name", SETS)
def test_hidden_grades_are_within_the_bound(name: str) -> None:
    table = read_samples(DATA / f"{name}.parquet")
    graded = make_pool(encode_samples(table))
    hidden = replace(
        graded, answers=replace(graded.answers, correct=np.zeros_like(graded.answers.correct))
    )
    found = compare_with_today(hidden, 5)
    kept = graded.take(graded.answers.n_samples >= 5)
    replay = Replay(kept, 40, 5)
    answers, order = kept.answers, replay._order
    answer = answers.answer[order]
    right = answers.class_accuracy[order]
    stop, _ = replay.play_rule(VoteLeadRule(found["lead"], 5))
    today, now = (
        np.where(answer == answer_of(answer, n)[:, None], right, 0.0).max(axis=1).mean()
        for n in (None, stop)
    )
    assert abs(now - today) <= found["difference_bound"]
    decided = found["leads"][-1]
    for part, saving in SAVED.items():
        if part in name:
            assert decided["saving"] == pytest.approx(saving, abs=0.006)
    assert 0.97 < found["leads"][1]["same_answer"] < 1
    assert found["leads"][1]["saving"] > decided["saving"]
