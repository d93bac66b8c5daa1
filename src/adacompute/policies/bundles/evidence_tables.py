"""Evidence tables: arms, the confidence of samples and mixtures over arms as plain data.

This module does not know how a policy is fitted or decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from adacompute.core.errors import BundleError
from adacompute.core.signals import MAX_GIVEN, is_given
from adacompute.policies.arm_mixture import ArmMixture
from adacompute.policies.confidence import SIGNALS, Confidence
from adacompute.policies.price_schedule import PriceSchedule
from adacompute.policies.spec import PolicySpec, read_entry, read_numbers

if TYPE_CHECKING:
    from collections.abc import Mapping


def mixture_to_spec(policy: ArmMixture) -> PolicySpec:
    """Describe the policy as plain data."""
    content = {
        "arms": policy.arms,
        "choices": policy.choices,
        "confidence": confidence_to_json(policy.confidence),
        "prices": policy.schedule.prices,
        "arm_cost": policy.sample_cost,
    }
    return PolicySpec(policy.levels, content)


def mixture_from_spec(spec: PolicySpec) -> ArmMixture:
    """Build the policy from plain data."""
    content = spec.content
    arms, prices = read_arms(content), read_numbers(content["prices"])
    choices = tuple((int(arm), int(n)) for arm, n in content["choices"])
    if len(choices) != len(prices) or not all(
        0 <= arm < len(arms) and n >= 1 for arm, n in choices
    ):
        raise BundleError("the choices of a mixture do not fit its arms and prices")
    return ArmMixture(
        arms=arms,
        choices=choices,
        schedule=PriceSchedule(prices),
        confidence=confidence_from_json(content["confidence"], len(arms)),
        sample_cost=read_costs(content, arms),
    )


MAX_SIGNALS = len(SIGNALS) + 1 + MAX_GIVEN

_SIGNAL_TABLES = ("mean", "scale", "slope", "weight_slope")
_ARM_TABLES = ("intercept", "weight_intercept")


def confidence_to_json(confidence: Confidence) -> dict[str, Any]:
    """Return a confidence model as JSON values."""
    tables = (*_SIGNAL_TABLES, *_ARM_TABLES)
    found = {name: getattr(confidence, name).tolist() for name in tables}
    return {"signals": confidence.signals, **found}


def confidence_from_json(content: Mapping[str, Any], n_arms: int) -> Confidence:
    """Build a confidence model from JSON values."""
    signals = tuple(read_entry(content, "signals", list))
    are_known = all(name in SIGNALS or is_given(name) for name in signals)
    if not are_known or len(set(signals)) < len(signals) or len(signals) > MAX_SIGNALS:
        raise BundleError(
            f"signals must have different known names, at most {MAX_SIGNALS}, got "
            f"{str(list(signals))[:200]}"
        )
    tables = {
        name: np.array([read_numbers(row) for row in content[name]]).reshape(n_arms, len(signals))
        for name in _SIGNAL_TABLES
    }
    by_arm = {name: np.array(read_numbers(content[name])) for name in _ARM_TABLES}
    if any(len(one) != n_arms for one in by_arm.values()):
        raise BundleError(f"the confidence of samples is not that of {n_arms} arms")
    return Confidence(signals, **tables, **by_arm)


def read_arms(content: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of arms, which must differ."""
    arms = tuple(read_entry(content, "arms", list))
    if not arms or not all(isinstance(arm, str) for arm in arms) or len(set(arms)) != len(arms):
        raise BundleError(f"arms must have different names, got {list(arms)}")
    return arms


def read_costs(content: Mapping[str, Any], arms: tuple[str, ...]) -> tuple[float, ...]:
    """Return the mean cost of a sample of each arm."""
    costs = read_numbers(content["arm_cost"])
    if len(costs) != len(arms) or not min(costs) > 0:
        raise BundleError(f"{len(arms)} arms need as many costs above 0, got {list(costs)}")
    return costs
