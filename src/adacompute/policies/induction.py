"""Induction: what one more draw is worth in every vote state, by going back from the last one.

At a price, a state is worth the larger of stopping (the chance that its majority is right) and
going on (the mean worth of the states that follow, less the price of a draw). Worth is carried as
a measure, multiplied by the chance of the state, so that a mixture of questions is a sum and
nothing is divided by a chance that may be 0.

The higher the price, the less going on pays, so each state has one price at which it is worth as
much as stopping: its index. To go on while the index is above the price is the optimal rule at
every price, from one table. It knows nothing of where the chances come from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from adacompute.core.states import StateMeasure, states

if TYPE_CHECKING:
    from adacompute.core.types import FloatArray

PRICES = np.geomspace(1.0, 1e-6, 97)
"""Prices at which going on is compared with stopping; between them the index is interpolated."""

DUST = 1e-12
"""Smaller gains are rounding errors."""


def break_even_prices(measure: StateMeasure, prices: FloatArray = PRICES) -> FloatArray:
    """Index of each state, (states, C), in utility per draw, for C mixtures of questions.

    States of the largest number of draws cannot go on: their index is 0.
    """
    reached, right = measure.mass, measure.correct_mass
    index = np.zeros(reached.shape)
    every = states()
    last = int(every.n_samples[len(reached) - 1])
    worth = np.repeat(right[every.layer(last), :, None], len(prices), axis=2)
    for draws in range(last - 1, -1, -1):
        here = every.layer(draws)
        stop, chance = right[here, :, None], reached[here, :, None]
        going = continuation_value(worth, draws) - prices * chance
        index[here] = _crossing(going - stop, DUST * chance, prices)
        worth = np.maximum(stop, going)
    return index


def continuation_value(worth: FloatArray, draws: int) -> FloatArray:
    """Worth of going on from the states of so many draws, given that of the states one later."""
    every = states()
    here = every.layer(draws)
    after, back = every.successor[here] - every.first[draws + 1], every.backward_probability[here]
    total = np.zeros((len(after), *worth.shape[1:]))
    for state, chance in zip(after.T, back.T, strict=True):
        some = np.flatnonzero(chance)
        total[some] += chance[some].reshape(-1, *[1] * (worth.ndim - 1)) * worth[state[some]]
    return total


def occupancy(index: FloatArray, prices: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Share of each state's chance that stops there, and that goes on, (states, C, prices).

    Multiplied by any question's chances, the shares give what the rule gets right and draws on it,
    with nothing replayed. The first draw is always made.
    """
    every = states()
    last = int(every.n_samples[len(index) - 1])
    stop, go = (np.zeros((*index.shape, len(prices))) for _ in range(2))
    came = np.ones((1, index.shape[1], len(prices)))
    for draws in range(last + 1):
        here = every.layer(draws)
        on = (index[here, :, None] > prices) | (draws == 0)
        go[here] = np.where(on & (draws < last), came, 0.0)
        stop[here] = came - go[here]
        if draws < last:
            later = every.layer(draws + 1)
            came = np.zeros((later.stop - later.start, *came.shape[1:]))
            for state, chance in zip(
                every.successor[here].T, every.backward_probability[here].T, strict=True
            ):
                some = np.flatnonzero(chance)  # different states, so that nothing is added twice
                came[state[some] - later.start] += chance[some, None, None] * go[here][some]
    return stop, go


def _crossing(gain: FloatArray, dust: FloatArray, prices: FloatArray) -> FloatArray:
    """Largest price at which there is a gain; 0 where there is none at any."""
    pays = gain > dust
    found = pays.argmax(axis=2)
    before = np.maximum(found - 1, 0)
    low = np.take_along_axis(gain, found[:, :, None], axis=2)[:, :, 0]
    high = np.take_along_axis(gain, before[:, :, None], axis=2)[:, :, 0]
    share = np.divide(low, low - high, out=np.zeros_like(low), where=low > high)
    price = prices[found] + np.clip(share, 0.0, 1.0) * (prices[before] - prices[found])
    return np.where(pays.any(axis=2), price, 0.0)
