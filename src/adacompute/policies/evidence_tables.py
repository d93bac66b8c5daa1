"""Evidence tables: policies over arms and confidence as plain data and as arrays in one file.

The states of a plan follow from the numbers of samples and bins of the arms, so only the actions
are stored. This module does not know how a policy is fitted or decides.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from adacompute.core.coloured_states import Colours, coloured_states
from adacompute.core.errors import BundleError, DataError
from adacompute.policies.arm_mixture import ArmMixture
from adacompute.policies.bundle_files import TABLES, unpack_tables
from adacompute.policies.coloured import ColouredPolicy
from adacompute.policies.confidence import SIGNALS, Confidence
from adacompute.policies.price_schedule import PriceSchedule
from adacompute.policies.prior import Prior, pooled_prior
from adacompute.policies.sequential_tables import PRIOR_TABLES
from adacompute.policies.spec import PolicySpec, read_choice, read_entry, read_number, read_numbers
from adacompute.storage.array_files import pack_arrays

if TYPE_CHECKING:
    from collections.abc import Mapping

    from adacompute.core.types import IntArray

ACTION, POOLED_ACTION = "action", "pooled_action"


def coloured_to_spec(policy: ColouredPolicy) -> PolicySpec:
    """Describe the policy as plain data."""
    tables = {name: getattr(policy.prior, name) for name in PRIOR_TABLES}
    tables[ACTION] = policy.action
    if policy.pooled is not None:
        tables[POOLED_ACTION] = policy.pooled.action
    content = {
        "arms": policy.arms,
        "max_samples": policy.colours.max_samples,
        "n_bins": policy.colours.n_bins,
        "confidence": confidence_to_json(policy.confidence),
        "prices": policy.schedule.prices,
        "arm_cost": policy.sample_cost,
    }
    return PolicySpec(policy.levels, content, {TABLES: pack_arrays(tables)})


def coloured_from_spec(spec: PolicySpec) -> ColouredPolicy:
    """Build the policy from plain data; raise BundleError if the tables do not fit together."""
    content = spec.content
    arms = _read_arms(content)
    try:
        colours = Colours(_read_counts(content["max_samples"]), _read_counts(content["n_bins"]))
        table = unpack_tables(spec.files[TABLES])
        n_states = len(coloured_states(colours))
    except BundleError:
        raise
    except DataError as error:
        raise BundleError(f"the states of a sequential policy cannot be listed: {error}") from None
    prior = Prior(**{name: table[name].astype(np.float32) for name in PRIOR_TABLES})
    schedule = PriceSchedule(read_numbers(content["prices"]))
    confidence = confidence_from_json(content["confidence"], len(arms))
    shape = (len(schedule.prices), n_states, len(prior.cell_centre))
    costs = _read_costs(content, arms)
    n_levels = sum(colours.max_samples)
    fits = (
        table[ACTION].shape == shape
        and _are_actions(table[ACTION], len(arms))
        and colours.n_arms == len(arms)
        and colours.n_bins == confidence.n_bins
        and n_levels == len(spec.levels)
        and prior.slope.shape == (len(prior.mean), prior.cell_centre.shape[1])
    )
    if not fits:
        raise BundleError("the tables of a sequential policy do not fit its arms and levels")
    known: dict[str, Any] = {"colours": colours, "confidence": confidence, "schedule": schedule}
    policy = ColouredPolicy(
        arms, spec.levels, prior=prior, action=table[ACTION], sample_cost=costs, **known
    )
    pooled = table.get(POOLED_ACTION)
    if pooled is None:
        return policy
    if pooled.shape != (*shape[:2], 1) or not _are_actions(pooled, len(arms)):
        raise BundleError("the tables for questions without a text do not fit the policy")
    alone = replace(policy, prior=pooled_prior(len(prior.mean)), action=pooled)
    return replace(policy, pooled=alone)


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
    arms = _read_arms(content)
    choices = tuple((int(arm), int(n)) for arm, n in content["choices"])
    schedule = PriceSchedule(read_numbers(content["prices"]))
    if len(choices) != len(schedule.prices) or not all(
        0 <= arm < len(arms) and n >= 1 for arm, n in choices
    ):
        raise BundleError("the choices of a mixture do not fit its arms and prices")
    confidence = confidence_from_json(content["confidence"], len(arms))
    return ArmMixture(arms, choices, schedule, confidence, _read_costs(content, arms))


def confidence_to_json(confidence: Confidence) -> dict[str, Any]:
    """Return a confidence model as JSON values."""
    return {
        "signals": confidence.signals,
        **{name: getattr(confidence, name).tolist() for name in _CONFIDENCE_TABLES},
        "cuts": confidence.cuts,
        "power": confidence.power,
    }


_CONFIDENCE_TABLES = ("mean", "scale", "slope", "intercept")


def confidence_from_json(content: Mapping[str, Any], n_arms: int) -> Confidence:
    """Build a confidence model from JSON values."""
    signals = tuple(read_choice(SIGNALS, name) for name in content["signals"])
    shape = (n_arms, len(signals))
    tables = [
        np.array([read_numbers(row) for row in content[name]]).reshape(shape)
        for name in _CONFIDENCE_TABLES[:3]
    ]
    intercept = np.array(read_numbers(content["intercept"]))
    cuts = tuple(read_numbers(row) for row in content["cuts"])
    if len(intercept) != n_arms or len(cuts) != n_arms:
        raise BundleError(f"the confidence of samples is not that of {n_arms} arms")
    power = read_number(content["power"])
    return Confidence(signals, tables[0], tables[1], tables[2], intercept, cuts, power)


def _read_arms(content: Mapping[str, Any]) -> tuple[str, ...]:
    arms = tuple(read_entry(content, "arms", list))
    if not arms or not all(isinstance(arm, str) for arm in arms) or len(set(arms)) != len(arms):
        raise BundleError(f"arms must have different names, got {list(arms)}")
    return arms


def _read_costs(content: Mapping[str, Any], arms: tuple[str, ...]) -> tuple[float, ...]:
    costs = read_numbers(content["arm_cost"])
    if len(costs) != len(arms) or not min(costs) > 0:
        raise BundleError(f"{len(arms)} arms need as many costs above 0, got {list(costs)}")
    return costs


def _read_counts(values: list[Any]) -> tuple[int, ...]:
    return tuple(int(value) for value in read_numbers(values))


def _are_actions(action: IntArray, n_arms: int) -> bool:
    """Whether a table holds actions: integers from 0 to the number of arms."""
    return action.dtype == np.int8 and bool(((action >= 0) & (action <= n_arms)).all())
