"""Report options: what a page is about, from the given options, the last `fit` and the bundle.

It computes nothing and reads no samples.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from adacompute.core.errors import BundleError, ConfigError
from adacompute.options.shared import ALL_EVIDENCE, DEFAULT_LEVELS, TodayOptions
from adacompute.policies.bundles.bundle import load_bundle
from adacompute.policies.bundles.bundle_files import FILE, RUN_DIRECTORY
from adacompute.stages.inputs import add_level

if TYPE_CHECKING:
    from collections.abc import Sequence

    from adacompute.options.main import ReportOptions
    from adacompute.storage.store import Run

FITTED: dict[str, Any] = {
    "budget": None,
    "policy": None,
    "levels": None,
    "unit": "samples",
    "token_prices": None,
    "price_as": None,
    "native_n": False,
    "evidence": ALL_EVIDENCE,
    "seed": 0,
    "today": None,
}
"""Options that a page takes from the last `fit` on its run, with their values without one."""


def resolve_options(store: Run, options: ReportOptions) -> dict[str, Any]:
    """Return the given options, and for the others those of the last `fit`, or the defaults."""
    given = {name: value for name, value in vars(options).items() if name in FITTED}
    given = {name: value for name, value in given.items() if value not in (None, {})}
    manifest = store.manifest("fit")
    fitted = dict(manifest.arguments) if manifest else {}
    if given.get("unit", fitted.get("unit")) != fitted.get("unit"):  # a budget in another unit
        fitted = {name: fitted[name] for name in ("policy", "levels", "seed") if name in fitted}
    found = FITTED | fitted | given
    today = found["today"]
    return found | {"today": TodayOptions(**today) if isinstance(today, dict) else today}


def find_bundle(run: Path, policy: str) -> Path | None:
    """Return the bundle that the run is inside of, if it holds the policy.

    One that cannot be read, such as that of another version, is left out.
    """
    if run.name != RUN_DIRECTORY or not (run.parent / FILE).is_file():
        return None
    try:
        found = load_bundle(run.parent).notes.get("policy")
    except BundleError:
        return None
    return run.parent if found == policy else None


def find_sure(bundle: Path | None) -> dict[str, Any] | None:
    """Return what the last calibration of a bundle says of how sure its answers are, if it does."""
    if bundle is None:
        return None
    found = load_bundle(bundle)
    known = found.notes.get("calibration", {})
    if known.get("p_correct") is None:
        return None
    names = ("budget", "questions", "p_correct", "precision")
    return {"unit": found.unit, **{name: known[name] for name in names}}


def check_budget(budget: float | None) -> float | None:
    """Return a budget, which must be a number above 0 if it is given."""
    if budget is not None and not (np.isfinite(budget) and budget > 0):
        raise ConfigError(f"budget must be a finite number above 0, got {budget}")
    return budget


def resolve_levels(
    levels: Sequence[int] | None, evaluation: dict[str, Any] | None, today: TodayOptions | None
) -> list[int]:
    """Return the given levels, or those of the evaluation, or the default ones."""
    if levels is None:
        levels = DEFAULT_LEVELS if evaluation is None else evaluation["levels"]
    return list(add_level(levels, today))
