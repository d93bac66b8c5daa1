"""Induction: the value of more samples in every vote state, by backward induction.

At a price, a state is worth the larger of stopping (the probability that its majority is correct)
and continuing (the mean value of the next states, minus the price of a sample). Values are
multiplied by the probability of the state, so that a mixture of questions is a sum and nothing is
divided by a probability that may be 0.

The higher the price, the less continuing pays. So each state has one *break-even price* at which
continuing is worth as much as stopping. Continuing while the break-even price is above the price is
the optimal rule at every price, from a single table.

If rounds are limited or have a price of their own (a prompt that is sent again, latency), drawing
one sample at a time is no longer optimal. A *plan* says for each vote state and number of rounds
left how many samples to request. With one round left that is a router's decision; with as many
rounds as samples, at no price, it is the rule of single samples.

This module does not know where the probabilities come from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from adacompute.core.states import StateMeasure, States, states

if TYPE_CHECKING:
    from collections.abc import Iterator

    from adacompute.core.types import FloatArray, IntArray

PRICES = np.geomspace(1.0, 1e-6, 97)
"""Prices at which continuing and stopping are compared; break-even prices are interpolated."""

BLOCK_SIZE = 1 << 16
"""Values that are summed at a time, so that they stay in the cache of a processor."""

MIN_GAIN = 1e-12
"""Gains below this, relative to the probability of the state, are rounding errors."""


def break_even_prices(
    measure: StateMeasure, prices: FloatArray = PRICES, *, table: States | None = None
) -> FloatArray:
    """Return the break-even price of each state, (states, C), in utility per sample.

    C is the number of mixtures of questions in the measure. States with the largest number of
    samples cannot continue: their break-even price is 0. ``table`` holds the states of the measure,
    if they are not all states.
    """
    prices, table = prices.astype(measure.mass.dtype), table or states()
    result = np.zeros(measure.mass.shape, dtype=measure.mass.dtype)
    for layer, gain, mass in _go_back(measure, prices, table):
        result[layer] = _crossing(gain, MIN_GAIN * mass, prices)
    return result


def advantages(measure: StateMeasure, prices: FloatArray) -> FloatArray:
    """Return what one more sample adds to the value of each state, (states, C, prices).

    Prices are those of a sample. States that no question reaches, and those with the largest number
    of samples, have an advantage of −1.
    """
    found = np.full((*measure.mass.shape, len(prices)), -1.0)
    for layer, gain, mass in _go_back(measure, prices, states()):
        np.divide(gain, mass, out=found[layer], where=mass > MIN_GAIN)
    return found


def _go_back(
    measure: StateMeasure, prices: FloatArray, table: States
) -> Iterator[tuple[slice, FloatArray, FloatArray]]:
    """Yield the states of each number of samples, the gain of one more there, and their mass.

    The largest number is left out. Gains are (states, C, prices), and the mass is (states, C, 1).
    """
    mass, correct_mass = measure.mass[:, :, None], measure.correct_mass[:, :, None]
    last = int(table.n_samples[len(mass) - 1])
    value = np.repeat(correct_mass[table.layer(last)], len(prices), axis=2)
    for n in range(last - 1, -1, -1):
        layer = table.layer(n)
        continuing = continuation_value(value, n, table=table) - prices * mass[layer]
        yield layer, continuing - correct_mass[layer], mass[layer]
        value = np.maximum(correct_mass[layer], continuing)


def continuation_value(
    value: FloatArray, n_samples: int, *, table: States | None = None
) -> FloatArray:
    """Return the value of one more sample in the states of ``n_samples`` samples.

    ``value`` is the value of the states with one sample more.
    """
    table = table or states()
    layer = table.layer(n_samples)
    successor = np.maximum(table.successor[layer] - table.first[n_samples + 1], 0)
    return _weighted_sum(value, successor, table.backward_probability[layer])


def occupancy(
    break_even_price: FloatArray, prices: FloatArray, *, table: States | None = None
) -> tuple[FloatArray, FloatArray]:
    """Return the share of each state's probability that stops and that continues there.

    Both are (states, C, prices). Multiplied by the state probabilities of any question, they give
    the accuracy and the number of samples of the rule on it, without a replay. The first sample is
    always drawn. ``table`` holds the states of the rule, if they are not all states.
    """
    table = table or states()
    last = int(table.n_samples[len(break_even_price) - 1])
    shape, dtype = (*break_even_price.shape, len(prices)), break_even_price.dtype
    stop, go = (np.zeros(shape, dtype=dtype) for _ in range(2))
    reached = np.ones((1, *shape[1:]), dtype=dtype)
    for n in range(last + 1):
        layer = table.layer(n)
        goes_on = (break_even_price[layer, :, None] > prices) | (n == 0)
        go[layer] = np.where(goes_on & (n < last), reached, 0.0)
        stop[layer] = reached - go[layer]
        if n < last:
            later, first = table.layer(n + 1), table.first[n]
            before = np.maximum(table.predecessor[later] - first, 0)
            reached = _weighted_sum(go[layer], before, table.predecessor_probability[later])
    return stop, go


def _weighted_sum(value: FloatArray, row: IntArray, weight: FloatArray) -> FloatArray:
    """Return the sum over columns of ``weight`` times the values in the rows named by ``row``."""
    total = np.zeros((len(row), *value.shape[1:]), dtype=value.dtype)
    flat, sums = value.reshape(len(value), -1), total.reshape(len(row), -1)
    weights = weight.astype(value.dtype).T
    used = [np.flatnonzero(column) for column in weights]
    width = max(1, BLOCK_SIZE // len(row))
    for start in range(0, flat.shape[1], width):
        block = np.ascontiguousarray(flat[:, start : start + width])
        part = sums[:, start : start + width]
        for column, column_weight, rows in zip(row.T, weights, used, strict=True):
            weighted = block[column[rows]]
            weighted *= column_weight[rows, None]
            if len(rows) == len(row):
                part += weighted
            else:
                part[rows] += weighted  # each row is used once per column
    return total


def _crossing(gain: FloatArray, min_gain: FloatArray, prices: FloatArray) -> FloatArray:
    """Return the largest price at which there is a gain; 0 if there is none at any price."""
    pays = gain > min_gain
    found = pays.argmax(axis=2)
    before = np.maximum(found - 1, 0)
    low = np.take_along_axis(gain, found[:, :, None], axis=2)[:, :, 0]
    high = np.take_along_axis(gain, before[:, :, None], axis=2)[:, :, 0]
    share = np.divide(low, low - high, out=np.zeros_like(low), where=low > high)
    price = prices[found] + np.clip(share, 0.0, 1.0) * (prices[before] - prices[found])
    return np.where(pays.any(axis=2), price, 0.0)


def plan(measure: StateMeasure, *, price: float, round_price: float, rounds: int) -> IntArray:
    """Return the samples to request with 0, 1, … rounds left, (rounds + 1, states, C).

    0 means stop. Prices are in utility, for one sample and for one round. Of equally good numbers
    the smallest is chosen. The first round always happens, so its price does not count.
    """
    value = measure.correct_mass
    request = np.zeros((rounds + 1, *value.shape), dtype=np.int8)
    for left in range(1, rounds + 1):
        better, request[left] = _add_round(measure, value, price, round_price)
        if np.array_equal(better, value):
            request[left:] = request[left]  # further rounds change nothing
            break
        value = better
    return request


def _add_round(
    measure: StateMeasure, value: FloatArray, price: float, round_price: float
) -> tuple[FloatArray, IntArray]:
    """Return the value of each state with one more round, and the samples to request in it."""
    table = states()
    last = int(table.n_samples[len(value) - 1])
    best, request = measure.correct_mass.copy(), np.zeros(value.shape, dtype=np.int64)
    best[table.layer(0)] = -np.inf
    for target in range(1, last + 1):
        later = value[table.layer(target)]
        for n in range(target - 1, -1, -1):
            later = continuation_value(later, n)
            layer, more = table.layer(n), target - n
            probability = measure.mass[layer]
            net = later - (price * more + (round_price if n else 0.0)) * probability
            better = net > best[layer] + MIN_GAIN * probability
            best[layer] = np.where(better, net, best[layer])
            request[layer] = np.where(better, more, request[layer])
    return best, request
