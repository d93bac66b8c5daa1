"""Evidence: policies over arms and confidence, fitted, replayed, saved and run live."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adacompute.core.answers import UNPARSED
from adacompute.core.errors import BundleError, ConfigError, DataError
from adacompute.evaluation import evidence_factories
from adacompute.evaluation.evidence_factories import (
    MAX_POSITIONS,
    choose_arms,
    make_arm_mixture,
    make_fitted,
)
from adacompute.evaluation.experiment import Experiment, FittedPolicy
from adacompute.evaluation.factories import (
    OnlyArm,
    find_factory,
    find_trainable,
    make_sequential,
    sees_evidence,
)
from adacompute.evaluation.pool import Pool
from adacompute.evaluation.registry import list_policies
from adacompute.evaluation.scoring.held_out import score_held_out
from adacompute.policies.arm_mixture import ArmMixture
from adacompute.policies.bundles.bundle import Bundle, load_bundle, save_bundle
from adacompute.policies.sequential.arm_samples import Grid
from adacompute.policies.sequential.description import vote_accuracy
from adacompute.policies.sequential.policy import SequentialPolicy
from test_support.arm_pools import evidence_index, make_arm_pool, run_live, select_evidence
from test_support.pools import score_pool


@pytest.fixture(scope="module", params=[("small",), ("small", "large")], ids=["one", "two"])
def experiment(request: pytest.FixtureRequest) -> Experiment:
    return Experiment(make_arm_pool(arms=request.param), (1, 2, 4, 8), (2.0,), n_permutations=6)


@pytest.fixture(scope="module")
def fitted(experiment: Experiment) -> FittedPolicy:
    return make_fitted(experiment, np.arange(60), experiment.pool.features)


def test_replay_decides_as_a_session_does(
    experiment: Experiment, fitted: FittedPolicy, tmp_path: Path
) -> None:
    policy = fitted.policy
    assert isinstance(policy, SequentialPolicy)
    evidence = select_evidence(experiment, policy)
    save_bundle(Bundle(policy), tmp_path / "bundle")
    bundle = load_bundle(tmp_path / "bundle")
    cell = policy.prepare_features(experiment.pool.features)[:, 0].astype(np.int64)
    assert policy.confidence is not None
    assert policy.schedule is not None
    samples = evidence.ordered(policy.confidence)
    end = policy.find_ends(samples, np.repeat(cell, evidence.n_permutations)).position
    for column in (4, 12, 18, 24, 31):
        price = policy.schedule.prices[column]
        for question in (0, 7, 33, 61, 79):
            for number in range(2):
                row = question * evidence.n_permutations + number
                order = [
                    evidence_index(experiment, policy, evidence.order[arm][row])
                    for arm in range(len(policy.arms))
                ]
                drawn, chosen = run_live(bundle, experiment, question, order, price)
                counts = policy.fitted.grid.counts[end[row, column]].tolist()
                assert len(drawn) == sum(counts)
                leads = samples.describe(counts, np.array([row])).leads
                accuracy = vote_accuracy(leads, samples.accuracy[[row]])[0]
                correct = chosen is not None and bool(experiment.pool.answers.correct[chosen])
                if leads.sum() == 1:  # of tied answers a session takes one
                    assert accuracy == pytest.approx(float(correct))


def test_lower_prices_cost_more_and_results_are_of_every_question(
    experiment: Experiment, fitted: FittedPolicy
) -> None:
    known = fitted.known
    assert known is not None
    cost = known.cost[:60].mean(axis=0)
    assert known.cost.shape == (80, len(fitted.prices))
    assert cost[0] <= cost[-1]
    assert cost[-1] > 3 * cost[0]
    again = experiment.run(replace(fitted, known=None))
    assert again.cost == pytest.approx(known.cost)
    assert again.accuracy == pytest.approx(known.accuracy)


def test_saved_policy_decides_alike(fitted: FittedPolicy, tmp_path: Path) -> None:
    policy = fitted.policy
    assert isinstance(policy, SequentialPolicy)
    save_bundle(Bundle(policy), tmp_path / "bundle")
    again = load_bundle(tmp_path / "bundle").policy
    assert isinstance(again, SequentialPolicy)
    assert again.fitted.advantage == pytest.approx(policy.fitted.advantage, rel=1e-5, abs=1e-9)
    np.testing.assert_array_equal(again.uniform, policy.uniform)
    assert again.schedule == policy.schedule
    for name in ("mean", "scale", "slope", "intercept", "weight_slope", "weight_intercept"):
        found = getattr(again.confidence, name)
        assert (found == getattr(policy.confidence, name)).all()
    assert again.levels == policy.levels
    assert (again.pooled is None) == (policy.pooled is None)
    assert load_bundle(tmp_path / "bundle").needs_logprobs


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ("arms", ["a", "a"]),
        ("table_samples", 17),
        ("confidence", {"signals": ["other"]}),
        ("max_samples", [10**6, 10**6]),
        ("prices", [0.1, 0.2]),
        ("arm_cost", [0.0]),
        ("arm_cost", [1.0, 1.0, 1.0]),
    ],
)
def test_damaged_bundles_are_refused(
    fitted: FittedPolicy, tmp_path: Path, entry: str, value: Any
) -> None:
    import json

    save_bundle(Bundle(fitted.policy), tmp_path / "bundle")
    path = tmp_path / "bundle" / "bundle.json"
    content = json.loads(path.read_text())
    place = content["policy"] if entry == "table_samples" else content["policy"]["values"]
    place[entry] = value
    path.write_text(json.dumps(content))
    with pytest.raises(BundleError):
        load_bundle(tmp_path / "bundle")


def test_mixture_over_arms_runs_live_and_is_saved(experiment: Experiment, tmp_path: Path) -> None:
    train = np.arange(60)
    made = make_arm_mixture(experiment, train, plain=False)
    policy = made.policy
    assert isinstance(policy, ArmMixture)
    save_bundle(Bundle(policy), tmp_path / "bundle")
    bundle = load_bundle(tmp_path / "bundle")
    levels = experiment.evidence.levels
    assert made.known is not None
    order = [one[0] for one in experiment.evidence.order]
    for column, choice in enumerate(policy.choices):
        price = policy.schedule.prices[column]
        drawn, _ = run_live(bundle, experiment, 0, order, price)
        assert len(drawn) == choice[1]
        assert choice in levels
    again = experiment.run(replace(made, known=None))
    assert again.accuracy == pytest.approx(made.known.accuracy)


def test_confidence_makes_votes_better_and_a_useless_signal_does_not_hurt() -> None:
    accuracy = {}
    for useless in (False, True):
        pool = make_arm_pool(120, arms=("small",), useless=useless)
        shared = Experiment(pool, (1, 2, 4, 8), (2.0,), n_permutations=6)
        for name in ("mixture", "mixture-votes"):
            curve = score_held_out(shared, find_factory(name))
            accuracy[useless, name] = curve.read(3.0).accuracy
    assert accuracy[False, "mixture"] > accuracy[False, "mixture-votes"] + 0.03
    assert accuracy[True, "mixture"] > accuracy[True, "mixture-votes"] - 0.02


def shuffle_signals(pool: Pool, *, within: bool) -> Pool:
    """Return a pool whose log-probabilities belong to other samples (of the same question)."""
    assert pool.signals is not None
    rng = np.random.default_rng(3)
    order = rng.permutation(len(pool.signals))
    if within:
        order = order[np.argsort(pool.answers.question[order], kind="stable")]
    return replace(pool, signals=pool.signals[order])


@pytest.mark.parametrize("within", [True, False], ids=["within", "across"])
def test_shuffled_signal_gives_the_policy_that_sees_votes_alone(*, within: bool) -> None:
    pool, train = make_arm_pool(120, arms=("small",)), np.arange(100)
    known = ((1, 2, 4, 8), (2.0,), 6)
    assert Bundle(make_sequential(Experiment(pool, *known), train).policy).needs_logprobs
    shuffled = Experiment(shuffle_signals(pool, within=within), *known)
    assert shuffled.weighs_votes
    policies = []
    votes_only = replace(shuffled, use_confidence=False)
    for own in (shuffled, votes_only):
        policy = make_sequential(own, train).policy
        assert isinstance(policy, SequentialPolicy)
        assert not Bundle(policy).needs_logprobs
        policies.append(policy)
    assert len(policies[0].levels) == 8
    assert (policies[0].votes.break_even_price == policies[1].votes.break_even_price).all()
    mixture = make_arm_mixture(shuffled, train, plain=False)
    assert not Bundle(mixture.policy).needs_logprobs
    curve, votes = (score_held_out(own, make_sequential) for own in (shuffled, votes_only))
    assert curve.cost == pytest.approx(votes.cost)
    assert curve.accuracy == pytest.approx(votes.accuracy)


def test_shuffled_signal_of_several_arms_is_not_recorded_while_serving() -> None:
    shuffled = Experiment(
        shuffle_signals(make_arm_pool(), within=True), (1, 2, 4), n_permutations=6
    )
    policy = make_sequential(shuffled, np.arange(60)).policy
    assert isinstance(policy, SequentialPolicy)
    assert policy.confidence is not None
    assert not policy.confidence.signals
    assert not Bundle(policy).needs_logprobs


def test_latency_is_that_of_the_samples_that_are_drawn(
    experiment: Experiment, fitted: FittedPolicy
) -> None:
    policy = fitted.policy
    assert isinstance(policy, SequentialPolicy)
    evidence = select_evidence(experiment, policy)
    assert policy.schedule is not None
    for column in (5, 25):
        price = policy.schedule.prices[column]
        taken = evidence.measure_latency(policy, price, experiment.pool.features)
        assert taken is not None
        assert fitted.known is not None
        by_question = taken.reshape(len(experiment.pool), -1).mean(axis=1)
        assert by_question == pytest.approx(fitted.known.n_samples[:, column])  # a second each


def test_evidence_and_confidence_are_computed_once(experiment: Experiment) -> None:
    evidence, train = experiment.evidence, np.arange(50)
    assert evidence.confidence(train, joint=True) is evidence.confidence(train, joint=True)
    alone = evidence.confidence(train, joint=False)
    assert (alone is evidence.confidence(train, joint=True)) == (evidence.samples.n_arms == 1)
    assert not np.ptp(alone.weight_intercept) > 0  # alone, only signals weight samples
    every = tuple(range(evidence.samples.n_arms))
    assert evidence.select(every) is evidence
    fewer = evidence.select(every, (2,) * len(every))
    assert fewer is evidence.select(every, (2,) * len(every))
    assert fewer.max_samples == (2,) * len(every)
    last = evidence.select(every[-1:])
    assert last.samples.n_arms == 1
    assert set(last.samples.cost.tolist()) == {1.0 + 4.0 * every[-1]}


def test_every_policy_is_compared_with_weighted_votes() -> None:
    pool = make_arm_pool(60, arms=("small",))
    known: dict[str, Any] = {"budgets": [2.0], "levels": [1, 2, 4], "n_permutations": 4}
    names = ["mixture-votes", "mixture", "sequential", "adaptive-consistency", "oracle"]
    rows = {row["policy"]: row for row in score_pool(pool, policies=names, **known).rows}
    plain = {
        row["policy"]: row
        for row in score_pool(pool, policies=names, use_confidence=False, **known).rows
    }
    assert "mixture-votes" not in plain
    assert rows["mixture"]["difference"] == 0
    assert rows["mixture-votes"]["difference"] < 0
    same = "adaptive-consistency"
    assert rows[same]["accuracy"] == pytest.approx(plain[same]["accuracy"])
    baseline = rows["mixture"]["accuracy"]
    for row in rows.values():
        if row["policy"] != "oracle":  # its levels are those up to half of the samples
            assert row["difference"] == pytest.approx(row["accuracy"] - baseline)
    assert rows[same]["difference"] < plain[same]["difference"]
    assert rows["sequential"]["accuracy"] > plain["sequential"]["accuracy"]


def test_arms_are_scored_together() -> None:
    scores = score_pool(make_arm_pool(60), budgets=[2.0, 6.0], levels=[1, 2, 4], n_permutations=4)
    ours = {"mixture-votes", "mixture", "sequential", "oracle"}
    assert {row["policy"] for row in scores.rows} == ours | {"only small", "only large"}


def test_single_arms_are_rows_where_the_budget_pays_for_them() -> None:
    known: dict[str, Any] = {"budgets": [2.0], "levels": [1, 2, 4], "n_permutations": 4}
    rows = score_pool(make_arm_pool(60), policies=["only large", "only small"], **known).rows
    assert [row["policy"] for row in rows] == ["only small"]


def test_a_single_arm_is_part_of_the_mixture() -> None:
    arms = Experiment(make_arm_pool(60), (1, 2, 4), (2.0,), n_permutations=4)
    train = np.arange(40)
    levels = arms.evidence.run_levels(arms.evidence.confidence(train, joint=False))
    fitted = OnlyArm("large")(arms, train)
    assert isinstance(fitted.policy, ArmMixture)
    assert fitted.known is not None
    numbers = [arms.evidence.levels.index(one) for one in fitted.policy.choices]
    assert {arm for arm, _ in fitted.policy.choices} == {1}
    np.testing.assert_array_equal(fitted.known.accuracy, levels.accuracy[:, numbers])
    with pytest.raises(ConfigError, match="huge"):
        OnlyArm("huge")(arms, train)


def test_a_single_arm_is_tuned_on_training_questions_only() -> None:
    arms = Experiment(make_arm_pool(60), (1, 2, 4), (2.0,), n_permutations=4)
    train, answers = np.arange(40), arms.pool.answers
    changed = np.where(
        (answers.question >= 40) & (answers.answer != UNPARSED), ~answers.correct, answers.correct
    )
    pool = replace(arms.pool, answers=replace(answers, correct=changed))
    one, other = (OnlyArm("large")(each, train) for each in (arms, replace(arms, pool=pool)))
    assert one.prices == other.prices
    assert one.known is not None
    assert other.known is not None
    np.testing.assert_array_equal(one.known.accuracy[train], other.known.accuracy[train])
    assert not np.array_equal(one.known.accuracy, other.known.accuracy)


def test_a_single_arm_is_scored_but_not_trained() -> None:
    assert list_policies(("small", "large"))[2:4] == ("only small", "only large")
    with pytest.raises(ConfigError, match="only small"):
        find_trainable("only small")


def test_policies_say_whether_they_see_evidence() -> None:
    assert sees_evidence("sequential")
    assert sees_evidence(find_factory("mixture"))
    assert sees_evidence("only small")
    assert sees_evidence(find_factory("only small"))
    assert not sees_evidence("adaptive-consistency")


def test_arms_are_chosen_by_cost_while_positions_are_few_enough() -> None:
    pool = make_arm_pool(40, arms=("small", "large", "other"))
    shared = Experiment(pool, (1, 2), (2.0,), n_permutations=4)
    arms, needed = choose_arms(shared, np.arange(30))
    assert set(arms) <= {0, 1, 2}
    assert len(needed) == len(arms)
    assert list(arms) == sorted(arms)
    assert len(Grid(needed)) <= MAX_POSITIONS
    # One more sample of an arm would be too many positions, or was not recorded.
    for i, cap in enumerate(needed):
        recorded = shared.evidence.max_samples[arms[i]]
        more = (*needed[:i], cap + 1, *needed[i + 1 :])
        assert cap == recorded or len(Grid(more)) > MAX_POSITIONS


def test_questions_without_enough_samples_of_an_arm_are_excluded() -> None:
    pool = make_arm_pool(40)
    kept = np.ones(len(pool.answers.answer), dtype=np.bool_)
    kept[:3] = False
    assert pool.keep(kept).equalise().n_excluded == 1
    assert pool.arm is not None
    with pytest.raises(DataError, match="'large'"):
        pool.keep(pool.arm == 0).equalise()


def test_a_single_efficient_arm_of_several_is_judged_by_its_own_samples() -> None:
    """The table of votes counts the answers of all arms, so it is only for runs of one."""
    pool = make_arm_pool(large=0.2)
    experiment = Experiment(pool, (1, 2, 4, 8), (2.0,), n_permutations=6)
    fitted = make_fitted(experiment, np.arange(60), pool.features)
    assert fitted.policy.arms == ("small",)
    assert isinstance(fitted.policy, SequentialPolicy)
    assert fitted.policy.table is None
    own = make_arm_pool(arms=("small",))
    alone = replace(experiment, pool=own)
    policy = make_fitted(alone, np.arange(60), own.features).policy
    assert isinstance(policy, SequentialPolicy)
    assert policy.table is not None


def test_rounds_that_no_question_takes_do_not_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = make_arm_pool(arms=("small",))
    for limit, kept in ((2, 2), (8, None), (1000, None)):
        known = Experiment(pool, (1, 2, 4, 8), (2.0,), n_permutations=6, max_rounds=limit)
        policy = make_fitted(known, np.arange(60), pool.features).policy
        assert isinstance(policy, SequentialPolicy)
        assert policy.fitted.rounds.limit == kept
        assert policy.plans_for(limit)
    monkeypatch.setattr(evidence_factories, "MAX_REGRESSIONS", 100)
    known = Experiment(pool, (1, 2, 4, 8), (2.0,), n_permutations=6, max_rounds=7)
    with pytest.raises(ConfigError, match="max_rounds of at most"):
        make_fitted(known, np.arange(60), pool.features)


def test_a_policy_is_not_replayed_in_rounds_that_it_was_not_fitted_for() -> None:
    pool = make_arm_pool(arms=("small",))
    free = Experiment(pool, (1, 2, 4, 8), (2.0,), n_permutations=6)
    fitted = make_fitted(free, np.arange(60), pool.features)
    with pytest.raises(ConfigError, match="max_rounds 2"):
        replace(free, max_rounds=2).run(replace(fitted, known=None))
