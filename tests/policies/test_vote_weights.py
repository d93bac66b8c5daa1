"""Vote weights: learned where signals or arms tell something, and equal where they do not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from adacompute.core.answers import UNPARSED, Answers
from adacompute.policies.confidence import LENGTH, Confidence
from adacompute.policies.sequential.arm_samples import ArmSamples
from adacompute.policies.sequential.vote_weights import fit_votes

N_QUESTIONS, N_SAMPLES = 150, 8
SIGNALS = ("mean_logprob", LENGTH)


def make_samples(
    seed: int,
    skill: tuple[float, ...] = (0.0,),
    *,
    logprob: float = 0.0,
    length: float = 0.0,
) -> ArmSamples:
    """Questions of mixed difficulty; signals are larger by so much in correct samples."""
    rng = np.random.default_rng(seed)
    n_arms = len(skill)
    shape = (N_QUESTIONS, n_arms, N_SAMPLES)
    arm = np.broadcast_to(np.arange(n_arms)[None, :, None], shape).ravel()
    ease = rng.normal(0.3, 1.0, (N_QUESTIONS, 1, 1)) + np.array(skill)[None, :, None]
    correct = (rng.random(shape) < 1 / (1 + np.exp(-ease))).ravel()
    answer = np.where(correct, 0, rng.integers(1, 3, correct.size))
    answer = np.where(rng.random(correct.size) < 0.05, UNPARSED, answer)
    correct &= answer != UNPARSED
    noise = rng.normal(0.0, 0.1, (2, correct.size))
    values = noise + np.array([[logprob], [length]]) * correct
    offsets = np.arange(N_QUESTIONS + 1) * n_arms * N_SAMPLES
    return ArmSamples(
        answers=Answers(offsets, answer, correct),
        key=np.arange(N_QUESTIONS, dtype=np.uint64),
        arm=arm,
        n_arms=n_arms,
        cost=np.ones(correct.size),
        signals=SIGNALS,
        values=values.T,
    )


def fit(samples: ArmSamples, *, use: bool = True, joint: bool = True) -> Confidence:
    caps = (N_SAMPLES,) * samples.n_arms
    return fit_votes(samples, np.arange(N_QUESTIONS), caps, seed=0, use=use, joint=joint)


def counts_alike(found: Confidence) -> bool:
    """Whether every sample counts once."""
    return not (found.weight_slope.any() or np.ptp(found.weight_intercept) > 0)


@pytest.mark.parametrize("n_arms", [1, 2])
@pytest.mark.parametrize("seed", range(3))
def test_informative_log_probabilities_weight_votes(n_arms: int, seed: int) -> None:
    found = fit(make_samples(seed, (0.0,) * n_arms, logprob=0.15))
    assert found.signals[0] == "mean_logprob"
    assert (found.weight_slope[:, 0] > 0).all()
    assert (found.slope[:, 0] > 0).all()
    assert not counts_alike(found)


def test_weights_grow_with_what_log_probabilities_tell() -> None:
    slope = []
    for logprob in (0.05, 0.15, 0.3):
        found = fit(make_samples(1, logprob=logprob))
        slope.append(float(found.weight_slope[0, 0] * found.scale[0, 0] * 0.1))
    assert slope[0] < slope[1] < slope[2]


@pytest.mark.parametrize("seed", range(4))
def test_useless_signals_leave_votes_equal(seed: int) -> None:
    found = fit(make_samples(seed))
    assert found.signals == ()
    assert counts_alike(found)


@pytest.mark.parametrize("within", [True, False], ids=["within", "across"])
@pytest.mark.parametrize("n_arms", [1, 2])
def test_shuffled_log_probabilities_are_not_used(n_arms: int, *, within: bool) -> None:
    samples = make_samples(2, (0.0,) * n_arms, logprob=0.15)
    order = np.random.default_rng(3).permutation(len(samples.values))
    if within:
        cell = samples.answers.question * n_arms + samples.arm
        order = order[np.argsort(cell[order], kind="stable")]
    found = fit(replace(samples, values=samples.values[order]))
    assert "mean_logprob" not in found.signals
    assert not found.weight_slope.any()
    if n_arms == 1:
        assert counts_alike(found)


def test_log_probabilities_that_speak_against_a_sample_are_not_used() -> None:
    assert fit(make_samples(0, logprob=-0.3)).signals == ()


def test_length_alone_is_used_only_where_arms_vote_together() -> None:
    assert counts_alike(fit(make_samples(0, length=-0.3)))
    found = fit(make_samples(0, (0.0, 0.0), length=-0.3))
    assert found.signals == (LENGTH,)
    assert (found.weight_slope < 0).all()
    both = fit(make_samples(0, logprob=0.15, length=-0.2))
    assert both.signals == SIGNALS
    assert both.weight_slope[0, 0] > 0
    assert both.weight_slope[0, 1] == 0  # beside a likelihood, length changes no weight
    assert both.slope[0, 1] < 0


def test_signals_are_not_used_unless_wanted() -> None:
    assert counts_alike(fit(make_samples(0, logprob=0.3), use=False))
    arms = fit(make_samples(0, (-1.0, 1.5), logprob=0.3), use=False)
    assert arms.signals == ()
    assert not counts_alike(arms)  # arms may differ without signals


def test_samples_of_better_arms_count_more_where_arms_vote_together() -> None:
    samples = make_samples(0, (-1.0, 1.5))
    joint, alone = fit(samples), fit(samples, joint=False)
    assert joint.weight_intercept[1] > joint.weight_intercept[0] + 0.5
    assert joint.intercept[1] > joint.intercept[0] + 0.5
    assert counts_alike(alone)


def test_an_arm_is_weighted_as_it_is_alone_where_arms_do_not_vote_together() -> None:
    found = fit(make_samples(0, (-1.0, 1.5), logprob=0.15), joint=False)
    assert (found.weight_slope > 0).all()
    assert not found.weight_intercept.any()


def test_weights_of_few_votes_are_close_to_the_usual_temperature() -> None:
    """Three questions hardly move it: a weight is about exp(mean log-probability / 0.1)."""
    samples = make_samples(4, logprob=0.4)
    samples = replace(samples, signals=("mean_logprob",), values=samples.values[:, :1])
    found = fit_votes(samples, np.arange(3), (N_SAMPLES,), seed=0)
    assert found.signals == ("mean_logprob",)
    low, high = (found.measure(0, [one])[1] for one in (0.2, 0.3))
    assert high / low == pytest.approx(np.e, rel=0.1)


def test_weights_depend_on_training_questions_alone() -> None:
    samples, train = make_samples(5, logprob=0.15), np.arange(100)
    found = fit_votes(samples, train, (N_SAMPLES,), seed=0)
    held_out = ~samples.in_rows(train)
    values = np.where(held_out[:, None], -samples.values, samples.values)
    correct = np.where(held_out, False, samples.answers.correct)
    answers = replace(samples.answers, correct=correct)
    other = replace(samples, values=values, answers=answers)
    again = fit_votes(other, train, (N_SAMPLES,), seed=0)
    assert (again.weight_slope == found.weight_slope).all()
    assert (again.slope == found.slope).all()


def test_two_questions_count_every_sample_once() -> None:
    samples = make_samples(0, logprob=0.3)
    for first in range(0, 40, 2):
        assert counts_alike(fit_votes(samples, np.arange(first, first + 2), (N_SAMPLES,), seed=0))


def test_signals_of_any_size_give_finite_weights() -> None:
    samples = make_samples(0, logprob=0.3)
    found = fit(replace(samples, values=samples.values * 1000))
    weight = found.weight(samples.arm, 1000 * samples.column(found.signals))
    assert np.isfinite(weight).all()
    assert np.isfinite(weight.sum())
