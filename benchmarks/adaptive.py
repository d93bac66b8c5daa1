"""Adaptive collection: how few samples choose as good an allocation as all of them.

Run it with ``python -m benchmarks.adaptive SAMPLES [--design] [--verbose]``. SAMPLES is a directory
of recorded samples. Sets with at least 50 samples per question are used, or with ``--design`` the
two sets on which the rule was designed. In each random split, 16 samples of every question are set
aside for scoring; the others may be collected. It prints the share of those that is needed until
the allocation scores at most 0.2 points below the one from exact subsets of all of them:

    exact       equally many samples of every question, exact subsets (they need 16 samples)
    uniform     equally many samples of every question, the posterior of adaptive collection
    adaptive    adaptive collection, at one threshold after another
    posterior   adaptive collection, compared with the posterior of all the samples

``shipped`` is the result at the default threshold. Intervals are by bootstrap over question texts.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from adacompute.core.allocation.oracle import solve
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
from adacompute.evaluation.scoring.oracles import allocation_utility
from adacompute.storage.store import SampleSet, encode_samples

if TYPE_CHECKING:
    from collections.abc import Iterator

    from adacompute.core.answers import Answers
    from adacompute.core.types import FloatArray, IntArray, KeyArray

BUDGETS = (2.0, 3.0)
EXAMS = "^(aqua-rat|hellaswag|lsat-ar|lsat-rc|sat-en)"
DESIGN = ("arith110", "design exams")
SCORING_SAMPLES, MIN_SAMPLES, N_SPLITS, RESAMPLES = 16, 50, 4, 1000
TOLERANCE = 0.002
THRESHOLDS = (0.03, 0.02, 0.015, 0.0125, 0.01, 0.0075, SETTLED_THRESHOLD, 0.003, 0.002, 0.001)
SHARES = np.array([0.12, 0.18, 0.24, 0.3, 0.36, 0.42, 0.48, 0.6, 0.72, 0.84, 1.0])

Points = list[tuple["FloatArray", "FloatArray"]]
"""Share of the samples used, and the score minus that of the reference, of each question."""


def find_sets(samples: Path, *, design: bool) -> Iterator[tuple[str, SampleSet]]:
    """Yield every set; the exams are split into those used in the design and the others."""
    for file in sorted(samples.glob("*.parquet")):
        table = read_source(file)
        parts = {file.stem: table}
        if file.stem.startswith("mcqa10x100"):
            used = pc.match_substring_regex(table["question_id"], EXAMS)
            parts = {
                "design exams": table.filter(used),
                "other exams": table.filter(pc.invert(used)),
            }
        for name, part in parts.items():
            if design != name.startswith(DESIGN):
                continue
            recorded = encode_samples(part)
            if name == "design exams":  # also each by itself, because sets are often small
                for exam in EXAMS[2:-1].split("|"):
                    own = pc.starts_with(part["question_id"], exam)
                    yield f"design exams, {exam}", encode_samples(part.filter(own))
            if design or int(recorded.answers.n_samples.min()) >= MIN_SAMPLES:
                yield name, recorded


def allocate(utility: FloatArray, scoring: FloatArray, budget: float) -> FloatArray:
    """Return the score of each question under the allocation from these utilities."""
    table = UtilityTable(utility, np.array(LEVELS, dtype=np.float64))
    return allocation_utility(solve(table, budget), scoring)


def exact_utility(answers: Answers) -> FloatArray:
    """Return utilities over all subsets."""
    return estimate(answers, LEVELS, standard_errors=False).utility


@dataclass(frozen=True)
class Curves:
    """Shares of the samples used, and scores minus the reference's, by method, (points, N)."""

    name: str
    group: KeyArray
    shares: dict[str, FloatArray]
    losses: dict[str, FloatArray]


def measure(name: str, recorded: SampleSet, budget: float) -> Curves:
    """Return the curves of one set, averaged over random splits."""
    shares: dict[str, FloatArray] = {}
    losses: dict[str, FloatArray] = {}
    for seed in range(N_SPLITS):
        for method, points in measure_split(recorded.answers, budget, seed).items():
            share, loss = (np.stack(values) for values in zip(*points, strict=True))
            shares[method] = shares.get(method, 0.0) + share / N_SPLITS
            losses[method] = losses.get(method, 0.0) + loss / N_SPLITS
    return Curves(name, recorded.group, shares, losses)


def measure_split(answers: Answers, budget: float, seed: int) -> dict[str, Points]:
    """Measure every method on one random split of the samples."""
    rng = np.random.default_rng(seed)
    order = np.lexsort((rng.random(len(answers.answer)), answers.question))
    rank = np.empty_like(order)
    rank[order] = answers.position
    scoring = exact_utility(answers.keep(rank < SCORING_SAMPLES))
    available = answers.n_samples - SCORING_SAMPLES
    rank = rank - SCORING_SAMPLES

    def collect(count: IntArray) -> Answers:
        return answers.keep((rank >= 0) & (rank < count[answers.question]))

    everything = collect(available)
    reference = allocate(exact_utility(everything), scoring, budget)
    posterior_reference = allocate(fit_posterior(everything).utility, scoring, budget)
    points: dict[str, Points] = {"exact": [], "uniform": [], "adaptive": [], "posterior": []}
    for share in SHARES:
        count = np.maximum(1, np.round(share * available).astype(np.int64))
        some = collect(count)
        score = allocate(fit_posterior(some).utility, scoring, budget)
        points["uniform"].append((count / available, score - reference))
        if count.min() >= max(LEVELS):
            score = allocate(exact_utility(some), scoring, budget)
        else:  # too few samples for the largest level
            score = reference - 1.0
        points["exact"].append((count / available, score - reference))
    count = np.full(len(answers), INITIAL_SAMPLES)
    for threshold in THRESHOLDS:
        while True:  # as ``collect --adaptive`` does, continuing from the last threshold
            some = collect(count)
            undecided = find_undecided(some, budget, threshold=threshold)
            undecided = undecided[count[undecided] < available[undecided]]
            if len(undecided) == 0:
                break
            more = count[undecided] + SAMPLES_PER_ROUND
            count[undecided] = np.minimum(more, available[undecided])
        score = allocate(fit_posterior(some).utility, scoring, budget)
        points["adaptive"].append((count / available, score - reference))
        points["posterior"].append((count / available, score - posterior_reference))
    return points


def needed_share(shares: FloatArray, losses: FloatArray) -> float:
    """Return the share from which on the loss stays within the tolerance, by interpolation.

    It is at least the first share, and 1 if the loss never stays within the tolerance.
    """
    outside = np.flatnonzero(losses < -TOLERANCE)
    if len(outside) == 0:
        return float(shares[0])
    last = int(outside[-1])
    if last + 1 == len(shares):
        return 1.0
    part = (-TOLERANCE - losses[last]) / (losses[last + 1] - losses[last])
    return float(shares[last] + part * (shares[last + 1] - shares[last]))


def bootstrap_weights(group: KeyArray) -> FloatArray:
    """Return how often each question is drawn: once, then in each resampling of the texts."""
    _, inverse = np.unique(group, return_inverse=True)
    size = int(inverse.max()) + 1
    counts = np.random.default_rng(0).multinomial(size, np.full(size, 1 / size), RESAMPLES)
    return np.concatenate([np.ones((1, len(group))), counts[:, inverse]])


def report(curves: Curves, budget: float, *, verbose: bool) -> None:
    """Print the share that each method needs, and the result at the default threshold."""
    weights = bootstrap_weights(curves.group)
    weights = weights / weights.sum(axis=1, keepdims=True)
    cells = []
    for method, by_question in curves.shares.items():
        shares, losses = weights @ by_question.T, weights @ curves.losses[method].T
        needed = np.array([needed_share(a, b) for a, b in zip(shares, losses, strict=True)])
        cells.append(f"{method} {format_interval(100 * needed, '3.0f')}")
        if method == "adaptive":
            at = THRESHOLDS.index(SETTLED_THRESHOLD)
            shipped = f"shipped: {format_interval(100 * shares[:, at], '3.0f')} % of the samples, "
            shipped += f"{format_interval(100 * losses[:, at], '+.2f')} points"
    print(f"{curves.name:40} B={budget:g}  " + "  ".join(cells) + "  " + shipped, flush=True)
    if verbose:
        for method, by_question in curves.shares.items():
            means = zip(by_question.mean(axis=1), curves.losses[method].mean(axis=1), strict=True)
            print("    ", method, " ".join(f"{100 * a:.0f}:{100 * b:+.2f}" for a, b in means))


def format_interval(values: FloatArray, form: str) -> str:
    """Format the first value with the interval of the resampled others."""
    low, high = np.quantile(values[1:], [0.025, 0.975])
    return f"{values[0]:{form}} [{low:{form}}, {high:{form}}]"


def join(parts: list[Curves]) -> Curves:
    """Join the questions of several sets."""
    methods = list(parts[0].shares)
    return Curves(
        f"all {len(parts)} together",
        np.concatenate([part.group for part in parts]),
        {name: np.concatenate([p.shares[name] for p in parts], axis=1) for name in methods},
        {name: np.concatenate([p.losses[name] for p in parts], axis=1) for name in methods},
    )


def main() -> None:
    """Measure every set at every budget."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("samples", type=Path, help="directory of recorded samples")
    parser.add_argument("--design", action="store_true", help="use the sets of the design instead")
    parser.add_argument("--verbose", "-v", action="store_true", help="print the curves too")
    options = parser.parse_args()
    by_budget: dict[float, list[Curves]] = {budget: [] for budget in BUDGETS}
    for name, recorded in find_sets(options.samples, design=options.design):
        for budget in BUDGETS:
            curves = measure(name, recorded, budget)
            by_budget[budget].append(curves)
            report(curves, budget, verbose=options.verbose)
    for budget in BUDGETS:
        report(join(by_budget[budget]), budget, verbose=options.verbose)


if __name__ == "__main__":
    main()
