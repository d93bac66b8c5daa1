"""Sequential tables: a sequential policy as plain data and as arrays in one file.

The policy for questions without a text is stored beside the others, in tables of one cell. This
module does not know how a policy is fitted or decides.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from adacompute.core.errors import BundleError
from adacompute.core.states import MAX_SAMPLES, StateMeasure, states
from adacompute.policies.policy import answers_alone
from adacompute.policies.prior import Prior, pooled_prior
from adacompute.policies.sequential import SequentialPolicy
from adacompute.policies.spec import PolicySpec, read_number

if TYPE_CHECKING:
    from adacompute.core.types import Float32Array, Level

TABLES = "tables.npz"
"""File of a bundle that holds the tables of a sequential policy."""

PRIOR_TABLES = ("mean", "scale", "slope", "cell_centre")
MEASURE_TABLES = ("mass", "correct_mass")
STATE_TABLES = ("break_even_price", *MEASURE_TABLES)
POOLED = "pooled_"
"""Prefix of the tables of the policy for questions without a text."""


def to_spec(policy: SequentialPolicy) -> PolicySpec:
    """Describe the policy as plain data."""
    tables = {name: getattr(policy.prior, name) for name in PRIOR_TABLES}
    tables |= _state_tables(policy)
    if policy.pooled is not None:
        pooled = _state_tables(policy.pooled)
        tables |= {POOLED + name: array for name, array in pooled.items()}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **tables)
    content = {"round_cost": policy.round_cost, "resort_cost": policy.resort_cost}
    return PolicySpec(policy.levels, content, {TABLES: buffer.getvalue()})


def from_spec(spec: PolicySpec) -> SequentialPolicy:
    """Build the policy from plain data; raise BundleError if the tables do not fit together."""
    levels = spec.levels
    round_cost, resort_cost = (read_number(spec.content[n]) for n in ("round_cost", "resort_cost"))
    has_resort = bool(answers_alone(levels).any())
    names = (*STATE_TABLES, "resort") if has_resort else STATE_TABLES
    try:
        with np.load(io.BytesIO(spec.files[TABLES]), allow_pickle=False) as arrays:
            is_pooled = POOLED + STATE_TABLES[0] not in arrays.files
            pooled_names = () if is_pooled else tuple(POOLED + name for name in names)
            table = {
                name: np.asarray(arrays[name], dtype=np.float32)
                for name in (*PRIOR_TABLES, *names, *pooled_names)
            }
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise BundleError(f"the tables of a sequential policy are damaged ({error})") from None
    if not all(np.isfinite(array).all() for array in table.values()):
        raise BundleError("the tables of a sequential policy contain values that are not finite")
    if not _fits(table, levels):
        raise BundleError(f"the tables of a sequential policy do not fit its {len(levels)} levels")
    if has_resort and not resort_cost > 0:
        raise BundleError(
            f"a last resort cannot cost {resort_cost} samples: train the policy again"
        )
    prior = Prior(**{name: table[name] for name in PRIOR_TABLES})
    known: dict[str, Any] = {"round_cost": round_cost, "resort_cost": resort_cost}
    policy = SequentialPolicy(levels, prior, *_read_states(table, names), **known)
    if is_pooled:
        return policy
    own = {name: table[POOLED + name] for name in names}
    prior = pooled_prior(len(prior.mean))
    pooled = SequentialPolicy(levels, prior, *_read_states(own, names), **known)
    return replace(policy, pooled=pooled)


def _state_tables(policy: SequentialPolicy) -> dict[str, Float32Array]:
    """Return the tables of a policy that have a row per state."""
    tables = {name: getattr(policy.measure, name).astype(np.float32) for name in MEASURE_TABLES}
    if policy.measure.resort is not None:
        tables["resort"] = policy.measure.resort.astype(np.float32)
    return {"break_even_price": policy.break_even_price, **tables}


def _read_states(
    table: Mapping[str, Float32Array], names: Sequence[str]
) -> tuple[Float32Array, StateMeasure]:
    """Return the break-even prices and the measure in tables."""
    measure = StateMeasure(
        **{name: table[name].astype(np.float64) for name in names if name != "break_even_price"}
    )
    return table["break_even_price"], measure


def _fits(table: dict[str, Float32Array], levels: tuple[Level, ...]) -> bool:
    """Whether tables fit together, and levels are 1, 2, … samples with at most one resort."""
    n_resorts = int(answers_alone(levels).sum())
    max_samples = len(levels) - n_resorts
    own = levels[:max_samples]
    rising = [level.n_samples for level in own] == list(range(1, max_samples + 1))
    if n_resorts > 1 or answers_alone(own).any() or not rising or max_samples > MAX_SAMPLES:
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
