"""Two recorded models on the same questions: replay and episodes agree on the last resort."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from adacompute.core.answers import order_samples
from adacompute.core.errors import DataError
from adacompute.core.types import IntArray, Level
from adacompute.evaluation.experiment import Experiment, FittedPolicy
from adacompute.evaluation.factories import make_sequential
from adacompute.evaluation.pool import Pool, Resort
from adacompute.evaluation.replay import ReplayResult
from adacompute.policies.episode import Episode
from adacompute.policies.policy import SampleMatrix
from adacompute.testing.populations import make_population

STRONG = Level(name="big", n_samples=1, model="big")
ORDERS = 6


@pytest.fixture(scope="module")
def both(small: Pool, pool_of: Callable[..., Pool]) -> Pool:
    """Return a pool with a second model that costs 10 per sample and is better on average."""
    population, _ = make_population(120, feature_signal=1.0, unparsed_rate=0.0, seed=9)
    strong = pool_of(population, 5).answers
    return replace(small, resort=Resort(STRONG, strong, np.full(len(strong.answer), 10.0)))


@pytest.fixture(scope="module")
def experiment(both: Pool) -> Experiment:
    return Experiment(both, (1, 2, 4, 6), (2.0,), ORDERS, seed=0)


def run_at(experiment: Experiment, fitted: FittedPolicy, price: float) -> ReplayResult:
    """Return the results of a fitted policy at one price, (N,)."""
    return experiment.replay.run(fitted.policy, (price,), features=fitted.prepared_features).mix(
        0, 0.0
    )


def test_replay_agrees_with_episodes_that_are_fed_what_they_ask_for(experiment: Experiment) -> None:
    pool = experiment.pool
    assert pool.resort is not None
    fitted = make_sequential(experiment, np.arange(len(pool)))
    own = order_samples(pool.answers, pool.key, n_orders=ORDERS, length=6, seed=0).reshape(-1, 6)
    other = order_samples(pool.resort.answers, pool.key, n_orders=ORDERS, length=1, seed=1).reshape(
        -1
    )
    shares = []
    for price in fitted.prices[::6]:
        result = run_at(experiment, fitted, price)
        shares.append(result.resorted.mean())
        for question in range(0, len(pool), 17):
            cost, resorted = [], []
            for row in range(question * ORDERS, (question + 1) * ORDERS):
                ended = _feed(fitted, price, pool, row, own[row])
                drawn, asked = int(ended.state.observed.n_samples[0]), bool(ended.resorted[0])
                cost.append(drawn - asked + 10.0 * asked)
                resorted.append(asked)
                if asked:
                    assert ended.winner()[0] == drawn - 1
                assert other[row] // 5 == question
            assert np.mean(cost) == pytest.approx(result.cost[question])
            assert np.mean(resorted) == pytest.approx(result.resorted[question])
    assert shares[0] == 0
    assert max(shares) > 0.3


def _feed(fitted: FittedPolicy, price: float, pool: Pool, row: int, samples: IntArray) -> Episode:
    question, policy, features = row // ORDERS, fitted.policy, fitted.prepared_features
    levels = np.array([float(level.n_samples) for level in policy.levels])
    levels[-1] = 10.0
    episode = Episode.start(
        policy,
        price,
        key=pool.key[question : question + 1],
        features=features[question : question + 1],
        cost=levels[None],
        samples=SampleMatrix(np.empty((1, 0), dtype=np.int64)),
    ).decide()
    while len(episode.active):
        drawn = pool.answers.answer[samples]
        wanted = int(episode.target[0])
        answer = [*drawn[: wanted - 1], 0] if episode.resorted[0] else drawn[:wanted]
        episode = episode.feed(SampleMatrix(np.array([answer]))).decide()
    return episode


def test_resorting_on_everything_is_as_accurate_as_the_other_model(
    experiment: Experiment,
) -> None:
    resort = experiment.pool.resort
    assert resort is not None
    fitted = make_sequential(experiment, np.arange(len(experiment.pool)))
    assert resort.utility.shape == resort.cost.shape == (120,)
    result = run_at(experiment, fitted, fitted.prices[-1])
    alone = result.resorted == 1
    assert alone.any()
    error = np.sqrt(0.25 / ORDERS / alone.sum())
    assert abs((result.accuracy - resort.utility)[alone].mean()) < 4 * error


def test_take_keeps_the_resort(both: Pool) -> None:
    some = both.take(np.array([3, 5, 60]))
    assert some.resort is not None
    assert both.resort is not None
    assert (some.resort.utility == both.resort.utility[[3, 5, 60]]).all()
    assert len(some.resort.sample_cost) == 15
    assert some.equalise(drop_unparsed=True).resort is not None
    with pytest.raises(DataError, match="9 samples"):
        Resort(replace(STRONG, n_samples=9), both.resort.answers, both.resort.sample_cost)
    experiment = Experiment(replace(both, resort=None), (1, 2), (2.0,), ORDERS, seed=0)
    fitted = make_sequential(Experiment(both, (1, 2), (2.0,), ORDERS, seed=0), np.arange(120))
    with pytest.raises(DataError, match=r"no samples of its model are given|are needed"):
        run_at(experiment, fitted, 1e-9)
