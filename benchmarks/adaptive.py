"""Adaptive: how few draws choose as good an allocation as all of them do.

Run it with ``python benchmarks/adaptive.py SAMPLES [design]``. SAMPLES is a directory of recorded
samples; pools with at least 50 samples a question are used, or with ``design`` the two that the
rule was made on. In each random split 16 samples of every question are set aside for scoring, and
the others are what may be drawn. ``needed`` is the share of those others from which on the
allocation scores at most 0.2 points below the one chosen by exact subsets from all of them:

    exact      so many draws of every question, exact subsets (these need 16)
    uniform    so many draws of every question, the estimator of adaptive collection
    adaptive   its rule, at one threshold after another; ``kept`` is the one that ships

``fair`` is adaptive against the allocation that its own estimator chooses from all the others.
Intervals are by bootstrap over question texts.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from adacompute.core.answers import Answers
from adacompute.core.oracle import solve
from adacompute.core.posterior import (
    INITIAL_SAMPLES,
    LEVELS,
    SAMPLES_PER_ROUND,
    SETTLED_THRESHOLD,
    find_undecided,
    fit_posterior,
)
from adacompute.core.types import UtilityTable
from adacompute.core.utility import estimate
from adacompute.datasets.sources import read_source
from adacompute.storage.store import SampleSet, encode_samples

if TYPE_CHECKING:
    from collections.abc import Iterator

    from adacompute.core.types import BoolArray, FloatArray, IntArray, KeyArray

BUDGETS = (2.0, 3.0)
EXAMS = "^(aqua-rat|hellaswag|lsat-ar|lsat-rc|sat-en)"
DESIGN = ("arith110", "design exams")
SCORED, LEAST, SPLITS, RESAMPLINGS = 16, 50, 4, 1000
WITHIN = 0.002
THRESHOLDS = (0.03, 0.02, 0.015, 0.0125, 0.01, 0.0075, SETTLED_THRESHOLD, 0.003, 0.002, 0.001)
SHARES = np.array([0.12, 0.18, 0.24, 0.3, 0.36, 0.42, 0.48, 0.6, 0.72, 0.84, 1.0])


def find_pools(samples: Path, *, design: bool) -> Iterator[tuple[str, SampleSet]]:
    """Every pool that is asked for; the exams are parted into those looked at and the others."""
    for file in sorted(samples.glob("*.parquet")):
        table = read_source(file)
        parts = {file.stem: table}
        if file.stem.startswith("mcqa10x100"):
            seen = pc.match_substring_regex(table["question_id"], EXAMS)
            parts = {
                "design exams": table.filter(seen),
                "other exams": table.filter(pc.invert(seen)),
            }
        for name, part in parts.items():
            if design != name.startswith(DESIGN):
                continue
            pool = encode_samples(part)
            if name == "design exams":  # each by itself too: pools are often small
                for exam in EXAMS[2:-1].split("|"):
                    own = pc.starts_with(part["question_id"], exam)
                    yield f"design exams, {exam}", encode_samples(part.filter(own))
            if design or int(pool.answers.n_samples.min()) >= LEAST:
                yield name, pool


def keep(answers: Answers, place: IntArray, low: int | IntArray, high: int | IntArray) -> Answers:
    """Samples whose random place lies between two bounds, by question."""
    kept: BoolArray = (place >= np.asarray(low)) & (place < np.asarray(high))
    return answers.keep(kept)


def mix(utility: FloatArray, scored: FloatArray, budget: float) -> FloatArray:
    """What the allocation by these utilities scores on each question, its split included."""
    found = solve(UtilityTable(utility, np.array(LEVELS, dtype=np.float64)), budget)
    value = scored[np.arange(len(scored)), found.choice].copy()
    split = found.split
    for q, k, p in zip(split.question, split.level, split.probability, strict=True):
        value[q] += p * (scored[q, k] - scored[q, found.choice[q]])
    return value


@dataclass(frozen=True)
class Curves:
    """Draws as shares of all the others, and scores less the full allocation's, (points, N)."""

    name: str
    group: KeyArray
    draws: dict[str, FloatArray]
    lost: dict[str, FloatArray]


def measure(name: str, pool: SampleSet, budget: float) -> Curves:
    """Average the curves of one pool over random splits."""
    draws: dict[str, FloatArray] = {}
    lost: dict[str, FloatArray] = {}
    for seed in range(SPLITS):
        for kind, (spent, score) in _split(pool.answers, budget, seed).items():
            draws[kind] = draws.get(kind, 0.0) + spent / SPLITS
            lost[kind] = lost.get(kind, 0.0) + score / SPLITS
    return Curves(name, pool.group, draws, lost)


def _split(answers: Answers, budget: float, seed: int) -> dict[str, tuple[FloatArray, FloatArray]]:
    rng = np.random.default_rng(seed)
    order = np.lexsort((rng.random(len(answers.answer)), answers.question))
    place = np.empty_like(order)
    place[order] = answers.position
    scored = estimate(keep(answers, place, 0, SCORED), LEVELS, standard_errors=False).utility
    others = answers.n_samples - SCORED
    place = place - SCORED
    every = keep(answers, place, 0, others[answers.question])
    full = mix(estimate(every, LEVELS, standard_errors=False).utility, scored, budget)
    fair = mix(fit_posterior(every).utility, scored, budget)
    found: dict[str, list[tuple[FloatArray, FloatArray]]] = {"exact": [], "uniform": []}
    for share in SHARES:
        count = np.maximum(1, np.round(share * others).astype(np.int64))
        some = keep(answers, place, 0, count[answers.question])
        score = mix(fit_posterior(some).utility, scored, budget)
        found["uniform"].append((count / others, score - full))
        if count.min() >= max(LEVELS):
            score = mix(estimate(some, LEVELS, standard_errors=False).utility, scored, budget)
        else:  # exact subsets of 16 need 16
            score = full - 1.0
        found["exact"].append((count / others, score - full))
    path = list(_adapt(answers, place, others, budget))
    value = [(count / others, mix(u, scored, budget)) for count, u in path]
    found["adaptive"] = [(spent, score - full) for spent, score in value]
    found["fair"] = [(spent, score - fair) for spent, score in value]
    return {k: (np.stack([a for a, _ in v]), np.stack([b for _, b in v])) for k, v in found.items()}


def _adapt(
    answers: Answers, place: IntArray, others: IntArray, budget: float
) -> Iterator[tuple[IntArray, FloatArray]]:
    """Collect as ``collect --adaptive`` does, at each threshold going on from the last."""
    count = np.full(len(answers), INITIAL_SAMPLES)
    for settled in THRESHOLDS:
        while True:
            some = keep(answers, place, 0, count[answers.question])
            open_ = find_undecided(some, budget, threshold=settled)
            open_ = open_[count[open_] < others[open_]]
            if len(open_) == 0:
                break
            count[open_] = np.minimum(count[open_] + SAMPLES_PER_ROUND, others[open_])
        yield count.copy(), fit_posterior(some).utility


def needed(draws: FloatArray, lost: FloatArray) -> float:
    """Draws from which on the loss stays within bounds, by interpolation; all when it never does.

    Before the first point nothing is known, so that is the least there can be.
    """
    bad = np.flatnonzero(lost < -WITHIN)
    if len(bad) == 0:
        return float(draws[0])
    last = int(bad[-1])
    if last + 1 == len(draws):
        return 1.0
    part = (-WITHIN - lost[last]) / (lost[last + 1] - lost[last])
    return float(draws[last] + part * (draws[last + 1] - draws[last]))


def report(curves: Curves, budget: float) -> None:
    """Print one row: each share needed, and the shipped threshold, with intervals."""
    rng = np.random.default_rng(0)
    texts, inverse = np.unique(curves.group, return_inverse=True)
    counts = rng.multinomial(len(texts), np.full(len(texts), 1 / len(texts)), size=RESAMPLINGS)
    weight = np.concatenate([np.ones((1, len(inverse))), counts[:, inverse]])
    weight = weight / weight.sum(axis=1, keepdims=True)
    cells = []
    for kind, draws in curves.draws.items():
        spent, score = weight @ draws.T, weight @ curves.lost[kind].T
        each = np.array([needed(a, b) for a, b in zip(spent, score, strict=True)])
        cells.append(f"{kind} {_interval(100 * each, '3.0f')}")
        if kind == "adaptive":
            at = THRESHOLDS.index(SETTLED_THRESHOLD)
            kept = f"kept: {_interval(100 * spent[:, at], '3.0f')} % of draws, "
            kept += f"{_interval(100 * score[:, at], '+.2f')} points"
    print(f"{curves.name:40} B={budget:g}  " + "  ".join(cells) + "  " + kept, flush=True)
    if "-v" in sys.argv:
        for kind, draws in curves.draws.items():
            mean = zip(draws.mean(axis=1), curves.lost[kind].mean(axis=1), strict=True)
            print("    ", kind, " ".join(f"{100 * a:.0f}:{100 * b:+.2f}" for a, b in mean))


def _interval(values: FloatArray, form: str) -> str:
    low, high = np.quantile(values[1:], [0.025, 0.975])
    return f"{values[0]:{form}} [{low:{form}}, {high:{form}}]"


def join(parts: list[Curves]) -> Curves:
    """Put the questions of several pools together."""
    kinds = list(parts[0].draws)
    return Curves(
        f"all {len(parts)} together",
        np.concatenate([part.group for part in parts]),
        {kind: np.concatenate([p.draws[kind] for p in parts], axis=1) for kind in kinds},
        {kind: np.concatenate([p.lost[kind] for p in parts], axis=1) for kind in kinds},
    )


def main() -> None:
    """Measure every pool at every budget."""
    every: dict[float, list[Curves]] = {budget: [] for budget in BUDGETS}
    for name, pool in find_pools(Path(sys.argv[1]), design="design" in sys.argv[2:]):
        for budget in BUDGETS:
            curves = measure(name, pool, budget)
            every[budget].append(curves)
            report(curves, budget)
    for budget in BUDGETS:
        report(join(every[budget]), budget)


if __name__ == "__main__":
    main()
