"""Evidence tables: policies over arms and confidence as plain data and as arrays in one file.

This module does not know how a policy is fitted or decides.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from adacompute.core.errors import BundleError
from adacompute.policies.arm_mixture import ArmMixture
from adacompute.policies.bundle_files import TABLES, unpack_tables
from adacompute.policies.confidence import SIGNALS, Confidence
from adacompute.policies.corrected import CorrectedPolicy
from adacompute.policies.fitted_values import N_CURVES, FittedValues, n_described
from adacompute.policies.fitted_values import TABLES as VALUE_TABLES
from adacompute.policies.price_schedule import PriceSchedule
from adacompute.policies.prior import Prior, pooled_prior
from adacompute.policies.sequential_tables import PRIOR_TABLES, read_vote_states, vote_state_tables
from adacompute.policies.spec import PolicySpec, read_choice, read_entry, read_number, read_numbers
from adacompute.storage.array_files import pack_arrays

if TYPE_CHECKING:
    from collections.abc import Mapping

    from adacompute.core.types import IntArray

POOLED, TABLE, UNIFORM = "pooled_", "table_", "uniform"
"""Prefixes of the tables for questions without a text and of vote states, and a table."""

MAX_POSITIONS = 1 << 12
"""Positions that a bundle can have values of."""


def corrected_to_spec(policy: CorrectedPolicy) -> PolicySpec:
    """Describe the policy as plain data."""
    tables = {name: getattr(policy.prior, name) for name in PRIOR_TABLES}
    tables |= _value_tables(policy)
    if policy.table is not None:
        votes = vote_state_tables(policy.table)
        tables |= {TABLE + name: one for name, one in votes.items() if name not in PRIOR_TABLES}
    if policy.pooled is not None:
        tables |= {POOLED + name: one for name, one in _value_tables(policy.pooled).items()}
    content = {
        "arms": policy.arms,
        "max_samples": policy.max_by_arm,
        "confidence": confidence_to_json(policy.confidence),
        "prices": policy.schedule.prices,
        "arm_cost": policy.sample_cost,
        "table_samples": 0 if policy.table is None else len(policy.table.levels),
    }
    return PolicySpec(policy.levels, content, {TABLES: pack_arrays(tables)})


def _value_tables(policy: CorrectedPolicy) -> dict[str, np.ndarray]:
    """Return the tables that are fitted to the text or to its absence."""
    values = {name: getattr(policy.values, name).astype(np.float32) for name in VALUE_TABLES}
    return {f"value_{name}": one for name, one in values.items()} | {UNIFORM: policy.uniform}


def corrected_from_spec(spec: PolicySpec) -> CorrectedPolicy:
    """Build the policy from plain data; raise BundleError if the tables do not fit together."""
    content = spec.content
    arms = _read_arms(content)
    caps = _read_counts(content["max_samples"])
    if len(caps) != len(arms) or min(caps) < 1 or np.prod([c + 1.0 for c in caps]) > MAX_POSITIONS:
        raise BundleError(f"the arms {', '.join(arms)} cannot have {list(caps)} samples")
    if len(spec.levels) != sum(caps):
        raise BundleError("the levels of a sequential policy do not fit its arms")
    table = unpack_tables(spec.files[TABLES])
    if not all(np.isfinite(one).all() for one in table.values()):
        raise BundleError("the tables of a sequential policy contain values that are not finite")
    prior = Prior(**{name: table[name].astype(np.float32) for name in PRIOR_TABLES})
    if not _fits_together(prior):
        raise BundleError("the text of a sequential policy does not fit its cells")
    schedule = PriceSchedule(read_numbers(content["prices"]))
    n_table = read_entry(content, "table_samples", int)
    votes = None
    if n_table and len(arms) > 1:
        raise BundleError("a table of vote states is of one arm")
    if n_table:
        own = {
            name.removeprefix(TABLE): one for name, one in table.items() if name.startswith(TABLE)
        }
        votes = read_vote_states(own, prior, n_table)
    known: dict[str, Any] = {
        "arms": arms,
        "levels": spec.levels,
        "confidence": confidence_from_json(content["confidence"], len(arms)),
        "schedule": schedule,
        "sample_cost": _read_costs(content, arms),
    }
    pooled = None
    if POOLED + UNIFORM in table:
        none = pooled_prior(len(prior.mean))
        pooled = CorrectedPolicy(
            **known,
            prior=none,
            **_read_values(table, POOLED, caps, none, len(schedule.prices)),
            table=None if votes is None else votes.pooled or replace(votes, pooled=None),
        )
    own_values = _read_values(table, "", caps, prior, len(schedule.prices))
    return CorrectedPolicy(**known, prior=prior, **own_values, table=votes, pooled=pooled)


def _fits_together(prior: Prior) -> bool:
    """Whether the tables of a prior have shapes that fit, and there is a cell."""
    shape, centre = prior.mean.shape, prior.cell_centre.shape
    return (
        len(shape) == 1
        and prior.scale.shape == shape
        and len(centre) == 2  # noqa: PLR2004 - cells and predictions
        and centre[0] > 0
        and prior.slope.shape == (*shape, centre[1])
    )


def _read_values(
    table: Mapping[str, Any], prefix: str, caps: tuple[int, ...], prior: Prior, n_prices: int
) -> dict[str, Any]:
    """Return the fitted values and the uniform choices in tables."""
    found = {name: table[f"{prefix}value_{name}"].astype(np.float64) for name in VALUE_TABLES}
    values = FittedValues(caps, **found)
    n_numbers = n_described(len(caps), prior.cell_centre.shape[1])
    size, n_positions = n_numbers + N_CURVES, len(values.grid)
    shapes = {
        "chance_mean": (n_positions, n_numbers),
        "chance_scale": (n_positions, n_numbers),
        "chance": (n_positions, 1 + n_numbers),
        "mean": (n_positions, size),
        "scale": (n_positions, size),
        "advantage": (n_positions, len(caps), 1 + size, n_prices),
    }
    uniform = table[prefix + UNIFORM]
    fits = all(one.shape == shapes[name] for name, one in found.items())
    if not fits or uniform.shape != (n_prices, 2) or not _are_choices(uniform, caps):
        raise BundleError("the tables of a sequential policy do not fit its arms and prices")
    return {"values": values, "uniform": uniform.astype(np.int64)}


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


_SIGNAL_TABLES = ("mean", "scale", "slope", "weight_slope")
_ARM_TABLES = ("intercept", "weight_intercept")


def confidence_to_json(confidence: Confidence) -> dict[str, Any]:
    """Return a confidence model as JSON values."""
    tables = (*_SIGNAL_TABLES, *_ARM_TABLES)
    found = {name: getattr(confidence, name).tolist() for name in tables}
    return {"signals": confidence.signals, **found}


def confidence_from_json(content: Mapping[str, Any], n_arms: int) -> Confidence:
    """Build a confidence model from JSON values."""
    signals = tuple(read_choice(SIGNALS, name) for name in content["signals"])
    tables = {
        name: np.array([read_numbers(row) for row in content[name]]).reshape(n_arms, len(signals))
        for name in _SIGNAL_TABLES
    }
    by_arm = {name: np.array(read_numbers(content[name])) for name in _ARM_TABLES}
    if any(len(one) != n_arms for one in by_arm.values()):
        raise BundleError(f"the confidence of samples is not that of {n_arms} arms")
    return Confidence(signals, **tables, **by_arm)


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
    return tuple(int(read_number(value)) for value in values)


def _are_choices(uniform: IntArray, caps: tuple[int, ...]) -> bool:
    """Whether a table holds arms and numbers of their samples."""
    if uniform.dtype.kind != "i":
        return False
    arm, count = uniform.T
    in_range = (arm >= 0) & (arm < len(caps)) & (count >= 0)
    return bool(in_range.all()) and bool((count <= np.array(caps)[arm]).all())
