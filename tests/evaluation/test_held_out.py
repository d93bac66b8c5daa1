"""Held-out curves: settings, budgets, and questions that never score their own policy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adacompute.core.types import FloatArray, IntArray
from adacompute.evaluation import experiment as experiment_module
from adacompute.evaluation.experiment import Experiment, FittedPolicy
from adacompute.evaluation.factories import POLICY_FACTORIES, find_factory
from adacompute.evaluation.pool import Pool, assign_folds
from adacompute.evaluation.replay import ReplayResult
from adacompute.evaluation.scoring.held_out import (
    CurvePoint,
    FoldResult,
    HeldOutCurve,
    interpolate,
    measure_difference,
    replay_splits,
    score_held_out,
    split_folds,
)
from adacompute.policies.uniform import FixedRule

LEVELS = (1, 2, 4, 6)
SMOOTH = [name for name in POLICY_FACTORIES if name != "fixed"]


def results(cost: list[list[float]], accuracy: list[list[float]]) -> ReplayResult:
    costs, none = np.array(cost), np.zeros(np.shape(cost))
    return ReplayResult(costs, np.array(accuracy), costs, costs, none, none)


@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=12),
    st.floats(0.5, 5.5),
    st.sampled_from((0, 1)),
)
def test_the_value_at_a_cost_is_the_first_one_that_costs_it(
    costs: list[int], wanted: float, is_whole: int
) -> None:
    cost, value = np.sort(costs).astype(np.float64), np.arange(len(costs), dtype=np.float64)
    wanted = round(wanted) if is_whole else wanted
    found = interpolate(wanted, cost, value, is_stepped=False)
    expected = min(max(wanted, cost[0]), cost[-1])
    assert np.interp(found, value, cost) == pytest.approx(expected)
    assert np.interp(found - 1e-6, value, cost) < expected or found == 0


def curve_of(
    fitted: FittedPolicy,
    training: list[list[float]],
    cost: list[list[float]],
    accuracy: list[list[float]],
    *,
    is_stepped: bool = False,
) -> HeldOutCurve:
    """Return a curve with one question per fold."""
    folds = [
        FoldResult(
            prices=np.asarray(fitted.prices),
            training_cost=np.array(own),
            held_out=np.array([f]),
            result=results([cost[f]], [accuracy[f]]),
            is_stepped=is_stepped,
        )
        for f, own in enumerate(training)
    ]
    return HeldOutCurve(tuple(folds), np.arange(len(folds), dtype=np.uint64))


@pytest.fixture(scope="module")
def experiment(small: Pool) -> Experiment:
    return Experiment(small, LEVELS, budgets=(1.5, 3.0), n_permutations=6, seed=0)


@pytest.fixture(scope="module")
def fitted(experiment: Experiment) -> FittedPolicy:
    return find_factory("mixture")(experiment, np.arange(len(experiment.pool)))


def test_a_setting_means_another_price_in_each_fold(fitted: FittedPolicy) -> None:
    curve = curve_of(
        fitted,
        training=[[1.0, 3.0], [1.0, 2.0]],
        cost=[[1.0, 4.0], [1.0, 2.0]],
        accuracy=[[0.0, 0.6], [0.2, 0.4]],
    )
    point = curve.at(2.0)  # half-way in the first fold, at the end of the second
    assert point.result.cost.tolist() == pytest.approx([2.5, 2.0])
    assert point.result.accuracy.tolist() == pytest.approx([0.3, 0.4])
    assert curve.settings.tolist() == [1.0, 2.0, 3.0]
    assert curve.cost.tolist() == pytest.approx([1.0, 2.25, 3.0])


def test_a_budget_is_read_at_the_held_out_cost(fitted: FittedPolicy) -> None:
    curve = curve_of(
        fitted,
        training=[[1.0, 2.0], [1.0, 2.0]],
        cost=[[1.0, 3.0], [1.0, 7.0]],
        accuracy=[[0.0, 0.4], [0.2, 1.0]],
    )
    point = curve.read(2.0)  # a quarter of the way from a mean cost of 1 to one of 5
    assert point.cost == pytest.approx(2.0, abs=1e-12)
    assert point.accuracy == pytest.approx(0.1 + 0.25 * 0.6)
    assert curve.slope(2.0) == pytest.approx(0.6 / 4)
    for cost, end in ((0.5, 1.0), (9.0, 5.0)):
        assert curve.read(cost).cost == pytest.approx(end)
        assert curve.slope(cost) == 0.0


def test_a_curve_goes_on_from_the_last_setting_of_the_same_cost(fitted: FittedPolicy) -> None:
    curve = curve_of(
        fitted,
        training=[[1.0, 2.0, 3.0]] * 2,
        cost=[[1.0, 1.0, 3.0]] * 2,
        accuracy=[[0.1, 0.5, 0.9]] * 2,
    )
    assert curve.read(2.0).accuracy == pytest.approx(0.7)
    assert curve.slope(2.0) == pytest.approx(0.2)


def test_stepped_curve_is_read_at_the_last_step_within_the_budget(fitted: FittedPolicy) -> None:
    steps = [1.0, 2.0, 4.0]
    curve = curve_of(fitted, [steps] * 2, [steps] * 2, [[0.1, 0.2, 0.4]] * 2, is_stepped=True)
    for budget, step in ((0.5, 0), (1.0, 0), (1.99, 0), (2.0, 1), (3.9, 1), (4.0, 2), (9.0, 2)):
        point = curve.read(budget)
        assert point.cost == steps[step]
        assert point.accuracy == pytest.approx([0.1, 0.2, 0.4][step])


def test_held_out_cost_never_falls_along_the_settings(fitted: FittedPolicy) -> None:
    curve = curve_of(fitted, [[1.0, 2.0, 3.0, 4.0]], [[1.0, 3.0, 2.9, 4.0]], [[0.1, 0.5, 0.3, 0.6]])
    assert (np.diff(curve.cost) >= 0).all()
    assert curve.find_setting(2.0) == pytest.approx(1.5)
    assert curve.find_setting(4.0) == pytest.approx(4.0)


def test_every_question_is_scored_by_a_policy_that_has_not_seen_it(experiment: Experiment) -> None:
    seen: list[IntArray] = []
    one_assignment = replace(experiment, max_assignments=1)
    fold = assign_folds(experiment.pool.group, 5, seed=experiment.seed)

    def factory(given: Experiment, train: IntArray) -> FittedPolicy:
        seen.append(train)
        return POLICY_FACTORIES["mixture"](given, train)

    curve = score_held_out(one_assignment, factory)
    assert len(seen) == len(curve.folds) == 5
    for f, train in enumerate(seen):
        assert train.tolist() == np.flatnonzero(fold != f).tolist()
        assert curve.folds[f].held_out.tolist() == np.flatnonzero(fold == f).tolist()
    held_out = np.concatenate([one.held_out for one in curve.folds])
    assert sorted(held_out.tolist()) == list(range(len(experiment.pool)))


@pytest.mark.usefixtures("all_assignments")
def test_a_curve_is_the_mean_of_several_fold_assignments(telling: Experiment) -> None:
    factory = find_factory("sequential")
    seeds = [telling.seed + 101 * i for i in range(3)]
    group = telling.pool.group
    splits = [split_folds(assign_folds(group, 5, seed=seed)) for seed in seeds]
    folds = [replay_splits(telling, factory, one) for one in splits]
    alone = [HeldOutCurve(tuple(one), group) for one in folds]
    curve = score_held_out(telling, factory)
    assert curve.n_assignments == telling.n_assignments == 3
    assert [one.n_assignments for one in alone] == [1, 1, 1]
    own = [one.at(3.0).result for one in alone]
    mean = curve.at(3.0).result
    np.testing.assert_allclose(mean.accuracy, np.mean([one.accuracy for one in own], axis=0))
    np.testing.assert_allclose(mean.cost, np.mean([one.cost for one in own], axis=0))
    spread = np.var([one.cost for one in own], axis=0)
    within = np.mean([one.cost_variance for one in own], axis=0)
    np.testing.assert_allclose(mean.cost_variance, within + spread)
    assert spread.max() > 0
    assert curve.read(3.0).cost == pytest.approx(3.0)


@pytest.mark.usefixtures("all_assignments")
def test_many_questions_are_assigned_once(
    experiment: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert experiment.n_assignments == 3
    monkeypatch.setattr(experiment_module, "MAX_ASSIGNED", len(experiment.pool) - 1)
    assert experiment.n_assignments == 1


def test_answers_of_held_out_questions_change_only_their_accuracy(telling: Experiment) -> None:
    splits = split_folds(assign_folds(telling.pool.group, 5, seed=0))[:1]
    rows, answers = splits[0][1], telling.pool.answers
    correct = answers.correct.copy()
    correct[np.isin(answers.question, rows)] = False  # the key of the held-out questions
    changed = replace(telling.pool, answers=replace(answers, correct=correct))
    factory = find_factory("sequential")
    (first,) = replay_splits(telling, factory, splits)
    (again,) = replay_splits(replace(telling, pool=changed), factory, splits)
    assert (first.training_cost == again.training_cost).all()
    assert (first.result.cost == again.result.cost).all()
    assert first.result.accuracy.any()
    assert not again.result.accuracy.any()


def test_copies_of_a_question_are_held_out_together(experiment: Experiment) -> None:
    pool = replace(experiment.pool, group=experiment.pool.group // np.uint64(3))
    curve = score_held_out(replace(experiment, pool=pool), find_factory("mixture"))
    for fold in curve.folds:
        inside = np.isin(pool.group, pool.group[fold.held_out])
        assert np.flatnonzero(inside).tolist() == fold.held_out.tolist()


@pytest.mark.parametrize("name", SMOOTH)
def test_mean_cost_at_a_budget_is_the_budget(experiment: Experiment, name: str) -> None:
    curve = score_held_out(experiment, find_factory(name))
    lowest, highest = curve.cost[0], curve.cost[-1]
    for budget in np.linspace(lowest, highest, 13).tolist():
        assert curve.read(budget).cost == pytest.approx(budget, abs=1e-9)


def test_fixed_curve_equals_the_replay_of_each_level(experiment: Experiment) -> None:
    curve = score_held_out(experiment, find_factory("fixed"))
    known = experiment.run_rules([FixedRule(n) for n in LEVELS])
    assert curve.is_stepped
    for k, samples in enumerate(LEVELS):
        point = curve.read(float(samples))
        assert point.cost == samples
        assert point.result.accuracy.tolist() == known.accuracy[:, k].tolist()
    assert curve.read(3.7).cost == 2.0


def test_random_mixture_equals_a_level_at_its_cost(experiment: Experiment) -> None:
    curve = score_held_out(experiment, find_factory("random"))
    accuracy = experiment.run_rules([FixedRule(n) for n in LEVELS]).accuracy
    for k, samples in enumerate(LEVELS):
        point = curve.read(float(samples))
        assert point.accuracy == pytest.approx(accuracy[:, k].mean(), abs=1e-9)
    half = curve.read(3.0).accuracy
    assert half == pytest.approx(accuracy[:, 1:3].mean(), abs=1e-9)


def simulate(seed: int, *, copies: int = 1, groups: int = 120) -> tuple[float, FloatArray, int]:
    """Draw questions whose policy is 3 points better at a mean cost of 2.

    Returns the measured difference, the influence of each question and the number of groups.
    """
    rng = np.random.default_rng(seed)
    ease, gain = rng.beta(0.6, 0.6, groups), rng.normal(0.03, 0.2, groups)
    spend = rng.gamma(4.0, 0.25, groups)  # cost of a question, relative to the setting
    rows = np.repeat(np.arange(groups), copies)
    settings = np.array([1.0, 1.5, 2.5, 4.0])
    rising = 0.2 * np.log(settings) * (1 - ease)[:, None]

    def curve(cost: FloatArray, more: FloatArray) -> HeldOutCurve:
        accuracy = (ease[:, None] + rising + more[:, None])[rows]
        zero = np.zeros(accuracy.shape)
        result = ReplayResult(cost[rows], accuracy, zero, zero, zero, zero)
        fold = FoldResult(np.asarray(FITTED.prices), settings, np.arange(len(rows)), result)
        return HeldOutCurve((fold,), rows.astype(np.uint64))

    base = curve(np.tile(settings, (groups, 1)), np.zeros(groups))
    policy = curve(spend[:, None] * settings, gain)
    value, influence = measure_difference(base, policy.read(2.0))
    return value, influence, groups


FITTED = FittedPolicy(None, (), np.zeros((0, 0), np.float32))  # type: ignore[arg-type]


def standard_error(influence: FloatArray, groups: int) -> float:
    by_group = influence.reshape(groups, -1).sum(axis=1) / len(influence)
    return float(np.sqrt((by_group**2).sum() * groups / (groups - 1)))


def test_influence_gives_the_spread_of_the_difference() -> None:
    found = [simulate(seed) for seed in range(200)]
    values = np.array([value for value, _, _ in found])
    errors = np.array([standard_error(influence, n) for _, influence, n in found])
    assert values.std() == pytest.approx(errors.mean(), rel=0.15)
    covered = np.abs(values - 0.03) <= 1.98 * errors
    assert 0.90 <= covered.mean() <= 0.99
    assert all(abs(influence.mean()) < 1e-12 for _, influence, _ in found)


def test_copies_of_questions_do_not_narrow_the_difference() -> None:
    once, copied = simulate(7), simulate(7, copies=5)
    assert copied[0] == pytest.approx(once[0])
    assert standard_error(*copied[1:]) == pytest.approx(standard_error(*once[1:]))
    assert standard_error(*simulate(7, groups=600)[1:]) < 0.6 * standard_error(*once[1:])


def test_a_curve_does_not_differ_from_itself(experiment: Experiment) -> None:
    curve = score_held_out(experiment, find_factory("mixture"))
    for cost in (1.0, 2.3, 6.0):
        value, influence = measure_difference(curve, curve.read(cost))
        assert value == pytest.approx(0.0, abs=1e-12)
        assert np.abs(influence).max() < 1e-9


def test_a_point_has_the_means_of_its_questions() -> None:
    point = CurvePoint(1.0, results([[1.0, 0.0]], [[0.5, 0.0]]).mix(0, 0.5))
    assert (point.cost, point.accuracy) == (0.5, 0.25)
