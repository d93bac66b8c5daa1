"""Arm policies: bundles over arms, for tests of how a gateway samples them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from adacompute.core.coloured_states import Colours, coloured_states
from adacompute.core.types import Level
from adacompute.models.messages import Settings
from adacompute.models.templates import Template
from adacompute.policies.arm_settings import ArmSettings
from adacompute.policies.bundle import Bundle, FrontierPoint, save_bundle
from adacompute.policies.coloured import ColouredPolicy
from adacompute.policies.confidence import Confidence
from adacompute.policies.price_schedule import PriceSchedule
from adacompute.policies.prior import pooled_prior

FRONTIER = (FrontierPoint(2.0, 0.1, 2.0, 2.0, 2.0, 0.5, 0.4, 0.6, 1.0),)
QUICK = ArmSettings("quick", "small", Template("{question}"), Settings(effort="low"))
CAREFUL = ArmSettings(
    "careful",
    "large",
    Template("Think step by step. {question}"),
    Settings(effort="high", extra={"verbosity": "high"}),
)


def escalating_policy() -> ColouredPolicy:
    """Sample the first arm once, and then the second."""
    colours = Colours((1, 1), (1, 1))
    states = coloured_states(colours)
    action: Any = np.zeros((1, len(states), 1), dtype=np.int8)
    action[0, states.n_by_arm.sum(axis=1) == 0] = 1
    only_first = (states.n_by_arm == [1, 0]).all(axis=1)
    action[0, only_first] = 2
    return ColouredPolicy(
        arms=("quick", "careful"),
        levels=(Level("quick × 1", 1, "quick"), Level("careful × 1", 1, "careful")),
        colours=colours,
        confidence=Confidence(
            (),
            *(np.zeros((2, 0)),) * 3,
            intercept=np.array([0.0, 2.0]),
            cuts=((), ()),
            power=4.0,
        ),
        prior=pooled_prior(0),
        schedule=PriceSchedule((0.1,)),
        action=action,
        sample_cost=(1.0, 5.0),
    )


def save_arms(policy: Any, path: Path, **fields: Any) -> Path:  # noqa: ANN401 - of a bundle
    """Save a bundle that needs no verdict."""
    known: dict[str, Any] = {"frontier": FRONTIER, "notes": {"policy": "mixture"}, **fields}
    save_bundle(Bundle(policy, **known), path)
    return path
