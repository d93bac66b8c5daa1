"""Decisions: one question at a time, every bundled policy, features excluded; and in blocks.

Run it with ``python benchmarks/decisions.py``.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from adacompute import Answers
from adacompute.evaluation.factories import POLICY_FACTORIES, Experiment
from adacompute.evaluation.pool import Pool
from adacompute.features.text import extract
from adacompute.policies.bundle import Bundle, load_bundle, save_bundle
from adacompute.policies.policy import NO_LEVEL, ObservedSamples, Policy, SampleMatrix, State

LEVELS = (1, 2, 4, 8, 16)
TIMES = 5_000
BLOCK = 100_000
MANY = 1_000_000


def pool(questions: int, samples: int, rng: np.random.Generator) -> Pool:
    """Questions of mixed difficulty with features that say a little."""
    chance = rng.beta(0.8, 0.8, questions)
    right = rng.random((questions, samples)) < chance[:, None]
    answer = np.where(right, 0, rng.integers(1, 4, (questions, samples)))
    features = rng.random((questions, 16), dtype=np.float32)
    features[:, 0] = chance + rng.normal(0, 0.2, questions)
    offsets = np.arange(questions + 1) * samples
    key = np.arange(questions, dtype=np.uint64)
    answers = Answers(offsets, answer.ravel(), right.ravel())
    return Pool(answers, key, key, features, np.ones(answer.size))


def states(policy: Policy, size: int, rng: np.random.Generator, drawn: int = 0) -> State:
    """Questions before their first draw, or after some; nothing of their votes is counted yet."""
    samples = np.array([level.n_samples for level in policy.levels], dtype=np.float64)
    votes = rng.integers(-1, 3, (size, max(1, drawn)))
    return State(
        key=rng.integers(0, 2**63, size).astype(np.uint64),
        features=policy.prepare_features(rng.random((size, 16), dtype=np.float32)),
        cost=np.broadcast_to(samples, (size, len(samples))),
        observed=ObservedSamples(SampleMatrix(votes), np.arange(size), np.full(size, drawn)),
        level=np.full(size, drawn - 1 if drawn else NO_LEVEL),
        rounds_left=np.full(size, 16),
    )


def main() -> None:
    """Print microseconds a decision: median and 99th percentile of one, mean in a block."""
    rng = np.random.default_rng(0)
    experiment = Experiment(pool(400, 32, rng), LEVELS, (1.5, 2.0, 3.0, 4.0, 6.0), 20, 0)
    print(f"{'policy':22} {'p50':>8} {'p99':>8} {'in a block':>11}   µs a decision")
    for name, family in POLICY_FACTORIES.items():
        fitted = family(experiment, np.arange(400))
        with tempfile.TemporaryDirectory() as place:
            save_bundle(Bundle(fitted.policy), Path(place) / name)
            policy = load_bundle(Path(place) / name).policy
        price = fitted.prices[len(fitted.prices) // 2]
        one = states(policy, 1, rng)
        taken = np.empty(TIMES)
        for i in range(TIMES):
            start = time.perf_counter_ns()
            policy.decide(one, price)
            taken[i] = time.perf_counter_ns() - start
        many = states(policy, BLOCK, rng)
        policy.decide(many, price)
        block = -time.perf_counter()
        policy.decide(many, price)
        block += time.perf_counter()
        p50, p99 = np.quantile(taken[100:] / 1000, [0.5, 0.99])
        print(f"{name:22} {p50:8.1f} {p99:8.1f} {block / BLOCK * 1e6:11.3f}")
        if name == "sequential":
            after_draws(policy, price, rng)


def after_draws(policy: Policy, price: float, rng: np.random.Generator) -> None:
    """The same after four draws whose votes are new, without and with the features of a text."""
    text = pa.array([("A train leaves at 9 and 40 minutes later another follows it. " * 9)[:500]])
    alone, whole = np.empty(TIMES), np.empty(TIMES)
    for i in range(TIMES):
        one = states(policy, 1, rng, drawn=4)
        start = time.perf_counter_ns()
        policy.decide(one, price)
        alone[i] = time.perf_counter_ns() - start
        extract(text, features="words")
        whole[i] = time.perf_counter_ns() - start
    many = states(policy, MANY, rng, drawn=4)
    block = -time.perf_counter()
    policy.decide(many, price)
    block += time.perf_counter()
    for label, taken in (("  after 4 draws", alone), ("  with a text's features", whole)):
        p50, p99 = np.quantile(taken[100:] / 1000, [0.5, 0.99])
        print(f"{label:22} {p50:8.1f} {p99:8.1f} {block / MANY * 1e6:11.3f}")


if __name__ == "__main__":
    main()
