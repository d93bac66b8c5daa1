"""Sequential tables: a sequential policy as plain data and as arrays in one file.

The policy for questions without a text is stored beside the others, in tables of one cell. This
module does not know how a policy is fitted or decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from adacompute.core.errors import BundleError
from adacompute.core.states import MAX_SAMPLES, StateMeasure, states
from adacompute.core.types import make_levels
from adacompute.policies.bundle_files import TABLES, unpack_tables
from adacompute.policies.prior import Prior, pooled_prior
from adacompute.policies.sequential import SequentialPolicy
from adacompute.policies.spec import PolicySpec, read_number
from adacompute.storage.array_files import pack_arrays

if TYPE_CHECKING:
    from adacompute.core.types import Float32Array, Level

PRIOR_TABLES = ("mean", "scale", "slope", "cell_centre")
MEASURE_TABLES = ("mass", "correct_mass")
STATE_TABLES = ("break_even_price", *MEASURE_TABLES)
POOLED = "pooled_"
"""Prefix of the tables of the policy for questions without a text."""


def to_spec(policy: SequentialPolicy) -> PolicySpec:
    """Describe the policy as plain data."""
    content = {"round_cost": policy.round_cost}
    return PolicySpec(policy.levels, content, {TABLES: pack_arrays(vote_state_tables(policy))})


def vote_state_tables(policy: SequentialPolicy) -> dict[str, Float32Array]:
    """Return all tables of a policy, with those for questions without a text."""
    tables = {name: getattr(policy.prior, name) for name in PRIOR_TABLES}
    tables |= _state_tables(policy)
    if policy.pooled is not None:
        pooled = _state_tables(policy.pooled)
        tables |= {POOLED + name: array for name, array in pooled.items()}
    return tables


def from_spec(spec: PolicySpec) -> SequentialPolicy:
    """Build the policy from plain data; raise BundleError if the tables do not fit together."""
    arrays = unpack_tables(spec.files[TABLES])
    return _read(arrays, spec.levels, read_number(spec.content["round_cost"]))


def read_vote_states(
    arrays: Mapping[str, Float32Array], prior: Prior, max_samples: int
) -> SequentialPolicy:
    """Build a policy of up to so many samples from its tables, with a prior that is known."""
    whole = {name: getattr(prior, name) for name in PRIOR_TABLES} | dict(arrays)
    if not 1 <= max_samples <= MAX_SAMPLES:
        raise BundleError(f"a table of vote states cannot have {max_samples} samples")
    return _read(whole, make_levels(tuple(range(1, max_samples + 1))), 0.0)


def _read(
    arrays: Mapping[str, Float32Array], levels: tuple[Level, ...], round_cost: float
) -> SequentialPolicy:
    try:
        is_pooled = POOLED + STATE_TABLES[0] not in arrays
        pooled_names = () if is_pooled else tuple(POOLED + name for name in STATE_TABLES)
        table = {
            name: np.asarray(arrays[name], dtype=np.float32)
            for name in (*PRIOR_TABLES, *STATE_TABLES, *pooled_names)
        }
    except BundleError:
        raise
    except (KeyError, ValueError) as error:
        raise BundleError(f"the tables of a sequential policy are damaged ({error})") from None
    if not all(np.isfinite(array).all() for array in table.values()):
        raise BundleError("the tables of a sequential policy contain values that are not finite")
    if not _fits(table, levels):
        raise BundleError(f"the tables of a sequential policy do not fit its {len(levels)} levels")
    prior = Prior(**{name: table[name] for name in PRIOR_TABLES})
    policy = SequentialPolicy(levels, prior, *_read_states(table), round_cost)
    if is_pooled:
        return policy
    own = {name: table[POOLED + name] for name in STATE_TABLES}
    prior = pooled_prior(len(prior.mean))
    pooled = SequentialPolicy(levels, prior, *_read_states(own), round_cost)
    return replace(policy, pooled=pooled)


def _state_tables(policy: SequentialPolicy) -> dict[str, Float32Array]:
    """Return the tables of a policy that have a row per state."""
    tables = {name: getattr(policy.measure, name).astype(np.float32) for name in MEASURE_TABLES}
    return {"break_even_price": policy.break_even_price, **tables}


def _read_states(table: Mapping[str, Float32Array]) -> tuple[Float32Array, StateMeasure]:
    """Return the break-even prices and the measure in tables."""
    measure = StateMeasure(*(table[name].astype(np.float64) for name in MEASURE_TABLES))
    return table["break_even_price"], measure


def _fits(table: dict[str, Float32Array], levels: tuple[Level, ...]) -> bool:
    """Whether tables fit together, and levels are 1, 2, … samples."""
    max_samples = len(levels)
    rising = [level.n_samples for level in levels] == list(range(1, max_samples + 1))
    if not rising or max_samples > MAX_SAMPLES:
        return False
    shape = {name: array.shape for name, array in table.items()}
    n_features, n_cells = len(table["mean"]), len(table["cell_centre"])
    n_states = states().first[max_samples + 1]
    slope = shape["slope"][:1] == (n_features,)
    slope = slope and shape["slope"][1:] == shape["cell_centre"][1:]
    by_state_names = [name for name in table if name not in PRIOR_TABLES]
    fits = all(
        shape[name] == (n_states, 1 if name.startswith(POOLED) else n_cells)
        for name in by_state_names
    )
    return bool(fits and shape["scale"] == (n_features,) and slope and n_cells)
