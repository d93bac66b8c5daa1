"""Arm policies: bundles over arms, for tests of how a gateway samples them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from adacompute.core.types import Level
from adacompute.models.messages import Settings
from adacompute.models.templates import Template
from adacompute.policies.bundles.arm_settings import ArmSettings
from adacompute.policies.bundles.bundle import Bundle, FrontierPoint, save_bundle
from adacompute.policies.confidence import Confidence
from adacompute.policies.price_schedule import PriceSchedule
from adacompute.policies.sequential.arm_samples import Grid
from adacompute.policies.sequential.fitted_values import (
    FREE,
    FittedValues,
    n_described,
    table_shapes,
)
from adacompute.policies.sequential.policy import SequentialPolicy
from adacompute.policies.sequential.prior import pooled_prior

FRONTIER = (FrontierPoint(2.0, 0.1, 2.0, 2.0, 2.0, 0.5, 0.4, 0.6, 1.0),)
QUICK = ArmSettings("quick", "small", Template("{question}"), Settings(effort="low"))
CAREFUL = ArmSettings(
    "careful",
    "large",
    Template("Think step by step. {question}"),
    Settings(effort="high", extra={"verbosity": "high"}),
)


def escalating_policy() -> SequentialPolicy:
    """Sample the first arm once, and then the second, whose sample has more weight."""
    return make_policy(constant_values((1, 1), {(0, 0): (1.0, -1.0), (1, 0): (-1.0, 1.0)}))


def uniform_policy(count: int) -> SequentialPolicy:
    """Sample the second arm so many times, and the first not at all."""
    return make_policy(constant_values((2, count), {}), uniform=(1, count))


def make_policy(values: FittedValues, uniform: tuple[int, int] = (0, 0)) -> SequentialPolicy:
    """Return a policy over two arms, at one price and without texts."""
    arms = ("quick", "careful")
    levels = [
        Level(f"{arm} × {n}", n, arm)
        for arm, cap in zip(arms, values.max_samples, strict=True)
        for n in range(1, cap + 1)
    ]
    return SequentialPolicy(
        arms=arms,
        levels=tuple(levels),
        confidence=weighted_confidence(0.0, 2.0),
        prior=pooled_prior(0),
        schedule=PriceSchedule((0.1,)),
        values=values,
        uniform=np.array([uniform]),
        sample_cost=(1.0, 5.0),
    )


def weighted_confidence(*log_weight: float) -> Confidence:
    """Return the confidence in which a sample of each arm has the same weight, given as its log."""
    none, weight = np.zeros((len(log_weight), 0)), np.array(log_weight)
    return Confidence((), none, none, none, weight * 0.0, none, weight)


def constant_values(
    caps: tuple[int, ...], advantage: Mapping[tuple[int, ...], Sequence[float]]
) -> FittedValues:
    """Return values that depend on the position alone, at one price.

    ``advantage`` holds that of one more sample of each arm by the samples of each arm; it is −1
    where none is given.
    """
    grid = Grid(caps)
    shapes = table_shapes(grid, FREE, n_described(len(caps), 0), 1)
    tables: dict[str, Any] = {name: np.zeros(shape) for name, shape in shapes.items()}
    for position, counts in enumerate(grid.counts.tolist()):
        found = advantage.get(tuple(counts), (-1.0,) * len(caps))
        tables["advantage"][0, position, :, 0] = np.array(found)[:, None]
    return FittedValues(caps, FREE, **tables)


def save_arms(policy: Any, path: Path, **fields: Any) -> Path:  # noqa: ANN401 - of a bundle
    """Save a bundle that needs no verdict."""
    known: dict[str, Any] = {"frontier": FRONTIER, "notes": {"policy": "mixture"}, **fields}
    save_bundle(Bundle(policy, **known), path)
    return path
