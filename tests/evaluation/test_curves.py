from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from adacompute.core.types import FloatArray, IntArray
from adacompute.evaluation.curves import (
    Curve,
    cross_validate,
    read_curve,
    split_folds,
    training_price,
)
from adacompute.evaluation.factories import POLICY_FACTORIES, Experiment, FittedPolicy
from adacompute.evaluation.intervals import bootstrap_weights
from adacompute.evaluation.pool import Pool, assign_folds
from adacompute.evaluation.scores import ScoreTable
from adacompute.policies.uniform import FixedRule

LEVELS = (1, 2, 4, 6)
ONCE = np.ones((1, 2))


def curve_of(cost: list[list[float]], accuracy: list[list[float]], **fields: bool) -> Curve:
    return Curve(np.array(cost), np.array(accuracy), np.array(cost) / 2, {}, {}, **fields)


@pytest.fixture(scope="module")
def experiment(small: Pool) -> Experiment:
    return Experiment(small, LEVELS, budgets=(1.5, 3.0), n_permutations=6, seed=0)


@pytest.fixture(scope="module")
def fold(small: Pool) -> IntArray:
    return assign_folds(small.group, 5)


def test_curve_is_interpolated_in_the_realised_cost() -> None:
    curve = curve_of([[1.0, 3.0], [1.0, 7.0]], [[0.0, 0.4], [0.2, 1.0]])
    read = read_curve(curve, 2.0, ONCE)
    assert read.cost == 2.0  # a quarter of the way from a mean cost of 1 to one of 5
    assert read.accuracy == pytest.approx(0.1 + 0.25 * 0.6)


def test_each_resampling_is_read_at_its_own_cost() -> None:
    curve = curve_of([[1.0, 3.0], [1.0, 7.0]], [[0.0, 0.4], [0.2, 1.0]])
    weights = np.array([[1.0, 1.0], [2.0, 0.0], [0.0, 2.0]])
    read = read_curve(curve, 2.0, weights)
    assert read.resampled.tolist() == pytest.approx([0.2, 0.2 + 0.8 / 6])


def test_budget_beyond_the_curve_is_read_at_its_end() -> None:
    curve = curve_of([[1.0, 3.0], [1.0, 3.0]], [[0.2, 0.4], [0.2, 0.4]])
    below, above = (read_curve(curve, budget, ONCE) for budget in (0.5, 9.0))
    assert (below.cost, below.accuracy) == pytest.approx((1.0, 0.2))
    assert (above.cost, above.accuracy) == pytest.approx((3.0, 0.4))


def test_stepped_curve_is_read_at_the_last_step_within_the_budget() -> None:
    curve = curve_of([[1.0, 2.0, 4.0]] * 2, [[0.1, 0.2, 0.4]] * 2, is_stepped=True)
    for budget, step in ((0.5, 0), (1.0, 0), (1.99, 0), (2.0, 1), (3.9, 1), (4.0, 2), (9.0, 2)):
        read = read_curve(curve, budget, np.ones((3, 2)))
        assert read.cost == [1.0, 2.0, 4.0][step]
        assert read.accuracy == pytest.approx([0.1, 0.2, 0.4][step])
        assert read.resampled.tolist() == pytest.approx([read.accuracy] * 2)


def test_realised_cost_never_falls_along_the_targets() -> None:
    curve = curve_of([[1.0, 3.0, 2.9, 4.0]] * 2, [[0.1, 0.5, 0.3, 0.6]] * 2)
    at = [read_curve(curve, budget, ONCE).accuracy for budget in (2.0, 3.5, 4.0)]
    assert at == pytest.approx([0.3, 0.45, 0.6])


def test_every_question_is_scored_by_a_policy_that_has_not_seen_it(
    experiment: Experiment, fold: IntArray
) -> None:
    seen: list[IntArray] = []

    def factory(given: Experiment, train: IntArray) -> FittedPolicy:
        seen.append(train)
        return POLICY_FACTORIES["mixture"](given, train)

    curve = cross_validate(experiment, factory, split_folds(fold))
    assert len(seen) == 5
    for f, train in enumerate(seen):
        assert train.tolist() == np.flatnonzero(fold != f).tolist()
    assert np.isfinite(curve.cost).all()
    assert np.isfinite(curve.accuracy).all()


def test_fixed_curve_equals_the_replay_of_each_level(
    experiment: Experiment, fold: IntArray
) -> None:
    curve = cross_validate(experiment, POLICY_FACTORIES["fixed"], split_folds(fold))
    cost, accuracy = experiment.run_rules([FixedRule(n) for n in LEVELS])
    assert curve.is_stepped
    for k, samples in enumerate(LEVELS):
        read = read_curve(curve, float(samples), np.ones((1, len(fold))))
        assert read.cost == cost[:, k].mean() == samples
        assert read.accuracy == pytest.approx(accuracy[:, k].mean())
    between = read_curve(curve, 3.7, np.ones((1, len(fold))))
    assert between.cost == 2.0


def test_random_mixture_equals_a_level_at_its_cost(experiment: Experiment, fold: IntArray) -> None:
    curve = cross_validate(experiment, POLICY_FACTORIES["random"], split_folds(fold))
    _, accuracy = experiment.run_rules([FixedRule(n) for n in LEVELS])
    for k, samples in enumerate(LEVELS):
        read = read_curve(curve, float(samples), np.ones((1, len(fold))))
        assert read.cost == samples
        assert read.accuracy == pytest.approx(accuracy[:, k].mean(), abs=1e-9)
    half = read_curve(curve, 3.0, np.ones((1, len(fold)))).accuracy
    assert half == pytest.approx((accuracy[:, 1].mean() + accuracy[:, 2].mean()) / 2, abs=1e-9)


@pytest.mark.parametrize("name", ["mixture", "fixed", "value-router"])
def test_traced_price_costs_the_budget_on_training_questions(
    experiment: Experiment, name: str
) -> None:
    fold = assign_folds(experiment.pool.group, 2)
    curve = cross_validate(experiment, POLICY_FACTORIES[name], split_folds(fold), trace=(3.0,))
    for f in range(2):
        fitted = POLICY_FACTORIES[name](experiment, np.flatnonzero(fold != f))
        (price,) = np.unique(curve.price[3.0][fold == f])
        result = experiment.replay.run(fitted.policy, price)
        assert (curve.n_samples[3.0][fold == f] == result.n_samples[fold == f]).all()
        spent = result.cost[fold != f].mean()
        if name == "fixed":
            assert spent == 2.0
        else:
            assert spent == pytest.approx(3.0, abs=0.35)  # whole questions are mixed


def test_training_price_is_interpolated_between_prices(
    experiment: Experiment,
) -> None:
    fitted = POLICY_FACTORIES["mixture"](experiment, np.arange(len(experiment.pool)))
    smooth = FittedPolicy(fitted.policy, (0.4, 0.1, 0.025), fitted.features)
    spent = np.array([1.0, 2.0, 3.0])
    assert training_price(2.0, spent, smooth) == pytest.approx(0.1)
    assert training_price(1.5, spent, smooth) == pytest.approx(0.2)
    assert training_price(9.0, spent, smooth) == pytest.approx(0.025)
    stepped = replace(smooth, is_stepped=True)
    assert [training_price(b, spent, stepped) for b in (0.5, 2.0, 2.9)] == [0.4, 0.1, 0.1]


def simulate(seed: int, *, copies: int = 1, groups: int = 120) -> tuple[float, float]:
    """Draw questions whose policy is 3 points better at a mean cost of 2; return the interval."""
    rng = np.random.default_rng(seed)
    ease, gain = rng.beta(0.6, 0.6, groups), rng.normal(0.03, 0.2, groups)
    spend = rng.gamma(4.0, 0.25, groups)  # what a question costs, over what is aimed at
    rows = np.repeat(np.arange(groups), copies)
    aims = np.array([1.0, 1.5, 2.5, 4.0])
    rising = 0.2 * np.log(aims) * (1 - ease)[:, None]

    def curve(cost: FloatArray, more: FloatArray) -> Curve:
        accuracy = ease[:, None] + rising + more[:, None]
        return Curve(cost[rows], accuracy[rows], cost[rows], {}, {})

    base = curve(np.tile(aims, (groups, 1)), np.zeros(groups))
    policy = curve(spend[:, None] * aims, gain)
    weights = bootstrap_weights(rows.astype(np.uint64), 400, seed=seed)
    table = ScoreTable(base, {2.0: None}, weights)
    row = table.row("policy", 2.0, read_curve(policy, 2.0, weights))
    return row["difference_low"], row["difference_high"]


def test_interval_of_the_difference_has_its_coverage() -> None:
    intervals = [simulate(seed) for seed in range(100)]
    covered = np.mean([low <= 0.03 <= high for low, high in intervals])
    assert 0.88 <= covered < 1.0


def test_copies_of_questions_do_not_narrow_the_interval() -> None:
    once, copied = simulate(7), simulate(7, copies=5)
    assert copied == pytest.approx(once)
    low, high = simulate(7, groups=600)
    assert high - low < 0.6 * (once[1] - once[0])
