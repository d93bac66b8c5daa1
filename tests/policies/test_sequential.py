"""The sequential policy: what it learns from text and votes, and how it is kept."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from adacompute.core.answers import Answers
from adacompute.core.errors import BundleError
from adacompute.core.states import measure_states, states
from adacompute.core.types import Float32Array, IntArray, Level, make_levels
from adacompute.policies.episode import UNLIMITED_ROUNDS, Episode, run_episode
from adacompute.policies.policy import SampleMatrix
from adacompute.policies.prior import response_profile
from adacompute.policies.sequential import (
    TABLES,
    SequentialPolicy,
    fit_sequential,
    from_spec,
    to_spec,
)
from adacompute.policies.spec import PolicySpec

MAX_SAMPLES = 8
LEVELS = make_levels(tuple(range(1, MAX_SAMPLES + 1)))
SETTLED, RESPONSIVE, HOPELESS = 0, 1, 2
SHARES = np.array([[0.97, 0.01, 0.01, 0.01], [0.55, 0.15, 0.15, 0.15], [0.04, 0.32, 0.32, 0.32]])


def population(
    size: int, *, telling: float, seed: int = 0, samples: int = 16
) -> tuple[Float32Array, Answers, IntArray]:
    """Questions of three kinds that the first feature tells apart, as far as it is telling."""
    rng = np.random.default_rng(seed)
    kind = rng.integers(0, 3, size)
    answer = np.stack([rng.choice(4, samples, p=SHARES[k]) for k in kind])
    features = rng.normal(size=(size, 5)).astype(np.float32)
    features[:, 0] += telling * (kind == RESPONSIVE)
    features[:, 1] += telling * (kind == HOPELESS)
    return features, Answers.of(answer.tolist(), (answer == 0).tolist()), kind


def fit(size: int, *, telling: float, seed: int = 0) -> SequentialPolicy:
    features, answers, _ = population(size, telling=telling, seed=seed)
    return fit_sequential(features, answers, measure_states(answers, MAX_SAMPLES), LEVELS)


def draws(
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
        key=np.arange(len(features), dtype=np.uint64),
        features=policy.prepare_features(features),
        cost=np.broadcast_to(samples, (len(features), len(samples))),
        samples=SampleMatrix(answers.answer.reshape(len(features), -1)),
        max_rounds=rounds,
    )
    return run_episode(start.decide()).state.observed.n_samples


@pytest.mark.parametrize("telling", [0.0, 6.0])
def test_responsive_questions_get_the_draws_and_settled_and_hopeless_ones_stop(
    telling: float,
) -> None:
    policy = fit(400, telling=telling)
    features, answers, kind = population(600, telling=telling, seed=1)
    drawn = draws(policy, features, answers, 0.02)
    mean = [drawn[kind == k].mean() for k in (SETTLED, RESPONSIVE, HOPELESS)]
    assert mean[RESPONSIVE] > 1.5 * mean[SETTLED]
    if telling:  # votes alone cannot tell these two so early
        assert mean[RESPONSIVE] > 2.0 * mean[HOPELESS]
        assert mean[HOPELESS] < 1.5


def test_features_that_say_nothing_change_next_to_nothing() -> None:
    policy = fit(400, telling=0.0)
    features, answers, _ = population(600, telling=0.0, seed=1)
    flat = replace(policy, break_even_price=policy.break_even_price.mean(axis=1, keepdims=True))
    flat = replace(flat, prior=replace(policy.prior, cell_centre=policy.prior.cell_centre[:1]))
    drawn, alike = (draws(p, features, answers, 0.02) for p in (policy, flat))
    assert abs(drawn.mean() - alike.mean()) < 0.3
    assert (drawn == alike).mean() > 0.8


@pytest.mark.parametrize("size", [1, 5, 12, 40])
def test_few_questions_make_fewer_kinds_and_places(size: int) -> None:
    policy = fit(size, telling=1.0)
    assert len(policy.prior.cell_centre) <= max(1, size // 4)
    assert policy.break_even_price.shape == (
        states().first[MAX_SAMPLES + 1],
        len(policy.prior.cell_centre),
    )
    assert np.isfinite(policy.break_even_price).all()


def test_questions_that_all_behave_alike_have_one_prior() -> None:
    answer = np.zeros((60, 16), dtype=np.int64)
    answers = Answers.of(answer.tolist(), (answer == 0).tolist())
    features = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    policy = fit_sequential(features, answers, measure_states(answers, MAX_SAMPLES), LEVELS)
    assert len(policy.prior.cell_centre) == 1
    assert (draws(policy, features, answers, 1e-9) == 1).all()


def test_the_first_draw_is_made_at_any_price_and_the_last_is_the_last() -> None:
    policy = fit(100, telling=1.0)
    features, answers, _ = population(100, telling=1.0, seed=1)
    assert (draws(policy, features, answers, 1e9) == 1).all()
    assert draws(policy, features, answers, 0.0).max() == MAX_SAMPLES


def test_behaviour_is_what_the_samples_show() -> None:
    answers = Answers.of([[0, 0, 1, -1]], [[True, True, False, False]])
    right, three, four, agree, unread = response_profile(answers, 4)[0]
    assert (right, agree, unread) == pytest.approx((0.5, 2 / 12, 0.25))
    assert four == pytest.approx(1.0 - 0.5)  # two votes of three
    assert three == pytest.approx(0.75 - 0.5)
    assert response_profile(answers, 1).shape == (1, 3)


def load(tables: bytes, levels: tuple[Level, ...] = LEVELS) -> SequentialPolicy:
    return from_spec(PolicySpec(levels, {"round_cost": 0.0, "resort_cost": 0.0}, {TABLES: tables}))


def test_saved_tables_are_loaded_unchanged() -> None:
    policy = fit(100, telling=1.0)
    loaded = from_spec(to_spec(policy))
    assert to_spec(loaded) == to_spec(policy)
    assert (loaded.break_even_price == policy.break_even_price).all()


def test_tables_that_do_not_fit_are_rejected() -> None:
    policy = fit(100, telling=1.0)
    tables = to_spec(policy).files[TABLES]
    with pytest.raises(BundleError, match="do not fit its 4 levels"):
        load(tables, LEVELS[:4])
    with pytest.raises(BundleError, match="damaged"):
        load(tables[:50])
    with pytest.raises(BundleError, match="damaged"):
        load(b"")
    middle = len(tables) // 2
    with pytest.raises(BundleError, match="damaged"):
        load(tables[:middle] + bytes(64) + tables[middle + 64 :])
    wrong = replace(policy, prior=replace(policy.prior, mean=policy.prior.mean[:2]))
    with pytest.raises(BundleError, match="do not fit"):
        from_spec(to_spec(wrong))
    strange = replace(policy, break_even_price=policy.break_even_price * np.float32(np.nan))
    with pytest.raises(BundleError, match="not finite"):
        from_spec(to_spec(strange))


def test_fewer_rounds_ask_for_more_at_once_and_keep_within_what_is_worth_it() -> None:
    policy = fit(400, telling=6.0)
    features, answers, kind = population(300, telling=6.0, seed=1)
    drawn = {
        r: draws(policy, features, answers, 0.01, rounds=r)
        for r in (1, 2, MAX_SAMPLES - 1, MAX_SAMPLES)
    }
    for found in drawn.values():
        assert (found >= 1).all()
        assert found[kind == RESPONSIVE].mean() > found[kind == SETTLED].mean()
    wasted = [found[kind == SETTLED].mean() for found in drawn.values()]
    assert wasted[0] > wasted[1] > wasted[-1]  # what votes would have saved


def test_with_rounds_to_spare_a_plan_draws_what_the_index_does() -> None:
    policy = fit(200, telling=0.0)
    features, answers, _ = population(200, telling=0.0, seed=1)
    nearly_free = replace(policy, round_cost=1e-9, _plans={})
    alone, planned = (draws(p, features, answers, 0.02) for p in (policy, nearly_free))
    assert abs(alone.mean() - planned.mean()) < 0.2  # plans are made for prices some way apart


def test_a_round_that_costs_much_is_made_once() -> None:
    policy = replace(fit(200, telling=6.0), round_cost=50.0, _plans={})
    features, answers, _ = population(200, telling=6.0, seed=1)
    many, one = (draws(policy, features, answers, 0.01, rounds=r) for r in (MAX_SAMPLES, 1))
    assert (many == one).all()
