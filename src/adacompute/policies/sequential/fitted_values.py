"""Fitted values: what one more sample is worth at every position, by regression.

At each position, for each arm, a regression predicts the *advantage* of one more sample: the value
of going on, minus its price, minus that of the vote as it is. It is linear in the description of
the question, in what its text says, and in curves of its chance of being right, which comes from a
logistic regression. Values are computed backwards from the largest numbers of samples, on orders of
the recorded samples of training questions, at all prices of a grid at once: the design matrix is
the same for all. Where rounds are limited or cost something, several samples can be drawn at once;
each number of them has a regression of its own, for every number of rounds left. Where there is a
table of exact advantages, the regression learns what that table does not know.

M rows, D numbers of the text, K prices. It does not know how samples are described, or where tables
come from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import mul
from typing import TYPE_CHECKING, Any

import numpy as np

from adacompute.policies.confidence import fit_logistic
from adacompute.policies.sequential.arm_samples import Grid
from adacompute.policies.sequential.description import LEADER, vote_accuracy, width

if TYPE_CHECKING:
    from adacompute.core.types import BoolArray, FloatArray, IntArray
    from adacompute.policies.sequential.arm_samples import OrderedSamples

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

STEPS = (1, 2, 3, 4, 6, 8, 12, 16)
"""Steps of an arm that can be taken at once where rounds are limited or cost something."""

MAX_RULES = 4096
"""Regressions that are kept ready for single questions, of a few kilobytes each."""

TABLES = ("chance", "mean", "scale", "advantage")

Exact = Callable[["IntArray", int], "FloatArray | float"]
"""Returns the exact advantages of rows at a number of samples, (rows, K), where they are known."""


@dataclass(frozen=True)
class RoundLimits:
    """How many rounds a question may take, if that is limited, and what a round costs."""

    limit: int | None = None
    cost: float = 0.0

    @property
    def are_free(self) -> bool:
        """Whether samples may as well be drawn one by one."""
        return self.limit is None and not self.cost

    def find_table(self, rounds_left: int) -> int:
        """Return the table to decide by with so many rounds left."""
        return 0 if self.limit is None else max(1, min(rounds_left, self.limit)) - 1


FREE = RoundLimits()
"""Samples are drawn one by one."""


def n_described(n_arms: int, n_text: int) -> int:
    """Return how many numbers the chance of being right is linear in."""
    return width(n_arms) + 2 * n_text


@dataclass(frozen=True, eq=False)
class FittedValues:
    """Regressions of every position, in the order of the ``Grid`` of ``max_samples``; P positions.

    All are on numbers with ``mean`` and ``scale`` (P, X): Y that describe the question, and curves
    of its chance of being right. ``chance`` (P, 1 + Y) are intercept and slopes of that chance, and
    ``advantage`` (R, P, A, 1 + X, K) those of each of the A ``actions``: with 1, 2, … rounds left
    if ``rounds`` are limited, else R is 1.
    """

    max_samples: tuple[int, ...]
    rounds: RoundLimits
    chance: FloatArray
    mean: FloatArray
    scale: FloatArray
    advantage: FloatArray

    @cached_property
    def grid(self) -> Grid:
        """The positions."""
        return Grid(self.max_samples)

    @cached_property
    def actions(self) -> list[tuple[int, int]]:
        """What can be sampled at once: an arm, and how many steps of it."""
        return list_actions(self.grid, self.rounds)

    @cached_property
    def is_open(self) -> BoolArray:
        """Which actions are possible at each position, (P, A)."""
        arm, steps = np.array(self.actions).T
        last = self.grid.steps.max(axis=0)
        return np.asarray(self.grid.steps[:, arm] + steps <= last[arm])

    @cached_property
    def _rules(self) -> dict[tuple[int, int, int], _Rule]:
        """The regressions that decided about single questions."""
        return {}

    def advantages(
        self, position: int, vector: FloatArray, text: FloatArray, table: int = 0
    ) -> FloatArray:
        """Return what each action adds, (A, M, K), without exact tables; −∞ if it is impossible."""
        found = self.design(position, vector, text) @ self.advantage[table, position]
        return np.where(self.is_open[position][:, None, None], found, -np.inf)

    def advantages_of_one(
        self,
        position: int,
        vector: Sequence[float],
        text: Sequence[float],
        setting: int,
        table: int = 0,
    ) -> list[float]:
        """Return what each action adds for one question at one of the prices.

        It is what ``advantages`` returns, without arrays.
        """
        rule = self._rules.get((table, position, setting))
        if rule is None:
            if len(self._rules) >= MAX_RULES:
                self._rules.clear()
            rule = _Rule(self, table, position, setting)
            self._rules[table, position, setting] = rule
        return rule.advantages(vector, text)

    def design(self, position: int, vector: FloatArray, text: FloatArray) -> FloatArray:
        """Return what advantages are linear in: 1, then X numbers.

        A text counts alone and times the log-odds of the leader's best sample. Curves of the chance
        of being right are there because sure and hopeless questions need no samples.
        """
        mean, scale, chance = self.mean[position], self.scale[position], self.chance[position]
        full = np.empty((*vector.shape[:-1], len(mean) + 1))
        full[..., 0] = 1.0
        numbers, curves = full[..., 1:-N_CURVES], full[..., -N_CURVES:]
        n, n_text = vector.shape[-1], text.shape[-1]
        numbers[..., :n] = vector
        numbers[..., n : n + n_text] = text
        np.multiply(text, vector[..., [LEADER]], out=numbers[..., n + n_text :])
        _standardise(numbers, mean[:-N_CURVES], scale[:-N_CURVES])
        _add_curves(curves, full[..., :-N_CURVES] @ chance)
        _standardise(curves, mean[-N_CURVES:], scale[-N_CURVES:])
        return full


class _Rule:
    """Regressions of one position with some rounds left, at one price, as lists of numbers."""

    def __init__(self, fitted: FittedValues, table: int, position: int, setting: int) -> None:
        mean, scale = fitted.mean[position].tolist(), fitted.scale[position].tolist()
        spreads = list(zip(mean, scale, strict=True))
        self.numbers, self.curves = spreads[:-N_CURVES], spreads[-N_CURVES:]
        self.chance, *self.slopes = fitted.chance[position].tolist()
        self.actions: list[tuple[float, list[float]] | None] = [None] * len(fitted.actions)
        for action in np.flatnonzero(fitted.is_open[position]).tolist():
            intercept, *slopes = fitted.advantage[table, position, action, :, setting].tolist()
            self.actions[action] = intercept, slopes

    def advantages(self, vector: Sequence[float], text: Sequence[float]) -> list[float]:
        """Return what each action adds for one question."""
        leader = vector[LEADER]
        raw = [*vector, *text, *[one * leader for one in text]]
        design = _standardise_one(raw, self.numbers)
        log_odds = self.chance + sum(map(mul, design, self.slopes))
        log_odds = min(max(log_odds, -MAX_LOG_ODDS), MAX_LOG_ODDS)
        chance = 1 / (1 + math.exp(-log_odds))
        curves = chance, chance * (1 - chance), log_odds * log_odds
        design += _standardise_one(curves, self.curves)
        return [
            -math.inf if one is None else one[0] + sum(map(mul, design, one[1]))
            for one in self.actions
        ]


def _standardise_one(
    numbers: Sequence[float], spreads: Sequence[tuple[float, float]]
) -> list[float]:
    """Standardise the numbers of one question by their means and scales."""
    standard = [(one - mean) * scale for one, (mean, scale) in zip(numbers, spreads, strict=True)]
    # Calls of min and max would take most of the time.
    return [CLIP if one > CLIP else -CLIP if one < -CLIP else one for one in standard]  # noqa: FURB136


def list_actions(grid: Grid, rounds: RoundLimits) -> list[tuple[int, int]]:
    """Return what can be sampled at once: an arm, and how many steps of it."""
    every = (1,) if rounds.are_free else STEPS
    return [(arm, k) for arm, n in enumerate(grid.by_arm) for k in every if k < len(n)]


def table_shapes(
    grid: Grid, rounds: RoundLimits, n_numbers: int, n_prices: int
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tables of fitted values."""
    size, n_positions = n_numbers + N_CURVES, len(grid)
    n_actions = len(list_actions(grid, rounds))
    return {
        "chance": (n_positions, 1 + n_numbers),
        "mean": (n_positions, size),
        "scale": (n_positions, size),
        "advantage": (rounds.limit or 1, n_positions, n_actions, 1 + size, n_prices),
    }


def _add_curves(curves: FloatArray, log_odds: FloatArray) -> None:
    """Fill in functions of the log-odds of being right."""
    log_odds = np.minimum(np.maximum(log_odds, -MAX_LOG_ODDS), MAX_LOG_ODDS)
    chance = 1 / (1 + np.exp(-log_odds))
    curves[..., 0], curves[..., 1] = chance, chance * (1 - chance)
    curves[..., 2] = log_odds * log_odds


def _standardise(numbers: FloatArray, mean: FloatArray, scale: FloatArray) -> None:
    """Standardise numbers in place; ``np.clip`` takes five times as long for a few."""
    numbers -= mean
    numbers *= scale
    np.maximum(numbers, -CLIP, out=numbers)
    np.minimum(numbers, CLIP, out=numbers)


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
    rounds: RoundLimits = FREE,
) -> FittedValues:
    """Fit the regressions to orders of training questions.

    ``exact`` gives advantages that are known exactly, for single samples of one arm.
    """
    grid, n_arms = Grid(max_samples), len(max_samples)
    shapes = table_shapes(grid, rounds, n_described(n_arms, described.text.shape[1]), len(prices))
    tables: dict[str, Any] = {name: np.zeros(shape) for name, shape in shapes.items()}
    fitted = FittedValues(max_samples, rounds, **tables)
    value: list[list[FloatArray]] = [[np.empty(0)] * len(grid) for _ in fitted.advantage]
    fit = _ValueFit(fitted, described, prices, exact, value)
    for position in range(len(grid) - 1, -1, -1):
        fit.fit_position(position)
    return fitted


@dataclass(frozen=True, eq=False)
class _ValueFit:
    """A fit in progress; ``value`` holds the value of every order by table and position, (M, K)."""

    fitted: FittedValues
    described: Described
    prices: FloatArray
    exact: Exact | None
    value: list[list[FloatArray]]

    def fit_position(self, position: int) -> None:
        """Fit one position, and compute the value of every order there."""
        fitted, n_prices = self.fitted, len(self.prices)
        right = self.described.correct[:, position, None]
        for values in self.value:
            values[position] = np.repeat(right, n_prices, axis=1).astype(np.float32)
        actions = np.flatnonzero(fitted.is_open[position]).tolist()
        if not actions:
            return
        counts = fitted.grid.counts[position]
        known: FloatArray | float = 0.0
        if self.exact is not None:
            known = self.exact(np.arange(len(right)), int(counts.sum()))
        design = self._make_design(position)
        curvature = self._add_penalty(design, has_exact=isinstance(known, np.ndarray))
        paths = [[self._follow(position, t, a) for a in actions] for t in range(len(self.value))]
        target = np.concatenate([one - right - known for path in paths for one in path], axis=1)
        weight = self.described.weight
        coefficient = np.linalg.solve(curvature, weight * (design.T @ target))
        for table, path in enumerate(paths):
            best, chosen = np.zeros((len(right), n_prices)), self.value[table][position]
            for i, action in enumerate(actions):
                start = (table * len(actions) + i) * n_prices
                own = coefficient[:, start : start + n_prices]
                fitted.advantage[table, position, action] = own
                advantage = design @ own + known
                better = advantage > best
                best, chosen = np.where(better, advantage, best), np.where(better, path[i], chosen)
            self.value[table][position] = chosen.astype(np.float32)

    def _follow(self, position: int, table: int, action: int) -> FloatArray:
        """Return the value of every order after an action, minus the price of its samples."""
        fitted, cost = self.fitted, self.described.cost
        arm, steps = fitted.actions[action]
        later = position + steps * int(fitted.grid.stride[arm])
        if fitted.rounds.limit is None:
            value = self.value[0][later]
        elif table:
            value = self.value[table - 1][later]
        else:
            value = self.described.correct[:, later, None]
        paid = cost[:, later] - cost[:, position] + fitted.rounds.cost
        return np.asarray(value - self.prices * paid[:, None])

    def _make_design(self, position: int) -> FloatArray:
        """Fit the chance of being right, and return what advantages are linear in."""
        fitted, described = self.fitted, self.described
        vector, text = described.vectors[position], described.text
        raw = np.concatenate([vector, text, text * vector[:, [LEADER]]], axis=1)
        mean, scale = _spread(raw)
        fitted.mean[position, :-N_CURVES], fitted.scale[position, :-N_CURVES] = mean, scale
        _standardise(raw, mean, scale)
        fitted.chance[position] = chance = fit_logistic(
            raw,
            described.correct[:, position],
            ridge=CHANCE_PENALTY,
            weight=described.weight,
            start=fitted.chance[min(position + 1, len(fitted.chance) - 1)],
        )
        curves = np.empty((len(raw), N_CURVES))
        _add_curves(curves, raw @ chance[1:] + chance[0])
        mean, scale = _spread(curves)
        fitted.mean[position, -N_CURVES:], fitted.scale[position, -N_CURVES:] = mean, scale
        _standardise(curves, mean, scale)
        return np.column_stack([np.ones(len(raw)), raw, curves])

    def _add_penalty(self, design: FloatArray, *, has_exact: bool) -> FloatArray:
        """Return the matrix of the ridge regression."""
        penalty = np.full(design.shape[1], PENALTY)
        first = 1 + width(len(self.fitted.max_samples))
        penalty[first : first + 2 * self.described.text.shape[1]] *= TEXT_PENALTY
        penalty[0] = PENALTY if has_exact else INTERCEPT_PENALTY
        return np.asarray(self.described.weight * (design.T @ design) + np.diag(penalty))
