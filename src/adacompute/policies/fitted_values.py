"""Fitted values: what one more sample is worth at every position, by regression.

At each position, for each arm, a regression predicts the *advantage* of one more sample: the value
of going on, minus its price, minus that of the vote as it is. It is linear in the description of
the question, in what its text says, and in curves of its chance of being right, which comes from a
logistic regression. Values are computed backwards from the largest numbers of samples, on orders of
the recorded samples of training questions, at all prices of a grid at once: the design matrix is
the same for all. Where there is a table of exact advantages, the regression learns what that table
does not know.

M rows, D numbers of the text, K prices. It does not know how samples are described, or where tables
come from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from adacompute.policies.arm_samples import Grid
from adacompute.policies.confidence import fit_logistic
from adacompute.policies.description import LEADER, vote_accuracy, width

if TYPE_CHECKING:
    from adacompute.core.types import FloatArray, IntArray
    from adacompute.policies.arm_samples import OrderedSamples

PENALTY = 30.0
"""Ridge penalty of the advantages, in questions."""

INTERCEPT_PENALTY = 1e-3
"""Penalty of the intercept where there is no exact table."""

TEXT_PENALTY = 4.0
"""How many times as much what the text says is penalised."""

CHANCE_PENALTY = 3.0
"""Ridge penalty of the chance of being right, in questions."""

MAX_LOG_ODDS = 6.0
CLIP = 4.0
"""Standardised numbers are clipped to this many standard deviations."""

MIN_SPREAD = 1e-6
N_CURVES = 3
"""Functions of the chance of being right that advantages are linear in."""

TABLES = ("chance_mean", "chance_scale", "chance", "mean", "scale", "advantage")

Exact = Callable[["IntArray", int], "FloatArray | float"]
"""Returns the exact advantages of rows at a number of samples, (rows, K), where they are known."""


def n_described(n_arms: int, n_text: int) -> int:
    """Return how many numbers the chance of being right is linear in."""
    return width(n_arms) + 2 * n_text


@dataclass(frozen=True, eq=False)
class FittedValues:
    """Regressions of every position, in the order of the ``Grid`` of ``max_samples``; P positions.

    ``chance`` (P, 1 + Y) are intercept and slopes of the chance of being right, on numbers with
    ``chance_mean`` and ``chance_scale`` (P, Y). ``advantage`` (P, arms, 1 + X, K) are those of one
    more sample of each arm, on numbers with ``mean`` and ``scale`` (P, X).
    """

    max_samples: tuple[int, ...]
    chance_mean: FloatArray
    chance_scale: FloatArray
    chance: FloatArray
    mean: FloatArray
    scale: FloatArray
    advantage: FloatArray

    @property
    def grid(self) -> Grid:
        """The positions."""
        return Grid(self.max_samples)

    def log_odds(self, position: int, numbers: FloatArray) -> FloatArray:
        """Return the log-odds of the vote being right, (M,), from vectors with their text."""
        standard = _standardise(numbers, self.chance_mean[position], self.chance_scale[position])
        found = self.chance[position, 0] + standard @ self.chance[position, 1:]
        return np.asarray(np.clip(found, -MAX_LOG_ODDS, MAX_LOG_ODDS))

    def advantages(self, position: int, vector: FloatArray, text: FloatArray) -> FloatArray:
        """Return what one more sample of each arm adds, (arms, M, K), without exact tables."""
        design = self._design(position, vector, text)
        found = design @ self.advantage[position, :, 1:] + self.advantage[position, :, :1]
        return np.asarray(found)

    def advantages_at(
        self, position: int, vector: FloatArray, text: FloatArray, setting: int
    ) -> FloatArray:
        """Return what one more sample of each arm adds at one of the prices, (arms, M)."""
        design = self._design(position, vector, text)
        table = self.advantage[position, :, :, setting]
        return np.asarray(table[:, 1:] @ design.T + table[:, :1])

    def _design(self, position: int, vector: FloatArray, text: FloatArray) -> FloatArray:
        numbers = _with_text(vector, text)
        numbers = _add_curves(numbers, self.log_odds(position, numbers))
        return _standardise(numbers, self.mean[position], self.scale[position])


def _with_text(vector: FloatArray, text: FloatArray) -> FloatArray:
    """Add what the text says, alone and times the log-odds of the leader's best sample."""
    if not text.shape[1]:
        return vector
    return np.concatenate([vector, text, text * vector[:, [LEADER]]], axis=1)


def _add_curves(numbers: FloatArray, log_odds: FloatArray) -> FloatArray:
    """Add functions of the chance of being right: sure and hopeless questions need no samples."""
    chance = 1 / (1 + np.exp(-log_odds))
    curves = np.stack([chance, chance * (1 - chance), log_odds**2], axis=1)
    return np.concatenate([numbers, curves], axis=1)


def _standardise(numbers: FloatArray, mean: FloatArray, scale: FloatArray) -> FloatArray:
    return np.asarray(np.clip((numbers - mean) * scale, -CLIP, CLIP))


def _spread(numbers: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the mean of each number, and the inverse of its spread; 0 if it does not vary."""
    spread = numbers.std(axis=0)
    scale = np.where(spread > MIN_SPREAD, 1 / np.maximum(spread, MIN_SPREAD), 0.0)
    return numbers.mean(axis=0), scale


@dataclass(frozen=True, eq=False)
class Described:
    """Orders of questions at every position: their vectors, votes and costs, and their text.

    ``correct`` and ``cost`` are (M, P). ``weight`` is how much one order of a question counts.
    """

    vectors: list[FloatArray]
    correct: FloatArray
    cost: FloatArray
    text: FloatArray
    weight: float

    def take(self, rows: IntArray) -> Described:
        """Return these orders."""
        vectors = [one[rows] for one in self.vectors]
        return Described(vectors, self.correct[rows], self.cost[rows], self.text[rows], self.weight)


def describe_orders(samples: OrderedSamples, text: FloatArray, n_orders: int) -> Described:
    """Describe orders at every position; ``text`` (M, D) is what the text of each says."""
    grid = Grid(samples.max_samples)
    shape = (len(samples.label), len(grid))
    correct, cost, vectors = np.zeros(shape), np.zeros(shape), []
    for position, counts in enumerate(grid.counts.tolist()):
        found = samples.describe(counts)
        vectors.append(found.vector)
        correct[:, position] = vote_accuracy(found.leads, samples.accuracy)
        cost[:, position] = samples.cost[:, samples.columns(counts)].sum(axis=1)
    return Described(vectors, correct, cost, text, 1.0 / n_orders)


def fit_values(
    described: Described,
    prices: FloatArray,
    max_samples: tuple[int, ...],
    exact: Exact | None = None,
) -> FittedValues:
    """Fit the regressions to orders of training questions.

    ``exact`` gives advantages that are known exactly, for one arm.
    """
    grid, n_arms = Grid(max_samples), len(max_samples)
    n_numbers = n_described(n_arms, described.text.shape[1])
    size = n_numbers + N_CURVES
    tables: dict[str, Any] = {
        "chance_mean": np.zeros((len(grid), n_numbers)),
        "chance_scale": np.zeros((len(grid), n_numbers)),
        "chance": np.zeros((len(grid), 1 + n_numbers)),
        "mean": np.zeros((len(grid), size)),
        "scale": np.zeros((len(grid), size)),
        "advantage": np.zeros((len(grid), n_arms, 1 + size, len(prices))),
    }
    fitted = FittedValues(max_samples, **tables)
    value: list[FloatArray] = [np.empty(0)] * len(grid)
    for position in range(len(grid) - 1, -1, -1):
        value[position] = _fit_position(fitted, described, prices, position, value, exact)
    return fitted


def _fit_position(
    fitted: FittedValues,
    described: Described,
    prices: FloatArray,
    position: int,
    value: list[FloatArray],
    exact: Exact | None,
) -> FloatArray:
    """Fit one position in place, and return the value of every order there, (M, K)."""
    grid, right = fitted.grid, described.correct[:, position, None]
    counts = grid.counts[position]
    arms = np.flatnonzero(counts < fitted.max_samples).tolist()
    stopped = np.repeat(right, len(prices), axis=1)
    if not arms:
        return stopped
    text, weight = described.text, described.weight
    numbers = _with_text(described.vectors[position], text)
    mean, scale = _spread(numbers)
    fitted.chance_mean[position], fitted.chance_scale[position] = mean, scale
    standard = _standardise(numbers, mean, scale)
    fitted.chance[position] = fit_logistic(
        standard, right[:, 0], ridge=CHANCE_PENALTY, weight=weight
    )
    numbers = _add_curves(numbers, fitted.log_odds(position, numbers))
    mean, scale = _spread(numbers)
    fitted.mean[position], fitted.scale[position] = mean, scale
    design = np.column_stack([np.ones(len(numbers)), _standardise(numbers, mean, scale)])
    known = 0.0 if exact is None else exact(np.arange(len(right)), int(counts.sum()))
    paid = described.cost[:, position]
    after = [
        value[later] - prices * (described.cost[:, later] - paid)[:, None]
        for later in (position + grid.stride[arm] for arm in arms)
    ]
    target = np.concatenate([one - right - known for one in after], axis=1)
    penalty = np.full(design.shape[1], PENALTY)
    first = width(len(counts))
    penalty[1 + first : 1 + first + 2 * text.shape[1]] *= TEXT_PENALTY
    penalty[0] = PENALTY if exact is not None else INTERCEPT_PENALTY
    curvature = weight * (design.T @ design) + np.diag(penalty)
    coefficient = np.linalg.solve(curvature, weight * (design.T @ target))
    best, chosen = np.zeros(stopped.shape), stopped
    for i, arm in enumerate(arms):
        own = coefficient[:, i * len(prices) : (i + 1) * len(prices)]
        fitted.advantage[position, arm] = own
        advantage = design @ own + known
        better = advantage > best
        best = np.where(better, advantage, best)
        chosen = np.where(better, after[i], chosen)
    return chosen
