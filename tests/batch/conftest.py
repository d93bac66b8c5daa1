"""Bundles of every kind, fitted to the shipped example, and files of questions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from adacompute.core.answers import Answers
from adacompute.core.types import Float32Array, UtilityTable, make_levels
from adacompute.datasets.example import find_example
from adacompute.evaluation.evidence_factories import make_arm_mixture, make_fitted
from adacompute.evaluation.experiment import Experiment
from adacompute.evaluation.pool import Pool
from adacompute.features.text import extract_features
from adacompute.policies.bundles.bundle import Bundle, FrontierPoint, load_bundle
from adacompute.policies.confidence import SIGNALS
from adacompute.policies.price_schedule import PriceSchedule
from adacompute.policies.router import RouterTraining, fit_router
from adacompute.policies.rule_policy import RulePolicy
from adacompute.policies.uniform import FixedRule
from adacompute.stages.train import make_bundle

LEVELS = make_levels((1, 2, 4, 8))
COST = np.array([1.0, 2.0, 4.0, 8.0])


def _texts(n: int) -> list[str]:
    rng = np.random.default_rng(n)
    words = ["apples", "pears", "trains", "percent", "coins", "hours", "then", "sum"]
    return [
        f"How many {' '.join(rng.choice(words, 1 + i % 9))} are {rng.integers(10 ** (i % 5 + 1))}"
        f" + {i}?"
        for i in range(n)
    ]


@pytest.fixture(scope="session")
def make_texts() -> Callable[[int], list[str]]:
    """Return distinct texts of different kinds."""
    return _texts


@pytest.fixture
def write_questions(tmp_path: Path) -> Callable[..., str]:
    """Return a function that writes questions to several files and returns their directory."""

    def write(texts: Sequence[str | None], *, n_files: int = 3, group: int = 50) -> str:
        folder = tmp_path / "questions"
        folder.mkdir(exist_ok=True)
        for i, rows in enumerate(np.array_split(np.arange(len(texts)), n_files)):
            table = pa.table(
                {
                    "question_id": [f"q{row}" for row in rows],
                    "question": pa.array([texts[row] for row in rows], pa.string()),
                }
            )
            pq.write_table(table, folder / f"{i:03}.parquet", row_group_size=group)
        return str(folder)

    return write


@pytest.fixture(scope="session")
def sequential() -> Bundle:
    """The shipped bundle."""
    return load_bundle(Path(str(find_example())).parent / "policy")


def _training() -> tuple[Float32Array, UtilityTable]:
    features = extract_features(_texts(400))
    rng = np.random.default_rng(1)
    base = 1 / (1 + np.exp(features[:, 4:5] - 2))
    gain = np.log2(COST) * rng.uniform(0, 0.1, (400, 1)) * (features[:, 1:2] > 6)
    return features, UtilityTable(np.clip(base + gain, 0, 1), COST)


@pytest.fixture(scope="session")
def router() -> Bundle:
    """The paper's router."""
    pytest.importorskip("xgboost", reason="needs the extra 'router'")
    return Bundle(
        fit_router(*_training(), LEVELS, RouterTraining(budgets=(1.5, 2.0, 3.0))), sample_cost=2.0
    )


@pytest.fixture(scope="session")
def mixture() -> Bundle:
    """A mixture of two uniform levels, calibrated."""
    policy = RulePolicy("mixture", LEVELS, (FixedRule(1), FixedRule(4)), PriceSchedule((0.2, 0.1)))
    frontier = tuple(
        FrontierPoint(cost, price, cost, cost, cost, 0.5, 0.5, 0.5, 1.0)
        for cost, price in ((1.0, 0.2), (4.0, 0.1))
    )
    return Bundle(policy, frontier=frontier)


@pytest.fixture(scope="session")
def arms() -> Experiment:
    """Samples of two arms; the large one is better and expensive, and confidence tells."""
    rng, n, n_samples = np.random.default_rng(5), 80, 6
    features = extract_features(_texts(n))
    ease = 1 / (1 + np.exp(features[:, 5] - 4))
    shape = (n, 2, n_samples)
    correct = rng.random(shape) < np.minimum(0.98, ease[:, None, None] * [[[0.7], [1.4]]])
    signals = np.full((correct.size, len(SIGNALS)), np.nan)
    signals[:, 0] = rng.normal(np.where(correct.ravel(), -0.2, -0.4), 0.08)
    key = np.arange(1, n + 1, dtype=np.uint64) * np.uint64(7919)
    pool = Pool(
        answers=Answers(
            np.arange(n + 1) * 2 * n_samples,
            np.where(correct, 0, rng.integers(1, 5, shape)).ravel(),
            correct.ravel(),
        ),
        key=key,
        group=key,
        features=features,
        sample_cost=np.broadcast_to([[[1.0], [5.0]]], shape).ravel(),
        arm=np.broadcast_to([[[0], [1]]], shape).ravel(),
        arms=("small", "large"),
        signal_names=SIGNALS,
        signals=signals,
        latency_s=np.ones(correct.size),
    )
    return Experiment(pool, (1, 2, 4), (2.0,), n_permutations=6)


@pytest.fixture(scope="session")
def corrected(arms: Experiment) -> Bundle:
    """A policy over two arms that sees the text, votes and confidence."""
    fitted = make_fitted(arms, np.arange(80), arms.pool.features)
    return make_bundle(arms, fitted, {"policy": "arms", "features": "paper"})


@pytest.fixture(scope="session")
def corrected_uniform(corrected: Bundle) -> Bundle:
    """The same policy, but at two prices of three every question gets the same samples."""
    policy: Any = corrected.policy
    price = np.arange(len(policy.schedule.prices))
    uniform = np.stack([price % 2, price % 3], axis=1)
    return replace(corrected, policy=replace(policy, uniform=uniform))


@pytest.fixture(scope="session")
def arm_mixture(arms: Experiment) -> Bundle:
    """The best mixture of numbers of samples of two arms, calibrated."""
    fitted = make_arm_mixture(arms, np.arange(80), plain=False)
    bundle = make_bundle(arms, fitted, {"policy": "mixture", "features": "paper"})
    cost = bundle.level_cost[0].tolist()
    frontier = tuple(
        FrontierPoint(one, price, one, one, one, 0.5, 0.5, 0.5, 1.0)
        for one, price in zip(cost, fitted.prices, strict=True)
    )
    return replace(bundle, frontier=frontier)
