"""Ties: odd ladders, and log-probabilities in the vote, measured before anything is built on them.

Run it with ``python benchmarks/ties.py SAMPLES [SET …]``, a directory of recorded samples; sets are
file names without their end, by default the two drawn with log-probabilities. It prints, for each
number of samples, the accuracy of the vote:

    uniform       ties broken at random
    mean, best    towards the class of largest mean, or largest single, log-probability
    weighted      every vote weighed by its sample's probability a token
    one           no vote: the answer of the likeliest sample

with the difference to uniform and its interval over questions; what ladders of odd numbers of
samples are worth to the mixture of uniform levels; and what ties by log-probability, as they were
built (``--tie-break logprob``), do to policies on held-out questions at equal cost.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np

from adacompute.core.answers import UNPARSED, order_samples
from adacompute.core.oracle import solve
from adacompute.core.types import UtilityTable
from adacompute.core.utility import estimate
from adacompute.evaluation.curves import Curve, cross_validate, read_curve, split_folds
from adacompute.evaluation.factories import POLICY_FACTORIES, Experiment
from adacompute.evaluation.intervals import bootstrap_weights
from adacompute.evaluation.pool import assign_folds
from adacompute.policies.episode import TIE_BREAKS
from adacompute.stages.import_samples import import_samples
from adacompute.stages.inputs import read_pool
from adacompute.storage.store import Run, SampleSet, encode_samples

if TYPE_CHECKING:
    from adacompute.core.types import FloatArray, IntArray

SETS = ("arith110__smollm2-135m", "svamp141__qwen2.5-coder-1.5b")
SIZES = (2, 3, 4, 5, 8)
ORDERS, RESAMPLINGS, SEED = 960, 2000, 0
LADDERS = {
    "1,2,4,8,16": (1, 2, 4, 8, 16),
    "1,3,5,9,15": (1, 3, 5, 9, 15),
    "1,3,5,7,9,11,13,15": (1, 3, 5, 7, 9, 11, 13, 15),
    "1 to 16": tuple(range(1, 17)),
}
BUDGETS = (1.5, 2.0, 3.0, 4.0, 6.0)
LEVELS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
POLICIES = ("mixture", "adaptive-consistency", "sequential")


def read(samples: Path, name: str) -> SampleSet:
    """Read a set as a run would."""
    with TemporaryDirectory() as place:
        import_samples(next(samples.rglob(f"{name}.parquet")), Path(place, "run"))
        return encode_samples(Run(Path(place, "run")).samples())


def vote(answer: IntArray, share: FloatArray, logprob: FloatArray, how: str) -> FloatArray:
    """Chance that the vote of each row is right."""
    read_ = answer != UNPARSED
    same = (answer[:, :, None] == answer[:, None, :]) & read_[:, None, :]
    weight = np.exp(logprob) if how == "weighted" else np.ones(answer.shape)
    total = np.where(same, weight[:, None, :], 0.0).sum(axis=2)
    leads = (np.abs(total - total.max(axis=1, keepdims=True)) < 1e-12) & read_
    if how == "one":
        leads = read_
    if how not in ("uniform", "weighted"):
        heard = np.where(same, logprob[:, None, :], -np.inf if how != "mean" else 0.0)
        rank = heard.max(axis=2) if how != "mean" else heard.sum(axis=2) / same.sum(axis=2).clip(1)
        rank = np.where(leads, rank, -np.inf)
        leads &= rank == rank.max(axis=1, keepdims=True)
    each = np.where(leads, 1.0 / same.sum(axis=2).clip(1), 0.0)
    return np.asarray((each * share).sum(axis=1) / each.sum(axis=1).clip(1e-12))


def compare_votes(recorded: SampleSet) -> None:
    """Print every kind of vote at every size."""
    logprob, answers = recorded.column("mean_logprob"), recorded.answers
    rng = np.random.default_rng(SEED)
    weights = rng.multinomial(len(answers), np.full(len(answers), 1 / len(answers)), RESAMPLINGS)
    for size in SIZES:
        index = order_samples(answers, n_orders=ORDERS, length=size, seed=SEED).reshape(-1, size)
        drawn = answers.answer[index], answers.class_accuracy[index], logprob[index]
        cells, base = [], np.zeros(0)
        for how in ("uniform", "mean", "best", "weighted", "one"):
            value = vote(*drawn, how).reshape(len(answers), -1).mean(axis=1)
            base = value if how == "uniform" else base
            low, high = np.quantile(weights @ (value - base) / len(base), [0.025, 0.975])
            gap = f" {100 * (value - base).mean():+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"
            cells.append(f"{value.mean():.3f}{gap if how != 'uniform' else ''}")
        print(f"| {size} |", " | ".join(cells), "|")


def compare_ladders(recorded: SampleSet) -> None:
    """Print what the best mixture of uniform levels is worth on each ladder, in sample."""
    answers = recorded.answers
    most = int(answers.n_samples.min())
    for name, ladder in LADDERS.items():
        kept = tuple(n for n in ladder if n <= most)
        mean = estimate(answers, kept, standard_errors=False).utility.mean(axis=0, keepdims=True)
        table = UtilityTable(mean, np.array(kept, dtype=np.float64))
        found = [solve(table, budget=min(b, kept[-1])).mixed_utility for b in BUDGETS]
        print(f"| {name} |", " | ".join(f"{100 * value:.2f}" for value in found), "|")


def compare_policies(samples: Path, name: str) -> None:
    """Print held-out accuracies with ties to the first and to the likeliest answer."""
    curves: dict[tuple[str, str], Curve] = {}
    with TemporaryDirectory() as place:
        import_samples(next(samples.rglob(f"{name}.parquet")), Path(place, "run"))
        pools = {
            tie_break: read_pool(Run(Path(place, "run")), tie_break=tie_break).equalise()
            for tie_break in TIE_BREAKS
        }
    for tie_break, pool in pools.items():
        most = int(pool.answers.n_samples[0]) // 2
        experiment = Experiment(pool, tuple(n for n in LEVELS if n <= most), BUDGETS, 40, SEED)
        splits = split_folds(assign_folds(pool.group, 5, seed=SEED))
        for policy in POLICIES:
            curves[policy, tie_break] = cross_validate(experiment, POLICY_FACTORIES[policy], splits)
    weights = bootstrap_weights(pools["first"].group, RESAMPLINGS, seed=SEED)
    for (policy, tie_break), curve in curves.items():
        mine = [read_curve(curve, b, weights) for b in BUDGETS]
        base = [read_curve(curves[policy, "first"], b, weights) for b in BUDGETS]
        both = list(zip(mine, base, strict=True))
        mean = 100 * np.mean([m.accuracy - b.accuracy for m, b in both])
        gaps = 100 * np.mean([m.resampled - b.resampled for m, b in both], axis=0)
        low, high = np.quantile(gaps, [0.025, 0.975])
        cells = " | ".join(f"{100 * m.accuracy:.1f}" for m in mine)
        print(f"| {policy}, {tie_break} | {cells} | {mean:+.2f} [{low:+.2f}, {high:+.2f}] |")


def main() -> None:
    """Measure the sets that are named."""
    for name in sys.argv[2:] or SETS:
        recorded = read(Path(sys.argv[1]), name)
        print(f"\n{name}: {len(recorded.answers)} questions")
        compare_ladders(recorded)
        if np.isfinite(recorded.column("mean_logprob")).all():
            print("| n | uniform | mean | best | weighted | one |")
            compare_votes(recorded)
            compare_policies(Path(sys.argv[1]), name)


if __name__ == "__main__":
    main()
