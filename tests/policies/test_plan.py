"""Rounds: against every plan there is, and at both ends of the dial."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adacompute.core.answers import UNPARSED, Answers
from adacompute.core.states import StateMeasure, measure_states, states, vote_keys
from adacompute.policies.induction import break_even_prices, plan


def mixture(seed: int, most: int, questions: int = 12) -> StateMeasure:
    answer = np.random.default_rng(seed).integers(UNPARSED, 3, (questions, most + 2))
    known = measure_states(Answers.of(answer.tolist(), (answer == 0).tolist()), most)
    return StateMeasure(
        known.mass.mean(axis=1, keepdims=True), known.correct_mass.mean(axis=1, keepdims=True)
    )


def best_worth(known: StateMeasure, state: int, rounds: int, price: float, fee: float) -> float:
    """What the best plan is worth from a state on, by trying everything, given that it is there."""
    every = states()
    chance = known.mass[state, 0]
    stop = known.correct_mass[state, 0] / chance
    last = int(every.n_samples[len(known.mass) - 1])
    if rounds == 0 or every.n_samples[state] == last:
        return float(stop)
    best, here = float(stop), {state: 1.0}
    for more in range(1, last - int(every.n_samples[state]) + 1):
        after: dict[int, float] = {}
        for s, weight in here.items():
            for t, back in zip(every.successor[s], every.backward_probability[s], strict=True):
                move = back * known.mass[t, 0] / known.mass[s, 0] if back else 0.0
                if move > 0:
                    after[int(t)] = after.get(int(t), 0.0) + weight * move
        here = after
        value = sum(w * best_worth(known, t, rounds - 1, price, fee) for t, w in here.items())
        best = max(best, value - price * more - fee)
    return best


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 100), st.integers(1, 2), st.floats(0.001, 0.1), st.floats(0.0, 0.1))
def test_the_plan_is_as_good_as_trying_everything(
    seed: int, rounds: int, price: float, fee: float
) -> None:
    known = mixture(seed, 4)
    asked = plan(known, price=price, round_price=fee, rounds=rounds)[rounds, :, 0].astype(int)
    for state in np.flatnonzero(known.mass[:8, 0] > 0)[1:]:
        best = best_worth(known, int(state), rounds, price, fee)
        here = {int(state): 1.0}
        for _ in range(asked[state]):
            after: dict[int, float] = {}
            for s, weight in here.items():
                for t, back in zip(
                    states().successor[s], states().backward_probability[s], strict=True
                ):
                    move = back * known.mass[t, 0] / known.mass[s, 0] if back else 0.0
                    if move > 0:
                        after[int(t)] = after.get(int(t), 0.0) + weight * move
            here = after
        paid = price * asked[state] + (fee if asked[state] else 0.0)
        value = sum(
            w * best_worth(known, t, rounds - 1 if asked[state] else 0, price, fee)
            for t, w in here.items()
        )
        assert value - paid == pytest.approx(best, abs=1e-9)


@pytest.mark.parametrize("price", [0.1, 0.02, 0.004])
def test_with_free_rounds_and_enough_of_them_it_goes_on_where_the_index_does(price: float) -> None:
    known = mixture(1, 8, questions=30)
    asked = plan(known, price=price, round_price=0.0, rounds=8)[8, :, 0]
    index = break_even_prices(known)[:, 0]
    close = np.abs(index - price) < 1e-3 * price
    assert ((asked > 0) == (index > price))[1:][~close[1:]].all()


def test_dearer_rounds_ask_for_more_at_once_and_then_for_none() -> None:
    known = mixture(2, 8, questions=30)
    split = states().find(vote_keys(np.array([[0, 1]])))[0, 2]
    plans = [plan(known, price=0.005, round_price=fee, rounds=8)[8, :, 0] for fee in (0, 2e-3, 0.9)]
    asked = [int(found[split]) for found in plans]
    assert 0 < asked[0] <= asked[1]
    assert asked[2] == 0
    first = [int(found[0]) for found in plans]
    assert 0 < first[0] < first[2]  # it is made in any case, and nothing may follow it


def test_without_a_round_left_nothing_is_asked_for() -> None:
    assert not plan(mixture(3, 4), price=0.0, round_price=0.0, rounds=0).any()
