"""How long the policy over arms and confidence takes: a fit, a replay, and a decision.

``python -m benchmarks.evidence_speed`` fits values at 108 positions to 1,000 made-up questions with
one cheap arm and three expensive ones, replays the policy at all prices, and times its decisions.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from adacompute.core.answers import UNPARSED, Answers
from adacompute.evaluation.evidence import Evidence
from adacompute.evaluation.evidence_factories import arm_levels, price_steps
from adacompute.features.text import feature_names
from adacompute.policies.bundles.arm_settings import ArmSettings
from adacompute.policies.bundles.bundle import Bundle
from adacompute.policies.confidence import equal_confidence
from adacompute.policies.sequential.advantage_fit import TrainingOrders, fit_advantages
from adacompute.policies.sequential.arm_samples import ArmSamples
from adacompute.policies.sequential.prior import Prior, pooled_prior
from adacompute.sampling.session import ParsedAnswer, Session

if TYPE_CHECKING:
    from adacompute.policies.sequential.policy import SequentialPolicy

ARMS = ("cheap", "two", "three", "four")
CAPS = (8, 2, 1, 1)
COSTS = (1.0, 5.0, 10.0, 30.0)
N_QUESTIONS, N_ORDERS, N_CELLS, N_TEXT = 1000, 12, 24, 5
SETTING = 12
"""The price of decisions, by its place among the prices."""

QUESTION = (
    "A train leaves the station at 9:40 with 124 passengers. At each of 3 stops a quarter of them "
    "get off and 17 get on. How many passengers are on the train after the third stop?"
)


def make_samples(n_questions: int) -> ArmSamples:
    """Make up samples of four arms that get better with their cost."""
    rng = np.random.default_rng(0)
    arm = np.tile(np.repeat(np.arange(4), (16, 4, 4, 4)), n_questions)
    question = np.repeat(np.arange(n_questions), 28)
    ease = rng.uniform(0, 1, n_questions)[question]
    right = rng.random(len(arm)) < np.clip(ease * (0.6 + 0.2 * arm), 0, 0.98)
    answer = np.where(right, 0, rng.integers(1, 6, len(arm)))
    answer = np.where(rng.random(len(arm)) < 0.03, UNPARSED, answer)
    answers = Answers(np.arange(n_questions + 1) * 28, answer, answer == 0)
    cost = np.array(COSTS)[arm]
    key = np.arange(n_questions, dtype=np.uint64)
    return ArmSamples(answers, key, arm, 4, cost, (), np.empty((len(arm), 0)))


def make_text() -> Prior:
    """Make up cells of texts."""
    width, rng = len(feature_names("words")), np.random.default_rng(0)
    return Prior(
        np.zeros(width, np.float32),
        np.ones(width, np.float32),
        rng.normal(size=(width, N_TEXT)).astype(np.float32),
        rng.normal(size=(N_CELLS, N_TEXT)).astype(np.float32),
    )


def time_fit(label: str, prior: Prior) -> SequentialPolicy:
    """Fit the policy, and replay it."""
    train, cell = np.arange(N_QUESTIONS), np.arange(N_QUESTIONS) % len(prior.cell_centre)
    evidence = Evidence(make_samples(N_QUESTIONS), CAPS, N_ORDERS, 0, False, np.zeros(N_QUESTIONS))
    known: dict[str, Any] = {
        "arms": ARMS,
        "levels": arm_levels(ARMS, CAPS),
        "confidence": equal_confidence(4),
        "sample_cost": COSTS,
    }
    prices = np.array(price_steps(COSTS))
    start = time.perf_counter()
    samples = evidence.ordered(equal_confidence(4))
    training = TrainingOrders(samples, train, train.astype(np.uint64), N_ORDERS, prices)
    policy = fit_advantages(training, prior, cell, None, known)
    fitted = time.perf_counter()
    evidence.run(policy, np.zeros((N_QUESTIONS, len(prior.mean)), np.float32))
    end = time.perf_counter()
    n_positions = len(policy.fitted.grid)
    print(f"{label}, {n_positions} positions, {len(prices)} prices: fit {fitted - start:.1f} s")
    print(f"{label}, {N_QUESTIONS} × {N_ORDERS} orders: replay {end - fitted:.1f} s")
    return replace(policy, uniform=np.zeros((len(prices), 2), np.int64))


def time_decisions(label: str, policy: SequentialPolicy) -> None:
    """Time every decision of sessions; with text, the first reads the question."""
    arms = tuple(ArmSettings(name, name) for name in ARMS)
    bundle, rng = Bundle(policy, arms=arms, features="words"), np.random.default_rng(1)
    taken: list[list[float]] = [[], []]
    assert policy.schedule is not None
    for key in range(2000):
        question = f"{QUESTION} {key}" if len(policy.prior.cell_centre) > 1 else None
        session = Session(bundle, question, price=policy.schedule.prices[SETTING], key=key)
        while True:
            start = time.perf_counter()
            request = session.ask()
            taken[session.n_samples > 0].append(time.perf_counter() - start)
            if request is None:
                break
            session.tell([ParsedAnswer(str(rng.integers(0, 3))) for _ in range(request.n)])
    for name, times in zip(("first", "later"), taken, strict=True):
        p50, p99 = np.percentile(times, [50, 99]) * 1e6
        print(f"{label}, {len(times)} {name} decisions: {p50:.0f} µs (p99 {p99:.0f} µs)")


def main() -> None:
    """Print the times."""
    width = len(feature_names("words"))
    for label, prior in (("without text", pooled_prior(width)), ("with text", make_text())):
        time_decisions(label, time_fit(label, prior))


if __name__ == "__main__":
    main()
