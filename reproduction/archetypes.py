"""Paper archetypes: questions clustered into four kinds by their scaling curves.

It runs k-means on the curves of accuracy by level and names each cluster by a rule: the one that is
most accurate with one sample is easy, the one that ends lowest is hard, and of the other two the
one that rises more is responsive. With clusters from one half of the samples, the other half shows
how much of a cluster's rise is chance. The question nearest to the centre of a cluster is its
example. N questions, K levels. It knows nothing of plotting.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from adacompute.core.allocation.oracle import solve
from adacompute.core.types import FloatArray, IntArray
from adacompute.core.utility import estimate
from adacompute.policies.learners import fit_clusters
from reproduction.run_data import MAIN_BUDGET, SEED, RunData, group_shares
from reproduction.table_files import Row

NAMES = ("easy", "responsive", "diminishing", "hard")
HIGH_LEVEL = 4
"""Samples from which the paper calls a level high."""


@dataclass(frozen=True, eq=False)
class Clusters:
    """The cluster of each question, (N,), and the name and the centre of each cluster."""

    names: tuple[str, ...]
    cluster: IntArray
    centre: FloatArray


def cluster_curves(curves: FloatArray) -> Clusters:
    """Cluster curves, (N, K), in the order of NAMES; fewer clusters where curves coincide."""
    label, centre = fit_clusters(curves, len(NAMES), seed=SEED)
    unnamed = list(range(len(centre)))
    named: dict[str, int] = {}

    def assign(name: str, score: FloatArray) -> None:
        if unnamed:
            named[name] = max(unnamed, key=lambda c: float(score[c]))
            unnamed.remove(named[name])

    assign("easy", centre[:, 0])
    assign("hard", -centre[:, -1])
    assign("responsive", centre[:, -1] - centre[:, 0])
    assign("diminishing", centre[:, -1])
    names = tuple(name for name in NAMES if name in named)
    order = [named[name] for name in names]
    rank = np.empty(len(centre), dtype=np.int64)
    rank[order] = np.arange(len(names))
    return Clusters(names, rank[label], centre[order])


@dataclass(frozen=True, eq=False)
class Archetypes:
    """Four archetypes, found with all samples as in the paper, and found with half of them.

    With all samples: ``curves`` (N, K) are the windows, ``curve`` (archetypes, K) their means,
    ``composition`` (bands, archetypes) the shares by difficulty, ``level_shares`` (archetypes, K)
    the oracle's levels at B = 2. With one half: ``half_curve`` is the mean curve on that half,
    ``other_curve`` and ``other_level_shares`` are measured on the other half, (archetypes, K′).
    ``responsive_share`` is the share of responsive questions among those at level 4 and above, with
    all samples and on the other half.
    """

    names: tuple[str, ...]
    levels: tuple[int, ...]
    half_levels: tuple[int, ...]
    cluster: IntArray
    curves: FloatArray
    size: IntArray
    curve: FloatArray
    half_names: tuple[str, ...]
    half_curve: FloatArray
    other_curve: FloatArray
    bands: tuple[str, ...]
    composition: FloatArray
    level_shares: FloatArray
    other_level_shares: FloatArray
    responsive_share: float
    other_responsive_share: float

    @property
    def rows(self) -> list[Row]:
        """One row per archetype."""
        rows: list[Row] = []
        for c, name in enumerate(self.names):
            row: Row = {"archetype": name, "questions": int(self.size[c])}
            row |= {f"level {n}": float(self.curve[c, k]) for k, n in enumerate(self.levels)}
            if name in self.half_names:
                h = self.half_names.index(name)
                for k, n in enumerate(self.half_levels):
                    row[f"level {n} (other half)"] = float(self.other_curve[h, k])
            row |= {
                f"share at level {n}": float(self.level_shares[c, k])
                for k, n in enumerate(self.levels)
            }
            rows.append(row)
        return rows


def find_archetypes(run: RunData) -> Archetypes:
    """Cluster a run's questions by their curves, and count the oracle's levels by archetype."""
    table, (half, other) = run.window_table, run.half_tables
    whole, halved = cluster_curves(table.utility), cluster_curves(half.utility)
    n_clusters, n_halved, bands = len(whole.names), len(halved.names), run.bands
    choice, other_choice = solve(table, MAIN_BUDGET).choice, solve(other, MAIN_BUDGET).choice
    return Archetypes(
        names=whole.names,
        levels=run.levels,
        half_levels=run.half_levels,
        cluster=whole.cluster,
        curves=table.utility,
        size=np.bincount(whole.cluster, minlength=n_clusters),
        curve=_mean_curves(whole, table.utility),
        half_names=halved.names,
        half_curve=_mean_curves(halved, half.utility),
        other_curve=_mean_curves(halved, other.utility),
        bands=bands.names,
        composition=group_shares(bands.band, len(bands.names), whole.cluster, n_clusters),
        level_shares=group_shares(whole.cluster, n_clusters, choice, table.n_levels),
        other_level_shares=group_shares(halved.cluster, n_halved, other_choice, other.n_levels),
        responsive_share=_responsive_share(whole, choice, run.levels),
        other_responsive_share=_responsive_share(halved, other_choice, run.half_levels),
    )


def _mean_curves(clusters: Clusters, curves: FloatArray) -> FloatArray:
    """Mean of the curves in each cluster, (clusters, K)."""
    clustered = range(len(clusters.names))
    return np.stack([curves[clusters.cluster == c].mean(axis=0) for c in clustered])


def _responsive_share(clusters: Clusters, choice: IntArray, levels: tuple[int, ...]) -> float:
    """Share of responsive questions among those at a high level."""
    high = np.asarray(levels)[choice] >= HIGH_LEVEL
    if "responsive" not in clusters.names or not high.any():
        return 0.0
    return float((clusters.cluster[high] == clusters.names.index("responsive")).mean())


@dataclass(frozen=True, eq=False)
class Scaling:
    """Curves of one question per archetype, (archetypes, K), with standard errors."""

    names: tuple[str, ...]
    ids: tuple[str, ...]
    question: IntArray
    levels: tuple[int, ...]
    windows: FloatArray
    exact: FloatArray
    standard_error: FloatArray

    @property
    def rows(self) -> list[Row]:
        """One row per question and level."""
        return [
            {
                "archetype": name,
                "question": self.ids[i],
                "level": level,
                "windows": float(self.windows[i, k]),
                "exact": float(self.exact[i, k]),
                "standard error": None
                if np.isnan(self.standard_error[i, k])
                else float(self.standard_error[i, k]),
            }
            for i, name in enumerate(self.names)
            for k, level in enumerate(self.levels)
        ]


def trace_scaling(run: RunData) -> Scaling:
    """Return the curve of the question nearest to the centre of each archetype."""
    curves = run.exact_table.utility
    found = cluster_curves(curves)
    distance = np.linalg.norm(curves - found.centre[found.cluster], axis=1)
    nearest = [
        int(np.flatnonzero(found.cluster == c)[distance[found.cluster == c].argmin()])
        for c in range(len(found.names))
    ]
    question = np.array(nearest, dtype=np.int64)
    exact = estimate(run.pool.answers.take(question), run.levels)
    return Scaling(
        names=found.names,
        ids=tuple(run.ids[i] for i in nearest),
        question=question,
        levels=run.levels,
        windows=run.window_table.utility[question],
        exact=exact.utility,
        standard_error=exact.standard_error,
    )
