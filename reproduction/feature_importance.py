"""Paper feature importance: which features the router uses, and how they differ by level.

Importance is that of the trees themselves, as in the paper, and by shuffling a feature between
training questions or between held-out questions. N questions, K levels, F features. It knows
nothing of plotting.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from adacompute.core.allocation.oracle import solve
from adacompute.core.types import Float32Array, FloatArray, IntArray
from adacompute.features.text import FEATURES
from adacompute.policies.learners import boost, fit_classifier, tree_settings
from reproduction.run_data import FOLDS, MAIN_BUDGET, SEED, RunData
from reproduction.table_files import Row

PERMUTATIONS = 2


@dataclass(frozen=True, eq=False)
class FeatureImportance:
    """Importance of each feature, (F,), and its mean by level of the oracle, (F, K).

    ``gain`` is the mean gain of the trees' splits on a feature, divided by the sum over features.
    ``training`` and ``held_out`` are the imitation that is lost when a feature is shuffled between
    training questions and between held-out ones. ``level_means`` are standardised along each
    feature; NaN where no question has the level.
    """

    names: tuple[str, ...]
    levels: tuple[int, ...]
    gain: FloatArray
    training: FloatArray
    held_out: FloatArray
    level_means: FloatArray

    @property
    def rows(self) -> list[Row]:
        """One row per feature, most important first."""
        return [
            {
                "feature": self.names[f],
                "normalised gain": float(self.gain[f]),
                "lost by shuffling (training)": float(self.training[f]),
                "lost by shuffling (held out)": float(self.held_out[f]),
            }
            | {
                f"level {n}": None if np.isnan(mean) else float(mean)
                for n, mean in zip(self.levels, self.level_means[f], strict=True)
            }
            for f in np.argsort(-self.gain, kind="stable").tolist()
        ]


def measure_importance(run: RunData) -> FeatureImportance:
    """Measure the importance that the router gives to each feature at B = 2, and by shuffling."""
    table, paper_features = run.window_table, run.paper_pool.features
    label = solve(table, MAIN_BUDGET).choice
    n_features = paper_features.shape[1]
    lost = np.zeros((2, n_features))
    for fold in range(FOLDS):
        train, held_out = np.flatnonzero(run.fold != fold), np.flatnonzero(run.fold == fold)
        # The features of held-out questions do not include the draft that the paper does not pay.
        pairs = (train, paper_features), (held_out, run.pool.features)
        for i, (rows, features) in enumerate(pairs):
            model = fit_classifier(
                features[train], label[train], n_levels=table.n_levels, seed=SEED
            )
            rng = np.random.default_rng(fold)
            imitation = (model.predict(features[rows]).argmax(axis=1) == label[rows]).mean()
            for f in np.flatnonzero(np.ptp(features[rows], axis=0)).tolist():
                for _ in range(PERMUTATIONS):
                    permuted = features[rows].copy()
                    permuted[:, f] = rng.permutation(permuted[:, f])
                    left = (model.predict(permuted).argmax(axis=1) == label[rows]).mean()
                    lost[i, f] += (imitation - left) / (PERMUTATIONS * FOLDS)
    means = np.full((n_features, table.n_levels), np.nan)
    for k in np.unique(label).tolist():
        means[:, k] = paper_features[label == k].mean(axis=0)
    centre = np.nanmean(means, axis=1, keepdims=True)
    deviation = np.nanstd(means, axis=1, keepdims=True)
    standardised = (means - centre) / np.maximum(deviation, 1e-12)
    is_paper_set = n_features == len(FEATURES)
    names = FEATURES if is_paper_set else tuple(f"feature {f}" for f in range(n_features))
    if run.paper_pool is run.pool and is_paper_set:
        names = (*FEATURES[:-1], f"{FEATURES[-1]} (not recorded)")
    return FeatureImportance(
        names=tuple(names),
        levels=run.levels,
        gain=measure_gains(paper_features[run.fold != 0], label[run.fold != 0], seed=SEED),
        training=lost[0],
        held_out=lost[1],
        level_means=np.where(np.isnan(means), np.nan, standardised),
    )


def measure_gains(features: Float32Array, label: IntArray, *, seed: int = 0) -> FloatArray:
    """Fit trees and return the importance that they give to each feature, (F,).

    It is the mean gain of the splits on a feature, divided by the sum over all features; zeros
    where no tree has a split.
    """
    present, index = np.unique(label, return_inverse=True)
    booster = boost(features, index, tree_settings(len(present)), seed=seed)
    gain = np.zeros(features.shape[1])
    for name, value in booster.get_score(importance_type="gain").items():
        gain[int(name[1:])] = value
    return gain / (gain.sum() or 1.0)
