"""Draft router: the paper's router, deciding after one sample, which it uses as a draft.

Every question gets one sample first. Its uncertainty is the feature ``entropy_estimate``. The
router then chooses a level, and the draft is the first of its samples: it costs nothing extra, and
it is paid for. The policy does not know how its models were fitted.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from adacompute.core.errors import BundleError, ConfigError
from adacompute.core.types import Float32Array, FloatArray, IntArray, Level, UtilityTable
from adacompute.features.draft import ENTROPY, SURPRISE, DraftSource
from adacompute.policies.policy import Policy, PreparedKind, State
from adacompute.policies.router import (
    RouterPolicy,
    RouterTraining,
    fit_router,
    router_from_spec,
    router_to_spec,
)
from adacompute.policies.spec import PolicySpec, read_entry


@dataclass(frozen=True, eq=False)
class DraftRouterPolicy(RouterPolicy):
    """Classifiers of the oracle's levels that see the uncertainty of the first sample.

    ``column`` is the feature that holds it, and ``default`` its mean over the training questions,
    for drafts of which it is not known.
    """

    name = "draft-router"
    prepared = PreparedKind.NOTHING
    first_needs_key = False
    decides_once = False
    first_levels = Policy.first_levels
    draft: DraftSource = field()
    column: int
    default: float

    def prepare_plan(self, features: Float32Array) -> Float32Array:
        """Keep nothing: the first action is one sample of any question."""
        return features[:, :0]

    def decide(self, state: State, price: float) -> IntArray:
        """Take one sample, and then the level with the highest score of the classifier."""
        level = np.maximum(state.level, 0)
        drafted = np.flatnonzero(state.level == 0)
        if len(drafted):
            features = state.features[drafted].copy()
            features[:, self.column] = self._read_drafts(state.take(drafted))
            level[drafted] = self.select_levels(price, state.key[drafted], features)
        return level

    def _read_drafts(self, state: State) -> FloatArray:
        """Return the uncertainty of the first sample of each question."""
        known = state.observed.samples.uncertainty
        if known is None:
            return np.full(len(state), self.default)
        first = known[state.observed.row, 0]
        return np.where(np.isnan(first), self.default, first)


@dataclass(frozen=True, eq=False)
class Drafts:
    """The uncertainty of one sample of each question, (N,), and the feature that will hold it."""

    uncertainty: FloatArray
    source: DraftSource
    column: int


def fit_draft_router(
    features: Float32Array,
    drafts: Drafts,
    table: UtilityTable,
    levels: tuple[Level, ...],
    training: RouterTraining,
) -> DraftRouterPolicy:
    """Fit a router whose features include the uncertainty of one sample of each question."""
    if levels[0].n_samples != 1:
        raise ConfigError(
            f"a draft is one sample, and the lowest level has {levels[0].n_samples}: add level 1"
        )
    default, column = float(np.nanmean(drafts.uncertainty)), drafts.column
    drafted = features.copy()
    drafted[:, column] = np.where(np.isnan(drafts.uncertainty), default, drafts.uncertainty)
    router = fit_router(drafted, table, levels, training)
    return DraftRouterPolicy(levels, router.models, router.schedule, drafts.source, column, default)


def to_spec(policy: DraftRouterPolicy) -> PolicySpec:
    """Describe the policy as plain data."""
    router = router_to_spec(policy)
    own = {
        "draft": policy.draft.source,
        "top_logprobs": policy.draft.top_logprobs,
        "column": policy.column,
        "default": policy.default,
    }
    return PolicySpec(policy.levels, {**router.content, **own}, router.files)


def from_spec(spec: PolicySpec) -> DraftRouterPolicy:
    """Build the policy from plain data."""
    router = router_from_spec(spec)
    source = DraftSource(
        read_entry(spec.content, "draft", str), read_entry(spec.content, "top_logprobs", int | None)
    )
    column, default = read_entry(spec.content, "column", int), spec.content["default"]
    is_valid = source.source in (ENTROPY, SURPRISE) and column >= 0 and 0 <= float(default) <= 1
    if not is_valid or spec.levels[0].n_samples != 1:
        raise BundleError("the draft of the policy is not one that this version can use")
    return DraftRouterPolicy(
        spec.levels, router.models, router.schedule, source, column, float(default)
    )
