"""Study: one policy at every budget, and other policies for comparison, on held-out questions.

The scores are those of `calibrate` and `evaluate`: a policy is read at the setting whose held-out
mean cost is the budget. An operating point is what a budget buys. It reads no files and formats
nothing.

N questions, G costs of a curve.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from adacompute.core.errors import InfeasibleBudget
from adacompute.evaluation.experiment import Experiment
from adacompute.evaluation.intervals import Interval
from adacompute.evaluation.registry import ORACLES
from adacompute.evaluation.scoring.baseline import BASELINE
from adacompute.evaluation.scoring.frontier import CalibrationSettings, PriceFrontier, spread_points
from adacompute.evaluation.scoring.held_out import CurvePoint
from adacompute.evaluation.scoring.oracles import score_oracle
from adacompute.evaluation.scoring.policy_score import PolicyScore, has_retries, score_policy
from adacompute.evaluation.scoring.savings import compare_policy, restate_saving, state_saving
from adacompute.evaluation.scoring.scores import oracle_point
from adacompute.evaluation.scoring.today import Today, TodayScore
from adacompute.evaluation.scoring.verdict import MIN_QUESTIONS, round_up

if TYPE_CHECKING:
    from adacompute.core.types import FloatArray

QUESTION_FACTORS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0)
"""Numbers of questions for which the interval of the gain is shown, relative to the real number."""


@dataclass(frozen=True, eq=False)
class OperatingPoint:
    """What a budget buys: its price, and the results of each question."""

    budget: float
    price: float
    point: CurvePoint

    @property
    def cost(self) -> FloatArray:
        """Cost of each question, (N,)."""
        return self.point.result.cost

    @property
    def accuracy(self) -> FloatArray:
        """Accuracy of each question, (N,)."""
        return self.point.result.accuracy

    @property
    def n_samples(self) -> FloatArray:
        """Mean number of samples of each question, (N,)."""
        return self.point.result.n_samples


@dataclass(frozen=True, eq=False)
class Study:
    """A policy on held-out questions, the prices of its final fit, and what is run today."""

    name: str
    score: PolicyScore
    frontier: PriceFrontier
    today: TodayScore | None = None

    @property
    def experiment(self) -> Experiment:
        """The samples and the levels of the study."""
        return self.score.experiment

    @cached_property
    def retry(self) -> PolicyScore | None:
        """The policy that only resamples unparsed answers.

        None if all samples were parsed, or if there are several arms.
        """
        return score_policy(self.experiment, "retry") if has_retries(self.experiment) else None

    @cached_property
    def saving(self) -> tuple[CurvePoint, dict[str, Any]] | None:
        """The point that saves, and what is saved; None without today or with few questions."""
        if self.today is None or not self.has_enough_questions:
            return None
        return state_saving(self.frontier, self.today)

    def restate_saving(self, points: Sequence[CurvePoint]) -> list[dict[str, Any]]:
        """Return what is saved at other points; there must be a saving."""
        if self.today is None or self.saving is None:
            raise AssertionError
        return restate_saving(self.frontier, self.today, self.saving[1], points)

    def delivers(self, point: OperatingPoint) -> bool:
        """Whether an operating point is the one that saves, which is typed with four digits."""
        if self.saving is None:
            return False
        return point.budget == round_up(self.saving[0].cost)

    @cached_property
    def response_curves(self) -> tuple[list[str], FloatArray]:
        """Names of levels by rising cost, and the utility of each on every question, (N, K).

        With several arms these are the efficient levels, where every sample counts once.
        """
        experiment = self.experiment
        if not experiment.pool.has_arms:
            return [str(level) for level in experiment.levels], experiment.table.utility
        result = experiment.evidence.run_levels(None)
        kept, _ = result.find_efficient(np.arange(len(experiment.pool)))
        levels = [experiment.evidence.levels[k] for k in kept.tolist()]
        names = [f"{experiment.arm_names[arm]} × {n}" for arm, n in levels]
        return names, result.accuracy[:, kept]

    @property
    def has_enough_questions(self) -> bool:
        """Whether there are enough independent questions for a verdict."""
        return self.score.n_groups >= MIN_QUESTIONS

    @property
    def lowest_cost(self) -> float:
        """Mean cost of the cheapest setting."""
        return float(self.score.curve.cost[0])

    def operating_point(self, budget: float) -> OperatingPoint:
        """Return what a budget buys."""
        if budget < self.lowest_cost * (1 - 1e-9):
            raise InfeasibleBudget(
                f"a budget of {budget:g} is below {self.lowest_cost:.6g}, the minimum cost of "
                f"{self.name}: use a larger budget"
            )
        point = self.score.curve.read(budget)
        return OperatingPoint(budget, self.frontier.price_at(point.setting), point)

    def uniform_accuracy(self, point: OperatingPoint) -> FloatArray:
        """Return the accuracy of each question under the baseline at the same mean cost, (N,)."""
        return self.score.baseline.read(point.point.cost).result.accuracy

    def gain_by_question_count(self, point: OperatingPoint) -> list[tuple[int, Interval]]:
        """Return the gain with the intervals that other numbers of questions would give it."""
        gain, size = self.score.gain(point.point), self.score.n_groups
        rows = []
        for count in sorted({max(2, round(size * part)) for part in QUESTION_FACTORS}):
            margin = (gain.high - gain.value) * math.sqrt(size / count)
            rows.append((count, Interval(gain.value, gain.value - margin, gain.value + margin)))
        return rows


def study_policy(
    experiment: Experiment, name: str, settings: CalibrationSettings, today: Today | None = None
) -> Study:
    """Score a policy on held-out questions, and fit it to all questions for its prices."""
    score = score_policy(experiment, name)
    final = experiment.fit_final(score.factory)
    now = None if today is None else TodayScore(experiment, today)
    return Study(name, score, PriceFrontier(score, final, settings), now)


@dataclass(frozen=True, eq=False)
class PolicyCurve:
    """The accuracy of a policy at costs (G,), and its difference to the mixture, with intervals."""

    name: str
    cost: list[float]
    accuracy: list[Interval]
    difference: list[Interval]


def score_curves(
    study: Study,
    names: Sequence[str],
    budgets: Sequence[float],
    progress: Callable[[str], None],
) -> list[PolicyCurve]:
    """Return the curves of the mixture and the studied policy, then those of other policies."""
    experiment = study.experiment
    uniform = score_policy(experiment, BASELINE)
    curves = [_read_curve(BASELINE, uniform, budgets)]
    curves.append(_read_curve(study.name, study.score, budgets))
    for name in names:
        progress(name)
        if name == "oracle":
            curves.append(_read_oracle(uniform, budgets))
            continue
        score = _score_other(study, name)
        if score is not None:
            curves.append(_read_curve(name, score, budgets))
    return curves


def _score_other(study: Study, name: str) -> PolicyScore | None:
    """Return the score of another policy; None if it would be the mixture."""
    return study.retry if name == "retry" else score_policy(study.experiment, name)


def compare_savings(study: Study, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return what the studied policy, the mixture and other policies save, compared with today.

    Oracles are no policies. There are no rows if the study does not say what is saved.
    """
    if study.today is None or study.saving is None:
        return []
    rows = []
    for name in dict.fromkeys((study.name, BASELINE, *names)):
        score = None if name in ORACLES else _score_other(study, name)
        if score is not None:
            points, settings = spread_points(score.curve), study.frontier.settings
            found = compare_policy(score, points, study.today, settings)[1]
            rows.append({"policy": name} | found)
    return rows


def _read_curve(name: str, score: PolicyScore, budgets: Sequence[float]) -> PolicyCurve:
    """Read a curve at the budgets within its range, and at both ends."""
    curve = score.curve
    lowest, highest = float(curve.cost[0]), float(curve.cost[-1])
    inside = [budget for budget in budgets if lowest < budget < highest]
    if curve.is_stepped:
        inside = np.unique(np.round(curve.cost, 12)).tolist()
    points = [curve.read(cost) for cost in np.unique([lowest, *inside, highest]).tolist()]
    return PolicyCurve(
        name,
        [point.cost for point in points],
        [score.accuracy(point) for point in points],
        [score.gain(point) for point in points],
    )


def _read_oracle(uniform: PolicyScore, budgets: Sequence[float]) -> PolicyCurve:
    """Return the cross-fitted oracle, which knows the curve of each question, at budgets."""
    scores = score_oracle(uniform.experiment, tuple(budgets))
    # Beyond the cost of the largest levels a larger budget buys nothing: keep each cost once.
    _, first = np.unique([round(cost, 12) for cost, _ in scores.values()], return_index=True)
    points = [oracle_point(scores[budgets[i]]) for i in first.tolist()]
    return PolicyCurve(
        "oracle",
        [point.cost for point in points],
        [uniform.accuracy(point) for point in points],
        [uniform.gain(point) for point in points],
    )
