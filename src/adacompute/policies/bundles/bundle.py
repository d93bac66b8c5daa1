"""Bundle: a policy with everything that its decisions need, in files that are safe to load.

    bundle.json      levels, prices, rules, cost unit, features, model, grader, frontier, hashes
    tables-….npz     tables of a sequential policy, or trees of a router
    run/             the run it was fitted to, which belongs to fit

Nothing in a bundle is executed when it is loaded or used: it names built-in graders only, and no
path. A bundle of another format version, a missing or changed file, or features of another version
raise a BundleError that says what to run. This module does not know how a policy was fitted;
``serialization`` knows how each kind of policy is stored, and ``bundle_files`` how files are read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from adacompute.core.errors import BundleError, ConfigError, InfeasibleBudget
from adacompute.core.types import FloatArray
from adacompute.features.text import VERSION, feature_names
from adacompute.graders.grader import record_grader
from adacompute.models.messages import Settings
from adacompute.models.templates import Template
from adacompute.policies.bundles import arm_settings
from adacompute.policies.bundles.arm_settings import ArmSettings, read_settings, read_template
from adacompute.policies.bundles.baseline import Baseline, read_baseline
from adacompute.policies.bundles.bundle_files import (
    FILE,
    compute_digest,
    read_bundle_file,
    read_document,
    write_files,
)
from adacompute.policies.bundles.serialization import policy_from_json, policy_to_json
from adacompute.policies.confidence import LIKELIHOODS
from adacompute.policies.correctness import Correctness, correctness_from_json
from adacompute.policies.policy import Policy
from adacompute.policies.spec import read_entry, read_number

FORMAT = 9
NOT_JUDGED, SAVES, SAME_ANSWER = "not judged", "saves", "same answer"
ADVISED = ("gain", SAVES, SAME_ANSWER)
"""Verdicts with which a policy is used."""

UNIFORM = "mixture"
"""The policy that needs no verdict: other policies are compared with it."""

VERBATIM = (
    "unit",
    "features",
    "feature_version",
    "model",
    "data_hash",
    "sample_cost",
    "max_rounds",
)
"""Fields that are written to JSON as they are."""


@dataclass(frozen=True)
class FrontierPoint:
    """Cost and accuracy of a price on held-out questions, with intervals.

    ``budget`` is the budget that the price is for: the mean cost, or an upper bound of it if the
    calibration asked for one. ``rounds`` is the mean number of rounds per question. Without grades
    the accuracy is None.
    """

    budget: float
    price: float
    cost: float
    cost_low: float
    cost_high: float
    accuracy: float | None
    accuracy_low: float | None
    accuracy_high: float | None
    rounds: float


@dataclass(frozen=True, eq=False)
class Bundle:
    """A policy and the setting that it was trained for.

    ``frontier`` holds the cost and accuracy of each calibrated price, by rising budget, and
    ``pooled_frontier`` those of the policy for questions whose text is not known. ``correctness``
    says how likely answers are right, at calibrated prices.
    ``max_rounds`` is the limit of rounds per question that it was calibrated with, if any.
    ``sample_cost`` is the mean cost of one sample, in the unit. ``data_hash`` is a hash of the
    training data. ``template`` and ``settings`` are what the samples were collected with, None if
    that is not known. ``arms`` says how each arm is sampled, if there are several and it is known.
    """

    policy: Policy
    unit: str = "samples"
    features: str = "paper"
    feature_version: int = 1
    model: str | None = None
    grader: str | None = None
    data_hash: str | None = None
    sample_cost: float = 1.0
    template: Template | None = None
    settings: Settings | None = None
    baseline: Baseline | None = None
    frontier: tuple[FrontierPoint, ...] = ()
    pooled_frontier: tuple[FrontierPoint, ...] = ()
    correctness: Correctness | None = None
    max_rounds: int | None = None
    arms: tuple[ArmSettings, ...] = ()
    notes: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = {str(level.model) for level in self.policy.levels}
        if len(names) > 1 and not self.policy.arms:
            raise BundleError(
                f"levels of several models ({', '.join(sorted(names))}) need a policy over arms: "
                "train one on a run with several arms"
            )

    @property
    def level_cost(self) -> FloatArray:
        """Cost of each level from the start, (1, K), in the unit."""
        levels = self.policy.levels
        n_samples = np.array([level.n_samples for level in levels], dtype=np.float64)
        if self.policy.arms:
            arms = [self.policy.arm_of_level(i) for i in range(len(levels))]
            return np.asarray(n_samples[None, :] * np.array(self.policy.sample_cost)[arms])
        return n_samples[None, :] * self.sample_cost

    @property
    def cheapest_arm(self) -> str | None:
        """Name of the arm whose sample costs least; None if the policy has one arm."""
        if not self.arms or not self.policy.arms:
            return None
        return min(zip(self.policy.sample_cost, self.policy.arms, strict=True))[1]

    @property
    def needs_logprobs(self) -> bool:
        """Whether votes are weighted by the log-probabilities of samples."""
        confidence = self.policy.confidence
        return confidence is not None and any(one in LIKELIHOODS for one in confidence.signals)

    @property
    def max_samples(self) -> int:
        """Number of samples of the largest level, or of all arms together."""
        return self.policy.max_samples

    @property
    def pooled(self) -> Bundle | None:
        """The bundle that decides by the votes alone, at prices that were calibrated for that.

        It is for questions whose text is not known. None if there is none: then the policy itself
        decides by the votes alone, or it is not calibrated, or it cannot.
        """
        policy = self.policy.pooled
        if policy is None or not self.pooled_frontier:
            return None
        return replace(
            self, policy=policy, frontier=self.pooled_frontier, pooled_frontier=(), notes={}
        )

    def verdict(self, budget: float) -> str | None:
        """Return the verdict of the calibration at a budget.

        It is "not judged" at a budget that was not calibrated, and None for a uniform policy, which
        needs none. Where the policy is advised for what it saves, it is the word for that.
        """
        if self.notes.get("policy") == UNIFORM:
            return None
        if self.notes.get("calibration", {}).get("verdict") == SAME_ANSWER:
            return SAME_ANSWER  # whatever the budget is
        found = self._find_calibration(budget)
        return NOT_JUDGED if found is None else name_verdict(found)

    def _find_calibration(self, budget: float) -> dict[str, Any] | None:
        """Return the calibration at a budget; earlier ones of the same policy are kept."""
        known = [self.notes.get("calibration", {}), *self.notes.get("earlier_calibrations", ())]
        for one in known:
            if math.isclose(one.get("budget", math.nan), budget, rel_tol=1e-9):
                return dict(one)
        return None

    @property
    def min_precision(self) -> float | None:
        """How many of the sure answers are right, at least; None without a guarantee."""
        known = (self.notes.get("calibration") or {}).get("precision") or {}
        return known.get("target") if known.get("threshold") is not None else None

    @property
    def min_budget(self) -> float:
        """Smallest budget that the policy can hold: that of its highest price."""
        if not self.frontier:
            raise BundleError(
                "the policy is not calibrated: call ada.calibrate or run 'adacompute fit'"
            )
        return self.frontier[0].budget

    @property
    def calibrated_prices(self) -> list[tuple[float, float]]:
        """Budgets and their prices; the price that was found for a budget is the last of it."""
        known = [self.notes.get("calibration", {}), *self.notes.get("earlier_calibrations", ())]
        found = [(one["budget"], one["price"]) for one in known if {"budget", "price"} <= set(one)]
        return [*((point.budget, point.price) for point in self.frontier), *reversed(found)]

    def price_for(self, budget: float) -> float:
        """Return the price at which the policy spends a budget on average.

        At a budget that was calibrated, it is the price that calibration found; between budgets it
        is interpolated.
        """
        if not budget >= self.min_budget * (1 - 1e-9):  # true for NaN as well
            raise InfeasibleBudget(
                f"a budget of {budget:g} is below {self.min_budget:.6g}, the minimum cost of this "
                "policy"
            )
        if (found := self._find_calibration(budget)) is not None and "price" in found:
            return float(found["price"])
        budgets = np.array([point.budget for point in self.frontier])
        exact = np.flatnonzero(np.isclose(budgets, min(budget, budgets[-1]), rtol=1e-9, atol=0.0))
        if len(exact):
            return self.frontier[int(exact[0])].price
        prices = np.log([point.price for point in self.frontier])
        return float(np.exp(np.interp(budget, budgets, prices)))

    def pooled_price_for(self, budget: float) -> float:
        """Return the price of a budget for questions whose text is not known."""
        if (pooled := self.pooled) is None:
            return self.price_for(budget)
        return pooled.price_for(max(budget, pooled.min_budget))


def name_verdict(calibration: Mapping[str, Any]) -> str:
    """Return the verdict of a calibration; "saves" if it does not gain, but is advised for that."""
    today = calibration.get("today") or {}
    saves = today.get("verdict") == SAVES and today.get("advice") == "policy"
    verdict = str(calibration["verdict"])
    return SAVES if saves and verdict not in ADVISED else verdict


def save_bundle(bundle: Bundle, path: Path) -> str:
    """Write a bundle as a directory and return its digest; an existing bundle is replaced.

    It is written completely or not at all.
    """
    policy, files = policy_to_json(bundle.policy)
    content = {
        "format": FORMAT,
        "policy": policy,
        "files": {name: compute_digest(data) for name, data in files.items()},
        **{name: getattr(bundle, name) for name in VERBATIM},
        "grader": record_grader(bundle.grader),
        "template": None if bundle.template is None else asdict(bundle.template),
        "settings": None if bundle.settings is None else asdict(bundle.settings),
        "baseline": None if bundle.baseline is None else asdict(bundle.baseline),
        "frontier": [asdict(point) for point in bundle.frontier],
        "pooled_frontier": [asdict(point) for point in bundle.pooled_frontier],
        "correctness": None if bundle.correctness is None else bundle.correctness.to_json(),
        "arms": arm_settings.to_json(bundle.arms),
        "notes": bundle.notes,
    }
    document = (json.dumps(content, indent=2) + "\n").encode()
    write_files(path.resolve(), files, document)
    return compute_digest(document)


def load_bundle(path: Path, *, digest: str | None = None) -> Bundle:
    """Read a bundle; raise BundleError if it is damaged or has another version or digest."""
    content = read_document(path, digest=digest)
    version = content.get("format") if isinstance(content, dict) else None
    if version != FORMAT:
        raise BundleError(
            f"{path} has bundle format {version}, this version reads format {FORMAT}: "
            "run 'adacompute fit' again"
        )
    try:
        bundle = _read(path, content)
    except BundleError:
        raise
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise BundleError(
            f"{path / FILE} is damaged ({error}): run 'adacompute fit' again"
        ) from None
    if bundle.feature_version != VERSION:
        raise BundleError(
            f"{path} was trained with version {bundle.feature_version} of the features "
            f"{bundle.features!r}, this is version {VERSION}: run 'adacompute fit' again"
        )
    try:
        feature_names(bundle.features)
    except ConfigError as error:
        raise BundleError(f"{path} cannot be used: {error}") from None
    return bundle


def _read(path: Path, content: dict[str, Any]) -> Bundle:
    hashes = read_entry(content, "files", dict)
    files = {name: read_bundle_file(path, name, digest) for name, digest in hashes.items()}
    template, settings = content["template"], content["settings"]
    policy = policy_from_json(read_entry(content, "policy", dict), files)
    correctness = read_entry(content, "correctness", dict | None)
    return Bundle(
        policy=policy,
        unit=read_entry(content, "unit", str),
        features=read_entry(content, "features", str),
        feature_version=read_entry(content, "feature_version", int),
        model=read_entry(content, "model", str | None),
        grader=record_grader(read_entry(content, "grader", str | None)),
        data_hash=read_entry(content, "data_hash", str | None),
        sample_cost=read_number(content["sample_cost"]),
        max_rounds=read_entry(content, "max_rounds", int | None),
        template=None if template is None else read_template(template),
        settings=None if settings is None else read_settings(settings),
        baseline=read_baseline(read_entry(content, "baseline", dict | None)),
        frontier=_read_frontier(read_entry(content, "frontier", list)),
        pooled_frontier=_read_frontier(read_entry(content, "pooled_frontier", list)),
        correctness=correctness and correctness_from_json(correctness, max(1, len(policy.arms))),
        arms=arm_settings.from_json(read_entry(content, "arms", list)),
        notes=read_entry(content, "notes", dict),
    )


def _read_frontier(points: list[Any]) -> tuple[FrontierPoint, ...]:
    return tuple(
        FrontierPoint(**{name: _read_known(name, value) for name, value in point.items()})
        for point in points
    )


def _read_known(name: str, value: object) -> Any:  # noqa: ANN401 - a number, or None
    """Return a number of a frontier point; only an accuracy may be unknown."""
    return None if value is None and name.startswith("accuracy") else read_number(value)
