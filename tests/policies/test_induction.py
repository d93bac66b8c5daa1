"""Break-even prices: compared with all stopping rules, and as a function of the price."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from adacompute.core.answers import UNPARSED, Answers
from adacompute.core.states import MAX_SAMPLES, StateMeasure, measure_states, states, vote_keys
from adacompute.core.types import FloatArray, IntArray
from adacompute.policies.induction import break_even_prices, continuation_value

QUESTIONS = 6


def mixture(answer: IntArray, max_samples: int) -> StateMeasure:
    """Return the measure of a mixture of questions whose correct class is 0."""
    measure = measure_states(Answers.of(answer.tolist(), (answer == 0).tolist()), max_samples)
    return StateMeasure(
        measure.mass.mean(axis=1, keepdims=True), measure.correct_mass.mean(axis=1, keepdims=True)
    )


def occupancy(measure: StateMeasure, go: FloatArray, max_samples: int) -> tuple[float, float]:
    """Return the utility and mean number of samples of the rule that continues in these states."""
    every = states()
    chance, right, worth, spent = measure.mass[:, 0], measure.correct_mass[:, 0], 0.0, 0.0
    open_ = np.ones(1)  # share of each state's probability that is reached
    for n in range(max_samples + 1):
        here = every.layer(n)
        going = open_ * go[here] if n < max_samples else np.zeros(len(open_))
        stop = open_ - going
        worth += float((stop * right[here]).sum())
        spent += float((going * chance[here]).sum())
        if n == max_samples:
            break
        later = every.layer(n + 1)
        came = np.zeros(later.stop - later.start)
        after, back = every.successor[here] - later.start, every.backward_probability[here]
        np.add.at(came, after, back * going[:, None])
        open_ = came
    return worth, spent


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
        worth, spent = occupancy(measure, go, 3)
        best = max(best, worth - price * spent)
    index = break_even_prices(measure)[:, 0]
    worth, spent = occupancy(measure, (index > price).astype(float), 3)
    # Break-even prices are interpolated, so a state may stop slightly early.
    assert worth - price * spent == pytest.approx(best, abs=1e-3 * price + 1e-9)


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
