"""Plans: compared with an exhaustive search, and with expensive and free rounds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adacompute.core.answers import UNPARSED, Answers
from adacompute.core.states import StateMeasure, states, vote_keys
from adacompute.policies.sequential.induction import break_even_prices, plan
from test_support.states import measure_states


def mixture(seed: int, max_samples: int, questions: int = 12) -> StateMeasure:
    answer = np.random.default_rng(seed).integers(UNPARSED, 3, (questions, max_samples + 2))
    measure = measure_states(Answers.of(answer.tolist(), (answer == 0).tolist()), max_samples)
    return StateMeasure(
        measure.mass.mean(axis=1, keepdims=True), measure.correct_mass.mean(axis=1, keepdims=True)
    )


def best_worth(measure: StateMeasure, state: int, rounds: int, price: float, fee: float) -> float:
    """Return the value of the best plan from a state, by exhaustive search."""
    every = states()
    chance = measure.mass[state, 0]
    stop = measure.correct_mass[state, 0] / chance
    last = int(every.n_samples[len(measure.mass) - 1])
    if rounds == 0 or every.n_samples[state] == last:
        return float(stop)
    best, here = float(stop), {state: 1.0}
    for more in range(1, last - int(every.n_samples[state]) + 1):
        after: dict[int, float] = {}
        for s, weight in here.items():
            for t, back in zip(every.successor[s], every.backward_probability[s], strict=True):
                move = back * measure.mass[t, 0] / measure.mass[s, 0] if back else 0.0
                if move > 0:
                    after[int(t)] = after.get(int(t), 0.0) + weight * move
        here = after
        value = sum(w * best_worth(measure, t, rounds - 1, price, fee) for t, w in here.items())
        best = max(best, value - price * more - fee)
    return best


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 100), st.integers(1, 2), st.floats(0.001, 0.1), st.floats(0.0, 0.1))
def test_the_plan_is_optimal(seed: int, rounds: int, price: float, fee: float) -> None:
    measure = mixture(seed, 4)
    asked = plan(measure, price=price, round_price=fee, rounds=rounds)[rounds, :, 0].astype(int)
    for state in np.flatnonzero(measure.mass[:8, 0] > 0)[1:]:
        best = best_worth(measure, int(state), rounds, price, fee)
        here = {int(state): 1.0}
        for _ in range(asked[state]):
            after: dict[int, float] = {}
            for s, weight in here.items():
                for t, back in zip(
                    states().successor[s], states().backward_probability[s], strict=True
                ):
                    move = back * measure.mass[t, 0] / measure.mass[s, 0] if back else 0.0
                    if move > 0:
                        after[int(t)] = after.get(int(t), 0.0) + weight * move
            here = after
        paid = price * asked[state] + (fee if asked[state] else 0.0)
        value = sum(
            w * best_worth(measure, t, rounds - 1 if asked[state] else 0, price, fee)
            for t, w in here.items()
        )
        assert value - paid == pytest.approx(best, abs=1e-9)


@pytest.mark.parametrize("price", [0.1, 0.02, 0.004])
def test_with_enough_free_rounds_the_plan_equals_the_break_even_rule(price: float) -> None:
    measure = mixture(1, 8, questions=30)
    asked = plan(measure, price=price, round_price=0.0, rounds=8)[8, :, 0]
    index = break_even_prices(measure)[:, 0]
    close = np.abs(index - price) < 1e-3 * price
    assert ((asked > 0) == (index > price))[1:][~close[1:]].all()


def test_expensive_rounds_request_more_samples_and_then_none() -> None:
    measure = mixture(2, 8, questions=30)
    split = states().find(vote_keys(np.array([[0, 1]])))[0, 2]
    plans = [
        plan(measure, price=0.005, round_price=fee, rounds=8)[8, :, 0] for fee in (0, 2e-3, 0.9)
    ]
    asked = [int(found[split]) for found in plans]
    assert 0 < asked[0] <= asked[1]
    assert asked[2] == 0
    first = [int(found[0]) for found in plans]
    assert 0 < first[0] < first[2]  # the first round is always made, and the last allows no other


def test_without_rounds_left_nothing_is_requested() -> None:
    assert not plan(mixture(3, 4), price=0.0, round_price=0.0, rounds=0).any()
