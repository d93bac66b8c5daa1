"""Decisions: time per decision of every policy, without its features; one by one and in blocks.

Run it with ``python -m benchmarks.decisions``.
"""

from __future__ import annotations

import argparse
import math
import random
import tempfile
import time
from pathlib import Path

import numpy as np

from adacompute.evaluation.experiment import Experiment
from adacompute.evaluation.factories import POLICY_FACTORIES
from adacompute.evaluation.pool import Pool
from adacompute.policies.bundles.bundle import Bundle, load_bundle, save_bundle
from adacompute.policies.policy import NO_LEVEL, ObservedSamples, Policy, SampleMatrix, State
from adacompute.policies.sequential.description import describe
from adacompute.policies.sequential.policy import SequentialPolicy
from adacompute.research import Answers
from adacompute.sampling.blocks import QuestionProgress, decide
from benchmarks.policy_change import list_sets, make_experiment

LEVELS = (1, 2, 4, 8, 16)
REPEATS = 5_000
BLOCK_SIZE = 100_000
LARGE_BLOCK_SIZE = 1_000_000
FITTED_ROWS = 4_000
WARM_UP = 100
PRICE = 12
ANSWERS = (0, 0, 0, 1, 2)
TEXT = ("A train leaves at 9 and 40 minutes later another follows it. " * 9)[:500]
TEXT_FEATURES = "words"


def make_pool(n_questions: int, n_samples: int, rng: np.random.Generator) -> Pool:
    """Make questions of mixed difficulty with slightly informative features."""
    accuracy = rng.beta(0.8, 0.8, n_questions)
    correct = rng.random((n_questions, n_samples)) < accuracy[:, None]
    answer = np.where(correct, 0, rng.integers(1, 4, (n_questions, n_samples)))
    features = rng.random((n_questions, 16), dtype=np.float32)
    features[:, 0] = accuracy + rng.normal(0, 0.2, n_questions)
    offsets = np.arange(n_questions + 1) * n_samples
    key = np.arange(n_questions, dtype=np.uint64)
    answers = Answers(offsets, answer.ravel(), correct.ravel())
    return Pool(answers, key, key, features, np.ones(answer.size))


def make_state(policy: Policy, size: int, rng: np.random.Generator, n_samples: int = 0) -> State:
    """Make questions with this many samples each, whose votes are not counted yet."""
    cost = np.array([level.n_samples for level in policy.levels], dtype=np.float64)
    samples = SampleMatrix(rng.integers(-1, 3, (size, max(1, n_samples))))
    return State(
        key=rng.integers(0, 2**63, size).astype(np.uint64),
        features=policy.prepare_features(rng.random((size, 16), dtype=np.float32)),
        cost=np.broadcast_to(cost, (size, len(cost))),
        observed=ObservedSamples(samples, np.arange(size), np.full(size, n_samples)),
        level=np.full(size, n_samples - 1 if n_samples else NO_LEVEL),
        rounds_left=np.full(size, 16),
    )


def print_row(label: str, times_ns: np.typing.NDArray[np.float64], block_us: float) -> None:
    """Print the median and the 99th percentile of single decisions, and the mean in a block."""
    p50, p99 = np.quantile(times_ns[WARM_UP:] / 1000, [0.5, 0.99])
    print(f"{label:22} {p50:8.1f} {p99:8.1f} {block_us:11.3f}")


def measure_block(policy: Policy, state: State, price: float) -> float:
    """Return µs per decision of one block."""
    start = time.perf_counter()
    policy.decide(state, price)
    return (time.perf_counter() - start) / len(state) * 1e6


def measure_after_samples(policy: Policy, price: float, rng: np.random.Generator) -> None:
    """Measure decisions after four new samples, one question at a time and in a large block."""
    without_features = np.empty(REPEATS)
    for i in range(REPEATS):
        state = make_state(policy, 1, rng, n_samples=4)
        start = time.perf_counter_ns()
        policy.decide(state, price)
        without_features[i] = time.perf_counter_ns() - start
    block_us = measure_block(policy, make_state(policy, LARGE_BLOCK_SIZE, rng, n_samples=4), price)
    print_row("  after 4 samples", without_features, block_us)


def measure_questions(label: str, policy: SequentialPolicy, price: float) -> None:
    """Measure decisions as the gateway makes them: the first one, with a text, and later ones."""
    rng = random.Random(0)  # noqa: S311 - not for cryptography
    bundle = Bundle(policy, features=TEXT_FEATURES)
    first: list[int] = []
    later: list[int] = []
    for _ in range(REPEATS):
        one = QuestionProgress(bundle, price, TEXT, rng.getrandbits(63))
        times = first
        while one.is_active:
            start = time.perf_counter_ns()
            decide([one])
            times.append(time.perf_counter_ns() - start)
            times = later
            for _ in range(one.target - len(one.answers)):
                one.answers.append(rng.choice(ANSWERS))
                if policy.arms:
                    one.arms.append(policy.arm_of_level(one.level))
                    one.evidence.add(rng.gauss(0, 1), rng.random())
            one.is_due = True
    block_us = math.nan if policy.values is None else measure_fitted_block(policy)
    print_row(f"  {label}: first", np.array(first, dtype=np.float64), math.nan)
    print_row(f"  {label}: later", np.array(later, dtype=np.float64), block_us)


def measure_fitted_block(policy: SequentialPolicy) -> float:
    """Return µs per decision of a large block by fitted values, after four samples."""
    rng, values = np.random.default_rng(0), policy.fitted
    counts = [4] + [0] * (len(policy.arms) - 1)
    shape, position = (FITTED_ROWS, 4), values.grid.find(counts)
    label, odds, weight = rng.integers(0, 3, shape), rng.normal(size=shape), rng.random(shape)
    text = np.repeat(policy.prior.cell_centre[:1].astype(np.float64), FITTED_ROWS, axis=0)
    start = time.perf_counter()
    for _ in range(LARGE_BLOCK_SIZE // FITTED_ROWS):
        vector = describe(label, odds, weight, counts).vector
        values.advantages(position, vector, text)
    return (time.perf_counter() - start) / LARGE_BLOCK_SIZE * 1e6


def measure_fits() -> None:
    """Measure the sequential policy fitted to the example, which has log-probabilities."""
    example = make_experiment("example", list_sets()["example"], 0)
    fitted = POLICY_FACTORIES["sequential"](example, np.arange(len(example.pool))).policy
    votes = POLICY_FACTORIES["sequential-votes"](example, np.arange(len(example.pool))).policy
    for label, policy in (("log-probabilities", fitted), ("votes", votes)):
        if not isinstance(policy, SequentialPolicy):
            raise TypeError(policy)
        price = policy.schedule.prices[PRICE] if policy.schedule else policy.highest_price / 4
        measure_questions(label, policy, price)


def main() -> None:
    """Print µs per decision of every policy."""
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    rng = np.random.default_rng(0)
    experiment = Experiment(make_pool(400, 32, rng), LEVELS, (1.5, 2.0, 3.0, 4.0, 6.0), 20, 0)
    print(f"{'policy':22} {'p50':>8} {'p99':>8} {'in a block':>11}   µs per decision")
    for name, fit in POLICY_FACTORIES.items():
        fitted = fit(experiment, np.arange(400))
        with tempfile.TemporaryDirectory() as directory:
            save_bundle(Bundle(fitted.policy), Path(directory) / name)
            policy = load_bundle(Path(directory) / name).policy
        price = fitted.prices[len(fitted.prices) // 2]
        state = make_state(policy, 1, rng)
        times_ns = np.empty(REPEATS)
        for i in range(REPEATS):
            start = time.perf_counter_ns()
            policy.decide(state, price)
            times_ns[i] = time.perf_counter_ns() - start
        block = make_state(policy, BLOCK_SIZE, rng)
        policy.decide(block, price)  # warm up
        print_row(name, times_ns, measure_block(policy, block, price))
        if name == "sequential":
            measure_after_samples(policy, price, rng)
    measure_fits()


if __name__ == "__main__":
    main()
