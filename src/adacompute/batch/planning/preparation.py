"""Preparation: what a plan needs to know about each question, computed once from its text.

Depending on the policy that is a cell of the prior, the levels that classifiers choose, or the
features that a rule uses. Blocks are prepared independently of each other, so the
result does not depend on their sizes. A question without a usable text is marked as missing.

This module does not know files, prices or totals.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from adacompute.batch.planning.cost_curves import has_cell_costs
from adacompute.core.types import BoolArray, IntArray, KeyArray, hash_text
from adacompute.features.text import extract_features, feature_names
from adacompute.policies.bundles.bundle import Bundle
from adacompute.policies.policy import PreparedKind as Kind

if TYPE_CHECKING:
    import pyarrow as pa

MISSING = 255
"""Cell or level of a question without a usable text; its features are NaN."""

MISSING_KEY = 0

Values = npt.NDArray[Any]


class Prepared(NamedTuple):
    """Values of N questions, (N, width), and their keys if the first action needs them."""

    values: Values
    keys: KeyArray | None


@dataclass(frozen=True, eq=False)
class Preparation:
    """How questions are prepared for the policy of a bundle."""

    bundle: Bundle

    @cached_property
    def kind(self) -> Kind:
        """What is computed of each question."""
        return self.bundle.policy.prepared

    @cached_property
    def width(self) -> int:
        """Number of values per question."""
        none = np.zeros((1, len(feature_names(self.bundle.features))), dtype=np.float32)
        return int(self.bundle.policy.prepare_plan(none).shape[1])

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the values."""
        is_small = self.kind in (Kind.NOTHING, Kind.CELL, Kind.LEVELS)
        return np.dtype(np.uint8 if is_small else np.float32)

    @property
    def row_bytes(self) -> int:
        """Bytes of the values of one question."""
        return max(1, self.width) * self.dtype.itemsize

    @cached_property
    def needs_keys(self) -> bool:
        """Whether first actions depend on the keys of questions."""
        return not (self.bundle.policy.is_index_rule and has_cell_costs(self.bundle))

    @property
    def n_classes(self) -> int:
        """Number of different values in a column of cells or levels; 0 for other kinds."""
        policy = self.bundle.policy
        sizes = {Kind.NOTHING: 1, Kind.CELL: policy.n_cells, Kind.LEVELS: len(policy.levels)}
        return sizes.get(self.kind, 0)

    def prepare(self, texts: pa.Array) -> Prepared:
        """Compute the values of questions; a null is a question without a text."""
        values = self._values(texts)
        if texts.null_count:
            missing = np.asarray(texts.is_null())
            values[missing] = np.nan if values.dtype.kind == "f" else MISSING
        return Prepared(values, hash_texts(texts) if self.needs_keys else None)

    def _values(self, texts: pa.Array) -> Values:
        policy = self.bundle.policy
        if not self.width:
            return np.zeros((len(texts), 1), dtype=np.uint8)
        features = extract_features(texts, features=self.bundle.features)
        return policy.prepare_plan(features).astype(self.dtype)

    def find_missing(self, values: Values) -> BoolArray:
        """Return which questions have no usable text."""
        first = values[:, 0]
        return np.asarray(np.isnan(first) if values.dtype.kind == "f" else first == MISSING)

    def count_classes(self, values: Values) -> IntArray:
        """Count the questions of each class, (width, classes); questions without text are not."""
        known = values[~self.find_missing(values)]
        return np.stack(
            [np.bincount(column, minlength=self.n_classes) for column in known.T]
            if self.n_classes
            else [np.array([len(known)])]
        )


def hash_texts(texts: pa.Array) -> KeyArray:
    """Return the key of each text."""
    return np.array(
        [MISSING_KEY if text is None else hash_text(text) for text in texts.to_pylist()],
        dtype=np.uint64,
    )
