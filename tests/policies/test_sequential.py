"""The sequential policy: what it learns from text and votes, and how it is saved."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from adacompute.core.answers import Answers
from adacompute.core.errors import BundleError
from adacompute.core.state_sums import StateSums
from adacompute.core.states import states
from adacompute.core.types import Float32Array, IntArray, Level, make_levels
from adacompute.policies.bundles.bundle_files import TABLES
from adacompute.policies.bundles.sequential_tables import from_spec, to_spec
from adacompute.policies.episode import UNLIMITED_ROUNDS, Episode, run_episode, start_state
from adacompute.policies.policy import SampleMatrix
from adacompute.policies.sequential.policy import SequentialPolicy
from adacompute.policies.sequential.prior import response_profile
from adacompute.policies.sequential.vote_table import MAX_PLANS
from adacompute.policies.sequential.vote_table_fit import TrainingSet, fit_by_votes
from adacompute.policies.spec import PolicySpec

MAX_SAMPLES = 8
LEVELS = make_levels(tuple(range(1, MAX_SAMPLES + 1)))
SETTLED, RESPONSIVE, HOPELESS = 0, 1, 2
SHARES = np.array([[0.97, 0.01, 0.01, 0.01], [0.55, 0.15, 0.15, 0.15], [0.04, 0.32, 0.32, 0.32]])


def population(
    size: int, *, telling: float, seed: int = 0, samples: int = 16
) -> tuple[Float32Array, Answers, IntArray]:
    """Return questions of three types; ``telling`` is how well two features separate them."""
    rng = np.random.default_rng(seed)
    question_type = rng.integers(0, 3, size)
    answer = np.stack([rng.choice(4, samples, p=SHARES[k]) for k in question_type])
    features = rng.normal(size=(size, 5)).astype(np.float32)
    features[:, 0] += telling * (question_type == RESPONSIVE)
    features[:, 1] += telling * (question_type == HOPELESS)
    return features, Answers.of(answer.tolist(), (answer == 0).tolist()), question_type


def fit_answers(features: Float32Array, answers: Answers) -> SequentialPolicy:
    profile = response_profile(answers, MAX_SAMPLES)
    every = np.arange(len(answers))
    sums = StateSums(answers, MAX_SAMPLES)
    training = TrainingSet(features, profile, every, sums, rows=every)
    return fit_by_votes(training, LEVELS)


def fit(size: int, *, telling: float, seed: int = 0) -> SequentialPolicy:
    features, answers, _ = population(size, telling=telling, seed=seed)
    return fit_answers(features, answers)


def count_samples(
    policy: SequentialPolicy,
    features: Float32Array,
    answers: Answers,
    price: float,
    rounds: int = UNLIMITED_ROUNDS,
) -> IntArray:
    samples = np.array([level.n_samples for level in policy.levels], dtype=np.float64)
    start = Episode.start(
        policy,
        price,
        start_state(
            key=np.arange(len(features), dtype=np.uint64),
            features=policy.prepare_features(features),
            cost=np.broadcast_to(samples, (len(features), len(samples))),
            samples=SampleMatrix(answers.answer.reshape(len(features), -1)),
            max_rounds=rounds,
        ),
    )
    return run_episode(start.decide()).state.observed.n_samples


@pytest.mark.parametrize("telling", [0.0, 6.0])
def test_responsive_questions_get_the_samples(
    telling: float,
) -> None:
    policy = fit(400, telling=telling)
    features, answers, question_type = population(600, telling=telling, seed=1)
    used = count_samples(policy, features, answers, 0.02)
    mean = [used[question_type == k].mean() for k in (SETTLED, RESPONSIVE, HOPELESS)]
    assert mean[RESPONSIVE] > 1.5 * mean[SETTLED]
    if telling:  # votes alone cannot separate these two so early
        assert mean[RESPONSIVE] > 2.0 * mean[HOPELESS]
        assert mean[HOPELESS] < 1.5


def test_uninformative_features_change_little() -> None:
    policy = fit(400, telling=0.0)
    features, answers, _ = population(600, telling=0.0, seed=1)
    price = policy.votes.break_even_price.mean(axis=1, keepdims=True)
    prior = replace(policy.prior, cell_centre=policy.prior.cell_centre[:1])
    flat = change(replace(policy, prior=prior), break_even_price=price)
    used, alike = (count_samples(p, features, answers, 0.02) for p in (policy, flat))
    assert abs(used.mean() - alike.mean()) < 0.3
    assert (used == alike).mean() > 0.8


@pytest.mark.parametrize("size", [1, 5, 12, 40])
def test_few_questions_give_fewer_clusters_and_cells(size: int) -> None:
    policy = fit(size, telling=1.0)
    assert len(policy.prior.cell_centre) <= max(1, size // 4)
    assert policy.votes.break_even_price.shape == (
        states().first[MAX_SAMPLES + 1],
        len(policy.prior.cell_centre),
    )
    assert np.isfinite(policy.votes.break_even_price).all()


def test_equal_questions_have_one_prior() -> None:
    answer = np.zeros((60, 16), dtype=np.int64)
    answers = Answers.of(answer.tolist(), (answer == 0).tolist())
    features = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    policy = fit_answers(features, answers)
    assert len(policy.prior.cell_centre) == 1
    assert (count_samples(policy, features, answers, 1e-9) == 1).all()


def test_the_number_of_samples_is_at_least_one_and_limited() -> None:
    policy = fit(100, telling=1.0)
    features, answers, _ = population(100, telling=1.0, seed=1)
    assert (count_samples(policy, features, answers, 1e9) == 1).all()
    assert count_samples(policy, features, answers, 0.0).max() == MAX_SAMPLES


def test_the_response_profile_is_computed_from_samples() -> None:
    answers = Answers.of([[0, 0, 1, -1]], [[True, True, False, False]])
    correct, three, four, agree, unparsed = response_profile(answers, 4)[0]
    assert (correct, agree, unparsed) == pytest.approx((0.5, 2 / 12, 0.25))
    assert four == pytest.approx(1.0 - 0.5)  # two votes of three
    assert three == pytest.approx(0.75 - 0.5)
    assert response_profile(answers, 1).shape == (1, 3)


def change(policy: SequentialPolicy, **fields: Any) -> SequentialPolicy:
    """Return a policy with another table of votes."""
    return replace(policy, table=replace(policy.votes, _plans={}, **fields))


def load(tables: bytes, levels: tuple[Level, ...] = LEVELS) -> SequentialPolicy:
    content = {"round_cost": 0.0, "table_samples": len(levels), "values": None}
    return from_spec(PolicySpec(levels, content, {TABLES: tables}))


def test_saved_tables_are_loaded_unchanged() -> None:
    policy = fit(100, telling=1.0)
    loaded = from_spec(to_spec(policy))
    assert to_spec(loaded) == to_spec(policy)
    assert (loaded.votes.break_even_price == policy.votes.break_even_price).all()


def test_tables_that_do_not_fit_are_rejected() -> None:
    policy = fit(100, telling=1.0)
    tables = to_spec(policy).files[TABLES]
    with pytest.raises(BundleError, match="do not fit its 4 samples"):
        load(tables, LEVELS[:4])
    with pytest.raises(BundleError, match="damaged"):
        load(tables[:50])
    with pytest.raises(BundleError, match="damaged"):
        load(b"")
    middle = len(tables) // 2
    with pytest.raises(BundleError, match="damaged"):
        load(tables[:middle] + bytes(64) + tables[middle + 64 :])
    wrong = replace(policy, prior=replace(policy.prior, mean=policy.prior.mean[:2]))
    with pytest.raises(BundleError, match="not fit"):
        from_spec(to_spec(wrong))
    strange = change(policy, break_even_price=policy.votes.break_even_price * np.float32(np.nan))
    with pytest.raises(BundleError, match="not finite"):
        from_spec(to_spec(strange))


def test_fewer_rounds_request_more_samples_at_a_time() -> None:
    policy = fit(400, telling=6.0)
    features, answers, question_type = population(300, telling=6.0, seed=1)
    used = {
        r: count_samples(policy, features, answers, 0.01, rounds=r)
        for r in (1, 2, MAX_SAMPLES - 1, MAX_SAMPLES)
    }
    for found in used.values():
        assert (found >= 1).all()
        assert found[question_type == RESPONSIVE].mean() > found[question_type == SETTLED].mean()
    wasted = [found[question_type == SETTLED].mean() for found in used.values()]
    assert wasted[0] > wasted[1] > wasted[-1]  # samples that votes would have saved


def test_with_enough_rounds_a_plan_agrees_with_break_even_prices() -> None:
    policy = fit(200, telling=0.0)
    features, answers, _ = population(200, telling=0.0, seed=1)
    nearly_free = change(policy, round_cost=1e-9)
    alone, planned = (count_samples(p, features, answers, 0.02) for p in (policy, nearly_free))
    assert abs(alone.mean() - planned.mean()) < 0.2  # plans are made for discrete prices


def test_an_expensive_round_happens_once() -> None:
    policy = change(fit(200, telling=6.0), round_cost=50.0)
    features, answers, _ = population(200, telling=6.0, seed=1)
    many, one = (count_samples(policy, features, answers, 0.01, rounds=r) for r in (MAX_SAMPLES, 1))
    assert (many == one).all()


def test_few_plans_are_cached() -> None:
    policy = change(fit(100, telling=0.0), round_cost=0.5)
    features, answers, _ = population(20, telling=0.0, seed=1)
    for price in np.geomspace(0.1, 1e-3, 12):
        count_samples(policy, features, answers, float(price))
        assert 0 < len(policy.votes._plans) <= MAX_PLANS
