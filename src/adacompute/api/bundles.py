"""Bundles: fitted estimators read from the directories that `save` and `train` write."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from adacompute.api.estimator import Estimator, Pretrained
from adacompute.api.estimators import ESTIMATORS, RegisteredEstimator
from adacompute.core.errors import ConfigError
from adacompute.datasets.example import locate_bundle
from adacompute.graders.grader import Grader, load_grader
from adacompute.options.shared import ALL_EVIDENCE
from adacompute.policies.bundles.bundle import Bundle, load_bundle
from adacompute.stages.inputs import (
    VOTES,
)

if TYPE_CHECKING:
    from os import PathLike


def load_policy(
    path: str | PathLike[str], *, grader: str | Grader | None = None, digest: str | None = None
) -> Estimator:
    """Read a fitted policy from a directory; ``example`` is the one that ships.

    ``grader`` replaces the recorded grader, and is needed where that was a command or a class of
    your own: a file names built-in graders only. ``digest`` is the one that ``fit`` printed;
    another bundle is refused. A bundle that does not record how its policy was fitted is a
    `Pretrained` policy.
    """
    bundle = load_bundle(locate_bundle(Path(path)), digest=digest)
    estimator = _rebuild(bundle)
    judge = load_grader(grader) if isinstance(grader, str) else grader
    estimator.adopt(bundle, judge or _find_grader(bundle.grader))
    return estimator


def _rebuild(bundle: Bundle) -> Estimator:
    """Return an estimator with the parameters that a bundle records."""
    kind = ESTIMATORS.get(str(bundle.notes.get("policy")))
    try:
        if kind is not None:
            return kind(**_find_parameters(kind, bundle))
    except (KeyError, TypeError, IndexError):
        pass  # it cannot be refitted, and still be run
    return Pretrained(bundle.policy, features=bundle.features)


def _find_parameters(kind: type[RegisteredEstimator], bundle: Bundle) -> dict[str, Any]:
    """Return the parameters that a policy was fitted with."""
    notes = bundle.notes
    known = notes.get("parameters")
    if known is None:  # `adacompute fit` fitted it
        sees_all = notes["experiment"]["use_confidence"]
        known = {
            **notes["experiment"],
            "evidence": ALL_EVIDENCE if sees_all else VOTES,
            "max_samples": notes["experiment"]["levels"][-1],
            "features": notes["features"],
        }
    found = {name: known[name] for name in kind.parameter_names()}
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in found.items()
    }


def _find_grader(name: str | None) -> Grader | None:
    """Return a built-in grader by its name; None for one of the user's own."""
    if name is None:
        return None
    try:
        return load_grader(name)
    except ConfigError:
        return None
