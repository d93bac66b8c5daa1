"""Refits: the variance between fits to other questions, by itself and inside intervals."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from adacompute.core.types import IntArray
from adacompute.evaluation.experiment import Experiment, FittedPolicy, PolicyFactory
from adacompute.evaluation.factories import find_factory
from adacompute.evaluation.pool import Pool
from adacompute.evaluation.scoring import refits as refits_module
from adacompute.evaluation.scoring.held_out import CurvePoint, HeldOutCurve, score_held_out
from adacompute.evaluation.scoring.policy_score import score_policy
from adacompute.evaluation.scoring.refits import N_PARTS, RefitVariance, score_refits
from test_support.populations import make_population

LEVELS = (1, 2, 4, 8)


@pytest.fixture(scope="module")
def experiment_of(pool_of: Callable[..., Pool]) -> Callable[..., Experiment]:
    @cache
    def make(size: int, seed: int = 0) -> Experiment:
        population, _ = make_population(size, feature_signal=0.5, unparsed_rate=0.1, seed=seed)
        pool = pool_of(population, 12, seed=seed)
        return Experiment(pool, LEVELS, (2.0,), n_permutations=6, seed=0)

    return make


def mixture_of(experiment: Experiment) -> HeldOutCurve:
    return score_held_out(experiment, find_factory("mixture"))


def read_point(experiment: Experiment, factory: PolicyFactory) -> CurvePoint:
    return score_held_out(experiment, factory).read(3.0)


def mean_variance(
    experiment_of: Callable[..., Experiment], size: int, n_seeds: int
) -> RefitVariance:
    found = []
    for seed in range(n_seeds):
        experiment = experiment_of(size, seed)
        factory = find_factory("retry")
        refits, point = score_refits(experiment, factory), read_point(experiment, factory)
        found.append(refits.variance(point, mixture_of(experiment)))
    return RefitVariance(*np.mean(found, axis=0).tolist())


def test_the_variance_falls_with_the_number_of_questions(
    experiment_of: Callable[..., Experiment],
) -> None:
    few, many = mean_variance(experiment_of, 60, 20), mean_variance(experiment_of, 480, 6)
    assert few.gain > 4 * many.gain > 0
    assert few.cost > 4 * many.cost > 0


def test_fits_are_to_thirds_and_share_no_question(
    experiment_of: Callable[..., Experiment],
) -> None:
    experiment = experiment_of(90)
    refits = score_refits(experiment, find_factory("mixture"))
    assert refits.part.shape == (3, 90)
    assert (refits.part[0] != refits.part[1]).any()
    for part, folds in zip(refits.part, refits.folds, strict=True):
        assert np.bincount(part).tolist() == [30, 30, 30]
        for own, fold in enumerate(folds):
            assert fold.held_out.tolist() == np.flatnonzero(part != own).tolist()
        assert len(folds) == N_PARTS


def test_copies_of_a_question_share_a_part(experiment_of: Callable[..., Experiment]) -> None:
    experiment = experiment_of(90)
    pool = replace(experiment.pool, group=experiment.pool.group // np.uint64(2))
    refits = score_refits(replace(experiment, pool=pool), find_factory("mixture"))
    assert (refits.part[:, ::2] == refits.part[:, 1::2]).all()
    assert refits.n_groups == 45


def test_a_policy_that_is_not_fitted_has_no_variance(
    experiment_of: Callable[..., Experiment],
) -> None:
    experiment = experiment_of(90)
    mixture = mixture_of(experiment)
    refits = score_refits(experiment, find_factory("random"))
    curve = score_held_out(experiment, find_factory("random"))
    for cost in (1.0, 3.0, 8.0):
        found = refits.variance(curve.read(cost), mixture)
        assert found.cost == 0
        assert found.gain == pytest.approx(0.0, abs=1e-12)


def test_of_many_questions_some_are_split_and_the_variance_is_scaled(
    experiment_of: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = experiment_of(180)
    mixture = mixture_of(experiment)
    monkeypatch.setattr(refits_module, "MAX_QUESTIONS", 90)
    some = score_refits(experiment, find_factory("sequential"))
    assert some.part.shape == (3, 90)
    assert some.n_groups == 180
    whole = replace(some, n_groups=90)
    point = read_point(experiment, find_factory("sequential"))
    scaled, own = some.variance(point, mixture), whole.variance(point, mixture)
    assert scaled.cost == pytest.approx(own.cost / 2)
    assert scaled.gain == pytest.approx(own.gain / 2)
    assert scaled.growth == 0  # so many questions that it makes no difference


@pytest.mark.nightly
def test_the_variance_is_that_of_fits_to_new_questions(
    experiment_of: Callable[..., Experiment], pool_of: Callable[..., Pool]
) -> None:
    population, _ = make_population(1500, feature_signal=0.5, unparsed_rate=0.1, seed=99)
    target = Experiment(pool_of(population, 12, seed=99), LEVELS, (2.0,), n_permutations=6)
    gain, estimated = [], []
    for seed in range(12):
        experiment = experiment_of(150, seed)
        final = find_factory("sequential")(experiment, np.arange(150))
        result = target.run(replace(final, features=target.pool.features))
        cost, accuracy = result.cost.mean(axis=0), result.accuracy.mean(axis=0)
        gain.append(np.interp(3.0, np.maximum.accumulate(cost), accuracy))
        factory = find_factory("sequential")
        refits, point = score_refits(experiment, factory), read_point(experiment, factory)
        estimated.append(refits.variance(point, mixture_of(experiment)).gain)
    true = float(np.var(gain, ddof=1))
    # Fits to a third of the questions vary by more than three times as much, so it is cautious.
    assert 0.5 * true < np.mean(estimated) < 12 * true


def test_intervals_are_wider_by_the_variance_of_refitting(
    experiment_of: Callable[..., Experiment],
) -> None:
    score = score_policy(experiment_of(90), "sequential")
    point = score.curve.read(3.0)
    gain, refit = score.gain(point), score.refit_variance(point)
    assert refit.gain > 0
    narrow = replace(score)
    narrow.__dict__["refits"] = None
    without = narrow.gain(point)
    assert without.value == gain.value
    assert without.high - without.low < gain.high - gain.low
    wide, bare = ((g.high - g.value) ** 2 for g in (gain, without))
    wide = (math.sqrt(wide) - max(0.0, refit.growth)) ** 2
    assert wide / bare == pytest.approx(
        1 + refit.gain / (bare / 1.987**2), rel=0.01
    )  # 1.987: Student's t with 89 degrees of freedom


def test_the_mixture_has_no_gain_and_no_refits(experiment_of: Callable[..., Experiment]) -> None:
    score = score_policy(experiment_of(90), "mixture")
    assert score.refits is None
    gain = score.gain(score.curve.read(3.0))
    assert (gain.value, gain.low, gain.high) == (0.0, 0.0, 0.0)


def test_two_policies_are_compared_at_equal_cost(experiment_of: Callable[..., Experiment]) -> None:
    experiment = experiment_of(90)
    retry, early = (score_policy(experiment, name) for name in ("retry", "early-stopping"))
    found, reverse = retry.difference(early, [2.0, 3.0]), early.difference(retry, [2.0, 3.0])
    assert (found.value, found.low) == pytest.approx((-reverse.value, -reverse.high), rel=0.05)
    accuracy = [score.curve.read(b).accuracy for score in (retry, early) for b in (2.0, 3.0)]
    assert found.value == pytest.approx((sum(accuracy[:2]) - sum(accuracy[2:])) / 2)
    same = retry.difference(retry, [2.0])
    assert (same.low, same.value, same.high) == (0.0, 0.0, 0.0)
    mixture = score_policy(experiment, "mixture")
    gain = retry.gain(retry.curve.read(3.0))
    one = retry.difference(mixture, [3.0])
    assert (one.low, one.value) == pytest.approx((gain.low, gain.value))
    growth = max(0.0, retry.refit_variance(retry.curve.read(3.0)).growth)
    assert gain.high == pytest.approx(one.high + growth)


LOST = 6.0


def learn_by_number(experiment: Experiment, train: IntArray) -> FittedPolicy:
    """Return a policy that lacks ``LOST`` correct answers per training question."""
    fixed = find_factory("fixed")(experiment, train)
    assert fixed.known is not None
    accuracy = fixed.known.accuracy * 0 + 0.9 - LOST / len(train)
    return replace(fixed, known=replace(fixed.known, accuracy=accuracy))


def test_a_fit_to_all_questions_gains_more_than_those_of_the_folds(
    experiment_of: Callable[..., Experiment],
) -> None:
    experiment = experiment_of(180)
    score = score_policy(experiment, learn_by_number)
    point = score.curve.read(4.0)
    missing = LOST / 144 - LOST / 180
    found = score.refit_variance(point)
    assert found.growth == pytest.approx(missing, rel=1e-6)
    gain, narrow = score.gain(point), replace(score)
    narrow.__dict__["refits"] = None
    assert gain.value == narrow.gain(point).value
    assert gain.high > narrow.gain(point).high + missing * 0.999
