"""Sequential tables: a sequential policy as plain data and as arrays in one file.

The policy for questions without a text is stored beside the other, in tables of one cell. This
module does not know how a policy is fitted or decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from adacompute.core.errors import BundleError
from adacompute.core.states import MAX_SAMPLES, StateMeasure, states
from adacompute.core.types import MAX_LEVEL
from adacompute.policies.bundles.bundle_files import TABLES, unpack_tables
from adacompute.policies.bundles.evidence_tables import (
    confidence_from_json,
    confidence_to_json,
    read_arms,
    read_costs,
)
from adacompute.policies.price_schedule import PriceSchedule
from adacompute.policies.sequential.arm_samples import Grid
from adacompute.policies.sequential.fitted_values import TABLES as VALUE_TABLES
from adacompute.policies.sequential.fitted_values import (
    FittedValues,
    RoundLimits,
    n_described,
    table_shapes,
)
from adacompute.policies.sequential.policy import SequentialPolicy
from adacompute.policies.sequential.prior import Prior, pooled_prior
from adacompute.policies.sequential.vote_table import VoteTable
from adacompute.policies.spec import PolicySpec, read_entry, read_number, read_numbers
from adacompute.storage.array_files import pack_arrays

if TYPE_CHECKING:
    from adacompute.core.types import IntArray

PRIOR_TABLES = ("mean", "scale", "slope", "cell_centre")
STATE_TABLES = ("break_even_price", "mass", "correct_mass")
UNIFORM, VALUE = "uniform", "value_"
POOLED = "pooled_"
"""Prefix of the tables of the policy for questions without a text."""

MAX_POSITIONS, MAX_PRICES = 1 << 12, 256
"""Positions and prices that a bundle can have values of."""

Tables = Mapping[str, Any]


def to_spec(policy: SequentialPolicy) -> PolicySpec:
    """Describe the policy as plain data."""
    tables = {name: getattr(policy.prior, name) for name in PRIOR_TABLES} | _own_tables(policy)
    if policy.pooled is not None:
        tables |= {POOLED + name: one for name, one in _own_tables(policy.pooled).items()}
    content: dict[str, Any] = {"table_samples": 0, "values": None}
    if policy.table is not None:
        table = policy.table
        content |= {"table_samples": table.n_samples, "round_cost": table.round_cost}
    if policy.values is not None and policy.confidence is not None and policy.schedule is not None:
        content["values"] = {
            "arms": policy.arms,
            "max_samples": policy.max_by_arm,
            "max_rounds": policy.values.rounds.limit,
            "round_cost": policy.values.rounds.cost,
            "confidence": confidence_to_json(policy.confidence),
            "prices": policy.schedule.prices,
            "arm_cost": policy.sample_cost,
        }
    return PolicySpec(policy.levels, content, {TABLES: pack_arrays(tables)})


def _own_tables(policy: SequentialPolicy) -> dict[str, np.ndarray]:
    """Return the tables that are fitted to the text or to its absence, in single precision."""
    tables: dict[str, np.ndarray] = {}
    if (table := policy.table) is not None:
        own = (table.break_even_price, table.measure.mass, table.measure.correct_mass)
        for name, one in zip(STATE_TABLES, own, strict=True):
            tables[name] = np.asarray(one, dtype=np.float32)
    if policy.values is not None and policy.uniform is not None:
        values = {name: getattr(policy.values, name) for name in VALUE_TABLES}
        tables |= {VALUE + name: one.astype(np.float32) for name, one in values.items()}
        tables[UNIFORM] = policy.uniform
    return tables


def from_spec(spec: PolicySpec) -> SequentialPolicy:
    """Build the policy from plain data; raise BundleError if the tables do not fit together."""
    tables = unpack_tables(spec.files[TABLES])
    try:
        return _read(tables, spec)
    except BundleError:
        raise
    except (KeyError, ValueError) as error:
        raise BundleError(f"the tables of a sequential policy are damaged ({error})") from None


def _read(tables: Tables, spec: PolicySpec) -> SequentialPolicy:
    """Build the policy from its tables."""
    if not all(np.isfinite(one).all() for one in tables.values()):
        raise BundleError("the tables of a sequential policy contain values that are not finite")
    prior = Prior(**{name: tables[name].astype(np.float32) for name in PRIOR_TABLES})
    if not _fits_together(prior):
        raise BundleError("the text of a sequential policy does not fit its cells")
    known: dict[str, Any] = {"levels": spec.levels}
    n_table, values, rounds = read_entry(spec.content, "table_samples", int), None, RoundLimits()
    if not 0 <= n_table <= MAX_SAMPLES:
        raise BundleError(f"a table of vote states cannot have {n_table} samples")
    if (content := read_entry(spec.content, "values", dict | None)) is not None:
        values = _Values.read(content, spec)
        known |= values.known
        rounds = values.rounds
    elif not n_table or [level.n_samples for level in spec.levels] != list(range(1, n_table + 1)):
        raise BundleError(f"a table of {n_table} samples does not fit {len(spec.levels)} levels")
    if values is not None and n_table and (len(values.caps) > 1 or not rounds.are_free):
        raise BundleError("a table of vote states is of single samples of one arm")

    def build(prefix: str, own: Prior) -> SequentialPolicy:
        parts = {} if values is None else values.read_tables(tables, prefix, own)
        if n_table:
            cost = read_number(spec.content["round_cost"])
            parts["table"] = _read_vote_table(tables, prefix, len(own.cell_centre), n_table, cost)
        return SequentialPolicy(prior=own, **known, **parts)

    policy = build("", prior)
    if any(name.startswith(POOLED) for name in tables):
        policy = replace(policy, pooled=build(POOLED, pooled_prior(len(prior.mean))))
    return policy


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


def _read_vote_table(
    tables: Tables, prefix: str, n_cells: int, n_samples: int, round_cost: float
) -> VoteTable:
    """Return the table of vote states of up to so many samples."""
    found = [tables[prefix + name].astype(np.float32) for name in STATE_TABLES]
    shape = int(states().first[n_samples + 1]), n_cells
    if any(one.shape != shape for one in found):
        raise BundleError(f"the tables of a sequential policy do not fit its {n_samples} samples")
    measure = StateMeasure(*(one.astype(np.float64) for one in found[1:]))
    return VoteTable(found[0], measure, round_cost)


class _Values(NamedTuple):
    """What was stored with fitted values, and how their tables are read."""

    caps: tuple[int, ...]
    rounds: RoundLimits
    known: dict[str, Any]

    @staticmethod
    def read(content: Mapping[str, Any], spec: PolicySpec) -> _Values:
        """Read the plain data of fitted values."""
        arms = read_arms(content)
        caps = tuple(int(read_number(value)) for value in content["max_samples"])
        can_be = len(caps) == len(arms) and min(caps) >= 1 and max(caps) <= MAX_LEVEL
        if not can_be or len(Grid(caps)) > MAX_POSITIONS:
            raise BundleError(f"the arms {', '.join(arms)} cannot have {list(caps)} samples")
        if [level.n_samples for level in spec.levels] != [
            n for counts in Grid(caps).by_arm for n in counts[1:]
        ]:
            raise BundleError("the levels of a sequential policy do not fit its arms")
        prices = read_numbers(content["prices"])
        if len(prices) > MAX_PRICES:
            raise BundleError(f"a policy has at most {MAX_PRICES} prices, not {len(prices)}")
        limit = read_entry(content, "max_rounds", int | None)
        if limit is not None and limit < 1:
            raise BundleError(f"a policy cannot be for {limit} rounds")
        known = {
            "arms": arms,
            "confidence": confidence_from_json(content["confidence"], len(arms)),
            "schedule": PriceSchedule(prices),
            "sample_cost": read_costs(content, arms),
        }
        return _Values(caps, RoundLimits(limit, read_number(content["round_cost"])), known)

    def read_tables(self, tables: Tables, prefix: str, prior: Prior) -> dict[str, Any]:
        """Return the fitted values and the uniform choices in tables."""
        n_prices, grid = len(self.known["schedule"].prices), Grid(self.caps)
        n_numbers = n_described(len(self.caps), prior.cell_centre.shape[1])
        shapes = table_shapes(grid, self.rounds, n_numbers, n_prices)
        found = {name: tables[prefix + VALUE + name] for name in VALUE_TABLES}
        uniform = tables[prefix + UNIFORM]
        fits = all(one.shape == shapes[name] for name, one in found.items())
        if not fits or uniform.shape != (n_prices, 2) or not _are_choices(uniform, grid):
            raise BundleError("the tables of a sequential policy do not fit its arms and prices")
        found = {name: one.astype(np.float64) for name, one in found.items()}
        values = FittedValues(self.caps, self.rounds, **found)
        return {"values": values, "uniform": uniform.astype(np.int64)}


def _are_choices(uniform: IntArray, grid: Grid) -> bool:
    """Whether a table holds arms and numbers of their samples."""
    if uniform.dtype.kind != "i":
        return False
    n_arms = len(grid.by_arm)
    return all(0 <= arm < n_arms and n in grid.by_arm[arm] for arm, n in uniform.tolist())
