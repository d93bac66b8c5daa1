"""Paper features: which features the router reads, and how they differ between the oracle's labels.

Importance is by shuffling, on questions that were trained on, as the paper's ranking is, and on
questions that were held out. N questions, K levels, F features. It knows nothing of drawing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from adacompute.core.oracle import solve
from adacompute.core.types import FloatArray
from adacompute.features.text import FEATURES
from adacompute.paper.subject import FOLDS, MIDDLE, SEED, Subject
from adacompute.policies.learners import fit_classifier
from adacompute.report.table_files import Row

SHUFFLES = 2


@dataclass(frozen=True, eq=False)
class Features:
    """What each feature counts for, (F,), and how it differs between the labels, (F, K).

    Importance is what imitation loses when a feature is shuffled between questions: of those that
    were trained on, and of those held out. ``signature`` are means of each label's questions,
    standardised along each feature; NaN where no question has the label.
    """

    names: tuple[str, ...]
    levels: tuple[int, ...]
    importance: FloatArray
    held_out: FloatArray
    signature: FloatArray

    @property
    def rows(self) -> list[Row]:
        """One row a feature, the most important first."""
        return [
            {
                "feature": self.names[f],
                "importance": float(self.importance[f]),
                "importance held out": float(self.held_out[f]),
            }
            | {
                f"level {n}": None if np.isnan(z) else float(z)
                for n, z in zip(self.levels, self.signature[f], strict=True)
            }
            for f in np.argsort(-self.importance, kind="stable").tolist()
        ]


def weigh_features(subject: Subject) -> Features:
    """Shuffle each feature in turn and see what the router loses at B = 2."""
    table, features = subject.windows, subject.drafted
    label = solve(table, MIDDLE).choice
    count = features.shape[1]
    lost = np.zeros((2, count))
    for fold in range(FOLDS):
        held = subject.fold == fold
        model = fit_classifier(features[~held], label[~held], n_levels=table.n_levels, seed=SEED)
        for i, rows in enumerate((np.flatnonzero(~held), np.flatnonzero(held))):
            rng = np.random.default_rng(fold)
            right = (model.predict(features[rows]).argmax(axis=1) == label[rows]).mean()
            for f in np.flatnonzero(np.ptp(features[rows], axis=0)).tolist():
                for _ in range(SHUFFLES):
                    mixed = features[rows].copy()
                    mixed[:, f] = rng.permutation(mixed[:, f])
                    still = (model.predict(mixed).argmax(axis=1) == label[rows]).mean()
                    lost[i, f] += (right - still) / (SHUFFLES * FOLDS)
    means = np.full((count, table.n_levels), np.nan)
    for k in np.unique(label).tolist():
        means[:, k] = features[label == k].mean(axis=0)
    centre = np.nanmean(means, axis=1, keepdims=True)
    spread = np.nanstd(means, axis=1, keepdims=True)
    names = FEATURES if count == len(FEATURES) else tuple(f"feature {f}" for f in range(count))
    return Features(
        names=tuple(names),
        levels=subject.levels,
        importance=lost[0],
        held_out=lost[1],
        signature=np.where(np.isnan(means), np.nan, (means - centre) / np.maximum(spread, 1e-12)),
    )
