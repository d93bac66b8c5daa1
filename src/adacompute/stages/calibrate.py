"""Calibrate: the stage that sets the price of a bundle on held-out questions and gives a verdict.

The bundle was trained on all questions of the run. Its policy is refitted on folds of them, and
each is scored on the questions that it was not fitted to. The frontier from cost to price and the
verdict are written into the bundle.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adacompute.core.errors import BundleError, ConfigError
from adacompute.core.progress import no_progress
from adacompute.evaluation.costs import CostModel
from adacompute.evaluation.experiment import Experiment, FittedPolicy
from adacompute.evaluation.factories import find_factory
from adacompute.evaluation.run_results import RunResults
from adacompute.evaluation.scoring.frontier import TOLERANCE, CalibrationSettings
from adacompute.evaluation.scoring.policy_score import score_policy
from adacompute.evaluation.scoring.verdict import (
    calibrate,
    calibrate_pooled,
    describe_excess,
)
from adacompute.options.definition import takes
from adacompute.options.shared import CONFIDENCE, TodayOptions
from adacompute.policies.bundles.bundle import Bundle, FrontierPoint, load_bundle, save_bundle
from adacompute.policies.episode import UNLIMITED_ROUNDS
from adacompute.stages.inputs import (
    check_goal,
    hash_run,
    read_pool,
    resolve_today,
)
from adacompute.stages.train import describe_fit
from adacompute.storage.store import Run

if TYPE_CHECKING:
    from collections.abc import Callable

    from adacompute.evaluation.experiment import PolicyFactory

MIN_CONFIDENCE, MAX_CONFIDENCE = 0.5, 1 - 1e-9
"""Outside these bounds an interval is empty, or dominated by rounding."""


@dataclass(frozen=True, kw_only=True)
class CalibrateOptions:
    """The bundle to calibrate, and for what: a budget, or the accuracy of today."""

    bundle: Path
    budget: float | None = None
    today: TodayOptions | None = None
    confidence: float = CONFIDENCE
    min_precision: float | None = None
    max_rounds: int | None = None


@takes(CalibrateOptions)
def calibrate_run(
    run: Path,
    options: CalibrateOptions,
    *,
    results: RunResults | None = None,
    progress: Callable[[str], None] = no_progress,
) -> dict[str, Any]:
    """Set the price of a bundle for a budget, or for the accuracy of what is run today."""
    bundle, budget, today = options.bundle, options.budget, options.today
    settings = check_settings(options.confidence, tolerance_of(today), options.min_precision)
    max_rounds = options.max_rounds
    trained = load_bundle(bundle)
    check_goal(budget, today, unit=trained.unit)
    now = resolve_today(today, Run(run), unit=trained.unit)
    experiment, name = _experiment(run, trained, check_rounds(max_rounds))
    experiment = replace(experiment, progress=progress)
    experiment = (results or RunResults.of(run)).share(experiment)
    if not trained.policy.plans_for(max_rounds):
        fitted = fit_for_rounds(experiment, find_factory(name))
        trained = replace(trained, **describe_fit(experiment, fitted, trained.notes))
    final = _final_fit(trained, experiment)
    if budget is not None:
        experiment.pool.check_budget(budget)
    progress(name)
    score = score_policy(experiment, name, progress=progress)
    result = calibrate(score, final, budget=budget, today=now, settings=settings)
    points = tuple(FrontierPoint(**point) for point in result.pop("frontier"))
    correctness = result.pop("correctness")
    pooled = calibrate_pooled(score, final, settings=settings)
    notes = {
        **trained.notes,
        "calibration": result,
        "earlier_calibrations": keep_calibrations(trained.notes, result),
    }
    calibrated = replace(
        trained,
        frontier=points,
        pooled_frontier=pooled,
        correctness=correctness,
        max_rounds=max_rounds,
        notes=notes,
    )
    where = {"bundle": str(bundle), "bundle_digest": save_bundle(calibrated, bundle)}
    return {"policy": name, **where, "unit": trained.unit, **result}


def keep_calibrations(notes: dict[str, Any], new: dict[str, Any]) -> list[dict[str, Any]]:
    """Return calibrations of a policy at other budgets; those with other settings are void."""
    earlier = [notes.get("calibration", {}), *notes.get("earlier_calibrations", ())]
    return [
        one
        for one in earlier
        if one.get("budget") not in (None, new.get("budget"))
        and one.get("max_rounds") == new.get("max_rounds")
    ]


def describe_unused_budget(result: dict[str, Any]) -> str | None:
    """Say that the budget of a calibration is above what the policy can spend, if it is."""
    if result.get("max_budget") is None:
        return None
    return describe_excess(result["budget"], result["max_budget"])


def check_settings(
    confidence: float = CONFIDENCE,
    tolerance: float | None = None,
    min_precision: float | None = None,
) -> CalibrationSettings:
    """Return the settings of a calibration; refuse those for which there are no intervals."""
    if not MIN_CONFIDENCE <= confidence <= MAX_CONFIDENCE:
        raise ConfigError(
            f"confidence must be from {MIN_CONFIDENCE} to below 1, got {confidence:.10g}"
        )
    tolerance = TOLERANCE if tolerance is None else tolerance
    if not 0 <= tolerance < 1:
        raise ConfigError(
            f"tolerance must be from 0 to below 1 (0.005 is half a point), got {tolerance}"
        )
    if min_precision is not None and not 0 < min_precision < 1:
        raise ConfigError(
            f"min_precision must be above 0 and below 1 (0.9 is 90 %), got {min_precision}"
        )
    return CalibrationSettings(confidence, tolerance, min_precision)


def tolerance_of(today: TodayOptions | None) -> float | None:
    """Return the given tolerance, if there is one."""
    return None if today is None else today.tolerance


def check_rounds(max_rounds: int | None) -> int:
    """Return the maximum number of rounds; a very large number if it is not limited."""
    if max_rounds is None:
        return UNLIMITED_ROUNDS
    if max_rounds < 1:
        raise ConfigError(f"max_rounds must be at least 1, got {max_rounds}")
    return max_rounds


def fit_for_rounds(experiment: Experiment, factory: PolicyFactory) -> FittedPolicy:
    """Return a policy fitted again to all questions, for the rounds of the experiment."""
    fitted = experiment.fit_final(factory)
    if not fitted.policy.plans_for(experiment.round_limit):
        raise ConfigError(
            f"the policy cannot be fitted again for max_rounds {experiment.round_limit}: leave it "
            "out, or use a policy that can"
        )
    return fitted


def _final_fit(bundle: Bundle, experiment: Experiment) -> FittedPolicy:
    """Return the policy of a bundle with its prices and the features that it reads."""
    pool, prices = experiment.pool, bundle.notes.get("prices")
    if not prices:
        raise BundleError("the bundle does not record the prices of its policy: train it again")
    words = bundle.notes["policy"] == "sequential"
    features = pool.sequential_features if words else pool.features
    if features is None:
        raise BundleError("the questions of this run have no texts: train the policy on this run")
    return FittedPolicy(bundle.policy, tuple(prices), features)


def _experiment(run: Path, bundle: Bundle, max_rounds: int) -> tuple[Experiment, str]:
    """Return the experiment that the bundle was trained on, and the name of its policy."""
    store = Run(run)
    if not store.is_graded:
        store.samples()  # says what needs grades
    try:
        settings, name = dict(bundle.notes["experiment"]), str(bundle.notes["policy"])
        settings |= {key: tuple(settings[key]) for key in ("levels", "budgets")}
        features = str(bundle.notes["features"])
        costs = CostModel.from_dict(bundle.unit, bundle.notes["costs"])
    except (KeyError, TypeError, ValueError):
        raise BundleError(
            "the bundle does not record how its policy was fitted: train it again"
        ) from None
    pool = read_pool(store, costs=costs, features=features).equalise()
    if bundle.data_hash != hash_run(store):
        raise BundleError(
            f"the policy was trained on other samples than those of {run}: train it on this run"
        )
    return Experiment(pool, max_rounds=max_rounds, **settings), name
