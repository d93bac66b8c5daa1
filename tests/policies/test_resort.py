"""The last resort: plans, episodes and bundles with a level of another model."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adacompute.core.answers import UNPARSED, Answers
from adacompute.core.errors import BundleError
from adacompute.core.state_sums import StateSums
from adacompute.core.states import StateMeasure, measure_states, states
from adacompute.core.types import Float32Array, IntArray, Level, make_levels
from adacompute.policies.bundle import FILE, Bundle, load_bundle, save_bundle
from adacompute.policies.episode import Episode
from adacompute.policies.induction import RESORT, plan, plan_single_samples
from adacompute.policies.policy import SampleMatrix, State, answers_alone
from adacompute.policies.prior import response_profile
from adacompute.policies.sequential import MAX_PLANS, SequentialPolicy, fit_sequential

MAX_SAMPLES = 4
STRONG = Level(name="big", n_samples=2, model="big")
LEVELS = (*make_levels((1, 2, 3, 4)), STRONG)


def mixture(seed: int, max_samples: int = MAX_SAMPLES, questions: int = 12) -> StateMeasure:
    rng = np.random.default_rng(seed)
    answer = rng.integers(UNPARSED, 3, (questions, max_samples + 2))
    measure = measure_states(Answers.of(answer.tolist(), (answer == 0).tolist()), max_samples)
    measure = replace(measure, resort=measure.mass * rng.random(questions))
    return measure.map(lambda table: table.mean(axis=1, keepdims=True))


def moves(measure: StateMeasure, here: dict[int, float]) -> dict[int, float]:
    """Return the states after one more sample."""
    after: dict[int, float] = {}
    every = states()
    for s, weight in here.items():
        for t, back in zip(every.successor[s], every.backward_probability[s], strict=True):
            move = back * measure.mass[t, 0] / measure.mass[s, 0] if back else 0.0
            if move > 0:
                after[int(t)] = after.get(int(t), 0.0) + weight * move
    return after


def worth(
    measure: StateMeasure,
    state: int,
    rounds: int,
    paid: tuple[float, float, float],
    first: int | None,
) -> float:
    """Return the value of the best plan from a state, by exhaustive search."""
    assert measure.resort is not None
    price, fee, resort = paid
    every, chance = states(), measure.mass[state, 0]
    stop = float(measure.correct_mass[state, 0] / chance)
    last = int(every.n_samples[len(measure.mass) - 1])
    found = {0: stop}
    if rounds:
        found[RESORT] = float(measure.resort[state, 0] / chance) - resort - fee
    here = {state: 1.0}
    for more in range(1, last - int(every.n_samples[state]) + 1 if rounds else 0):
        here = moves(measure, here)
        value = sum(w * worth(measure, t, rounds - 1, paid, None) for t, w in here.items())
        found[more] = value - price * more - fee
    return max(found.values()) if first is None else found[first]


@settings(max_examples=10, deadline=None)
@given(
    st.integers(0, 100),
    st.integers(1, 2),
    st.tuples(st.floats(0.001, 0.1), st.floats(0.0, 0.05), st.floats(0.0, 0.3)),
)
def test_the_plan_is_optimal(seed: int, rounds: int, paid: tuple[float, float, float]) -> None:
    measure, (price, fee, resort) = mixture(seed), paid
    made = plan(measure, price=price, round_price=fee, rounds=rounds, resort_price=resort)
    for state in np.flatnonzero(measure.mass[:, 0] > 0)[1:12]:
        step = int(made[rounds, state, 0])
        best = worth(measure, int(state), rounds, paid, None)
        assert worth(measure, int(state), rounds, paid, step) == pytest.approx(best, abs=1e-9)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 100), st.floats(0.001, 0.1), st.floats(0.0, 0.5))
def test_single_samples_equal_the_plan_of_many_free_rounds(
    seed: int, price: float, resort: float
) -> None:
    measure = mixture(seed)
    alone = plan_single_samples(measure, price=price, resort_price=resort)[0]
    many = plan(measure, price=price, round_price=0.0, rounds=MAX_SAMPLES + 1, resort_price=resort)[
        -1
    ]
    seen = measure.mass > 0
    assert (np.sign(many) == alone)[seen].all()


def test_a_free_perfect_resort_is_always_used_and_an_expensive_one_never() -> None:
    measure = mixture(1)
    sure = replace(measure, resort=measure.mass)
    assert plan_single_samples(sure, price=0.01, resort_price=0.0)[0, 0, 0] == RESORT
    assert not (plan_single_samples(sure, price=0.01, resort_price=1.5) == RESORT).any()


@dataclass(frozen=True)
class Scripted:
    """Takes given levels one after another."""

    script: dict[int, int]
    levels: tuple[Level, ...] = LEVELS

    def prepare_features(self, features: Float32Array) -> Float32Array:
        return features

    def decide(self, state: State, price: float) -> IntArray:
        assert price == 1.0
        return np.array([self.script[n] for n in state.observed.n_samples.tolist()])


def start(policy: Scripted | SequentialPolicy, questions: int, price: float = 1.0) -> Episode:
    cost = np.array([1.0, 2.0, 3.0, 4.0, 30.0])
    return Episode.start(
        policy,
        price,
        key=np.arange(questions, dtype=np.uint64),
        features=np.zeros((questions, 1), dtype=np.float32),
        cost=np.tile(cost, (questions, 1)),
        samples=SampleMatrix(np.empty((questions, 0), dtype=np.int64)),
    )


def test_the_samples_of_a_resort_come_last_and_answer_alone() -> None:
    assert answers_alone(LEVELS).tolist() == [False] * 4 + [True]
    episode = start(Scripted({0: 2, 3: 4}), 1).decide()
    assert episode.target.tolist() == [3]
    episode = episode.feed(SampleMatrix(np.array([[0, 0, 1]]))).decide()
    assert episode.state.cost.tolist() == [[0.0, 0.0, 0.0, 1.0, 30.0]]  # the full cost of a resort
    assert episode.target.tolist() == [5]
    assert episode.resorted.tolist() == [True]
    ended = episode.feed(SampleMatrix(np.array([[0, 0, 1, 2, 2]])))
    assert not len(ended.active)
    assert ended.decide() is ended
    assert ended.winner().tolist() == [3]
    unparsed = episode.feed(SampleMatrix(np.array([[0, 0, 1, -1, -1]])))
    assert unparsed.winner().tolist() == [-1]


def test_a_question_may_start_with_the_resort() -> None:
    episode = start(Scripted({0: 4}), 1).decide()
    assert episode.target.tolist() == [2]
    assert episode.feed(SampleMatrix(np.array([[1, 0]]))).winner().tolist() == [0]
    stopped = start(Scripted({0: 0, 1: 0}), 1).decide().feed(SampleMatrix(np.array([[1]]))).decide()
    assert stopped.resorted.tolist() == [False]
    assert stopped.winner().tolist() == [0]


def fit(seed: int = 0, *, resort_cost: float = 5.0) -> SequentialPolicy:
    """Half of the questions are settled; the other model is correct on the others."""
    rng = np.random.default_rng(seed)
    hard = rng.random(80) < 0.5
    answer = np.where(hard[:, None], rng.integers(0, 4, (80, 8)), 0)
    answers = Answers.of(answer.tolist(), (answer == 0).tolist())
    sums = StateSums(answers, MAX_SAMPLES, resort_utility=np.where(hard, 0.9, 0.6))
    features = rng.normal(size=(80, 3)).astype(np.float32)
    profile = response_profile(answers, MAX_SAMPLES)
    return fit_sequential(features, profile, sums, LEVELS, resort_cost=resort_cost)


def played(policy: SequentialPolicy, answer: list[int], price: float) -> Episode:
    """Run one question on these samples and a last resort that answers 9."""
    episode = start(policy, 1, price).decide()
    while len(episode.active):
        target = int(episode.target[0])
        row = [*answer, 9, 9][:target]
        if episode.resorted[0]:
            row = [*answer[: target - 2], 9, 9]
        episode = episode.feed(SampleMatrix(np.array([row]))).decide()
    return episode


def test_the_resort_is_used_where_cheap_samples_disagree() -> None:
    policy = fit()
    agreed, split = (played(policy, row, 0.005) for row in ([0, 0, 0, 0], [0, 1, 2, 3]))
    assert not agreed.resorted[0]
    assert split.resorted[0]
    assert 1 <= split.state.observed.n_samples[0] - STRONG.n_samples < MAX_SAMPLES
    assert split.winner()[0] == split.state.observed.n_samples[0] - STRONG.n_samples
    dear = played(policy, [0, 1, 2, 3], 10.0)
    assert (dear.state.observed.n_samples[0], dear.resorted[0]) == (1, False)


def test_rounds_are_left_for_the_resort_and_few_plans_are_cached() -> None:
    policy = replace(fit(), round_cost=0.5, _plans={})
    for price in np.geomspace(0.1, 1e-4, 30):
        played(policy, [0, 1, 2, 3], float(price))
        assert len(policy._plans) <= MAX_PLANS
    begun = replace(start(policy, 1, 0.005).state, rounds_left=np.array([1]))
    assert policy.decide(begun, 0.005)[0] in range(len(LEVELS))


def test_a_bundle_keeps_the_resort(tmp_path: Path) -> None:
    policy = fit()
    save_bundle(Bundle(policy, features="words"), tmp_path / "bundle")
    loaded = load_bundle(tmp_path / "bundle").policy
    assert isinstance(loaded, SequentialPolicy)
    assert loaded.levels == LEVELS
    assert loaded.resort_cost == 5.0
    for row in ([0, 0, 0, 0], [0, 1, 2, 3], [1, 1, 0, -1]):
        for price in (0.05, 0.005, 0.0005):
            ours, theirs = (played(p, row, price) for p in (policy, loaded))
            assert ours.state.observed.n_samples == theirs.state.observed.n_samples
            assert ours.state.level == theirs.state.level


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda policy: policy["levels"].insert(0, policy["levels"].pop()), "levels|fit|damaged"),
        (lambda policy: policy["levels"].append(policy["levels"][-1]), "do not fit its 6 levels"),
        (lambda policy: policy.update(resort_cost=0.0), "cannot cost 0.0"),
        (lambda policy: policy.update(kind="router"), "must have one model"),
    ],
)
def test_an_invalid_resort_is_rejected(tmp_path: Path, change: object, why: str) -> None:
    save_bundle(Bundle(fit(), features="words"), tmp_path / "bundle")
    file = tmp_path / "bundle" / FILE
    content = json.loads(file.read_text())
    assert callable(change)
    change(content["policy"])
    file.write_text(json.dumps(content))
    with pytest.raises(BundleError, match=why):
        load_bundle(tmp_path / "bundle")
