"""Break-even prices: compared with all stopping rules, and as a function of the price."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from adacompute.core.answers import UNPARSED, Answers
from adacompute.core.states import MAX_SAMPLES, StateMeasure, states, vote_keys
from adacompute.core.types import FloatArray, IntArray
from adacompute.core.votes import running_accuracy
from adacompute.policies.sequential.induction import (
    PRICES,
    advantages,
    break_even_prices,
    continuation_value,
    occupancy,
)
from test_support.states import measure_states

QUESTIONS = 6


def mixture(answer: IntArray, max_samples: int) -> StateMeasure:
    """Return the measure of a mixture of questions whose correct class is 0."""
    measure = measure_states(Answers.of(answer.tolist(), (answer == 0).tolist()), max_samples)
    return StateMeasure(
        measure.mass.mean(axis=1, keepdims=True), measure.correct_mass.mean(axis=1, keepdims=True)
    )


def score(measure: StateMeasure, rule: FloatArray, price: float) -> tuple[float, float]:
    """Return the utility and the mean number of samples of a rule on the measure."""
    stop, go = occupancy(rule[:, None], np.array([price]))
    utility, cost = measure.correct_mass[:, 0] @ stop[:, 0, 0], measure.mass[:, 0] @ go[:, 0, 0]
    return float(utility), float(cost)


answers3 = arrays(np.int64, (QUESTIONS, 4), elements=st.integers(UNPARSED, 2))


@settings(max_examples=25, deadline=None)
@given(answers3, st.floats(1e-4, 0.5))
def test_the_break_even_rule_is_optimal(answer: IntArray, price: float) -> None:
    measure, every = mixture(answer, 3), states()
    deciding = np.flatnonzero(every.n_samples[: len(measure.mass)] < 3)
    best = -np.inf
    for rule in itertools.product((0.0, 1.0), repeat=len(deciding)):
        go = np.zeros(len(measure.mass))
        go[deciding] = rule
        utility, cost = score(measure, go, 0.5)
        best = max(best, utility - price * cost)
    utility, cost = score(measure, break_even_prices(measure)[:, 0], price)
    # Break-even prices are interpolated, so a state may stop slightly early.
    assert utility - price * cost == pytest.approx(best, abs=1e-3 * price + 1e-9)


def advantages_by_orders(answer: IntArray, price: float) -> dict[int, float]:
    """Return what one more sample adds in every vote state, from all orders of the samples."""
    orders = np.array([one for row in answer for one in itertools.permutations(row.tolist())])
    path = states().find(vote_keys(orders))
    accuracy = running_accuracy(orders, (orders == 0).astype(float))
    stopping = np.hstack([np.zeros((len(orders), 1)), accuracy])
    value, found = stopping[:, -1].copy(), dict[int, float]()
    for n in range(answer.shape[1] - 1, -1, -1):
        here = path[:, n]
        for state in np.unique(here).tolist():
            rows = here == state
            found[state] = float(value[rows].mean() - price - stopping[rows, n].mean())
            if found[state] > 0:
                value[rows] -= price
            else:
                value[rows] = stopping[rows, n]
    return found


@settings(max_examples=20, deadline=None)
@given(answers3, st.floats(1e-4, 0.5))
def test_advantages_are_the_means_of_all_orders_in_a_state(answer: IntArray, price: float) -> None:
    found = advantages(mixture(answer, 4), np.array([price, 0.7 * price]))[:, 0]
    for k, own in enumerate((price, 0.7 * price)):
        expected = advantages_by_orders(answer, own)
        for state, advantage in expected.items():
            assert found[state, k] == pytest.approx(advantage, abs=1e-9)
        others = np.setdiff1d(np.arange(len(found)), list(expected))
        assert (found[others, k] == -1.0).all()


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_an_advantage_is_positive_below_the_break_even_price(seed: int) -> None:
    answer = np.random.default_rng(seed).integers(UNPARSED, 4, (25, 12))
    measure = mixture(answer, 10)
    found, limit = advantages(measure, PRICES)[:, 0], break_even_prices(measure)
    clear = np.abs(found) > 1e-9
    assert ((found > 0) == (limit > PRICES))[clear].all()
    reached = measure.mass[:, 0] > 0
    assert clear[reached].mean() > 0.9
    # A lower price adds at least its difference, and at most that of all samples to come.
    fall = np.diff(found[reached & (states().n_samples[: len(found)] < 10)], axis=1)
    assert (fall >= -np.diff(PRICES) - 1e-9).all()
    assert (fall <= -10 * np.diff(PRICES) + 1e-9).all()


def test_continuation_value_of_the_measure_is_the_measure_before() -> None:
    answer = np.random.default_rng(0).integers(UNPARSED, 5, (40, 20))
    measure = mixture(answer, MAX_SAMPLES)
    for n in range(MAX_SAMPLES):
        later, here = (measure.mass[states().layer(n)] for n in (n + 1, n))
        assert continuation_value(later, n) == pytest.approx(here, abs=1e-12)


@given(arrays(np.int64, (30, 16), elements=st.integers(UNPARSED, 3)), st.data())
@settings(max_examples=25, deadline=None)
def test_a_higher_price_never_takes_more_samples(answer: IntArray, data: st.DataObject) -> None:
    training = np.random.default_rng(0).integers(UNPARSED, 4, (25, 16))
    index = break_even_prices(mixture(training, MAX_SAMPLES))[:, 0]
    low, high = sorted(data.draw(st.tuples(st.floats(1e-7, 1.0), st.floats(1e-7, 1.0))))
    path = index[states().find(vote_keys(answer))]

    def drawn(price: float) -> IntArray:
        stops = path[:, 1:] <= price  # the last state stops at any price
        return np.asarray(stops.argmax(axis=1) + 1)

    assert (drawn(high) <= drawn(low)).all()


def test_at_price_zero_it_continues_wherever_samples_help() -> None:
    training = np.random.default_rng(1).integers(UNPARSED, 4, (25, 16))
    measure, every = mixture(training, MAX_SAMPLES), states()
    index = break_even_prices(measure)[:, 0]
    best = measure.correct_mass[every.layer(MAX_SAMPLES)]
    for n in range(MAX_SAMPLES - 1, -1, -1):
        here = every.layer(n)
        going, stop, chance = (
            continuation_value(best, n),
            measure.correct_mass[here],
            measure.mass[here],
        )
        gain = (going - stop)[:, 0]
        helps = gain > (MAX_SAMPLES - n) * 1e-6 * chance[:, 0] + 1e-12
        assert (index[here][helps] > 0).all()
        assert (index[here][gain <= 0] == 0).all()
        best = np.maximum(going, stop)


def test_mixtures_are_computed_independently() -> None:
    rng = np.random.default_rng(2)
    alone = [mixture(rng.integers(UNPARSED, 3, (10, 8)), 8) for _ in range(3)]
    names = ("mass", "correct_mass")
    both = StateMeasure(*(np.hstack([getattr(m, n) for m in alone]) for n in names))
    assert (break_even_prices(both) == np.hstack([break_even_prices(m) for m in alone])).all()


def test_settled_and_hopeless_questions_have_break_even_price_zero() -> None:
    settled = mixture(np.zeros((4, 16), dtype=np.int64), MAX_SAMPLES)
    hopeless = mixture(np.ones((4, 16), dtype=np.int64), MAX_SAMPLES)
    every = states()
    drawn = every.n_samples[: len(settled.mass)] > 0
    assert (break_even_prices(settled)[drawn] == 0).all()
    assert (break_even_prices(hopeless) == 0).all()


def test_every_state_is_reached_if_no_state_stops() -> None:
    stop, go = occupancy(np.full((len(states()), 2), np.inf), np.array([0.1, 0.01]))
    last = states().layer(MAX_SAMPLES)
    assert np.abs(stop[last] - 1.0).max() < 1e-12
    assert np.abs(go[: last.start] - 1.0).max() < 1e-12
    assert (stop[: last.start] == 0).all()
    assert (go[last] == 0).all()


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_all_probability_stops_somewhere(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rule, prices = rng.random((len(states()), 3)), np.array([0.9, 0.5, 0.2, 0.0])
    measure = mixture(rng.integers(UNPARSED, 5, (20, 20)), MAX_SAMPLES)
    stop, _ = occupancy(rule, prices)
    assert np.abs(np.einsum("s,scp->cp", measure.mass[:, 0], stop) - 1.0).max() < 1e-12


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_occupancy_equals_the_replay_of_every_order(seed: int) -> None:
    """Accuracy and cost of a rule equal the means over all orders of the recorded samples."""
    rng = np.random.default_rng(seed)
    answer = rng.integers(UNPARSED, 3, (3, 7))
    answers = Answers.of(answer.tolist(), (answer == 0).tolist())
    measure, table = measure_states(answers, 6), states()
    rule, price = rng.random((len(measure.mass), 1)), 0.4
    stop, go = occupancy(rule, np.array([price]))
    for q, row in enumerate(answer):
        orders = np.array(list(itertools.permutations(row)))[:, :6]
        path = table.find(vote_keys(orders))
        goes_on = rule[path, 0] > price
        goes_on[:, 0], goes_on[:, -1] = True, False
        n_samples = goes_on.argmin(axis=1)
        accuracy = running_accuracy(orders, (orders == 0).astype(float))
        cost = float(measure.mass[:, q] @ go[:, 0, 0])
        assert cost == pytest.approx(n_samples.mean(), abs=1e-12)
        score = accuracy[np.arange(len(orders)), n_samples - 1].mean()
        assert float(measure.correct_mass[:, q] @ stop[:, 0, 0]) == pytest.approx(score, abs=1e-12)


def test_restricted_states_give_the_same_break_even_prices_and_occupancy() -> None:
    measure = mixture(np.random.default_rng(3).integers(UNPARSED, 3, (30, 20)), MAX_SAMPLES)
    rows = np.flatnonzero(measure.mass[:, 0])
    assert len(rows) < len(states())
    table, prices = states().restrict(rows), np.array([0.1, 0.01])
    whole = break_even_prices(measure)
    part = break_even_prices(measure.map(lambda one: one[rows]), table=table)
    assert np.abs(whole[rows] - part).max() < 1e-12
    for full, restricted in zip(
        occupancy(whole, prices), occupancy(part, prices, table=table), strict=True
    ):
        assert np.abs(full[rows] - restricted).max() < 1e-12
