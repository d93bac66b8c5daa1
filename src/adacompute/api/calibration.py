"""Calibration: the price of a budget and the gain of a policy, from held-out questions.

`calibrate` refits the policy inside folds, so that every question is scored by a policy that was
not fitted to it. It knows nothing of files.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from adacompute.api.estimator import Estimator, as_estimator
from adacompute.api.estimators import RegisteredEstimator
from adacompute.api.progress import Progress, read_progress
from adacompute.api.samples import Samples
from adacompute.api.tables import BAD, GOOD, OPEN, Tabular, write_card, write_table
from adacompute.evaluation.pool import describe_assignments, describe_copies
from adacompute.evaluation.scoring.policy_score import PolicyScore, score_policy
from adacompute.evaluation.scoring.precision import Precision, describe_p_correct
from adacompute.evaluation.scoring.saving_text import (
    cost_scale,
    describe_advice,
    describe_recorded,
    describe_saving,
    name_verdict,
)
from adacompute.evaluation.scoring.savings import NO_SAVING
from adacompute.evaluation.scoring.today import read_today
from adacompute.evaluation.scoring.verdict import calibrate as calibrate_score
from adacompute.evaluation.scoring.verdict import calibrate_pooled, describe_excess
from adacompute.policies.bundles.bundle import SAVES, FrontierPoint
from adacompute.report.result_plots import plot_calibration
from adacompute.stages.calibrate import check_rounds, check_settings, fit_for_rounds
from adacompute.stages.inputs import check_goal

if TYPE_CHECKING:
    from collections.abc import Callable

    from adacompute.evaluation.experiment import FittedPolicy
    from adacompute.policies.policy import Policy
    from adacompute.report.plot_style import Axes


RENAMED = {
    "n_questions": "questions",
    "n_independent": "independent_questions",
    "n_assignments": "fold_assignments",
}
"""Fields of a calibration that are called otherwise in JSON."""

MIN_SHOWN = 0.0005
"""Gains below this are 0.0 points when they are printed."""


@dataclass(frozen=True, eq=False, repr=False)
class Calibration(Tabular):
    """The price that holds a budget, and what the policy gains there over the best mixture.

    ``verdict`` is "gain", "loss", "no gain" or "inconclusive". ``gain`` is in accuracy, with the
    interval from ``gain_low`` to ``gain_high``. ``questions_needed`` is about how many questions in
    total would decide an inconclusive verdict, and 0 otherwise. ``cost_low`` and ``cost_high`` are
    the interval of the mean cost, and ``rounds`` is the mean number of rounds per question.
    ``latency_p50_s`` and ``latency_p95_s`` are how long a question takes, if that was recorded, and
    ``arm_shares`` the share of the questions and of the cost of each of several arms.
    ``max_budget`` is the most that the policy spends: a larger budget is not used, and `calibrate`
    warns of it.
    ``today`` says what is saved, if it is known what is run today. ``p_correct`` says how well
    right answers are separated from wrong ones, and ``precision`` what is guaranteed of the surest.
    ``frontier`` holds the cost and the accuracy of each price; it is also the table of the result.
    ``gain``, which is ``gain_by_allocation``, is over the baseline, the best mixture of uniform
    levels with weighted votes. ``gain_by_votes`` is what the weights gain in it over equal votes,
    and ``gain_total`` is the sum.
    """

    policy: str
    budget: float
    unit: str
    verdict: str
    advice: str
    gain: float
    gain_low: float
    gain_high: float
    gain_by_allocation: float
    gain_by_votes: float
    gain_by_votes_low: float
    gain_by_votes_high: float
    gain_total: float
    questions_needed: int
    price: float
    cost: float
    cost_low: float
    cost_high: float
    accuracy: float
    accuracy_low: float
    accuracy_high: float
    rounds: float
    latency_p50_s: float | None
    latency_p95_s: float | None
    arm_shares: list[dict[str, Any]]
    confidence: float
    margin: float
    n_questions: int
    n_independent: int
    n_assignments: int
    max_rounds: int | None
    retry_gain: float
    max_budget: float
    today: dict[str, Any] | None
    p_correct: dict[str, Any] | None
    precision: dict[str, Any] | None
    frontier: tuple[FrontierPoint, ...]

    def to_arrow(self) -> Any:  # noqa: ANN401 - pyarrow has no types
        """Return the frontier as a pyarrow Table, one row per price."""
        return pa.Table.from_pylist([asdict(point) for point in self.frontier])

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw accuracy against cost with matplotlib, with the budget; return the axes.

        It needs the extra ``report`` and does not change the style of other figures.
        """
        return plot_calibration(vars(self) | {"frontier": self.to_arrow().to_pylist()}, ax)

    def _title(self) -> str:
        scale, unit = cost_scale(self.unit)
        each = "" if self.unit == "money" else " per question"
        return f"Calibration of {self.policy} at {self.budget * scale:g} {unit}{each}"

    def _saving(self) -> list[str]:
        """Return what is saved compared with today, line by line; empty without today."""
        if not self.today:
            return []
        first, *rest = describe_saving(self.today, self.unit)
        advice = f"Advice: {describe_advice(self.today, self.unit)}."
        return [f"{name_verdict(self.today)} {first}", *rest, advice]

    def _facts(self) -> dict[str, str]:
        """Return what was measured, by the names under which it is printed."""
        low, gain, high = (100 * value for value in (self.gain_low, self.gain, self.gain_high))
        scale, unit = cost_scale(self.unit)
        low_cost, cost, high_cost = (
            f"{one * scale:.4g}" for one in (self.cost_low, self.cost, self.cost_high)
        )
        each = "" if self.unit == "money" else " per question"
        price = f"{self.price:.4g}"
        copies = describe_copies(self.n_questions, self.n_independent)
        mean = describe_assignments(self.n_assignments)
        questions = f"{self.n_questions}{copies} held-out questions{mean}"
        facts = {
            "verdict": f"{self.verdict}: {self.advice}",
            "gain": f"{gain:+.1f} points ({low:+.1f} to {high:+.1f}) over the best mixture",
            "accuracy": f"{self.accuracy:.3f} on {questions}",
            "cost": f"{cost} {unit}{each} ({low_cost} to {high_cost}), at price {price}",
        }
        if self.p_correct is not None:
            facts["sure"] = describe_p_correct(self.p_correct)
        if self.precision is not None:
            facts["precise"] = str(Precision(**self.precision))
        if self.questions_needed:
            facts["needed"] = f"about {self.questions_needed:,} questions decide the verdict"
        if self.retry_gain >= MIN_SHOWN:
            facts["retry"] = f"{100 * self.retry_gain:+.1f} points by only retrying unparsed"
        return facts

    def __repr__(self) -> str:
        facts = [f"{name:<9} {text}" for name, text in self._facts().items()]
        return "\n".join([self._title(), *self._saving(), *facts])

    def _repr_html_(self) -> str:
        verdict = self.today["verdict"] if self.today else self.verdict
        colours = {"gain": GOOD, SAVES: GOOD, "loss": BAD, NO_SAVING: BAD}
        return write_card(
            self._title(),
            write_table(list(self._facts().items())),
            lead=" ".join(self._saving()[:1]),
            colour=colours.get(verdict, OPEN),
        )


def _score(
    estimator: Estimator,
    samples: Samples,
    budget: float | None,
    max_rounds: int | None,
    progress: Callable[[str], None],
) -> tuple[PolicyScore, FittedPolicy]:
    """Score refits of an estimator on held-out questions; return the estimator's own fit, too."""
    factory = estimator.make_factory(samples)
    experiment = estimator.make_experiment(samples, math.inf if budget is None else budget)
    experiment = replace(experiment, max_rounds=check_rounds(max_rounds))
    if not estimator.policy_.plans_for(max_rounds):
        estimator.learn(samples, experiment, fit_for_rounds(experiment, factory))
    final = estimator.as_fitted(samples, experiment, np.arange(len(experiment.pool)))
    if not isinstance(estimator, RegisteredEstimator):  # its fit knows nothing of bundles
        estimator.learn(samples, experiment, final)
    return score_policy(experiment, factory, progress=progress), final


def calibrate(
    policy: Estimator | Policy,
    samples: Samples,
    *,
    budget: float | None = None,
    today: str | int | None = None,
    tolerance: float = 0.005,
    today_calls: str | None = None,
    confidence: float = 0.95,
    min_precision: float | None = None,
    max_rounds: int | None = None,
    progress: Progress = None,
) -> Calibration:
    """Find the price of a mean budget per question, and judge the policy at that price.

    ``today`` is what you run now, such as 5 samples per question: ``result.today`` then says what
    is saved. Without a budget the price is that of the cheapest setting that is as accurate, with a
    lower bound within ``tolerance``.

    The policy must be fitted to the same samples. Clones of it are fitted to the training questions
    of each fold and scored on the others. The frontier that is found is kept as
    ``policy.frontier_``. The expected cost is the budget. If the interval of the gain contains zero
    and lies within half a point of it, the verdict is no gain. ``policy.precision_`` is the largest
    share of the questions whose answers are right at least as often as ``min_precision``. With
    ``max_rounds`` the price is for so many rounds per question. ``progress`` is called with each
    step; True prints them.
    """
    estimator = as_estimator(policy)
    estimator.check_fitted_to(samples)
    check_goal(budget, today, unit=samples.unit)
    settings = check_settings(confidence, tolerance, min_precision)
    now = None if today is None else read_today(today, today_calls)
    score, final = _score(estimator, samples, budget, max_rounds, read_progress(progress))
    found = calibrate_score(score, final, budget=budget, today=now, settings=settings)
    if excess := describe_excess(found["budget"], found["max_budget"]):
        warnings.warn(excess, stacklevel=2)
    if found["today"] and found["today"]["wanted_samples"] > found["today"]["samples"]:
        warnings.warn(describe_recorded(found["today"]), stacklevel=2)
    frontier = tuple(FrontierPoint(**point) for point in found.pop("frontier"))
    pooled = calibrate_pooled(score, final, settings=settings)
    estimator.keep_calibration(frontier, pooled, found.pop("correctness"), found)
    if policy is not estimator and hasattr(policy, "fit"):  # of another base class
        vars(policy).update(frontier_=frontier, precision_=estimator.precision_)
    about: dict[str, Any] = {"policy": estimator.row_name, "unit": samples.unit}
    for new, old in RENAMED.items():
        about[new] = found.pop(old)
    return Calibration(**about, frontier=frontier, **found)
