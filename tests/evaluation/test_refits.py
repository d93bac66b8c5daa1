"""Refits: the variance between fits to other questions, by itself and inside intervals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from adacompute.evaluation import refits as refits_module
from adacompute.evaluation.experiment import Experiment
from adacompute.evaluation.factories import find_factory
from adacompute.evaluation.held_out import HeldOutCurve, score_held_out
from adacompute.evaluation.policy_score import score_policy
from adacompute.evaluation.pool import Pool
from adacompute.evaluation.refits import N_PARTS, RefitVariance, score_refits
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


def mean_variance(
    experiment_of: Callable[..., Experiment], size: int, n_seeds: int
) -> RefitVariance:
    found = []
    for seed in range(n_seeds):
        experiment = experiment_of(size, seed)
        refits = score_refits(experiment, find_factory("retry"))
        found.append(refits.variance(3.0, mixture_of(experiment), 3.0))
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
    for cost in (1.0, 3.0, 8.0):
        assert refits.variance(cost, mixture, cost).cost == 0
        assert refits.variance(cost, mixture, cost).gain == pytest.approx(0.0, abs=1e-12)


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
    for scaled, own in zip(
        some.variance(3.0, mixture, 3.0), whole.variance(3.0, mixture, 3.0), strict=True
    ):
        assert scaled == pytest.approx(own / 2)


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
        result = target.replay.run(final.policy, final.prices)
        cost, accuracy = result.cost.mean(axis=0), result.accuracy.mean(axis=0)
        gain.append(np.interp(3.0, np.maximum.accumulate(cost), accuracy))
        refits = score_refits(experiment, find_factory("sequential"))
        estimated.append(refits.variance(3.0, mixture_of(experiment), 3.0).gain)
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
    assert (one.low, one.value, one.high) == pytest.approx((gain.low, gain.value, gain.high))
