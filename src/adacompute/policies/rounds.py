"""Rounds: how many draws to ask for at once, where every round waits or is paid for.

Drawing one at a time wastes no draw and waits the longest; drawing all at once never waits and
wastes the most. Between them lies a plan: with so many rounds left, at a price for a draw and one
for a round (a prompt that is sent again, a second of somebody's time), each vote state asks for the
number of draws that is worth most. With one round left that is a router's choice; with as many as
draws, and rounds for nothing, it is the rule of single draws.

Where another model may be resorted to, that is one more choice: its draw answers and ends the
question, so it is a stop with another worth. At a price a state may then stop, draw or resort, and
there is no single index: plans are made for each price.

It is the induction of single draws with more to choose from, and knows nothing of where the chances
come from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from adacompute.core.states import StateMeasure, states
from adacompute.policies.induction import DUST, continuation_value

if TYPE_CHECKING:
    from adacompute.core.types import FloatArray, IntArray


RESORT = -1
"""Instead of a number of draws: ask the other model."""


def plan(
    measure: StateMeasure,
    *,
    price: float,
    round_price: float,
    rounds: int,
    resort_price: float = 0.0,
) -> IntArray:
    """Draws to ask for next with 0, 1, … rounds left, (rounds + 1, states, C); 0 means stop.

    Prices are in utility, for one draw, one round and one resort. Of equals the fewest draws are
    asked for. The first round is made in any case, so there only its draws are weighed.
    """
    worth = measure.correct_mass
    begun = states().n_samples[: len(worth), None] > 0
    dearer = np.where(begun, resort_price + round_price, resort_price)
    asked = np.zeros((rounds + 1, *worth.shape), dtype=np.int8)
    for left in range(1, rounds + 1):
        better, asked[left] = _one_more_round(measure, worth, price, round_price)
        _resort(measure, slice(None), better, asked[left], dearer)
        if np.array_equal(better, worth):
            asked[left:] = asked[left]  # further rounds change nothing
            break
        worth = better
    return asked


def _one_more_round(
    measure: StateMeasure, worth: FloatArray, price: float, round_price: float
) -> tuple[FloatArray, IntArray]:
    """Worth of each state with one more round to go, and the draws to ask for in it."""
    every = states()
    last = int(every.n_samples[len(worth) - 1])
    best, asked = measure.correct_mass.copy(), np.zeros(worth.shape, dtype=np.int64)
    best[every.layer(0)] = -np.inf
    for goal in range(1, last + 1):
        later = worth[every.layer(goal)]
        for draws in range(goal - 1, -1, -1):
            later = continuation_value(later, draws)
            here, more = every.layer(draws), goal - draws
            chance = measure.mass[here]
            net = later - (price * more + (round_price if draws else 0.0)) * chance
            better = net > best[here] + DUST * chance
            best[here] = np.where(better, net, best[here])
            asked[here] = np.where(better, more, asked[here])
    return best, asked


def plan_single_samples(measure: StateMeasure, *, price: float, resort_price: float) -> IntArray:
    """Whether to stop (0), draw one more (1) or resort (−1), (1, states, C).

    It is the plan for more rounds than draws, where rounds are for nothing, and faster made.
    """
    every = states()
    last = int(every.n_samples[len(measure.correct_mass) - 1])
    best, asked = (
        measure.correct_mass.copy(),
        np.zeros((1, *measure.correct_mass.shape), dtype=np.int8),
    )
    best[every.layer(0)] = -np.inf
    for draws in range(last, -1, -1):
        here = every.layer(draws)
        if draws < last:
            chance = measure.mass[here]
            net = continuation_value(best[every.layer(draws + 1)], draws) - price * chance
            asked[0, here] = net > best[here] + DUST * chance
            best[here] = np.where(asked[0, here], net, best[here])
        _resort(measure, here, best, asked[0], resort_price)
    return asked


def _resort(
    measure: StateMeasure, here: slice, best: FloatArray, asked: IntArray, price: float | FloatArray
) -> None:
    """Ask the other model in these states, wherever that is worth more."""
    if measure.resort is None:
        return
    chance = measure.mass[here]
    net = measure.resort[here] - price * chance
    better = net > best[here] + DUST * chance
    best[here] = np.where(better, net, best[here])
    asked[here] = np.where(better, RESORT, asked[here])
