"""Escalation: one more sample of another arm where a vote is not sure, fitted, saved and live."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adacompute.core.errors import BundleError, ConfigError
from adacompute.evaluation.escalation import make_escalating
from adacompute.evaluation.experiment import Experiment, FittedPolicy
from adacompute.evaluation.factories import find_trainable, sees_evidence
from adacompute.evaluation.registry import list_policies
from adacompute.policies.bundles.bundle import Bundle, load_bundle, save_bundle
from adacompute.policies.sequential.arm_samples import Grid
from adacompute.policies.sequential.description import vote_accuracy
from adacompute.policies.sequential.escalation import EscalatingPolicy, EscalationRule
from test_support.arm_pools import evidence_index, make_arm_pool, run_live, select_evidence


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    return Experiment(make_arm_pool(), (1, 2, 4, 8), (2.0,), n_permutations=6)


@pytest.fixture(scope="module")
def fitted(experiment: Experiment) -> FittedPolicy:
    return make_escalating(experiment, np.arange(60))


def escalating(fitted: FittedPolicy) -> EscalatingPolicy:
    """Return the policy with choices that ask the second arm, whatever was efficient."""
    policy = fitted.policy
    assert isinstance(policy, EscalatingPolicy)
    choices = (
        EscalationRule(0, 1),
        EscalationRule(0, 1, 0.4, 1),
        EscalationRule(0, 2, 0.7, 1),
        EscalationRule(1, 2),
    )
    schedule = replace(policy.schedule, prices=(0.4, 0.3, 0.2, 0.1))
    return replace(policy, choices=choices, schedule=schedule)


def test_replay_decides_as_a_session_does(
    experiment: Experiment, fitted: FittedPolicy, tmp_path: Path
) -> None:
    policy = escalating(fitted)
    evidence = select_evidence(experiment, policy)
    save_bundle(Bundle(policy), tmp_path / "bundle")
    bundle = load_bundle(tmp_path / "bundle")
    samples = evidence.ordered(policy.confidence)
    end = policy.find_ends(samples, np.zeros(len(samples.label), np.int64)).position
    sizes = set()
    for column, price in enumerate(policy.schedule.prices):
        for question in range(0, 80, 4):
            row = question * evidence.n_permutations
            order = [evidence_index(experiment, policy, evidence.order[arm][row]) for arm in (0, 1)]
            drawn, chosen = run_live(bundle, experiment, question, order, price)
            counts = Grid(policy.max_by_arm).counts[end[row, column]].tolist()
            assert len(drawn) == sum(counts)
            sizes.add(len(drawn) if column == 1 else 0)
            leads = samples.describe(counts, np.array([row])).leads
            correct = chosen is not None and bool(experiment.pool.answers.correct[chosen])
            if leads.sum() == 1:  # of tied answers a session takes one
                accuracy = vote_accuracy(leads, samples.accuracy[[row]])[0]
                assert accuracy == pytest.approx(float(correct))
    assert {1, 2} <= sizes  # some were sure, and some were not


def test_only_votes_that_are_not_sure_are_paid_for_twice(
    experiment: Experiment, fitted: FittedPolicy
) -> None:
    policy = escalating(fitted)
    evidence = select_evidence(experiment, policy)
    result, samples = evidence.run(policy, fitted.features), evidence.ordered(policy.confidence)
    ends = policy.find_ends(samples, np.zeros(len(samples.label), np.int64))
    asked = (ends.n_rounds == 2).mean(axis=0)
    assert asked[0] == asked[3] == 0.0
    assert 0.0 < asked[1] < 1.0
    assert result.cost.mean(axis=0) == pytest.approx([1.0, 1 + 5 * asked[1], 2 + 5 * asked[2], 10])
    taken = evidence.measure_latency(policy, 0.3, fitted.features)
    assert taken is not None
    assert taken.mean() == pytest.approx(1 + asked[1])  # a second for each of two rounds


def test_sure_votes_are_right_more_often(experiment: Experiment, fitted: FittedPolicy) -> None:
    policy = escalating(fitted)
    evidence = select_evidence(experiment, policy)
    samples = evidence.ordered(policy.confidence)
    held_out = np.arange(len(samples.label)) >= 60 * evidence.n_permutations
    ends = policy.find_ends(samples, np.zeros(len(samples.label), np.int64)).n_rounds[:, 2]
    accuracy = vote_accuracy(samples.describe([2, 0]).leads, samples.accuracy)
    sure, other = (accuracy[held_out & (ends == n)].mean() for n in (1, 2))
    assert sure > other + 0.2


def test_it_costs_less_than_always_asking_the_better_arm(fitted: FittedPolicy) -> None:
    policy, known = fitted.policy, fitted.known
    assert isinstance(policy, EscalatingPolicy)
    assert known is not None
    assert known.cost.mean(axis=0) == pytest.approx(np.sort(known.cost.mean(axis=0)))
    assert any(choice.sure for choice in policy.choices)
    accuracy, cost = known.accuracy[60:].mean(axis=0), known.cost[60:].mean(axis=0)
    assert accuracy[cost < 5.0].max() > 0.45


def test_results_are_those_of_the_replay(experiment: Experiment, fitted: FittedPolicy) -> None:
    assert fitted.known is not None
    again = experiment.run(replace(fitted, known=None))
    assert again.cost == pytest.approx(fitted.known.cost)
    assert again.accuracy == pytest.approx(fitted.known.accuracy)


def test_it_needs_several_arms_and_two_rounds(experiment: Experiment) -> None:
    alone = Experiment(make_arm_pool(arms=("small",)), (1, 2), (2.0,), n_permutations=2)
    with pytest.raises(ConfigError, match="there is one: give samples of several arms"):
        make_escalating(alone, np.arange(60))
    with pytest.raises(ConfigError, match="escalate needs 2 rounds"):
        make_escalating(replace(experiment, max_rounds=1), np.arange(60))
    assert find_trainable("escalate") is make_escalating
    assert sees_evidence("escalate")
    assert "escalate" in list_policies(("small", "large"))
    assert "escalate" not in list_policies()


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ("choices", [[0, 1, 0.0, 0]]),
        ("choices", [[0, 99, 0.0, 0]] * 4),
        ("choices", [[2, 1, 0.0, 0]] * 4),
        ("choices", [[0, 1, 0.5, 0]] * 4),
        ("choices", [[0, 1, "x", 1]] * 4),
        ("levels", [{"name": "a", "n_samples": 1, "model": "small", "settings": {}}]),
        ("arm_cost", [0.0, 1.0]),
        ("judge", {}),
    ],
)
def test_damaged_bundles_are_refused(
    fitted: FittedPolicy, tmp_path: Path, entry: str, value: Any
) -> None:
    save_bundle(Bundle(escalating(fitted)), tmp_path / "bundle")
    path = tmp_path / "bundle" / "bundle.json"
    content = json.loads(path.read_text())
    content["policy"][entry] = value
    path.write_text(json.dumps(content))
    with pytest.raises(BundleError):
        load_bundle(tmp_path / "bundle")
