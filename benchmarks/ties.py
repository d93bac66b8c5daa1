"""Ties: odd levels, and log-probabilities in the vote.

Run it with ``python -m benchmarks.ties SAMPLES [SET …]``. SAMPLES is a directory of recorded
samples. Sets are file names without their suffix, by default the two with log-probabilities. For
each number of samples it prints the accuracy of these votes:

    uniform       ties broken at random
    mean, best    ties broken by the largest mean, or the largest single, log-probability
    weighted      each vote weighted by the probability per token of its sample
    one           no vote: the answer of the most likely sample

with the difference to ``uniform`` and its interval over questions. It also prints the best mixture
of uniform levels with odd sets of levels, and the held-out accuracy of policies at equal cost with
``--tie-break first`` and ``--tie-break logprob``.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np

from adacompute.core.allocation.oracle import solve
from adacompute.core.answers import UNPARSED, order_samples
from adacompute.core.types import UtilityTable
from adacompute.core.utility import estimate
from adacompute.evaluation.experiment import Experiment
from adacompute.evaluation.scoring.policy_score import PolicyScore, score_policy
from adacompute.policies.episode import FIRST_SEEN, TIE_BREAKS
from adacompute.stages.inputs import read_pool
from adacompute.stages.research.import_samples import import_samples
from adacompute.storage.store import Run, SampleSet, encode_samples

if TYPE_CHECKING:
    from adacompute.core.types import FloatArray, IntArray

SETS = ("arith110__smollm2-135m", "svamp141__qwen2.5-coder-1.5b")
VOTES = ("uniform", "mean", "best", "weighted", "one")
SIZES = (2, 3, 4, 5, 8)
N_ORDERS, RESAMPLES, SEED = 960, 2000, 0
LEVEL_SETS = {
    "1,2,4,8,16": (1, 2, 4, 8, 16),
    "1,3,5,9,15": (1, 3, 5, 9, 15),
    "1,3,5,7,9,11,13,15": (1, 3, 5, 7, 9, 11, 13, 15),
    "1 to 16": tuple(range(1, 17)),
}
BUDGETS = (1.5, 2.0, 3.0, 4.0, 6.0)
LEVELS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
POLICIES = ("mixture", "adaptive-consistency", "sequential")


def read_set(samples: Path, name: str) -> SampleSet:
    """Read a set of recorded samples as a run has it."""
    with TemporaryDirectory() as directory:
        import_samples(next(samples.rglob(f"{name}.parquet")), Path(directory, "run"))
        return encode_samples(Run(Path(directory, "run")).samples())


def vote(answer: IntArray, accuracy: FloatArray, logprob: FloatArray, method: str) -> FloatArray:
    """Return the probability that the vote of each row is correct."""
    parsed = answer != UNPARSED
    same = (answer[:, :, None] == answer[:, None, :]) & parsed[:, None, :]
    weight = np.exp(logprob) if method == "weighted" else np.ones(answer.shape)
    total = np.where(same, weight[:, None, :], 0.0).sum(axis=2)
    leads = (np.abs(total - total.max(axis=1, keepdims=True)) < 1e-12) & parsed
    if method == "one":
        leads = parsed
    class_size = same.sum(axis=2).clip(1)
    if method not in ("uniform", "weighted"):
        if method == "mean":
            rank = np.where(same, logprob[:, None, :], 0.0).sum(axis=2) / class_size
        else:
            rank = np.where(same, logprob[:, None, :], -np.inf).max(axis=2)
        rank = np.where(leads, rank, -np.inf)
        leads &= rank == rank.max(axis=1, keepdims=True)
    share = np.where(leads, 1.0 / class_size, 0.0)
    return np.asarray((share * accuracy).sum(axis=1) / share.sum(axis=1).clip(1e-12))


def compare_votes(recorded: SampleSet) -> None:
    """Print the accuracy of every kind of vote at every number of samples."""
    logprob, answers = recorded.column("mean_logprob"), recorded.answers
    rng = np.random.default_rng(SEED)
    weights = rng.multinomial(len(answers), np.full(len(answers), 1 / len(answers)), RESAMPLES)
    for size in SIZES:
        known = {"n_orders": N_ORDERS, "length": size, "seed": SEED}
        index = order_samples(answers, recorded.key, **known).reshape(-1, size)
        samples = answers.answer[index], answers.class_accuracy[index], logprob[index]
        cells, uniform = [], np.zeros(0)
        for method in VOTES:
            value = vote(*samples, method).reshape(len(answers), -1).mean(axis=1)
            uniform = value if method == "uniform" else uniform
            gain = value - uniform
            low, high = np.quantile(weights @ gain / len(gain), [0.025, 0.975])
            interval = f" {100 * gain.mean():+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"
            cells.append(f"{value.mean():.3f}{interval if method != 'uniform' else ''}")
        print(f"| {size} |", " | ".join(cells), "|")


def compare_level_sets(recorded: SampleSet) -> None:
    """Print the utility of the best mixture of uniform levels for each set of levels, in sample."""
    answers = recorded.answers
    max_level = int(answers.n_samples.min())
    for name, levels in LEVEL_SETS.items():
        kept = tuple(n for n in levels if n <= max_level)
        mean = estimate(answers, kept, standard_errors=False).utility.mean(axis=0, keepdims=True)
        table = UtilityTable(mean, np.array(kept, dtype=np.float64))
        utility = [solve(table, budget=min(b, kept[-1])).mixed_utility for b in BUDGETS]
        print(f"| {name} |", " | ".join(f"{100 * value:.2f}" for value in utility), "|")


def compare_policies(samples: Path, name: str) -> None:
    """Print held-out accuracies with both ways to break ties."""
    scores: dict[tuple[str, str], PolicyScore] = {}
    with TemporaryDirectory() as directory:
        import_samples(next(samples.rglob(f"{name}.parquet")), Path(directory, "run"))
        pools = {
            tie_break: read_pool(Run(Path(directory, "run")), tie_break=tie_break).equalise()
            for tie_break in TIE_BREAKS
        }
    for tie_break, pool in pools.items():
        max_level = pool.n_samples // 2
        levels = tuple(n for n in LEVELS if n <= max_level)
        experiment = Experiment(pool, levels, BUDGETS)
        for policy in POLICIES:
            scores[policy, tie_break] = score_policy(experiment, policy)
    for (policy, tie_break), score in scores.items():
        gain = score.difference(scores[policy, FIRST_SEEN], BUDGETS)
        value, low, high = (100 * end for end in (gain.value, gain.low, gain.high))
        cells = " | ".join(f"{100 * score.curve.read(b).accuracy:.1f}" for b in BUDGETS)
        print(f"| {policy}, {tie_break} | {cells} | {value:+.2f} [{low:+.2f}, {high:+.2f}] |")


def main() -> None:
    """Measure the named sets."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("samples", type=Path, help="directory of recorded samples")
    parser.add_argument("sets", nargs="*", metavar="SET", help="file names without suffix")
    options = parser.parse_args()
    for name in options.sets or SETS:
        recorded = read_set(options.samples, name)
        print(f"\n{name}: {len(recorded.answers)} questions")
        compare_level_sets(recorded)
        if np.isfinite(recorded.column("mean_logprob")).all():
            print("| n | " + " | ".join(VOTES) + " |")
            compare_votes(recorded)
            compare_policies(options.samples, name)


if __name__ == "__main__":
    main()
