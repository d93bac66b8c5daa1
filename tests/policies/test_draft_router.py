"""A router that uses the first sample as a draft pays for it and decides by it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adacompute.core.errors import ConfigError, DataError
from adacompute.core.types import FloatArray
from adacompute.evaluation.experiment import Experiment
from adacompute.evaluation.factories import make_router
from adacompute.evaluation.pool import Pool
from adacompute.evaluation.scoring.held_out import replay_splits
from adacompute.features.draft import ENTROPY, DraftSource, DraftUncertainty
from adacompute.features.text import FEATURES
from adacompute.models.messages import Sample
from adacompute.policies.bundles.bundle import Bundle, load_bundle, save_bundle
from adacompute.policies.draft_router import DraftRouterPolicy
from adacompute.sampling.session import ParsedAnswer, Session
from test_support.populations import make_population

N = 120
COLUMN = FEATURES.index("entropy_estimate")


@pytest.fixture(scope="module")
def pool() -> Pool:
    """Return questions whose texts tell nothing, and whose samples tell if voting helps."""
    population, kind = make_population(N, feature_signal=0.0, seed=1)
    answers = population.sample(16, seed=0)
    key = np.arange(N, dtype=np.uint64)
    is_responsive = np.asarray(kind) == 1
    told = np.where(is_responsive, 0.9, 0.1)[answers.question]
    features = np.zeros((N, len(FEATURES)), np.float32)
    draft = DraftUncertainty(told, ENTROPY, 5)
    return Pool(answers, key, key, features, np.ones(len(answers.answer)), draft=draft)


@pytest.fixture(scope="module")
def experiment(pool: Pool) -> Experiment:
    return Experiment(pool, (1, 4, 16), (3.0,), n_permutations=8, draft=True)


@pytest.fixture(scope="module")
def policy(experiment: Experiment) -> DraftRouterPolicy:
    fitted = make_router(experiment, np.arange(N)).policy
    assert isinstance(fitted, DraftRouterPolicy)
    return fitted


def session_of(policy: DraftRouterPolicy, tmp_path: Path) -> Session:
    save_bundle(Bundle(policy), tmp_path / "bundle")
    return Session(load_bundle(tmp_path / "bundle"), "How many?", price=policy.schedule.prices[-1])


def tell(session: Session, n: int, **known: Any) -> None:
    session.tell([ParsedAnswer("1", Sample("1", **known))] * n)


def test_draft_is_the_first_sample_and_is_charged(
    experiment: Experiment, policy: DraftRouterPolicy, pool: Pool
) -> None:
    every = np.arange(N)
    (found,) = replay_splits(experiment, make_router, [(every, every)])
    told: FloatArray = pool.draft.value[pool.answers.offsets[:-1]] if pool.draft else np.empty(0)
    n_samples, cost = found.result.n_samples[:, -1], found.result.cost[:, -1]
    assert cost == pytest.approx(n_samples)  # nothing beside the samples of the level, all charged
    assert set(n_samples.tolist()) <= {1.0, 4.0, 16.0}
    assert n_samples[told == 0.9].mean() > n_samples[told == 0.1].mean() + 1
    assert (found.result.n_rounds[:, -1] == 1 + (n_samples > 1)).all()
    assert (policy.column, policy.draft) == (COLUMN, DraftSource(ENTROPY, 5))


def test_session_decides_by_the_entropy_of_the_draft(
    policy: DraftRouterPolicy, tmp_path: Path
) -> None:
    planned = []
    for entropy in (0.1, 0.9):
        session = session_of(policy, tmp_path)
        request = session.ask()
        assert request is not None
        assert request.n == 1
        # What follows depends on the draft, so one sample cannot be promised to be the last.
        assert session.planned_after([0]) == 16
        draft = Sample("1", entropy=entropy, top_logprobs=5)
        foreseen = session.planned_after([0], draft=draft)
        tell(session, 1, entropy=entropy, top_logprobs=5)
        after = session.ask()
        planned.append(1 if after is None else session.n_planned)
        assert foreseen == (None if after is None else session.n_planned)
        assert after is None or after.n == session.n_planned - 1
    assert planned[0] < planned[1]


@pytest.mark.parametrize("known", [{}, {"entropy": 0.9, "top_logprobs": 3}, {"mean_logprob": -2.0}])
def test_draft_of_unknown_entropy_counts_as_an_average_one(
    policy: DraftRouterPolicy, tmp_path: Path, known: dict[str, Any]
) -> None:
    planned = []
    for one in (known, {"entropy": policy.default, "top_logprobs": 5}):
        session = session_of(policy, tmp_path)
        session.ask()
        tell(session, 1, **one)
        session.ask()
        planned.append(session.n_planned)
    assert planned[0] == planned[1]


def test_draft_needs_log_probabilities_and_level_1(pool: Pool) -> None:
    bare = Pool(pool.answers, pool.key, pool.group, pool.features, pool.sample_cost)
    with pytest.raises(DataError):
        make_router(Experiment(bare, (1, 4), (2.0,), draft=True), np.arange(N))
    with pytest.raises(ConfigError):
        make_router(Experiment(pool, (2, 4), (3.0,), draft=True), np.arange(N))
