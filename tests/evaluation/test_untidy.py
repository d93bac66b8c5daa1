"""Pools whose questions have unequal numbers of samples give the figures of the complete pool."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from adacompute.core.answers import Answers
from adacompute.core.types import IntArray
from adacompute.evaluation import experiment as experiments
from adacompute.evaluation.experiment import Experiment, FittedPolicy
from adacompute.evaluation.factories import make_mixture
from adacompute.evaluation.intervals import Mean
from adacompute.evaluation.pool import Pool
from adacompute.evaluation.scoring.held_out import replay_splits, split_folds
from adacompute.evaluation.scoring.policy_score import score_policy
from test_support.pools import draw_pool

LEVELS, BUDGET = (1, 2, 4, 8), 2.0


def complete_pool(size: int = 400) -> Pool:
    return draw_pool(size, 24, feature_signal=0.3, seed=3)


@pytest.mark.parametrize("policy", ["mixture", "sequential"])
@pytest.mark.parametrize("thinned", ["at random", "adaptively"])
def test_figures_of_a_thinned_pool_are_within_the_intervals_of_the_complete_one(
    thinned: str, policy: str
) -> None:
    pool = complete_pool()
    keep = np.random.default_rng(0).integers(4, 25, len(pool))
    if thinned == "adaptively":
        first = pool.answers.answer.reshape(len(pool), 24)[:, :4]
        keep = np.where((first == first[:, :1]).all(axis=1), 4, 24)
    part = pool.keep(pool.answers.position < keep[pool.answers.question])
    filled = part.equalise()
    assert filled.n_imputed > 0
    assert len(filled) == len(pool)
    whole, other = (
        score_policy(Experiment(p, LEVELS, (BUDGET,), 10), policy) for p in (pool, filled)
    )
    expected, found = whole.curve.read(BUDGET), other.curve.read(BUDGET)
    accuracy, gain = whole.accuracy(expected), whole.gain(expected)
    assert accuracy.low <= other.accuracy(found).value <= accuracy.high
    assert gain.low <= other.gain(found).value <= gain.high


def test_equal_pools_are_not_changed_and_questions_without_samples_are_left_out() -> None:
    pool = complete_pool(40)
    assert pool.equalise().answers is pool.answers
    empty = pool.keep(pool.answers.question != 7)
    assert len(empty.equalise()) == 39
    assert empty.equalise().n_excluded == 1


def test_imputed_samples_cost_what_the_samples_of_their_question_cost() -> None:
    pool = complete_pool(40)
    cost = np.arange(1.0, 41.0)[pool.answers.question]
    pool = Pool(pool.answers, pool.key, pool.group, pool.features, cost, logprob=-cost)
    part = pool.keep(pool.answers.position < (4 + np.arange(40) % 21)[pool.answers.question])
    filled = part.equalise()
    assert (filled.sample_cost == np.arange(1.0, 41.0)[filled.answers.question]).all()
    assert filled.logprob is not None
    assert (filled.logprob == -filled.sample_cost).all()


def thinned_pool(*, wrong: int | None = None) -> Pool:
    """Return 60 questions of 4 to 24 samples; all samples of one question may be wrong."""
    pool = complete_pool(60)
    if wrong is not None:
        is_other = pool.answers.question != wrong
        answer = np.where(is_other, pool.answers.answer, 0)
        correct = np.asarray(pool.answers.correct & is_other)
        pool = replace(pool, answers=Answers(pool.answers.offsets, answer, correct))
    few = 4 + 20 * (np.arange(60) % 3 == 0)
    return pool.keep(pool.answers.position < few[pool.answers.question]).equalise()


def test_no_held_out_question_has_a_part_in_the_imputed_samples_of_others() -> None:
    train, held_out = split_folds(np.arange(60) % 5)[0]
    seen: list[Answers] = []

    def note(experiment: Experiment, train: IntArray) -> FittedPolicy:
        seen.append(experiment.pool.answers)
        return make_mixture(experiment, train)

    changed = int(held_out[1])
    pools = [thinned_pool(), thinned_pool(wrong=changed)]
    folds = [replay_splits(Experiment(p, LEVELS), note, [(train, held_out)])[0] for p in pools]
    same = np.flatnonzero(np.arange(60) != changed)
    one, other = (answers.take(same) for answers in seen)
    assert one.answer.tolist() == other.answer.tolist()
    assert one.correct.tolist() == other.correct.tolist()
    kept = held_out != changed
    assert (folds[0].result.accuracy[kept] == folds[1].result.accuracy[kept]).all()
    # Imputed from all questions, as the final policy is fitted, they do differ.
    before, after = (pool.answers.take(same).correct.tolist() for pool in pools)
    assert before != after


def test_each_set_of_training_questions_has_imputed_samples_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    experiment = Experiment(thinned_pool(), LEVELS)
    one, other = np.arange(50), np.arange(10, 60)
    refilled = experiment.refill(one)
    assert experiment.refill(one) is refilled
    assert experiment.refill(other).pool.answers.correct.tolist() != (
        refilled.pool.answers.correct.tolist()
    )
    for pool in (refilled.pool, refilled.pool.take(one)):
        assert pool.is_recorded is not None
        recorded = np.bincount(pool.answers.question[pool.is_recorded])
        assert recorded.tolist() == [24 if q % 3 == 0 else 4 for q in range(len(pool))]
    assert refilled.pool.n_imputed == experiment.pool.n_imputed == 40 * 20
    assert experiment.refill(np.arange(60)) is experiment
    complete = Experiment(complete_pool(40), LEVELS)
    assert complete.refill(one[:20]) is complete
    assert complete.pool.refill(one[:20]) is complete.pool
    monkeypatch.setattr(experiments, "MAX_REFILLED", 2)
    experiment.refill(np.arange(30))
    assert experiment.refill(one) is not refilled


def test_the_interval_of_the_accuracy_covers_how_samples_were_imputed() -> None:
    experiment = Experiment(thinned_pool(), LEVELS, (BUDGET,), 10)
    score = score_policy(experiment, "adaptive-consistency")
    point = score.curve.read(BUDGET)
    variance = score.accuracy_variance([point])
    plain = Mean.of(point.result.accuracy, 0.0, score.group)
    assert variance > 0  # the rule learns nothing: only the imputed samples differ
    assert score.accuracy(point) == plain.widen(variance).interval(0.95)
