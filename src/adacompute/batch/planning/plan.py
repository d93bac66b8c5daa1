"""Plan: the price at which a policy spends a total on a whole batch of questions.

Questions of a batch differ by a class, such as a cell or the levels that classifiers choose. It is
summarised by the number of questions per class, and the price follows from the expected
cost of each class at each price. Summaries of blocks merge in any order to the same plan.

This module does no input or output and does not know where the costs of classes come from.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from adacompute.core.errors import ConfigError, InfeasibleBudget
from adacompute.core.types import FloatArray, IntArray

TOLERANCE = 1e-9
"""Relative difference up to which two costs count as equal."""

MIN_EXTRA = 0.02
"""Costs that exceed the cheapest ones by a smaller share are not corrected: they are noise."""


@dataclass(frozen=True, eq=False)
class CostCurve:
    """Expected mean cost per question at each price: prices fall, costs never do.

    Between two prices the cost is linear in the logarithm of the price.

    >>> curve = CostCurve(np.array([0.1, 0.01]), np.array([1.0, 3.0]))
    >>> round(curve.price_at(2.0), 4), curve.cost_at(0.01)
    (0.0316, 3.0)
    """

    prices: FloatArray
    costs: FloatArray

    def price_at(self, mean_cost: float) -> float:
        """Return the highest price at which this mean cost is spent; the lowest if none is."""
        if not mean_cost >= self.costs[0] * (1 - TOLERANCE):  # true for NaN as well
            raise InfeasibleBudget(
                f"a mean of {mean_cost:.6g} per question is below {self.costs[0]:.6g}, the minimum "
                "cost of this policy on these questions: raise the total"
            )
        after = int(np.searchsorted(self.costs, mean_cost, side="left"))
        if after == len(self.costs):
            return float(self.prices[-1])
        if after == 0 or self.costs[after] == mean_cost:
            return float(self.prices[after])
        low, high = self.costs[after - 1], self.costs[after]
        share = (mean_cost - low) / (high - low)
        logs = np.log(self.prices[after - 1 : after + 1])
        return float(np.exp(logs[0] + share * (logs[1] - logs[0])))

    def cost_at(self, price: float) -> float:
        """Return the mean cost per question at a price."""
        if price <= 0:
            return float(self.costs[-1])
        return float(np.interp(-math.log(price), -np.log(self.prices), self.costs))


@dataclass(frozen=True, eq=False)
class BatchPlan:
    """The price of a batch, and what is expected to be spent at it.

    ``n_questions`` counts the questions with a usable text, ``total`` and ``expected_cost`` are
    sums over them in the unit of the bundle.
    """

    n_questions: int
    total: float
    price: float
    expected_cost: float
    curve: CostCurve


@dataclass(frozen=True, eq=False)
class ClassCosts:
    """Expected cost of one question of each class at each price, (prices, classes); prices fall."""

    prices: FloatArray
    costs: FloatArray

    def curve(self, counts: IntArray | FloatArray) -> CostCurve:
        """Return the mean cost over this many questions of each class, or shares of them."""
        mean = self.costs @ (counts / max(float(counts.sum()), np.finfo(float).tiny))
        return CostCurve(self.prices, np.maximum.accumulate(mean))

    def corrected(self, share: FloatArray, known: CostCurve) -> ClassCosts:
        """Return costs whose mean over classes with these shares is a known curve.

        What a question costs more than at the highest price is multiplied by the same factor for
        all classes. Factors are known where the known curve has a price, and interpolated between.
        """
        predicted, base_cost = self.curve(share), float(self.costs[0] @ share / share.sum())
        extra = np.array([predicted.cost_at(price) for price in known.prices]) - base_cost
        factor = np.divide(
            np.maximum(known.costs - base_cost, 0.0), extra, out=np.ones(len(extra)),
            where=extra > MIN_EXTRA * base_cost,
        )  # fmt: skip
        at = np.interp(-np.log(self.prices), -np.log(known.prices), factor)
        return ClassCosts(self.prices, self.costs[0] + (self.costs - self.costs[0]) * at[:, None])


def plan_at_total(curve: CostCurve, *, n_questions: int, total: float) -> BatchPlan:
    """Return the plan whose expected cost is the total, or all that the policy can spend."""
    check_total(total, n_questions)
    price = curve.price_at(total / n_questions)
    cost = min(curve.cost_at(price), total / n_questions)
    return BatchPlan(n_questions, total, price, cost * n_questions, curve)


def check_total(total: float, n_questions: int) -> None:
    """Refuse a total that is no amount, and a batch without questions."""
    if not (math.isfinite(total) and total > 0):
        raise ConfigError(f"the total must be a finite number above 0, got {total}")
    if n_questions < 1:
        raise ConfigError("no question of the batch has a usable text")
