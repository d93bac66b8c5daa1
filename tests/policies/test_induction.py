"""Indices: against every stopping rule there is, and as prices move."""

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


def mixture(answer: IntArray, most: int) -> StateMeasure:
    """Mix questions of which class 0 is right."""
    known = measure_states(Answers.of(answer.tolist(), (answer == 0).tolist()), most)
    return StateMeasure(
        known.mass.mean(axis=1, keepdims=True), known.correct_mass.mean(axis=1, keepdims=True)
    )


def occupancy(known: StateMeasure, go: FloatArray, most: int) -> tuple[float, float]:
    """Utility and mean number of draws of the rule that goes on in these states."""
    every = states()
    chance, right, worth, spent = known.mass[:, 0], known.correct_mass[:, 0], 0.0, 0.0
    open_ = np.ones(1)  # share of each state's chance that gets there
    for draws in range(most + 1):
        here = every.layer(draws)
        going = open_ * go[here] if draws < most else np.zeros(len(open_))
        stop = open_ - going
        worth += float((stop * right[here]).sum())
        spent += float((going * chance[here]).sum())
        if draws == most:
            break
        later = every.layer(draws + 1)
        came = np.zeros(later.stop - later.start)
        after, back = every.successor[here] - later.start, every.backward_probability[here]
        np.add.at(came, after, back * going[:, None])
        open_ = came
    return worth, spent


answers3 = arrays(np.int64, (QUESTIONS, 4), elements=st.integers(UNPARSED, 2))


@settings(max_examples=25, deadline=None)
@given(answers3, st.floats(1e-4, 0.5))
def test_the_index_rule_is_as_good_as_the_best_of_all_rules(answer: IntArray, price: float) -> None:
    known, every = mixture(answer, 3), states()
    deciding = np.flatnonzero(every.n_samples[: len(known.mass)] < 3)
    best = -np.inf
    for rule in itertools.product((0.0, 1.0), repeat=len(deciding)):
        go = np.zeros(len(known.mass))
        go[deciding] = rule
        worth, spent = occupancy(known, go, 3)
        best = max(best, worth - price * spent)
    index = break_even_prices(known)[:, 0]
    worth, spent = occupancy(known, (index > price).astype(float), 3)
    # The index is interpolated between prices, so a state may change over a little early.
    assert worth - price * spent == pytest.approx(best, abs=1e-3 * price + 1e-9)


def test_going_back_from_the_chances_of_one_more_draw_gives_those_before() -> None:
    answer = np.random.default_rng(0).integers(UNPARSED, 5, (40, 20))
    known = mixture(answer, MAX_SAMPLES)
    for draws in range(MAX_SAMPLES):
        later, here = (known.mass[states().layer(n)] for n in (draws + 1, draws))
        assert continuation_value(later, draws) == pytest.approx(here, abs=1e-12)


@given(arrays(np.int64, (30, 16), elements=st.integers(UNPARSED, 3)), st.data())
@settings(max_examples=25, deadline=None)
def test_a_higher_price_never_draws_more_on_the_same_sequence(
    answer: IntArray, data: st.DataObject
) -> None:
    training = np.random.default_rng(0).integers(UNPARSED, 4, (25, 16))
    index = break_even_prices(mixture(training, MAX_SAMPLES))[:, 0]
    low, high = sorted(data.draw(st.tuples(st.floats(1e-7, 1.0), st.floats(1e-7, 1.0))))
    path = index[states().find(vote_keys(answer))]

    def drawn(price: float) -> IntArray:
        stops = path[:, 1:] <= price  # the last state stops at any price
        return np.asarray(stops.argmax(axis=1) + 1)

    assert (drawn(high) <= drawn(low)).all()


def test_at_no_price_it_goes_on_wherever_more_draws_are_predicted_to_help() -> None:
    training = np.random.default_rng(1).integers(UNPARSED, 4, (25, 16))
    known, every = mixture(training, MAX_SAMPLES), states()
    index = break_even_prices(known)[:, 0]
    best = known.correct_mass[every.layer(MAX_SAMPLES)]
    for draws in range(MAX_SAMPLES - 1, -1, -1):
        here = every.layer(draws)
        going, stop, chance = (
            continuation_value(best, draws),
            known.correct_mass[here],
            known.mass[here],
        )
        gain = (going - stop)[:, 0]
        helps = gain > (MAX_SAMPLES - draws) * 1e-6 * chance[:, 0] + 1e-12
        assert (index[here][helps] > 0).all()
        assert (index[here][gain <= 0] == 0).all()
        best = np.maximum(going, stop)


def test_mixtures_are_worked_out_side_by_side() -> None:
    rng = np.random.default_rng(2)
    alone = [mixture(rng.integers(UNPARSED, 3, (10, 8)), 8) for _ in range(3)]
    names = ("mass", "correct_mass")
    both = StateMeasure(*(np.hstack([getattr(m, n) for m in alone]) for n in names))
    assert (break_even_prices(both) == np.hstack([break_even_prices(m) for m in alone])).all()


def test_a_settled_and_a_hopeless_question_have_no_index() -> None:
    settled = mixture(np.zeros((4, 16), dtype=np.int64), MAX_SAMPLES)
    hopeless = mixture(np.ones((4, 16), dtype=np.int64), MAX_SAMPLES)
    every = states()
    drawn = every.n_samples[: len(settled.mass)] > 0
    assert (break_even_prices(settled)[drawn] == 0).all()
    assert (break_even_prices(hopeless) == 0).all()
