from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from adacompute.core.errors import ConfigError, DataError
from adacompute.core.types import FloatArray
from adacompute.evaluation.experiment import Experiment, FittedPolicy
from adacompute.evaluation.factories import POLICY_FACTORIES, ROUTER, find_factory
from adacompute.evaluation.pool import Pool, assign_folds
from adacompute.evaluation.replay import ReplayResult
from adacompute.evaluation.scoring.held_out import replay_splits, score_held_out
from adacompute.policies.bundles.bundle import Bundle, save_bundle
from adacompute.policies.router import RouterPolicy
from adacompute.policies.rule_policy import RulePolicy
from adacompute.policies.uniform import FixedRule
from test_support.populations import Population

LEVELS = (1, 2, 4, 6)


def experiment_of(pool: Pool, samples: tuple[int, ...] = LEVELS) -> Experiment:
    return Experiment(pool, samples, budgets=(1.5, 2.5), n_permutations=6, seed=0)


def run_at(experiment: Experiment, fitted: FittedPolicy, price: float) -> ReplayResult:
    """Return the results of a fitted policy at one price, (N,)."""
    return experiment.run(fitted, (price,)).mix(0, 0.0)


def bundle_bytes(
    experiment: Experiment, name: str, train: FloatArray, place: Path
) -> dict[str, bytes]:
    """Fit a policy, and return every byte of its bundle, if it has one, and its prices."""
    fitted = POLICY_FACTORIES[name](experiment, np.flatnonzero(train))
    if isinstance(fitted.policy, RulePolicy):  # all that was fitted is in its text
        return {"policy": repr((fitted.policy, fitted.prices)).encode()}
    save_bundle(Bundle(fitted.policy), place)
    files = {file.name: file.read_bytes() for file in place.iterdir()}
    return files | {"prices": repr(fitted.prices).encode()}


@pytest.mark.parametrize("name", POLICY_FACTORIES)
def test_held_out_answers_do_not_change_the_fit(small: Pool, name: str, tmp_path: Path) -> None:
    train = assign_folds(small.group, 5) != 0
    rng = np.random.default_rng(0)
    held = ~train[small.answers.question]
    answer = small.answers.answer.copy()
    answer[held] = rng.integers(-1, 4, held.sum())
    cost, features = small.sample_cost.copy(), small.features.copy()
    cost[held] = 7.0
    features[~train] = rng.normal(size=features[~train].shape)
    answers = replace(small.answers, answer=answer, correct=answer == 0)
    changed = replace(small, answers=answers, sample_cost=cost, features=features)
    first = bundle_bytes(experiment_of(small), name, train, tmp_path / "a")
    again = bundle_bytes(experiment_of(changed), name, train, tmp_path / "b")
    assert first == again


@pytest.mark.parametrize("name", POLICY_FACTORIES)
def test_training_answers_change_the_fit(small: Pool, name: str, tmp_path: Path) -> None:
    train = assign_folds(small.group, 5) != 0
    answer = np.random.default_rng(0).permutation(small.answers.answer)
    answers = replace(small.answers, answer=answer, correct=answer == 0)
    changed = replace(small, answers=answers)
    first = bundle_bytes(experiment_of(small), name, train, tmp_path / "a")
    again = bundle_bytes(experiment_of(changed), name, train, tmp_path / "b")
    assert first != again


@pytest.mark.parametrize("name", POLICY_FACTORIES)
def test_prices_fall_from_the_cheapest_to_the_most_expensive_setting(
    small: Pool, name: str
) -> None:
    experiment = experiment_of(small)
    fitted = find_factory(name)(experiment, np.arange(len(small)))
    assert (np.diff(fitted.prices) < 0).all()
    first, last = (run_at(experiment, fitted, fitted.prices[i]) for i in (0, -1))
    assert first.cost.mean() < 1.4
    assert last.cost.mean() > 3.0
    assert last.accuracy.mean() > first.accuracy.mean() + 0.02
    assert fitted.policy.levels[-1].n_samples == 6


@pytest.mark.parametrize("name", POLICY_FACTORIES)
def test_policies_with_one_level_use_it(small: Pool, name: str) -> None:
    cost = np.random.default_rng(0).random(len(small.sample_cost))
    experiment = experiment_of(replace(small, sample_cost=cost), (2,))
    fitted = find_factory(name)(experiment, np.arange(len(small)))
    result = run_at(experiment, fitted, fitted.prices[-1])
    if (
        name in {"retry", "adaptive-consistency", "early-stopping", "decided-votes"}
        or "sequential" in name
    ):
        assert (result.n_samples <= 2).all()  # these look after every sample, whatever the levels
    else:
        assert (result.n_samples == 2).all()


def test_mixture_keeps_the_efficient_numbers_of_samples(small: Pool) -> None:
    experiment = experiment_of(small, (1, 6))
    every = tuple(range(1, 7))
    policy = POLICY_FACTORIES["mixture"](experiment, np.arange(len(small))).policy
    assert isinstance(policy, RulePolicy)
    kept = [rule.n_samples for rule in policy.rules if isinstance(rule, FixedRule)]
    worth = experiment.dense_table.utility.mean(axis=0)
    at = np.interp(every, kept, [worth[n - 1] for n in kept])
    assert (at >= worth - 1e-12).all()
    assert kept[0] == 1
    assert not {2, 3, 4, 5}.isdisjoint(kept)


def test_fixed_and_random_use_every_level_and_the_mixture_only_efficient_ones(
    pool_of: Callable[..., Pool],
) -> None:
    # Where the wrong answer is the likelier one, every further vote makes it surer.
    chance = np.tile([0.3, 0.7], (40, 1))
    features = np.zeros((40, 1), dtype=np.float32)
    experiment = experiment_of(pool_of(Population(chance, features), 12), (1, 3, 5))
    every = np.arange(40)
    for name, most in (("fixed", 5), ("random", 5), ("mixture", 1), ("longest-first", 1)):
        policy = POLICY_FACTORIES[name](experiment, every).policy
        assert isinstance(policy, RulePolicy)
        rules = [rule.n_samples for rule in policy.rules if isinstance(rule, FixedRule)]
        assert max(rules) == most
    assert POLICY_FACTORIES["fixed"](experiment, every).policy.is_stepped
    assert not POLICY_FACTORIES["random"](experiment, every).policy.is_stepped


def test_longest_first_uses_the_length_column(small: Pool) -> None:
    moved = replace(small, features=small.features[:, [1, 0, 2]].copy(), length_feature=1)
    fitted, other = (
        POLICY_FACTORIES["longest-first"](experiment_of(pool), np.arange(len(pool)))
        for pool in (small, moved)
    )
    assert fitted.prices == other.prices
    price = fitted.prices[2]
    result = run_at(experiment_of(small), fitted, price)
    assert len(np.unique(result.n_samples)) == 2
    assert (run_at(experiment_of(moved), other, price).n_samples == result.n_samples).all()
    longest = result.n_samples == result.n_samples.max()
    assert small.features[longest, 0].min() >= small.features[~longest, 0].max()


def test_router_has_a_classifier_per_budget_and_two_more(small: Pool) -> None:
    policy = POLICY_FACTORIES["router"](experiment_of(small), np.arange(len(small))).policy
    assert isinstance(policy, RouterPolicy)
    assert len(policy.models) == 4
    no_budget = Experiment(small, LEVELS, budgets=(), n_permutations=6, seed=0)
    policy = POLICY_FACTORIES["router"](no_budget, np.arange(len(small))).policy
    assert isinstance(policy, RouterPolicy)
    assert len(policy.models) == 2


def test_router_takes_another_classifier(small: Pool) -> None:
    experiment = replace(experiment_of(small), classifier="logistic")
    fitted = POLICY_FACTORIES["router"](experiment, np.arange(len(small)))
    cost = experiment.run(fitted).cost.mean(axis=0)
    assert cost[0] < cost[-1]


@pytest.mark.parametrize("name", POLICY_FACTORIES)
def test_free_samples_are_refused(small: Pool, name: str) -> None:
    free = experiment_of(replace(small, sample_cost=np.zeros(len(small.sample_cost))))
    with pytest.raises(DataError, match="cost nothing"):
        score_held_out(free, POLICY_FACTORIES[name])


def test_unknown_policy_is_refused_with_the_known_names() -> None:
    with pytest.raises(ConfigError, match="there is no policy 'magic'; there are fixed, mixture"):
        find_factory("magic")


@pytest.mark.parametrize("name", POLICY_FACTORIES)
@pytest.mark.parametrize("share", [0.0, 1.0], ids=["none is right", "all are right"])
def test_every_policy_can_be_scored_without_variation(
    pool_of: Callable[..., Pool], name: str, share: float
) -> None:
    chance = np.tile([share, 1.0 - share], (20, 1))
    experiment = experiment_of(pool_of(Population(chance, np.zeros((20, 2), dtype=np.float32)), 12))
    curve = score_held_out(experiment, find_factory(name))
    assert curve.accuracy.tolist() == pytest.approx([share] * len(curve.settings))
    assert (curve.cost >= 1.0 - 1e-9).all()


@pytest.mark.parametrize("name", POLICY_FACTORIES)
def test_highest_price_takes_one_sample_even_if_many_are_unparsed(
    pool_of: Callable[..., Pool], name: str
) -> None:
    population = Population(
        np.tile([0.7, 0.3], (60, 1)), np.zeros((60, 2), dtype=np.float32), unparsed_rate=0.9
    )
    experiment = experiment_of(pool_of(population, 12))
    train = np.arange(0, 60, 2)
    every = np.arange(60)
    (fold,) = replay_splits(experiment, find_factory(name), [(train, every)])
    cheapest = fold.result.cost[:, 0].mean()
    assert cheapest == pytest.approx(1.0, abs=0.02 if name == ROUTER else 1e-9)


def test_sequential_votes_ignores_the_text(small: Pool) -> None:
    rng = np.random.default_rng(0)
    other = replace(small, features=rng.normal(size=small.features.shape).astype(np.float32))
    first, again = (
        find_factory("sequential-votes")(experiment_of(pool), np.arange(len(small)))
        for pool in (small, other)
    )
    assert first.prices == again.prices
    assert not first.prepared_features.any()
    results = [run_at(experiment_of(small), one, one.prices[20]) for one in (first, again)]
    assert np.array_equal(results[0].cost, results[1].cost)
    assert len(np.unique(results[0].n_samples)) > 2
