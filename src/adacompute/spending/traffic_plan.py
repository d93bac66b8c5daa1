"""Traffic plan: how many questions a period will bring, and what they cost at a fixed price.

A plan comes from an earlier log. It says where in the period the budget is worth most: the price
stays the same, and the target of each hour is what its questions cost at that price. Time is an
argument, in seconds since the start of the period.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from adacompute.core.errors import ConfigError
from adacompute.spending.pacing import Aim, PriceCurve

DAY_S = 86_400.0

FORECAST_SHARE = 0.3
"""Share of the planned questions that the plan's own volume weighs as, against what was served."""


@dataclass(frozen=True)
class TrafficPlan:
    """Questions per slot of a period, and their mean costs at the price of one budget.

    The slots are equally long. ``budget`` is the budget that the frontier was asked for when the
    costs were recorded.

    >>> plan = TrafficPlan((300, 100), (1.0, 3.0), budget=2.0)
    >>> plan.mean_cost, plan.aim(3.0, time_s=80_000)
    (1.5, Aim(target=6.0, budget=4.0))
    """

    questions: tuple[float, ...]
    mean_costs: tuple[float, ...]
    budget: float
    period_s: float = DAY_S

    def __post_init__(self) -> None:
        values = (*self.questions, *self.mean_costs, self.budget, self.period_s)
        is_valid = all(math.isfinite(one) and one >= 0 for one in values)
        same_length = len(self.questions) == len(self.mean_costs) > 0
        costs = sum(q * c for q, c in zip(self.questions, self.mean_costs, strict=False))
        if not (is_valid and same_length and costs > 0 and self.budget > 0 and self.period_s > 0):
            raise ConfigError(
                "a traffic plan needs questions and a mean cost of at least 0 for each slot, some "
                "questions, and a budget and a period above 0"
            )

    @staticmethod
    def uniform(n_questions: float, budget: float, *, period_s: float = DAY_S) -> TrafficPlan:
        """Return the plan of equal questions that come evenly."""
        return TrafficPlan((n_questions,), (budget,), budget, period_s)

    @staticmethod
    def from_log(
        times_s: Sequence[float],
        costs: Sequence[float],
        *,
        budget: float,
        n_slots: int = 24,
        period_s: float = DAY_S,
    ) -> TrafficPlan:
        """Return the plan of one period of a log whose price was that of a budget throughout.

        Slots without questions get the mean cost of all questions.
        """
        count, total = [0] * n_slots, [0.0] * n_slots
        for time_s, cost in zip(times_s, costs, strict=True):
            slot = int(time_s % period_s * n_slots / period_s)
            count[slot] += 1
            total[slot] += cost
        if not sum(count):
            raise ConfigError("a traffic plan needs a log with at least one question")
        mean = sum(total) / sum(count)
        means = tuple(t / n if n else mean for t, n in zip(total, count, strict=True))
        return TrafficPlan(tuple(map(float, count)), means, budget, period_s)

    @property
    def n_questions(self) -> float:
        """Questions of the whole period."""
        return sum(self.questions)

    @property
    def mean_cost(self) -> float:
        """Mean cost of a question at the plan's price."""
        return self._cost_after(0.0) / self.n_questions

    def aim(self, budget: float, *, time_s: float) -> Aim:
        """Return the aim of a mean cost per question over a period."""
        return self._scaled(budget / self.mean_cost, time_s)

    def aim_total(
        self, total: float, *, time_s: float, n_served: int, planned: float, curve: PriceCurve
    ) -> Aim:
        """Return the aim of a total per period.

        ``n_served`` questions came since the start of the period, for which ``planned`` was planned
        (not what was spent: the pacer pays back the difference). If more questions come than in the
        plan, more are expected for the rest as well. The aim stays on the curve.
        """
        expected_so_far = self.n_questions - self._questions_after(time_s)
        weight = FORECAST_SHARE * self.n_questions
        volume = (n_served + weight) / (expected_so_far + weight)
        remaining = volume * self._cost_after(time_s)
        low, high = curve.min_budget / self.budget, curve.max_budget / self.budget
        left = max(0.0, total - planned)
        scale = high if left >= high * remaining else max(low, left / remaining)
        return self._scaled(scale, time_s)

    def _scaled(self, scale: float, time_s: float) -> Aim:
        return Aim(scale * self._cost(time_s), scale * self.budget)

    def _slot(self, time_s: float) -> tuple[int, float]:
        """Return the slot at a time, and the share of it that has passed."""
        place = min(1.0, max(0.0, time_s / self.period_s)) * len(self.questions)
        slot = min(int(place), len(self.questions) - 1)
        return slot, place - slot

    def _cost(self, time_s: float) -> float:
        return self.mean_costs[self._slot(time_s)[0]]

    def _questions_after(self, time_s: float) -> float:
        slot, passed = self._slot(time_s)
        return self.questions[slot] * (1 - passed) + sum(self.questions[slot + 1 :])

    def _cost_after(self, time_s: float) -> float:
        slot, passed = self._slot(time_s)
        pairs = list(zip(self.questions, self.mean_costs, strict=True))
        later = sum(n * cost for n, cost in pairs[slot + 1 :])
        return pairs[slot][0] * pairs[slot][1] * (1 - passed) + later
