"""Pacing: the price of the next question, such that the mean cost stays at a target under drift.

A calibrated price holds a budget only as long as the questions are like those of the calibration.
The pacer compares what the settled questions cost with what was planned, and asks the calibrated
frontier for a larger or smaller budget than the target. It has no clock and does no I/O. Its state
is six numbers, and the next state follows from the last one and from cumulative counters.

Write D for the debt (spent minus planned), B for the target, n for the settled questions, K for the
gain. The frontier is asked for the budget b·exp(θ), where b is B, or the end of the frontier if B
is beyond it, and θ is the correction, a proportional-integral controller of the debt:

    θ = −K·(D/B + I),    I grows by clip(payback·K·D/B, ±max_payback) per question

The term D stops a drift after about 1/K questions and leaves a debt; the term I pays it back, and
by at most ``max_payback`` (1 %) of B per question. Savings are spent in the same way. Only the
change of θ is computed, so a new target does not change the correction.

**Bound.** Let every question cost between c_min and c_max, and let its price miss at most d
questions that were priced before it (in flight, or newer than the counters); D counts settled
questions. Let questions cost at most (1 − max_payback)·B at the highest price of the frontier, and
at least (1 + max_payback)·B at the lowest. In between, an adversary may choose any costs. Then

    |D| ≤ (B/K)·log(b_max/b_min) + (d + 1)·(c_max − c_min + 3·max_payback·B)

at all times, where b_min and b_max are the ends of the frontier; so the mean cost converges to B as
1/n. If a budget cannot be held even at an end of the frontier, the debt grows, but the correction
stays within the end and K·(d + 1)·c_max/B beyond it, however long that lasts.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from itertools import accumulate

from adacompute.core.errors import ConfigError, InfeasibleBudget

MAX_DELAYED_GAIN = 0.8
"""Largest product of the gain and the delay.

Above 1/e the cost swings a few times after a change, and from π/2 on it would never stop. Swings
are shorter than the windows in which a mean is held; a smaller gain leaves more debt.
"""


@dataclass(frozen=True)
class PriceCurve:
    """The calibrated frontier: falling prices of rising budgets, interpolated in the log price.

    >>> curve = PriceCurve((1.0, 2.0, 4.0), (0.4, 0.1, 0.025))
    >>> curve.price_for(2.0), round(curve.price_for(3.0), 6), curve.price_for(9.0)
    (0.1, 0.05, 0.025)
    """

    budgets: tuple[float, ...]
    prices: tuple[float, ...]

    def __post_init__(self) -> None:
        rising = all(a < b for a, b in zip(self.budgets, self.budgets[1:], strict=False))
        falling = all(a >= b for a, b in zip(self.prices, self.prices[1:], strict=False))
        is_finite = all(math.isfinite(one) for one in (*self.budgets, *self.prices))
        if not (len(self.budgets) == len(self.prices) > 0 and rising and falling and is_finite):
            raise ConfigError(
                "a price curve needs rising budgets and as many falling prices, got "
                f"{len(self.budgets)} budgets and {len(self.prices)} prices"
            )
        if self.budgets[0] <= 0 or self.prices[-1] <= 0:
            raise ConfigError(
                f"budgets and prices of a curve must be above 0, got a budget of {self.budgets[0]} "
                f"and a price of {self.prices[-1]}"
            )

    @staticmethod
    def of(points: Sequence[tuple[float, float]]) -> PriceCurve:
        """Return the curve of (budget, price) pairs, in any order.

        Of equal budgets the last one counts. A price above that of a smaller budget, as two
        calibrations may give, is lowered to it.
        """
        known = dict(sorted(points, key=lambda point: point[0]))
        return PriceCurve(tuple(known), tuple(accumulate(known.values(), min)))

    @property
    def min_budget(self) -> float:
        """The budget of the highest price."""
        return self.budgets[0]

    @property
    def max_budget(self) -> float:
        """The budget of the lowest price."""
        return self.budgets[-1]

    @cached_property
    def _log_prices(self) -> tuple[float, ...]:
        return tuple(math.log(price) for price in self.prices)

    def price_for(self, budget: float) -> float:
        """Return the price of a budget; beyond the ends, the price at the end."""
        after = bisect_left(self.budgets, budget)
        if after == len(self.budgets):
            return self.prices[-1]
        right = self.budgets[after]
        if after == 0 or right == budget:
            return self.prices[after]
        left = self.budgets[after - 1]
        share = (budget - left) / (right - left)
        logs = self._log_prices
        return math.exp(logs[after - 1] * (1 - share) + logs[after] * share)


@dataclass(frozen=True)
class Gains:
    """Gains of the controller, per question.

    ``correction`` is K: the relative change of the budget for a debt of one question's target.
    ``payback`` times K is the share of the debt that is paid back with each question; above 1/4 the
    debt would overshoot. ``max_payback`` is the largest payment, as a share of the target.
    """

    correction: float = 0.0125
    payback: float = 0.125
    max_payback: float = 0.01

    def __post_init__(self) -> None:
        if not (0 < self.correction <= 1 and 0 <= self.payback <= 1 and 0 <= self.max_payback < 1):
            raise ConfigError(
                "the gain must be above 0 and at most 1, the payback between 0 and 1, and the "
                f"largest payback at least 0 and below 1, got {self}"
            )


@dataclass(frozen=True)
class Counters:
    """Cumulative counts: questions that got a price, those of them that are settled, and spend.

    ``served`` minus ``settled`` are in flight. They are expected to cost what was planned.
    """

    served: int = 0
    settled: int = 0
    spent: float = 0.0

    @property
    def in_flight(self) -> int:
        """Questions that got a price and are not settled."""
        return self.served - self.settled


@dataclass(frozen=True)
class PacingState:
    """The account of a pacer at some counters; all of it are numbers that JSON can hold.

    ``budget`` is what the frontier is asked for if there is nothing to correct. Of two states of
    one account, the one with more settled questions is the later.
    """

    settled: int
    spent: float
    planned: float
    correction: float
    target: float
    budget: float

    @property
    def debt(self) -> float:
        """What was spent beyond the plan; negative if it was less."""
        return self.spent - self.planned

    def to_json(self) -> dict[str, float]:
        """Return the state as a dictionary of numbers."""
        return asdict(self)

    @staticmethod
    def from_json(numbers: Mapping[str, float]) -> PacingState:
        """Build a state from a dictionary of numbers."""
        settled, *others = (numbers[one.name] + 0 for one in fields(PacingState))
        return PacingState(int(settled), *others)


@dataclass(frozen=True)
class Pacer:
    """Chooses prices on a curve, such that the mean cost stays at a target.

    ``max_cost`` is the most that one question can cost. ``max_in_flight`` is how many questions
    may be priced before the cost of an earlier one is in the counters; the gain is reduced if it
    would be too large for this delay.

    >>> pacer = Pacer(PriceCurve((1.0, 2.0, 4.0), (0.4, 0.1, 0.025)), max_cost=16)
    >>> state = pacer.start(2.0)
    >>> pacer.price(state)
    0.1
    >>> state = pacer.advance(state, Counters(served=10, settled=10, spent=30), 2.0)
    >>> state.debt, pacer.price(state) > 0.1
    (10.0, True)
    """

    curve: PriceCurve
    max_cost: float
    max_in_flight: int = 0
    gains: Gains = field(default_factory=Gains)

    def __post_init__(self) -> None:
        if not (self.max_cost > 0 and self.max_in_flight >= 0):
            raise ConfigError(
                "the largest cost of a question must be above 0 and the questions in flight at "
                f"least 0, got {self.max_cost} and {self.max_in_flight}"
            )

    @cached_property
    def gain(self) -> float:
        """K: the gain, reduced if the delay requires it."""
        return min(self.gains.correction, MAX_DELAYED_GAIN / (1 + self.max_in_flight))

    @cached_property
    def _payback(self) -> float:
        """Share of the debt that is paid back with each question."""
        return self.gains.payback * self.gain

    def start(
        self, target: float, counters: Counters | None = None, *, correction: float = 0.0
    ) -> PacingState:
        """Open an account without debt at some counters.

        A new day, or an operator who writes off a debt, passes the correction of the old state.
        """
        counters, budget = counters or Counters(), self._check(target)
        return PacingState(
            settled=counters.settled,
            spent=counters.spent,
            planned=counters.spent,
            correction=self._limit(correction, target, budget),
            target=target,
            budget=budget,
        )

    def advance(self, state: PacingState, counters: Counters, target: float) -> PacingState:
        """Return the state at newer counters, and set the target of the next questions.

        Questions that settled since then were planned at the state's target. A new one keeps the
        debt, in units of cost, and the correction. Older counters change nothing.
        """
        n_new = counters.settled - state.settled
        if n_new < 0:
            return state
        budget = state.budget if target == state.target else self._check(target)
        planned = state.planned + n_new * state.target
        debt = counters.spent - planned
        change = (debt - state.debt) / state.target
        limit = self.gains.max_payback
        payback = min(limit, max(-limit, self._payback * debt / state.target))
        correction = state.correction - self.gain * (change + n_new * payback)
        return PacingState(
            settled=counters.settled,
            spent=counters.spent,
            planned=planned,
            correction=self._limit(correction, target, budget),
            target=target,
            budget=budget,
        )

    def budget(self, state: PacingState) -> float:
        """Return the budget that the frontier is asked for."""
        asked = state.budget * math.exp(state.correction)
        return min(self.curve.max_budget, max(self.curve.min_budget, asked))

    def price(self, state: PacingState) -> float:
        """Return the price of the next question."""
        return self.curve.price_for(self.budget(state))

    def _limit(self, correction: float, target: float, budget: float) -> float:
        """Keep a correction between the ends of the frontier, with a margin for the delay.

        Without a margin, an adversary could add to the debt at each return from the end.
        """
        margin = self.gain * (1 + self.max_in_flight) * self.max_cost / target
        low = math.log(self.curve.min_budget / budget) - margin
        high = math.log(self.curve.max_budget / budget) + margin
        return min(high, max(low, correction))

    def _check(self, target: float) -> float:
        """Return the nearest budget of the frontier; refuse a target that is not positive."""
        if not 0 < target < math.inf:
            raise InfeasibleBudget(f"the target must be a finite number above 0, got {target}")
        return min(self.curve.max_budget, max(self.curve.min_budget, target))
