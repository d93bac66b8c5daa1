"""Savings: what a policy costs at the accuracy of what is run today.

At every setting, the accuracy of the policy minus that of today is averaged over questions, on the
same recorded samples. Bounds come from a band over all settings, so that they hold for whichever
setting is chosen; they cover the questions, their samples and the fit. Delivered is the cheapest
setting that is as accurate as today by its estimate, with a standard error to spare, and whose
lower bound is within the tolerance.

Simpler ways to save are compared alike: fewer samples, weighted votes or another arm, and stopping
when the vote is decided. The policy is advised if it costs clearly less than each of them.

It knows nothing of budgets, and it writes no sentences.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from adacompute.evaluation.intervals import Band, simultaneous_band
from adacompute.evaluation.scoring.frontier import PriceFrontier, name_latencies, spread_points
from adacompute.evaluation.scoring.today import EQUAL, TodayScore
from adacompute.policies.bundles.bundle import SAVES
from adacompute.policies.stopping import VoteLeadRule

if TYPE_CHECKING:
    from adacompute.core.types import FloatArray
    from adacompute.evaluation.experiment import Experiment
    from adacompute.evaluation.scoring.frontier import CalibrationSettings
    from adacompute.evaluation.scoring.held_out import CurvePoint
    from adacompute.evaluation.scoring.policy_score import PolicyScore

NO_SAVING, INCONCLUSIVE = "no saving", "inconclusive"
MIN_SAVING = 0.05
"""Share of the cost that must be saved for it to be called a saving."""

SPARE = 1.0
"""Standard errors by which a setting must be above today to be delivered.

The cheapest of many settings whose estimate is just above 0 is often below 0 in truth.
"""

MORE_SAMPLES = 3
"""Samples beyond those of today that a policy needs to have something to choose from."""

ROUNDING = 1e-12
AS_TODAY, FEWER, WEIGHTED = "today", "fewer samples", "weighted votes"
OTHER_ARM, DECIDED, POLICY = "another arm", "decided votes", "policy"
"""Ways to run, from the simplest to a policy."""


@dataclass(frozen=True, eq=False)
class Differences:
    """Accuracy of settings minus that of today, by rising cost, with their band; S settings."""

    cost: FloatArray
    value: FloatArray
    band: Band

    @cached_property
    def low(self) -> FloatArray:
        """Lower bounds, which hold together."""
        return np.asarray(self.value - self.band.margin)

    @cached_property
    def high(self) -> FloatArray:
        """Upper bounds, which hold together."""
        return np.asarray(self.value + self.band.margin)

    def passing(self, tolerance: float) -> np.ndarray:
        """Return which settings are as accurate as today, with a lower bound within a tolerance."""
        is_equal = self.value >= SPARE * self.band.standard_error - ROUNDING
        return is_equal & (self.low >= -tolerance - ROUNDING)

    def choose(self, tolerance: float) -> int:
        """Return the cheapest setting that passes; if none, the best one that there is."""
        passing = np.flatnonzero(self.passing(tolerance))
        if len(passing):
            return int(passing[0])
        equal = np.flatnonzero(self.value >= -ROUNDING)
        return int(equal[0]) if len(equal) else int(self.low.argmax())

    def at(self, cost: float) -> Differences:
        """Return the difference at one cost, from those of the settings around it."""
        columns = (self.value, self.band.standard_error)
        value, error = (np.interp([cost], self.cost, column) for column in columns)
        return Differences(np.array([cost]), value, replace(self.band, standard_error=error))

    def is_cheap(self, today_cost: float) -> np.ndarray:
        """Return which settings save at least the smallest saving."""
        return self.cost <= (1 - MIN_SAVING) * today_cost * (1 + ROUNDING)

    def judge(self, today_cost: float, tolerance: float) -> str:
        """Return whether a setting saves at least the smallest saving."""
        is_cheap = self.is_cheap(today_cost)
        if (self.passing(tolerance) & is_cheap).any():
            return SAVES
        return NO_SAVING if (self.high[is_cheap] < 0).all() else INCONCLUSIVE

    def questions_needed(self, today_cost: float, tolerance: float, n_groups: int) -> int:
        """Return how many questions would decide, if the estimates stay as they are."""
        is_cheap = self.is_cheap(today_cost)
        value = self.value[is_cheap]
        width = self.band.margin[is_cheap]
        saves = np.where(value >= 0, width / np.maximum(value + tolerance, 1e-4), np.inf).min()
        none = np.where(value < 0, width / np.maximum(-value, 1e-4), np.inf).max()
        return math.floor(n_groups * float(min(saves, none)) ** 2) + 1


def compare(
    accuracy: FloatArray,
    cost: FloatArray,
    today: TodayScore,
    confidence: float,
    refit_variance: float = 0.0,
) -> Differences:
    """Compare settings, whose accuracy on each question is (N, S), with today."""
    difference, group = accuracy - today.accuracy[:, None], today.experiment.pool.group
    band = simultaneous_band(
        difference, group, confidence=confidence, extra_variance=refit_variance
    )
    return Differences(cost, difference.mean(axis=0), band)


def _stack(points: Sequence[CurvePoint]) -> tuple[FloatArray, FloatArray]:
    """Return the accuracy of points on each question, (N, S), and their mean costs."""
    accuracy = np.stack([point.result.accuracy for point in points], axis=1)
    return accuracy, np.array([point.cost for point in points])


def find_equal_cost(cost: FloatArray, value: FloatArray) -> float | None:
    """Return the lowest cost at which a difference reaches 0, between settings by interpolation.

    >>> find_equal_cost(np.array([1.0, 2.0, 3.0]), np.array([-0.2, -0.1, 0.1]))
    2.5
    """
    reached = np.flatnonzero(value >= -ROUNDING)
    if not len(reached):
        return None
    after = int(reached[0])
    if after == 0 or value[after] <= 0:
        return float(cost[after])
    share = -value[after - 1] / (value[after] - value[after - 1])
    return float(cost[after - 1] + share * (cost[after] - cost[after - 1]))


def compare_policy(
    score: PolicyScore,
    points: Sequence[CurvePoint],
    today: TodayScore,
    settings: CalibrationSettings,
) -> tuple[CurvePoint, dict[str, Any]]:
    """Compare a policy with today: the point to deliver, and what is said of it.

    ``points`` are those of the policy by rising cost. Settings that cost more than today are not
    delivered.
    """
    wanted, today = today.today.n_samples, today.within_recorded
    cost, tolerance = float(today.cost.mean()), settings.tolerance
    every, points, confidence = points, _up_to(points, cost), settings.confidence
    found = compare(*_stack(points), today, confidence, score.accuracy_variance(points))
    chosen, verdict = found.choose(tolerance), found.judge(cost, tolerance)
    needed, at_cost = 0, score.curve.read(cost)
    if verdict == INCONCLUSIVE:
        needed = found.questions_needed(cost, tolerance, score.n_groups)
    return points[chosen], {
        "samples": today.today.n_samples,
        "wanted_samples": wanted,
        "arm": today.today.arm,
        "votes": today.today.votes,
        "calls": today.today.calls,
        "accuracy": float(today.accuracy.mean()),
        "cost": cost,
        "delivered_cost": points[chosen].cost,
        "delivered_saving": 1 - points[chosen].cost / cost,
        "difference": float(found.value[chosen]),
        "difference_low": float(found.low[chosen]),
        "difference_high": float(found.high[chosen]),
        "difference_error": float(found.band.standard_error[chosen]),
        "difference_std": _spread(points[chosen], today),
        **_find_savings(score, every, today, confidence),
        "accuracy_at_cost": at_cost.accuracy,
        "spent_at_cost": at_cost.cost,
        "tolerance": tolerance,
        "confidence": confidence,
        "verdict": verdict,
        "questions_needed": needed,
        "samples_needed": _find_samples_needed(today, verdict),
        "rounds": float(points[chosen].result.n_rounds.mean()),
    }


def _find_samples_needed(today: TodayScore, verdict: str) -> int:
    """Return how many samples per question would decide; 0 unless all of them are used up."""
    n_samples = today.today.n_samples
    recorded = int(today.experiment.pool.answers.n_samples.max(initial=0))
    return n_samples + MORE_SAMPLES if verdict == INCONCLUSIVE and recorded <= n_samples else 0


def _spread(point: CurvePoint, today: TodayScore) -> float:
    """Return the standard deviation of the difference on one question that is answered once.

    The two answers are taken as independent, which is cautious.
    """
    accuracy, now = point.result.accuracy, today.accuracy
    once = point.result.accuracy_variance + now * (1 - now)
    return math.sqrt(float((accuracy - now).var() + once.mean()))


def state_saving(frontier: PriceFrontier, today: TodayScore) -> tuple[CurvePoint, dict[str, Any]]:
    """Compare a policy with today, and with the simpler ways to save."""
    score, settings = frontier.score, frontier.settings
    point, content = compare_policy(score, frontier.points, today, settings)
    within, cost, passes = today.within_recorded, content["cost"], content["verdict"] == SAVES
    own = _name_way(POLICY, point.cost, content["difference"], cost, passes=passes)
    ways = [*compare_ways(score, within, settings), own]
    return point, {
        **content,
        "advice": choose_way(ways, cost),
        "ways": ways,
        **name_latencies("today_latency", within.latencies()),
        **frontier.describe_latency(frontier.price_at(point.setting)),
    }


def restate_saving(
    frontier: PriceFrontier,
    today: TodayScore,
    saving: dict[str, Any],
    points: Sequence[CurvePoint],
) -> list[dict[str, Any]]:
    """Return what ``state_saving`` says of a policy, as if other points of it were delivered.

    The bounds are those of a band over all settings that do not cost more than today, or over all
    settings for a point that does.
    """
    score, within = frontier.score, today.within_recorded

    def find(settings: Sequence[CurvePoint]) -> Differences:
        variance = score.accuracy_variance(settings)
        return compare(*_stack(settings), within, saving["confidence"], variance)

    cheap, every = find(_up_to(frontier.points, saving["cost"])), find(frontier.points)
    return [
        _restate(score, within, saving, one, (cheap if one.cost <= saving["cost"] else every))
        for one in points
    ]


def _restate(
    score: PolicyScore,
    today: TodayScore,
    saving: dict[str, Any],
    point: CurvePoint,
    found: Differences,
) -> dict[str, Any]:
    """Return a statement with the difference at another point."""
    here, cost, tolerance = found.at(point.cost), saving["cost"], saving["tolerance"]
    difference = float(here.value[0])
    verdict, passes = here.judge(cost, tolerance), bool(here.passing(tolerance)[0])
    own = _name_way(POLICY, point.cost, difference, cost, passes=passes)
    ways, needed = [*saving["ways"][:-1], own], 0
    if verdict == INCONCLUSIVE:
        needed = here.questions_needed(cost, tolerance, score.n_groups)
    return saving | {
        "delivered_cost": point.cost,
        "delivered_saving": own["saving"],
        "difference": difference,
        "difference_low": float(here.low[0]),
        "difference_high": float(here.high[0]),
        "difference_error": float(here.band.standard_error[0]),
        "difference_std": _spread(point, today),
        "verdict": verdict,
        "questions_needed": needed,
        "samples_needed": _find_samples_needed(today, verdict),
        "rounds": float(point.result.n_rounds.mean()),
        "advice": choose_way(ways, cost),
        "ways": ways,
        **name_latencies("latency", None),
    }


def _up_to(points: Sequence[CurvePoint], cost: float) -> Sequence[CurvePoint]:
    """Return the points that do not cost more than this; the cheapest if all do."""
    return [point for point in points if point.cost <= cost * (1 + 1e-9)] or points[:1]


def _find_savings(
    score: PolicyScore, points: Sequence[CurvePoint], today: TodayScore, confidence: float
) -> dict[str, float | None]:
    """Return the cost at today's accuracy and the saving there, with its interval.

    The band is of the accuracy at a cost, not at a setting: questions that are more expensive move
    the cost as well.
    """
    mean_cost = float(today.cost.mean())
    accuracy, cost = _stack(points)
    slope = np.array([score.curve.slope(one) for one in cost.tolist()])
    extra = np.stack([point.result.cost for point in points], axis=1)
    extra -= cost * (today.cost / mean_cost)[:, None]
    band = simultaneous_band(
        accuracy - today.accuracy[:, None] - slope * extra,
        score.group,
        confidence=confidence,
        extra_variance=score.accuracy_variance(points, slope),
    )
    value = accuracy.mean(axis=0) - today.accuracy.mean()
    margin = band.two_sided * band.standard_error
    costs = [find_equal_cost(cost, value + shift) for shift in (0.0, -margin, margin)]
    saving, low, high = (_saving(one, mean_cost) for one in costs)
    baseline = score.baseline
    by_votes = find_equal_cost(baseline.cost, baseline.accuracy - today.accuracy.mean())
    part = _saving(by_votes, mean_cost)
    return {
        "same_accuracy_cost": costs[0],
        "saving": saving,
        "saving_low": low,
        "saving_high": high,
        "saving_by_votes": part,
        "saving_by_allocation": None if saving is None or part is None else saving - part,
    }


def _saving(cost: float | None, today_cost: float) -> float | None:
    return None if cost is None else 1 - cost / today_cost


def compare_ways(
    score: PolicyScore, today: TodayScore, settings: CalibrationSettings
) -> list[dict[str, Any]]:
    """Return the ways to save without the policy, from the simplest, each at its cheapest."""
    cost, tolerance, n_samples = float(today.cost.mean()), settings.tolerance, today.today.n_samples
    confidence = settings.confidence
    ways: list[dict[str, Any]] = []

    def add(name: str, found: Differences) -> int:
        """Add a way at the setting that it would deliver, and return the setting."""
        chosen = found.choose(tolerance)
        own, difference = float(found.cost[chosen]), float(found.value[chosen])
        passes = bool(found.passing(tolerance)[chosen])
        ways.append(_name_way(name, own, difference, cost, passes=passes))
        return chosen

    if n_samples > 1 and today.today.votes == EQUAL:
        fewer = np.array([today.cost_of(n).mean() for n in range(1, n_samples)])
        chosen = add(FEWER, compare(today.utility[:, :-1], fewer, today, confidence))
        ways[-1]["samples"] = chosen + 1
    if score.experiment.weighs_votes:
        points = _up_to(spread_points(score.baseline), cost)
        name = OTHER_ARM if score.experiment.pool.has_arms else WEIGHTED
        add(name, compare(*_stack(points), today, confidence))
    if _can_stop_early(score.experiment, today):
        stopped = score.experiment.run_rules([VoteLeadRule(n_samples, n_samples)])
        ways.append(_name_way(DECIDED, float(stopped.cost.mean()), 0.0, cost, passes=True))
    return ways


def _can_stop_early(experiment: Experiment, today: TodayScore) -> bool:
    """Whether the vote of today can be decided before all samples are drawn, and replayed."""
    n_samples, has_arms = today.today.n_samples, experiment.pool.has_arms
    is_replayed = n_samples <= max(experiment.levels) and not has_arms
    # A vote that is cut off by a limit of rounds is not decided.
    return is_replayed and experiment.max_rounds >= n_samples and today.today.votes == EQUAL


def _name_way(
    name: str, cost: float, difference: float, today_cost: float, *, passes: bool
) -> dict[str, Any]:
    """Return a way to save, with its saving and whether it is as accurate as today."""
    saving = 1 - cost / today_cost
    return {"way": name, "cost": cost, "difference": difference, "saving": saving, "passes": passes}


def choose_way(ways: Sequence[dict[str, Any]], today_cost: float) -> str:
    """Return the simplest way; a later one must cost clearly less than those before it."""
    name, lowest = AS_TODAY, today_cost
    for way in ways:
        if way["passes"] and way["cost"] <= (1 - MIN_SAVING) * lowest * (1 + ROUNDING):
            name, lowest = str(way["way"]), float(way["cost"])
    return name
