"""Calibrate: the stage that sets the price of a bundle on held-out questions and gives a verdict.

The bundle was trained on all questions of the run. Its policy is refitted on folds of them, and
each is scored on the questions that it was not fitted to. The frontier from cost to price and the
verdict are written into the bundle.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adacompute.core.errors import BundleError, ConfigError
from adacompute.evaluation.costs import CostModel, check_budgets
from adacompute.evaluation.factories import Experiment
from adacompute.evaluation.verdict import calibrate, calibrate_share, describe_excess
from adacompute.policies.bundle import Bundle, FrontierPoint, load_bundle, save_bundle
from adacompute.stages.inputs import hash_resort, hash_run, no_progress, read_pool
from adacompute.stages.train import ORDERS
from adacompute.storage.store import Run

if TYPE_CHECKING:
    from collections.abc import Callable

MIN_CONFIDENCE, MAX_CONFIDENCE = 0.5, 1 - 1e-9
"""Outside these bounds an interval is empty, or dominated by rounding."""


def calibrate_run(
    run: Path,
    *,
    bundle: Path,
    budget: float | None = None,
    accuracy_of: int | None = None,
    share: float = 0.95,
    confidence: float = 0.95,
    horizon: int | None = None,
    resort: Path | None = None,
    progress: Callable[[str], None] = no_progress,
) -> dict[str, Any]:
    """Set the price of a bundle for a budget, or to keep a share of the accuracy of N samples."""
    if budget is not None and accuracy_of is not None:
        raise ConfigError("give --budget or --accuracy-of, not both")
    if not 0 < share < 1:
        raise ConfigError(f"share must be between 0 and 1, got {share:g}")
    check_confidence(confidence, horizon)
    trained = load_bundle(bundle)
    if budget is not None:
        check_budgets([budget], unit=trained.unit)
    experiment, name = _experiment(run, trained, resort)
    progress(name)
    settings: dict[str, Any] = {"confidence": confidence, "horizon": horizon}
    if budget is not None:
        settings |= {"budget": budget, "progress": progress}
        result = {"budget": budget, **calibrate(experiment, name, **settings)}
    elif accuracy_of is not None:
        settings |= {"accuracy_of": accuracy_of, "share": share}
        result = {"accuracy_of": accuracy_of, **calibrate_share(experiment, name, **settings)}
    else:
        raise ConfigError("give --budget or --accuracy-of")
    points = tuple(FrontierPoint(**point) for point in result.pop("frontier"))
    notes = {**trained.notes, "calibration": result}
    save_bundle(replace(trained, frontier=points, notes=notes), bundle)
    return {"policy": name, "bundle": str(bundle), "unit": trained.unit, **result}


def describe_unused_budget(result: dict[str, Any]) -> str | None:
    """Say that the budget of a calibration is above what the policy can spend, if it is."""
    if result.get("max_budget") is None:
        return None
    return describe_excess(result["budget"], result["max_budget"])


def check_confidence(confidence: float, horizon: int | None) -> None:
    """Refuse a confidence level or a horizon for which no interval can be computed."""
    if not MIN_CONFIDENCE <= confidence <= MAX_CONFIDENCE:
        raise ConfigError(
            f"confidence must be from {MIN_CONFIDENCE} to below 1, got {confidence:.10g}"
        )
    if horizon is not None and horizon < 1:
        raise ConfigError(f"horizon must be at least 1 question, got {horizon}")


def _experiment(run: Path, bundle: Bundle, resort: Path | None) -> tuple[Experiment, str]:
    """Return the experiment that the bundle was trained on, and the name of its policy."""
    store = Run(run)
    try:
        settings, name = dict(bundle.notes["experiment"]), str(bundle.notes["policy"])
        settings |= {key: tuple(settings[key]) for key in ("levels", "budgets")}
        features = str(bundle.notes["features"])
        costs = CostModel.from_dict(bundle.unit, bundle.notes["costs"])
    except (KeyError, TypeError, ValueError):
        raise BundleError(
            "the bundle does not record how its policy was fitted: train it again"
        ) from None
    if bundle.notes.get("resort") != hash_resort(resort):
        raise BundleError(
            "the policy was trained with another last resort: name the run it was trained with "
            "by --resort, or train it again"
        )
    known: dict[str, Any] = {"features": features, "resort": resort, "tie_break": bundle.tie_break}
    pool = read_pool(store, costs=costs, **known).equalise()
    if bundle.data_hash != hash_run(store):
        raise BundleError(
            f"the policy was trained on other samples than those of {run}: train it on this run"
        )
    return Experiment(pool, n_permutations=ORDERS, **settings), name
