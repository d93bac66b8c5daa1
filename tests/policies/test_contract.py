"""The contract of all policies; new ones are found in the table of factories."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from adacompute.core.errors import ConfigError
from adacompute.core.types import IntArray
from adacompute.evaluation.experiment import Experiment, FittedPolicy
from adacompute.evaluation.factories import POLICY_FACTORIES, ROUTER, TRAINABLE, find_trainable
from adacompute.evaluation.pool import Pool
from adacompute.policies.bundles.bundle import Bundle, load_bundle, save_bundle
from adacompute.policies.episode import Episode, start_state
from adacompute.policies.policy import NO_LEVEL, ObservedSamples, Policy, SampleMatrix, State
from test_support.populations import make_population

QUESTIONS, SAMPLES = 80, 8
LEVELS = (1, 2, 4, 6)
STATIC = ("fixed", "mixture", "random", "longest-first", ROUTER)
STOPPING = (
    *("retry", "adaptive-consistency", "early-stopping"),
    *("decided-votes", "sequential-votes"),
)
BOTH = ("sequential",)


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    population, _ = make_population(QUESTIONS, feature_signal=1.0, unparsed_rate=0.2)
    key = np.arange(QUESTIONS, dtype=np.uint64)
    pool = Pool(
        answers=population.sample(SAMPLES, seed=0),
        key=key,
        group=key,
        features=population.features,
        sample_cost=np.ones(QUESTIONS * SAMPLES),
    )
    return Experiment(pool, LEVELS, budgets=(1.5, 2.5), n_permutations=8, seed=0)


@pytest.fixture(scope="module", params=POLICY_FACTORIES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def fitted(experiment: Experiment, name: str) -> FittedPolicy:
    return POLICY_FACTORIES[name](experiment, np.arange(QUESTIONS))


def start(experiment: Experiment, policy: Policy, price: float) -> Episode:
    """Start an episode on the first order of every question's samples."""
    samples = np.array([level.n_samples for level in policy.levels], dtype=np.float64)
    return Episode.start(
        policy,
        price,
        start_state(
            key=experiment.pool.key,
            features=policy.prepare_features(experiment.pool.features),
            cost=np.broadcast_to(samples, (QUESTIONS, len(samples))),
            samples=SampleMatrix(experiment.replay.samples.answer[:: experiment.n_permutations]),
        ),
    )


def states(experiment: Experiment, fitted: FittedPolicy) -> list[tuple[State, float]]:
    """Collect the states of episodes at the policy's prices and between them."""
    prices = [*fitted.prices[:: max(1, len(fitted.prices) // 4)], fitted.prices[-1]]
    prices += [(a * b) ** 0.5 for a, b in itertools.pairwise(prices)]
    asked = []
    for price in prices:
        episode = start(experiment, fitted.policy, price)
        while len(episode.active):
            asked.append((episode.state.take(episode.active), price))
            decided = episode.decide()
            episode = decided.feed(decided.state.observed.samples)
    return asked


def test_decisions_are_levels_not_below_the_current_one(
    experiment: Experiment, fitted: FittedPolicy
) -> None:
    for state, price in states(experiment, fitted):
        level = fitted.policy.decide(state, price)
        assert level.shape == (len(state),)
        assert np.issubdtype(level.dtype, np.integer)
        assert (level >= np.maximum(state.level, 0)).all()
        assert (level < len(fitted.policy.levels)).all()


def test_decisions_are_deterministic(experiment: Experiment, fitted: FittedPolicy) -> None:
    for state, price in states(experiment, fitted):
        first = fitted.policy.decide(state, price)
        fitted.policy.decide(state, price * 0.7)
        assert (fitted.policy.decide(state, price) == first).all()


def test_decisions_do_not_depend_on_the_block(experiment: Experiment, fitted: FittedPolicy) -> None:
    rng = np.random.default_rng(0)
    for state, price in states(experiment, fitted)[::3]:
        block = fitted.policy.decide(state, price)
        order = rng.permutation(len(state))
        assert (fitted.policy.decide(state.take(order), price) == block[order]).all()
        for row in range(len(state)):
            alone = fitted.policy.decide(state.take(np.array([row])), price)
            assert alone[0] == block[row]


def test_later_samples_do_not_change_a_decision(
    experiment: Experiment, fitted: FittedPolicy
) -> None:
    rng = np.random.default_rng(0)
    for state, price in states(experiment, fitted):
        answer = state.observed.samples.answer.copy()
        later = np.arange(answer.shape[1]) >= state.observed.n_samples.min()
        answer[:, later] = rng.integers(-1, 3, answer[:, later].shape)
        for row, size in zip(state.observed.row, state.observed.n_samples, strict=True):
            answer[row, :size] = state.observed.samples.answer[row, :size]
        changed = replace(
            state,
            observed=ObservedSamples(
                SampleMatrix(answer), state.observed.row, state.observed.n_samples
            ),
        )
        decided = fitted.policy.decide(state, price)
        assert (fitted.policy.decide(changed, price) == decided).all()


def test_static_policies_ignore_samples_and_stopping_rules_ignore_features(
    experiment: Experiment, fitted: FittedPolicy, name: str
) -> None:
    assert (name in STATIC) + (name in STOPPING) + (name in BOTH) == 1, "say which kind it is"
    for state, price in states(experiment, fitted):
        changed = replace(state, features=np.full_like(state.features, np.nan))
        if name in BOTH or name == "sequential-votes":  # its prepared features are one cell
            changed = state
        if name in STATIC:
            unparsed = SampleMatrix(np.full_like(state.observed.samples.answer, -1))
            changed = replace(
                state,
                observed=ObservedSamples(unparsed, state.observed.row, state.observed.n_samples),
            )
        assert (fitted.policy.decide(changed, price) == fitted.policy.decide(state, price)).all()


def test_only_stopping_rules_continue_after_the_first_level(
    experiment: Experiment, fitted: FittedPolicy, name: str
) -> None:
    rises: list[IntArray] = []
    for state, price in states(experiment, fitted):
        there = state.level != NO_LEVEL
        rises.append((fitted.policy.decide(state, price) - state.level)[there])
    went_on = np.concatenate(rises) > 0
    assert len(went_on) > 0
    assert not went_on.all()
    assert went_on.any() == (name in STOPPING + BOTH)


def test_a_lower_price_never_spends_less_in_training(
    experiment: Experiment, fitted: FittedPolicy, name: str
) -> None:
    means = experiment.run(fitted).cost.mean(axis=0)
    assert means[-1] > means[0]
    if name == "router":  # each price has its own classifier, so this usually holds
        assert (np.diff(means) > -0.25).all()
    else:
        assert (np.diff(means) >= -1e-9).all()
    middle = [(first * after) ** 0.5 for first, after in itertools.pairwise(fitted.prices)]
    halfway = experiment.run(fitted, middle).cost.mean(axis=0).tolist()
    for between, ends in zip(halfway, itertools.pairwise(means.tolist()), strict=True):
        lowest, highest = sorted(ends)
        # Mixing is pseudo-random, so a mean may be slightly outside.
        assert lowest - 0.1 <= between <= highest + 0.1


def test_a_bundle_makes_the_same_decisions(
    experiment: Experiment, fitted: FittedPolicy, name: str, tmp_path: Path
) -> None:
    if name not in TRAINABLE:
        with pytest.raises(ConfigError, match="only scored"):
            find_trainable(name)
        return
    save_bundle(Bundle(fitted.policy), tmp_path / "p")
    loaded = load_bundle(tmp_path / "p").policy
    assert loaded.levels == fitted.policy.levels
    rng = np.random.default_rng(0)
    for state, price in states(experiment, fitted):
        features = rng.normal(size=(len(state), experiment.pool.features.shape[1]))
        read = features.astype(np.float32)
        assert (loaded.prepare_features(read) == fitted.policy.prepare_features(read)).all()
        strange = replace(
            state,
            key=rng.integers(0, 2**63, len(state), dtype=np.uint64),
            features=fitted.policy.prepare_features(read),
        )
        for asked in (state, strange):
            decided = fitted.policy.decide(asked, price)
            assert loaded.decide(asked, price).tobytes() == decided.tobytes()


def test_a_single_decision_is_fast(experiment: Experiment, fitted: FittedPolicy) -> None:
    policy = fitted.policy
    asked = states(experiment, fitted)
    took = []
    for state, price in asked[:200]:
        one = state.take(np.array([0]))
        begin = time.perf_counter()
        policy.decide(one, price)
        took.append(time.perf_counter() - begin)
    assert np.median(took) < 0.002
