"""How long the policy over arms and confidence takes: a decision, a plan, and a fit.

``python -m benchmarks.evidence_speed`` times decisions of a policy with 23,210 states, one plan of
24 cells, and a fit to 1,000 made-up questions with one cheap arm and three expensive ones.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from adacompute.core.answers import UNPARSED, Answers
from adacompute.core.coloured_states import Colours, coloured_states
from adacompute.core.types import Level
from adacompute.features.text import feature_names
from adacompute.policies.arm_settings import ArmSettings
from adacompute.policies.bundle import Bundle
from adacompute.policies.coloured import ColouredPolicy
from adacompute.policies.coloured_fit import ArmSamples, FittedVotes, measure_arms
from adacompute.policies.confidence import equal_confidence
from adacompute.policies.plans import StateValues, make_plan
from adacompute.policies.price_schedule import PriceSchedule
from adacompute.policies.prior import Prior, pooled_prior
from adacompute.sampling.session import ParsedAnswer, Session

COLOURS = Colours((8, 1, 1, 1), (1, 1, 1, 1))
ARMS = ("cheap", "two", "three", "four")
COSTS = (1.0, 5.0, 10.0, 30.0)
PRICES = tuple(np.geomspace(1.0, 1e-4, 48).tolist())
N_CELLS = 24
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


def main() -> None:
    """Print the times."""
    states = coloured_states(COLOURS)
    samples = make_samples(1000)
    start = time.perf_counter()
    votes = FittedVotes(equal_confidence(4), COLOURS)
    measure = measure_arms(samples, votes, np.arange(1000))
    measured = time.perf_counter()
    total = measure.sum(np.arange(1000) % N_CELLS, N_CELLS)
    pairs = states.pairs[0]
    correct = np.stack(
        [np.bincount(pairs, column, minlength=len(states)) for column in total.correct.T], axis=1
    )
    values = StateValues(
        total.mass, correct / np.maximum(states.classes.sum(axis=1), 1)[:, None], total.cost
    )
    planned = time.perf_counter()
    plans = [make_plan(states, values, price) for price in PRICES]
    end = time.perf_counter()
    print(f"{len(states)} states, 1,000 questions: measured in {measured - start:.1f} s")
    print(f"one plan of {N_CELLS} cells: {(end - planned) / len(PRICES) * 1e3:.0f} ms")
    print(f"fit, {len(PRICES)} plans: {end - start:.1f} s")
    width, rng = len(feature_names("words")), np.random.default_rng(0)
    text = Prior(
        np.zeros(width, np.float32),
        np.ones(width, np.float32),
        rng.normal(size=(width, 5)).astype(np.float32),
        rng.normal(size=(N_CELLS, 5)).astype(np.float32),
    )
    action: Any = np.stack(plans)
    time_decisions("without text", pooled_prior(0), action[:, :, :1])
    time_decisions("with text", text, action)


def time_decisions(label: str, prior: Prior, action: Any) -> None:  # noqa: ANN401 - of any integers
    """Time every decision of sessions; with text, the first reads the question."""
    levels = tuple(
        Level(f"{arm} × {n}", n, arm)
        for arm, cap in zip(ARMS, COLOURS.max_samples, strict=True)
        for n in range(1, cap + 1)
    )
    known: dict[str, Any] = {"prior": prior, "schedule": PriceSchedule(PRICES)}
    policy = ColouredPolicy(
        ARMS, levels, COLOURS, equal_confidence(4), action=action, sample_cost=COSTS, **known
    )
    arms = tuple(ArmSettings(name, name) for name in ARMS)
    bundle, rng = Bundle(policy, arms=arms, features="words"), np.random.default_rng(1)
    taken: list[list[float]] = [[], []]
    for key in range(2000):
        question = f"{QUESTION} {key}" if len(prior.cell_centre) > 1 else None
        session = Session(bundle, question, price=PRICES[20], key=key)
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


if __name__ == "__main__":
    main()
