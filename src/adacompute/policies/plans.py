"""Plans: the best next sample in every coloured state, by backward induction at a price.

At a price, a state is worth the larger of stopping (the probability that its answer is correct) and
sampling one of the arms (the mean value of the next states, minus the price of the sample). All
values are multiplied by the probability of the state, so that a mixture of questions is a sum and
nothing is divided by a probability that may be 0.

With several arms a higher price may change the arm instead of stopping, so there is no single
break-even price: a plan is made for each price of a grid. Along the grid the mean cost never rises
with the price, because the value is convex in the price and the cost is its negative derivative.

This module does not know where the probabilities come from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from adacompute.core.coloured_states import ColouredStates, Transitions
    from adacompute.core.types import FloatArray, IntArray

ActionArray: TypeAlias = npt.NDArray[np.int8]

STOP = 0
"""Action that ends a question; action a + 1 samples arm a."""

MIN_GAIN = 1e-12
"""Gains below this, relative to the probability of the state, are rounding errors."""


class StateValues(NamedTuple):
    """Probability of each state (S, C), of a correct answer there, and cost by arm (A, S, C).

    ``cost`` is the probability of the state times the expected cost of the next sample of each arm.
    C is the number of mixtures of questions.
    """

    mass: FloatArray
    correct: FloatArray
    cost: FloatArray


def make_plan(states: ColouredStates, values: StateValues, price: float) -> ActionArray:
    """Return the action in every state at a price, (S, C); the first sample is always drawn."""
    value = values.correct.copy()
    action = np.zeros(value.shape, dtype=np.int8)
    for n in range(states.n_layers - 2, -1, -1):
        layer = states.layer(n)
        best = np.full(value[layer].shape, -np.inf) if n == 0 else value[layer].copy()
        margin = MIN_GAIN * values.mass[layer]
        for arm, edges in enumerate(states.transitions):
            row, continuing = _step_back(edges, layer, value)
            if not len(row):
                continue
            at = layer.start + row
            net = continuing - price * values.cost[arm, at]
            better = net > best[row] + margin[row]
            best[row] = np.where(better, net, best[row])
            action[at] = np.where(better, arm + 1, action[at])
        value[layer] = best
    return action


def _step_back(edges: Transitions, layer: slice, value: FloatArray) -> tuple[IntArray, FloatArray]:
    """Return the states of a layer that an arm can be sampled in, and the value of doing so."""
    low, high = np.searchsorted(edges.source, [layer.start, layer.stop])
    if low == high:
        return np.empty(0, dtype=np.int64), value[:0]
    source = edges.source[low:high]
    first = np.flatnonzero(np.diff(source, prepend=-1))
    weighted = value[edges.target[low:high]] * edges.weight[low:high, None]
    return source[first] - layer.start, np.add.reduceat(weighted, first, axis=0)
