"""Trees: boosted trees as arrays, which numpy walks for many questions at once.

xgboost fits the trees and is not needed to run them: its own loader can be crashed by a file, and
these arrays are checked before they are used. Sums are made in its order and precision, so scores
are exactly its margins. This module does not know how trees are fitted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from adacompute.core.errors import BundleError
from adacompute.core.types import Float32Array, FloatArray, IntArray
from adacompute.features.text import FEATURES

UNSEEN_LEVEL_SCORE = -1e9
"""Score of a level that was never the best one in training."""

N_FEATURES = len(FEATURES)
"""Features that saved trees can read: those of the paper."""

MAX_NODES, MAX_TREES, MAX_DEPTH = 1 << 20, 1 << 13, 64
"""Limits of a file; the trees that are fitted here are far below them."""

BLOCK = 1024
"""Questions that are walked at once."""

KINDS = {
    "children": np.dtype(np.int32),
    "feature": np.dtype(np.int32),
    "threshold": np.dtype(np.float32),
    "leaf": np.dtype(np.float32),
    "root": np.dtype(np.int32),
    "level": np.dtype(np.int32),
    "base": np.dtype(np.float32),
}
"""Arrays of a model, and their types."""


class Predictor(Protocol):
    """A learned function from features to one number per level."""

    def predict(self, features: Float32Array) -> FloatArray:
        """Return the scores (N, K) of features (N, F)."""


@dataclass(frozen=True, eq=False)
class Trees:
    """Trees that score levels: the score is a base value plus one leaf of each tree.

    The nodes of all trees are numbered together, those of a tree one after the other from its
    ``root``. ``children`` (M, 2) are where a node leads to if its feature is below its threshold,
    and if not; a leaf has -1 twice. The trees score the G levels of ``level`` in turn, from
    ``base`` (G,); other levels score UNSEEN_LEVEL_SCORE.
    """

    children: IntArray
    feature: IntArray
    threshold: Float32Array
    leaf: Float32Array
    root: IntArray
    level: IntArray
    base: Float32Array
    n_levels: int

    def predict(self, features: Float32Array) -> FloatArray:
        """Return the scores (N, K) of features (N, F)."""
        scores = np.full((len(features), self.n_levels), UNSEEN_LEVEL_SCORE)
        for first in range(0, len(features), BLOCK):
            rows = slice(first, first + BLOCK)
            scores[rows, self.level] = self._add_leaves(features[rows])
        return scores

    def _add_leaves(self, features: Float32Array) -> Float32Array:
        """Return the base values plus the leaves that each question reaches, (N, G)."""
        question, by_feature = np.arange(len(features)), np.ascontiguousarray(features.T)
        node = self.root[:, None].repeat(len(features), axis=1)
        while (inner := self.children[node, 0] >= 0).any():
            is_right = ~(by_feature[self.feature[node], question] < self.threshold[node])
            node = np.where(inner, self.children[node, is_right.astype(np.int64)], node)
        leaf = self.leaf[node].reshape(-1, len(self.level), len(features))
        base = np.broadcast_to(self.base[:, None], (1, *leaf.shape[1:]))
        # One after the other, as xgboost does: other orders round differently.
        return np.asarray(np.add.accumulate(np.concatenate([base, leaf]))[-1].T)

    def to_arrays(self) -> dict[str, Any]:
        """Return the arrays that a file holds."""
        if self.feature.max(initial=0) >= N_FEATURES:
            raise BundleError(
                f"only a router on the {N_FEATURES} features of the paper can be saved: fit it "
                "with features='paper'"
            )
        return {name: np.asarray(getattr(self, name), kind) for name, kind in KINDS.items()}


def from_booster(raw: bytes, *, level: IntArray, n_levels: int) -> Trees:
    """Return a booster, in xgboost's JSON format; its group g scores the level ``level[g]``."""
    learner = json.loads(raw)["learner"]
    base = np.atleast_1d(json.loads(learner["learner_model_param"]["base_score"]))
    trees = learner["gradient_booster"]["model"]["trees"]
    size = np.array([len(tree["left_children"]) for tree in trees])
    root = size.cumsum() - size

    def join(name: str, kind: type) -> Any:  # noqa: ANN401 - an array of this type
        return np.concatenate([np.asarray(tree[name], kind) for tree in trees])

    children = np.stack([join(f"{side}_children", np.int64) for side in ("left", "right")], axis=1)
    is_leaf, value = children[:, 0] < 0, join("split_conditions", np.float32)
    return Trees(
        children=np.where(is_leaf[:, None], -1, children + root.repeat(size)[:, None]),
        feature=join("split_indices", np.int64),
        threshold=np.where(is_leaf, np.float32(0), value),
        leaf=np.where(is_leaf, value, np.float32(0)),
        root=root,
        level=level,
        base=np.broadcast_to(base.astype(np.float32), len(level)),
        n_levels=n_levels,
    )


def from_arrays(arrays: Mapping[str, Any], n_levels: int) -> Trees:
    """Build trees from the arrays of a file; BundleError unless they are what `to_arrays` wrote."""
    if arrays.keys() != KINDS.keys() or any(arrays[n].dtype != kind for n, kind in KINDS.items()):
        raise BundleError(f"the trees of a router need the arrays {', '.join(KINDS)}")
    trees = Trees(**arrays, n_levels=n_levels)
    if problem := _find_fault(trees):
        raise BundleError(f"the trees of a router are damaged: {problem}")
    return trees


def _find_fault(trees: Trees) -> str | None:
    """Return what is wrong with trees from a file; None if every walk ends at a leaf in bounds."""
    n, n_trees, n_groups = trees.feature.size, trees.root.size, trees.level.size
    shapes = {"children": (n, 2), "feature": (n,), "threshold": (n,), "leaf": (n,)}
    shapes |= {"root": (n_trees,), "level": (n_groups,), "base": (n_groups,)}
    are_bounded = 0 < n_groups <= n_trees <= min(n, MAX_TREES) and n <= MAX_NODES
    if not are_bounded or any(getattr(trees, k).shape != v for k, v in shapes.items()):
        return f"{n_trees} trees for {n_groups} levels and {n} nodes do not fit their arrays"
    if n_trees % n_groups or not _rises(trees.level) or not _within(trees.level, trees.n_levels):
        return f"they do not score the {trees.n_levels} levels of their policy"
    if trees.root[0] != 0 or not _rises(trees.root) or trees.root[-1] >= n:
        return "their roots are not in order"
    if not _within(trees.feature, N_FEATURES):
        return f"a feature is not one of the first {N_FEATURES}"
    if not all(np.isfinite(one).all() for one in (trees.threshold, trees.leaf, trees.base)):
        return "a threshold or a leaf is not finite"
    return _find_misled(trees.children, trees.root)


def _rises(numbers: IntArray) -> bool:
    """Whether each number is above the one before it."""
    return bool((numbers[1:] > numbers[:-1]).all())


def _within(numbers: IntArray, limit: int) -> bool:
    """Whether numbers are from 0 to below a limit."""
    return bool((numbers >= 0).all() and (numbers < limit).all())


def _find_misled(children: IntArray, root: IntArray) -> str | None:
    """Return what is wrong with the children of nodes: each must come after its parent, once."""
    n = len(children)
    parent = np.flatnonzero((children != -1).any(axis=1))
    child = children[parent]
    end = np.append(root[1:], n)[root.searchsorted(parent, side="right") - 1]
    if not ((child > parent[:, None]) & (child < end[:, None])).all():
        return "a child does not come after its parent in the same tree"
    if not np.array_equal(np.sort(child, axis=None), np.setdiff1d(np.arange(n), root)):
        return "a node is not the child of one parent"
    above = np.arange(n)
    above[child] = parent[:, None]
    at = np.arange(n)
    for _ in range(MAX_DEPTH):
        at = above[at]
    if not np.isin(at, root).all():
        return f"a tree is deeper than {MAX_DEPTH}"
    return None
