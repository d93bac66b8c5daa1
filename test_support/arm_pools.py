"""Arm pools: recorded samples of two arms that differ in skill and cost, and sessions on them."""

from __future__ import annotations

from typing import Any

import numpy as np

from adacompute.core.answers import UNPARSED, Answers
from adacompute.core.types import IntArray
from adacompute.evaluation.evidence import Evidence
from adacompute.evaluation.experiment import Experiment
from adacompute.evaluation.pool import Pool
from adacompute.models.messages import Sample
from adacompute.policies.bundles.bundle import Bundle
from adacompute.policies.confidence import SIGNALS
from adacompute.policies.policy import Policy
from adacompute.sampling.session import ParsedAnswer, Session

N_SAMPLES = 8


def make_arm_pool(
    n_questions: int = 80,
    *,
    arms: tuple[str, ...] = ("small", "large"),
    useless: bool = False,
    large: float = 1.4,
) -> Pool:
    """Return questions of mixed difficulty; the large arm is better, and confidence tells."""
    rng = np.random.default_rng(5)
    ease = rng.uniform(0.0, 1.0, n_questions)
    skill = {"small": 0.6, "large": large, "other": 1.0}
    rows: list[tuple[int, int, int, bool, float, float]] = []
    for q in range(n_questions):
        for a, name in enumerate(arms):
            for _ in range(N_SAMPLES):
                right = bool(rng.random() < min(0.98, ease[q] * skill[name]))
                answer = 0 if right else int(rng.integers(1, 5))
                answer = UNPARSED if rng.random() < 0.05 else answer
                logprob = rng.normal(-0.2 if right and not useless else -0.4, 0.08)
                rows.append((q, a, answer, right and answer == 0, logprob, 1.0 + 4.0 * a))
    columns: list[Any] = [np.array(column) for column in zip(*rows, strict=True)]
    question, arm, answer, correct, logprob, cost = columns
    signals = np.full((len(rows), len(SIGNALS)), np.nan)
    signals[:, 0] = logprob
    key = np.arange(1, n_questions + 1, dtype=np.uint64) * np.uint64(7919)
    counts = np.bincount(question, minlength=n_questions)
    return Pool(
        answers=Answers(np.concatenate([[0], np.cumsum(counts)]), answer, correct.astype(bool)),
        key=key,
        group=key,
        features=np.column_stack([ease, rng.random(n_questions)]).astype(np.float32),
        sample_cost=cost.astype(np.float64),
        arm=arm if len(arms) > 1 else None,
        arms=arms,
        signal_names=SIGNALS,
        signals=signals,
        latency_s=np.ones(len(rows)),
    )


def run_live(
    bundle: Bundle, experiment: Experiment, question: int, order: list[IntArray], price: float
) -> tuple[list[int], int | None]:
    """Run a session on one order of the recorded samples: the samples drawn, and the answer."""
    pool, policy = experiment.pool, bundle.policy
    session = Session(
        bundle,
        None,
        price=price,
        key=int(pool.key[question]),
        features=pool.features[question : question + 1],
    )
    drawn: list[int] = []
    used = dict.fromkeys(policy.arms, 0)
    while request := session.ask():
        name = request.arm or policy.arms[0]
        arm = policy.arms.index(name)
        for _ in range(request.n):
            index = int(order[arm][used[name]])
            used[name] += 1
            drawn.append(index)
            answer = int(pool.answers.answer[index])
            value = None if answer == UNPARSED else str(answer)
            assert pool.signals is not None
            sample = Sample("", mean_logprob=float(pool.signals[index, 0]))
            session.tell([ParsedAnswer(value, sample)])
    return drawn, None if session.chosen is None else drawn[session.chosen]


def select_evidence(experiment: Experiment, policy: Policy) -> Evidence:
    """Return the evidence of the samples that a policy can reach."""
    numbers = tuple(experiment.arm_names.index(name) for name in policy.arms)
    return experiment.evidence.select(numbers, policy.max_by_arm)


def evidence_index(experiment: Experiment, policy: Policy, index: IntArray) -> IntArray:
    """Return indices among the samples of the policy's arms as indices of the whole pool."""
    names, pool = experiment.arm_names, experiment.pool
    if pool.arm is None:
        return index
    numbers = [names.index(name) for name in policy.arms]
    kept = np.flatnonzero(np.isin(pool.arm, numbers))
    return kept[index]
