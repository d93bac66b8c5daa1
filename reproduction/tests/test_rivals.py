"""Rivals: methods of the literature agree with their definitions and are tuned on training rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adacompute.core.answers import UNPARSED, Answers
from adacompute.core.errors import ConfigError
from adacompute.evaluation.experiment import Experiment, FittedPolicy
from adacompute.evaluation.factories import (
    POLICY_FACTORIES,
    find_factory,
    find_trainable,
    only_arms,
    sees_evidence,
)
from adacompute.evaluation.pool import Pool
from adacompute.evaluation.recorded_data import RecordedData
from adacompute.evaluation.registry import find_obstacle, list_policies
from adacompute.evaluation.running_votes import (
    OrderedVotes,
    label_orders,
    running_totals,
    weighted_accuracies,
)
from adacompute.evaluation.scoring.held_out import score_held_out
from adacompute.policies.confidence import LENGTH, SIGNALS
from adacompute.stages.evaluate import evaluate_run
from reproduction.cascades import Cascade, run_cascades, run_switches
from reproduction.registered_rivals import ARM_RIVALS, RIVALS
from reproduction.rival_settings import ScoredSettings, fit_stopping
from reproduction.rivals import (
    combine_confidences,
    cost_of_length,
    run_shortest,
    weigh_likelihoods,
)
from test_support.pools import score_pool

Rows = list[dict[str, Any]]

pytestmark = pytest.mark.usefixtures("rivals")

N_SAMPLES = 6
ARMS = ("small", "large", "other")
SKILL = {"small": 0.6, "large": 1.4, "other": 1.0}


def make_pool(arms: tuple[str, ...] = ("small",), n_questions: int = 60, unit: str = "") -> Pool:
    """Questions of mixed difficulty; confident and short samples are more often right."""
    rng = np.random.default_rng(8)
    rows: list[tuple[Any, ...]] = []
    for q, ease in enumerate(rng.uniform(0.0, 1.0, n_questions)):
        for a, name in enumerate(arms):
            for _ in range(N_SAMPLES):
                right = bool(rng.random() < min(0.98, ease * SKILL[name]))
                answer = 0 if right else int(rng.integers(1, 4))
                answer = UNPARSED if rng.random() < 0.1 else answer
                logprob = rng.normal(-0.2 if right else -0.35, 0.1)
                length = int(rng.integers(20, 90)) - 15 * right
                rows.append((q, a, answer, right and answer == 0, logprob, length))
    columns: list[Any] = [np.array(column) for column in zip(*rows, strict=True)]
    question, arm, answer, correct, logprob, length = columns
    signals = np.full((len(rows), len(SIGNALS)), np.nan)
    signals[:, 0], signals[:, SIGNALS.index(LENGTH)] = logprob, np.log1p(length)
    key = np.arange(1, n_questions + 1, dtype=np.uint64) * np.uint64(7919)
    costs = {"tokens": length.astype(float), "money": 7.0 + question + 0.5 * length}
    return Pool(
        answers=Answers(
            np.append(0, np.cumsum(np.bincount(question))), answer, correct.astype(bool)
        ),
        key=key,
        group=key,
        features=np.zeros((n_questions, 1), dtype=np.float32),
        sample_cost=costs.get(unit, 1.0 + 4.0 * arm),
        arm=arm if len(arms) > 1 else None,
        arms=arms,
        signal_names=SIGNALS,
        signals=signals,
    )


def make_experiment(arms: tuple[str, ...] = ("small",), **options: Any) -> Experiment:
    return Experiment(make_pool(arms, **options), (1, 2, 4, 6), (2.0,), n_permutations=5)


@pytest.fixture(scope="module")
def one_arm() -> Experiment:
    return make_experiment()


@pytest.fixture(scope="module")
def arms() -> Experiment:
    return make_experiment(ARMS)


def votes_of(experiment: Experiment) -> OrderedVotes:
    return label_orders(experiment.evidence.samples.answers, experiment.evidence.order[0])


def find_setting(fitted: FittedPolicy) -> tuple[Any, ...]:
    assert isinstance(fitted.policy, ScoredSettings)
    return fitted.policy.settings


def test_running_votes_are_those_of_levels(one_arm: Experiment) -> None:
    levels = one_arm.evidence.run_levels(None)
    correct = weighted_accuracies(votes_of(one_arm))
    mean = correct.reshape(len(one_arm.pool), -1, N_SAMPLES).mean(axis=1)
    np.testing.assert_allclose(mean, levels.accuracy, atol=1e-12)


def test_an_infinite_temperature_counts_every_sample_once(one_arm: Experiment) -> None:
    votes = votes_of(one_arm)
    logprob = np.random.default_rng(0).normal(-0.3, 0.2, votes.label.shape)
    weight = weigh_likelihoods(logprob, math.inf)
    np.testing.assert_array_equal(weighted_accuracies(votes, weight), weighted_accuracies(votes))
    finite = weighted_accuracies(votes, weigh_likelihoods(logprob, 0.1))
    assert not np.array_equal(finite, weighted_accuracies(votes))


def test_a_temperature_near_zero_takes_the_likeliest_sample(one_arm: Experiment) -> None:
    votes = votes_of(one_arm)
    logprob = np.random.default_rng(0).normal(-0.3, 0.05, votes.label.shape)
    correct = weighted_accuracies(votes, weigh_likelihoods(logprob, 1e-3))[:, -1]
    known = np.where(votes.label == UNPARSED, -np.inf, logprob)
    best = votes.label[np.arange(len(known)), known.argmax(axis=1)]
    expected = votes.accuracy[best, np.arange(len(known))] * (best != UNPARSED)
    np.testing.assert_array_equal(correct, expected)


def test_weights_are_a_softmax_within_a_row() -> None:
    weight = weigh_likelihoods(np.array([[-0.1, -0.3, -0.2]]), 0.5)[0]
    expected = np.exp(np.array([-0.2, -0.6, -0.4]))
    np.testing.assert_allclose(weight / weight.sum(), expected / expected.sum())


def test_posterior_of_confidences_is_bayes_rule() -> None:
    label = np.array([[0, 1, UNPARSED, 0]])
    chance = np.array([[0.7, 0.6, 0.9, 0.4]])
    votes = OrderedVotes(label, np.array([[1.0], [0.0]]))
    posterior, correct = combine_confidences(votes, np.log(chance / (1 - chance)))
    assert posterior[0, 0] == pytest.approx(0.7)
    n_others = 2  # two answers are seen, and one more may be the right one
    likelihood = np.ones(3)
    for answer, one in ((0, 0.7), (1, 0.6), (0, 0.4)):
        likelihood *= np.where(np.arange(3) == answer, one, (1 - one) / n_others)
    assert posterior[0, 3] == pytest.approx(likelihood[0] / likelihood.sum())
    assert posterior[0, 2] == posterior[0, 1]
    assert correct.tolist() == [[1.0, 1.0, 1.0, 1.0]]


def test_no_parsed_sample_has_no_posterior() -> None:
    votes = OrderedVotes(np.array([[UNPARSED, 0]]), np.array([[1.0]]))
    posterior, correct = combine_confidences(votes, np.zeros((1, 2)))
    assert posterior.tolist() == [[0.0, 0.5]]
    assert correct.tolist() == [[0.0, 1.0]]


@pytest.mark.parametrize(("threshold", "n_samples"), [(0.0, 1.0), (2.0, N_SAMPLES)])
def test_a_threshold_decides_when_to_stop(
    one_arm: Experiment, threshold: float, n_samples: float
) -> None:
    evidence, rows = one_arm.evidence, np.arange(len(one_arm.pool))
    rng = np.random.default_rng(1)
    score = rng.random((len(evidence.order[0]), N_SAMPLES))
    correct = np.tile(np.arange(N_SAMPLES) / N_SAMPLES, (len(score), 1))  # later is better
    fitted = fit_stopping("rule", one_arm, rows, (threshold,), (score, correct))
    assert fitted.known is not None
    if threshold == 0.0:
        assert find_setting(fitted) == ((0.0, 1),)
    assert (fitted.known.n_samples[:, -1] == n_samples).all()
    assert (fitted.known.cost[:, -1] == n_samples).all()


def test_all_of_k_shortest_samples_are_k_samples() -> None:
    experiment = make_experiment(unit="tokens")
    evidence = experiment.evidence
    result, levels = (
        run_shortest(evidence, [(k, k) for k in range(1, 7)]),
        evidence.run_levels(None),
    )
    np.testing.assert_allclose(result.cost, levels.cost)
    np.testing.assert_allclose(result.accuracy[:, 0], levels.accuracy[:, 0])
    # Votes differ only where answers are tied, and a tie goes to the shortest sample.
    *_, total = running_totals(votes_of(experiment))
    ranked = np.sort(total, axis=0)
    tied = (ranked[-1] == ranked[-2]).reshape(len(experiment.pool), -1).any(axis=1)
    assert 0 < tied.sum() < len(tied)
    np.testing.assert_allclose(result.accuracy[~tied, -1], levels.accuracy[~tied, -1])


def test_cancelled_samples_cost_tokens_until_they_are_cancelled() -> None:
    evidence = make_experiment(unit="tokens").evidence
    result = run_shortest(evidence, [(2, 4)])
    length = np.sort(evidence.samples.cost[evidence.order[0][:, :4]], axis=1)
    expected = np.minimum(length, length[:, 1:2]).sum(axis=1)
    np.testing.assert_allclose(result.cost[:, 0], expected.reshape(-1, 5).mean(axis=1))
    assert (result.n_samples == 4).all()


def test_the_shortest_sample_answers_alone() -> None:
    evidence = make_experiment(unit="tokens").evidence
    result, samples = run_shortest(evidence, [(1, 6)]), evidence.samples
    index = evidence.order[0]
    shortest = index[np.arange(len(index)), samples.cost[index].argmin(axis=1)]
    expected = samples.answers.class_accuracy[shortest] * (
        samples.answers.answer[shortest] != UNPARSED
    )
    np.testing.assert_allclose(result.accuracy[:, 0], expected.reshape(-1, 5).mean(axis=1))


@pytest.mark.parametrize(("unit", "rate"), [("", 0.0), ("tokens", 1.0), ("money", 0.5)])
def test_cost_of_length_is_the_price_of_a_token(unit: str, rate: float) -> None:
    evidence = make_experiment(unit=unit).evidence
    length = np.expm1(evidence.samples.column((LENGTH,))[:, 0])
    assert cost_of_length(evidence, length) == pytest.approx(rate, abs=1e-9)
    result = run_shortest(evidence, [(1, 6)])
    assert (result.cost[0, 0] < evidence.run_levels(None).cost[0, 5] - 1e-9) == (rate > 0)


def test_a_cascade_that_always_stops_is_the_cheap_arm(arms: Experiment) -> None:
    settings, result = run_cascades(arms.evidence, pair=(0, 1))
    cheap = arms.evidence.run_arm(0, None)
    for n in (1, 2, 4):
        column = list(settings).index(Cascade((0, 1), n, 0, 0, pooled=False))
        np.testing.assert_allclose(result.cost[:, column], cheap.cost[:, n - 1])
        np.testing.assert_allclose(result.accuracy[:, column], cheap.accuracy[:, n - 1])


def test_a_cascade_that_never_stops_lets_the_expensive_arm_decide(arms: Experiment) -> None:
    settings, result = run_cascades(arms.evidence, pair=(0, 1))
    column = list(settings).index(Cascade((0, 1), 2, 3, 4, pooled=False))
    both = [arms.evidence.run_arm(arm, None) for arm in (0, 1)]
    np.testing.assert_allclose(result.cost[:, column], both[0].cost[:, 1] + both[1].cost[:, 3])
    np.testing.assert_allclose(result.accuracy[:, column], both[1].accuracy[:, 3])
    assert (result.n_rounds[:, column] == 2).all()


def test_a_cascade_goes_on_where_answers_differ(arms: Experiment) -> None:
    settings, result = run_cascades(arms.evidence, pair=(0, 1))
    column = list(settings).index(Cascade((0, 1), 2, 2, 1, pooled=False))
    answer = arms.evidence.samples.answers.answer[arms.evidence.order[0][:, :2]]
    agree = (answer[:, 0] == answer[:, 1]) & (answer[:, 0] != UNPARSED)
    assert 0 < agree.mean() < 1
    expected = np.where(agree, 2.0, 2.0 + 5.0).reshape(-1, 5).mean(axis=1)
    np.testing.assert_allclose(result.cost[:, column], expected)


def test_a_model_switch_stops_where_two_arms_agree(arms: Experiment) -> None:
    evidence = arms.evidence
    settings, result = run_switches(evidence, chain=(0, 1, 2))
    column = [one[1] for one in settings].index(1)
    answer, correct = evidence.samples.answers.answer, evidence.samples.answers.class_accuracy
    one, two, three = (evidence.order[arm][:, 0] for arm in range(3))
    agree = (answer[one] == answer[two]) & (answer[one] != UNPARSED)
    cost = 1.0 + 5.0 + np.where(agree, 0.0, 9.0)
    np.testing.assert_allclose(result.cost[:, column], cost.reshape(-1, 5).mean(axis=1))
    vote = label_orders(evidence.samples.answers, np.stack([one, two, three], axis=1))
    expected = np.where(agree, correct[one], weighted_accuracies(vote)[:, -1])
    np.testing.assert_allclose(result.accuracy[:, column], expected.reshape(-1, 5).mean(axis=1))


def test_a_model_switch_of_two_arms_samples_the_second_again(arms: Experiment) -> None:
    settings, result = run_switches(arms.evidence, chain=(0, 1))
    assert [one[1] for one in settings] == [1, 2, 3, 4]  # one of six samples is used before
    assert result.n_samples[:, 0].max() <= 3


@pytest.mark.parametrize(
    "name", [*(name for name in RIVALS if "-rewards" not in name), *ARM_RIVALS]
)
def test_held_out_rows_change_nothing_that_was_tuned(name: str) -> None:
    names = ARMS if name in ARM_RIVALS else ("small",)
    experiment = make_experiment(names)
    train, held_out = np.arange(40), np.arange(40, 60)
    fitted = find_factory(name)(experiment, train)
    answers = experiment.pool.answers
    others = np.isin(answers.question, held_out)
    flipped = np.where(others & (answers.answer != UNPARSED), ~answers.correct, answers.correct)
    changed = replace(experiment.pool, answers=replace(answers, correct=flipped))
    again = find_factory(name)(replace(experiment, pool=changed), train)
    assert find_setting(again) == find_setting(fitted)
    assert again.prices == fitted.prices
    assert fitted.known is not None
    assert again.known is not None
    np.testing.assert_array_equal(again.known.accuracy[train], fitted.known.accuracy[train])
    assert not np.array_equal(again.known.accuracy[held_out], fitted.known.accuracy[held_out])


@pytest.mark.parametrize("name", [*RIVALS, *ARM_RIVALS])
def test_curves_start_at_one_sample_and_read_at_a_budget(name: str) -> None:
    names = ARMS if name in ARM_RIVALS else ("small",)
    curve = score_held_out(make_experiment(names), find_factory(name))
    assert curve.cost[0] == pytest.approx(1.0)
    assert curve.read(1.5).cost == pytest.approx(1.5)
    assert (np.diff(curve.folds[0].prices) < 0).all()


def test_confidence_helps_where_it_tells(one_arm: Experiment) -> None:
    budget = 3.0
    scored = {
        name: score_held_out(one_arm, find_factory(name)).read(budget).accuracy
        for name in ("mixture-votes", "weighted-consistency", "confidence-stopping")
    }
    assert scored["weighted-consistency"] > scored["mixture-votes"] + 0.02
    assert scored["confidence-stopping"] > scored["mixture-votes"] + 0.02


def test_rivals_are_scored_but_not_trained(one_arm: Experiment) -> None:
    for name in (*RIVALS, *ARM_RIVALS, "retry"):
        with pytest.raises(ConfigError, match=name):
            find_trainable(name)
    assert find_trainable("mixture") is POLICY_FACTORIES["mixture"]
    policy = RIVALS["bayesian-stopping"](one_arm, np.arange(40)).policy
    assert policy.prepare_features(np.ones((3, 2), dtype=np.float32)).shape == (3, 0)
    assert len(policy.levels) == N_SAMPLES
    state: Any = [0, 1]
    with pytest.raises(ConfigError, match="bayesian-stopping"):
        policy.decide(state, 1.0)


def test_rivals_that_use_confidence_are_compared_with_votes_that_do() -> None:
    aware = {name for name in (*RIVALS, *ARM_RIVALS) if sees_evidence(name)}
    assert aware == {"weighted-consistency", "confidence-stopping", "agreement-cascade"}
    assert not sees_evidence(find_factory("shortest-majority"))


@pytest.mark.parametrize(
    ("change", "skipped"),
    [
        ({}, set()),
        ({"has_logprobs": False}, {"weighted-consistency", "confidence-stopping"}),
        ({"has_lengths": False}, {"shortest-majority"}),
        ({"use_confidence": False}, set(RIVALS) - {"bayesian-stopping", "marginal-rewards"}),
        ({"has_rounds": True}, set(RIVALS)),
    ],
    ids=lambda value: "-".join(sorted(value)) or "none",
)
def test_rivals_need_data(change: dict[str, bool], skipped: set[str]) -> None:
    data = RecordedData(**{"has_logprobs": True, "has_lengths": True, **change})
    names = (*POLICY_FACTORIES, *RIVALS)
    assert {name for name in names if find_obstacle(name, data)} == skipped


def scored_names(pool: Pool, **options: Any) -> list[str]:
    known: dict[str, Any] = {"budgets": (2.0,), "levels": (1, 2, 4), "n_permutations": 3}
    return [row["policy"] for row in score_pool(pool, **known, **options).rows]


def test_what_was_recorded_decides_which_rivals_are_scored() -> None:
    pool = make_pool()
    assert RecordedData.of(Experiment(pool, (1, 2))) == RecordedData(
        has_logprobs=True, has_lengths=True
    )
    bare = RecordedData.of(Experiment(replace(pool, signals=None), (1, 2)))
    assert bare == RecordedData(has_logprobs=False, has_lengths=False)
    with pytest.raises(ConfigError, match="shortest-majority"):
        scored_names(replace(pool, signals=None), policies=["shortest-majority"])
    assert scored_names(pool, policies=[*RIVALS]) == [*RIVALS]


def test_rivals_are_listed_for_one_arm_or_for_several() -> None:
    assert set(RIVALS) < set(list_policies())
    assert set(ARM_RIVALS) == set(list_policies(ARMS)) - {
        *("mixture-votes", "mixture", "sequential", "oracle"),
        *only_arms(ARMS),
    }
    assert scored_names(make_pool(ARMS), policies=[*ARM_RIVALS]) == [*ARM_RIVALS]


def test_rivals_whose_data_is_missing_are_listed_with_the_reason(
    make_run: Callable[[Rows], Path], rows: Rows
) -> None:
    bare = [{**row, "mean_logprob": None} for row in rows]
    known: dict[str, Any] = {"budgets": (2.0,), "levels": (1, 2)}
    found = evaluate_run(make_run(bare), policies=None, **known)
    assert set(RIVALS) & set(found["skipped"]) == {"weighted-consistency", "confidence-stopping"}
    scored = {row["policy"] for row in found["rows"]}
    assert scored >= {"bayesian-stopping", "shortest-majority"}


def test_options_that_rivals_do_not_support_are_refused(run: Path) -> None:
    known: dict[str, Any] = {"budgets": (2.0,), "levels": (1, 2), "policies": ["bayesian-stopping"]}
    with pytest.raises(ConfigError, match="bayesian-stopping"):
        evaluate_run(run, **known, max_rounds=2)
    with pytest.raises(ConfigError, match="weighted-consistency"):
        evaluate_run(run, **{**known, "policies": ["weighted-consistency"], "evidence": "votes"})
