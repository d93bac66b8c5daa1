"""Paper archetypes: questions sorted into four kinds by their curves.

k-means on the curves of accuracy by level, and a name for each cluster by a rule: the one that is
right most often at once is easy, the one that ends lowest is hard, of the other two the one that
rises more is responsive. Sorted on half of the samples, the other half says how much of a cluster's
rise is luck. N questions, K levels. It knows nothing of drawing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from adacompute.core.errors import DataError
from adacompute.core.oracle import solve
from adacompute.core.types import FloatArray, IntArray
from adacompute.paper.subject import MIDDLE, SEED, Subject, shares_by, within
from adacompute.policies.learners import fit_clusters
from adacompute.report.table_files import Row

NAMES = ("easy", "responsive", "diminishing", "hard")
MANY = 4
"""Samples from which the paper calls a level high."""


@dataclass(frozen=True, eq=False)
class Sorted:
    """Cluster of each question, (N,), and the name and the centre of each cluster."""

    names: tuple[str, ...]
    cluster: IntArray
    centre: FloatArray


def sort_archetypes(curves: FloatArray) -> Sorted:
    """Sort curves, (N, K), into clusters in the order of NAMES; fewer where curves coincide."""
    label, centre = fit_clusters(curves, len(NAMES), seed=SEED)
    left = list(range(len(centre)))
    found: dict[str, int] = {}

    def take(name: str, score: FloatArray) -> None:
        if left:
            found[name] = max(left, key=lambda c: float(score[c]))
            left.remove(found[name])

    take("easy", centre[:, 0])
    take("hard", -centre[:, -1])
    take("responsive", centre[:, -1] - centre[:, 0])
    take("diminishing", centre[:, -1])
    names = tuple(name for name in NAMES if name in found)
    place = np.empty(len(centre), dtype=np.int64)
    place[[found[name] for name in names]] = np.arange(len(names))
    return Sorted(names, place[label], centre[[found[name] for name in names]])


@dataclass(frozen=True, eq=False)
class Archetypes:
    """Four kinds of question, by the paper's way and with the other half of the samples.

    ``curve`` (kinds, K) are means of the windows the kinds were found by; ``again`` (kinds, K′) of
    the other half, for kinds found on one half. ``composition`` is (bands, kinds), ``given`` and
    ``given_again`` the oracle's levels at B = 2, (kinds, K) and (kinds, K′); ``absorbed`` is the
    share of the questions at level 4 and above that are responsive.
    """

    names: tuple[str, ...]
    levels: tuple[int, ...]
    half_levels: tuple[int, ...]
    cluster: IntArray
    curves: FloatArray
    size: IntArray
    curve: FloatArray
    again_names: tuple[str, ...]
    again: FloatArray
    again_told: FloatArray
    bands: tuple[str, ...]
    composition: FloatArray
    given: FloatArray
    given_again: FloatArray
    absorbed: float
    absorbed_again: float

    @property
    def rows(self) -> list[Row]:
        """One row a kind."""
        rows: list[Row] = []
        for c, name in enumerate(self.names):
            row: Row = {"archetype": name, "questions": int(self.size[c])}
            row |= {f"level {n}": float(self.curve[c, k]) for k, n in enumerate(self.levels)}
            if name in self.again_names:
                a = self.again_names.index(name)
                for k, n in enumerate(self.half_levels):
                    row[f"level {n} (other half)"] = float(self.again[a, k])
            row |= {f"gets {n}": float(self.given[c, k]) for k, n in enumerate(self.levels)}
            rows.append(row)
        return rows


def find_archetypes(subject: Subject) -> Archetypes:
    """Sort a run's questions by their curves, and see what the oracle gives to each kind."""
    table, (told, scored) = subject.windows, subject.halves
    whole, half = sort_archetypes(table.utility), sort_archetypes(told.utility)
    kinds, bands = len(whole.names), subject.bands
    choice, choice_again = solve(table, MIDDLE).choice, solve(scored, MIDDLE).choice
    means = [table.utility[whole.cluster == c].mean(axis=0) for c in range(kinds)]
    mine = [half.cluster == c for c in range(len(half.names))]
    return Archetypes(
        names=whole.names,
        levels=subject.levels,
        half_levels=subject.half_levels,
        cluster=whole.cluster,
        curves=table.utility,
        size=np.bincount(whole.cluster, minlength=kinds),
        curve=np.stack(means),
        again_names=half.names,
        again=np.stack([scored.utility[rows].mean(axis=0) for rows in mine]),
        again_told=np.stack([told.utility[rows].mean(axis=0) for rows in mine]),
        bands=bands.names,
        composition=shares_by(bands.band, len(bands.names), whole.cluster, kinds),
        given=shares_by(whole.cluster, kinds, choice, table.n_levels),
        given_again=shares_by(half.cluster, len(mine), choice_again, scored.n_levels),
        absorbed=_absorb(whole, choice, subject.levels),
        absorbed_again=_absorb(half, choice_again, subject.half_levels),
    )


def _absorb(found: Sorted, choice: IntArray, levels: tuple[int, ...]) -> float:
    """Share of the questions with many votes that are responsive."""
    many = np.asarray(levels)[choice] >= MANY
    if "responsive" not in found.names or not many.any():
        return 0.0
    return float((found.cluster[many] == found.names.index("responsive")).mean())


@dataclass(frozen=True, eq=False)
class Compositions:
    """Share of each kind in each run, (runs, kinds), kinds found on all their curves together."""

    runs: tuple[str, ...]
    names: tuple[str, ...]
    levels: tuple[int, ...]
    centre: FloatArray
    shares: FloatArray

    @property
    def rows(self) -> list[Row]:
        """One row a run."""
        return [
            {"run": run, **{n: float(self.shares[r, c]) for c, n in enumerate(self.names)}}
            for r, run in enumerate(self.runs)
        ]


def compose_runs(subjects: Sequence[Subject]) -> Compositions:
    """Sort the questions of all runs together, over the levels that all of them have."""
    if not subjects:
        raise DataError("there is no run to compose")
    levels = within(subjects[0].levels, min(subject.levels[-1] for subject in subjects))
    curves = [subject.windows.utility[:, : len(levels)] for subject in subjects]
    found = sort_archetypes(np.concatenate(curves))
    run = np.repeat(np.arange(len(subjects)), [len(part) for part in curves])
    return Compositions(
        runs=tuple(subject.name for subject in subjects),
        names=found.names,
        levels=levels,
        centre=found.centre,
        shares=shares_by(run, len(subjects), found.cluster, len(found.names)),
    )
