"""Frontier: the price at which a fitted policy costs a budget, for one budget or for many.

Prices do not carry over from one fit to another: the same price may cost 10 % more after the policy
is fitted again. What carries over is the cost on the training questions. The folds say which
training cost leads to which cost on held-out questions; the final policy, fitted to all questions,
gets the price at which its own training questions cost that much.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from adacompute.core.errors import InfeasibleBudget
from adacompute.evaluation.intervals import CONFIDENCE
from adacompute.evaluation.scoring.held_out import ROUNDING, interpolate

if TYPE_CHECKING:
    from adacompute.core.types import FloatArray
    from adacompute.evaluation.evidence import ArmUse
    from adacompute.evaluation.experiment import FittedPolicy
    from adacompute.evaluation.scoring.held_out import CurvePoint, HeldOutCurve
    from adacompute.evaluation.scoring.policy_score import PolicyScore

MARGIN = 0.005
"""A gain or loss up to this size, in accuracy, makes no difference in practice."""

TOLERANCE = 0.005
"""Accuracy that may be lost, compared with what is run today, with the confidence of intervals."""

N_POINTS = 64
"""Points of the frontier that are written into a bundle."""

N_REFINED, N_REFINEMENTS = 9, 4
"""Prices per refinement, and refinements, when the price of one setting is searched."""

N_FINE_PRICES = 512


@dataclass(frozen=True)
class CalibrationSettings:
    """What is asked of a calibration, besides the budget.

    ``tolerance`` is how much accuracy one is ready not to have proven, compared with what is run
    today. ``min_precision`` is how many of the surest answers should be right, at least.
    """

    confidence: float = CONFIDENCE
    tolerance: float = TOLERANCE
    min_precision: float | None = None


@dataclass(frozen=True, eq=False)
class PriceFrontier:
    """Held-out results of a policy, and the prices of the final fit."""

    score: PolicyScore
    final: FittedPolicy
    settings: CalibrationSettings

    @cached_property
    def _final_prices(self) -> FloatArray:
        """Falling prices of the final policy; more where all are replayed at once."""
        # A policy over arms was replayed at each of its prices, and is mixed in between.
        prices, policy = np.asarray(self.final.prices), self.final.policy
        if policy.is_index_rule or policy.arms:
            return np.geomspace(prices[0], prices[-1], N_FINE_PRICES)
        return prices

    @cached_property
    def _final_cost(self) -> FloatArray:
        """Mean cost of the final policy at each of these prices, on the questions it was fitted to.

        It never falls from one price to the next lower one.
        """
        return self._replay(self._final_prices)

    def _replay(self, prices: FloatArray) -> FloatArray:
        experiment, total = self.score.experiment, np.zeros(len(prices))
        sample_cost = experiment.sample_cost(np.arange(len(experiment.pool)))
        for _, (result,) in experiment.run_blocks([self.final], [sample_cost], prices.tolist()):
            total += [column.sum() for column in result.cost.T]
        return np.asarray(np.maximum.accumulate(total / len(experiment.pool)))

    def price_at(self, setting: float) -> float:
        """Return the price at which the final policy costs this much on its training questions."""
        prices, cost = self._final_prices, self._final_cost
        if self.final.policy.is_stepped:
            return interpolate(setting, cost, prices, is_stepped=True)
        for _ in range(N_REFINEMENTS):
            over = int(np.searchsorted(cost, setting * (1 + ROUNDING), side="right"))
            if over == len(cost):  # the highest price that spends all that the policy can
                return float(prices[np.searchsorted(cost, cost[-1] * (1 - ROUNDING))])
            if over == 0 or prices[over - 1] <= prices[over]:
                return float(prices[max(0, over - 1)])
            prices = np.geomspace(prices[over - 1], prices[over], N_REFINED)
            cost = self._replay(prices)
        return float(np.exp(np.interp(setting, cost, np.log(prices))))

    def rough_price(self, setting: float) -> float:
        """Return ``price_at`` by interpolation between the prices of the final policy."""
        if self.final.policy.is_stepped:
            return self.price_at(setting)
        prices = np.log(self._final_prices)
        return float(np.exp(interpolate(setting, self._final_cost, prices, is_stepped=False)))

    @cached_property
    def points(self) -> list[CurvePoint]:
        """Points from the cheapest setting to the most expensive one, evenly spaced in log cost."""
        return spread_points(self.score.curve)

    def find(self, budget: float) -> CurvePoint:
        """Return the point that holds a budget."""
        lowest = self.points[0].cost
        if budget < lowest * (1 - ROUNDING):
            raise InfeasibleBudget(
                f"a budget of {budget:g} is below {lowest:.6g}, the minimum cost of this policy: "
                "use a larger budget"
            )
        return self.score.curve.read(budget)

    def describe_latency(self, price: float) -> dict[str, float | None]:
        """Return percentiles of the time that a question takes; None if it was not recorded."""
        taken = self.score.experiment.measure_latency(self.final, price)
        return name_latencies("latency", taken)

    @cached_property
    def _use_of_arms(self) -> ArmUse | None:
        return self.score.experiment.measure_arms(self.final)

    def share_by_arm(self, price: float) -> list[dict[str, Any]]:
        """Return the share of the questions that each arm is sampled for, and its share of cost.

        They are those of the policy that is fitted to all questions. Empty for a single arm.
        """
        if self._use_of_arms is None:
            return []
        questions, cost = self._use_of_arms.at(price)
        used = self.final.policy.arms
        shares = dict(zip(used, zip(questions, cost / cost.sum(), strict=True), strict=True))
        return [
            {"arm": name, "share": float(share), "cost_share": float(part)}
            for name in self.score.experiment.arm_names
            for share, part in [shares.get(name, (0.0, 0.0))]
        ]

    def describe(self, point: CurvePoint, *, price: float | None = None) -> dict[str, Any]:
        """Return the price, the cost and the accuracy of a point, with two-sided intervals."""
        settings, score = self.settings, self.score
        cost, accuracy = score.mean_cost(point), score.accuracy(point, settings.confidence)
        interval = cost.interval(settings.confidence).clip(0.0, math.inf)
        return {
            "price": self.price_at(point.setting) if price is None else price,
            **interval.named("cost"),
            **accuracy.named("accuracy"),
            "rounds": float(point.result.n_rounds.mean()),
        }


def name_latencies(name: str, taken: FloatArray | None) -> dict[str, float | None]:
    """Return the median and the 95th percentile of latencies under their names."""
    found = [None, None] if taken is None else np.percentile(taken, [50, 95]).tolist()
    return {f"{name}_p50_s": found[0], f"{name}_p95_s": found[1]}


def spread_points(curve: HeldOutCurve) -> list[CurvePoint]:
    """Return points of a curve by rising cost; of a stepped one, all."""
    if curve.is_stepped:
        return [curve.at(setting) for setting in curve.settings.tolist()]
    costs = np.geomspace(max(curve.cost[0], 1e-12), curve.cost[-1], N_POINTS)
    return [curve.read(cost) for cost in np.unique(costs).tolist()]


def list_frontier(
    frontier: PriceFrontier, exact: CurvePoint | None = None, *, price: float | None = None
) -> list[dict[str, float]]:
    """Return the points of the frontier, by rising cost; ``exact`` is one of them if it is given.

    The price of ``exact`` is ``price``, which is searched if it is not known; the others are
    interpolated.
    """
    rows = []
    for point in frontier.points:
        if exact is None or abs(point.cost - exact.cost) > ROUNDING * exact.cost:
            row = frontier.describe(point, price=frontier.rough_price(point.setting))
            rows.append(row | {"budget": point.cost})
    if exact is not None:
        found = frontier.describe(exact, price=price) | {"budget": exact.cost}
        for row in rows:  # prices fall, whatever the interpolation says
            limit = max if row["budget"] < found["budget"] else min
            row["price"] = limit(row["price"], found["price"])
        rows.append(found)
    return sorted(rows, key=lambda row: row["budget"])
