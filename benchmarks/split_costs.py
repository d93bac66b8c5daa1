"""Split costs: what calibrations say of the cost, and what other questions cost.

``python -m benchmarks.split_costs SET SPLITS`` divides the questions of a recorded set at random,
as often as SPLITS says. Some of them (300, or half of fewer) predict what the others cost, each
answered once. It counts the intervals that contain that, and prints the mean half-width of the
intervals as a multiple of the one that would suffice, 1.96 root mean squares of the errors. Sets
are those of ``benchmarks.policy_change``; ``--first`` is the seed of the first split.

``--null`` draws the correct answer of every question at random from its own answers instead, so
that nothing can be gained, and counts verdicts of "gain": with all signals, and by votes alone;
``--assignments 1`` scores one assignment of questions to folds, which takes a third of the time.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from adacompute.core.answers import UNPARSED
from adacompute.evaluation.experiment import Experiment
from adacompute.evaluation.factories import find_factory
from adacompute.evaluation.scoring.policy_score import score_policy
from adacompute.evaluation.scoring.verdict import calibrate
from benchmarks.policy_change import list_sets, make_experiment

if TYPE_CHECKING:
    from adacompute.core.types import FloatArray
    from adacompute.evaluation.experiment import FittedPolicy

MAX_NOW, MAX_LATER = 300, 600
NORMAL_QUANTILE, NULL_BUDGET = 1.96, 2.0
PLACES = (0.25, 0.6)
"""Budgets of sets of arms, by their place between the cheapest and the largest one."""


def measure_cost(fitted: FittedPolicy, later: Experiment, price: float) -> FloatArray:
    """Return the costs of questions that a policy was not fitted to, each answered once."""
    pool = later.pool
    features = pool.features if pool.sequential_features is None else pool.sequential_features
    return later.run(replace(fitted, features=features, known=None), [price]).cost[:, 0]


def predict(said: dict[str, Any], cost: FloatArray) -> tuple[float, float]:
    """Return the interval of the mean cost of so many questions, from that of the long run."""
    noise = NORMAL_QUANTILE * float(cost.std()) / math.sqrt(len(cost))
    low, high = (math.hypot(said["cost"] - said[name], noise) for name in ("cost_low", "cost_high"))
    return said["cost"] - low, said["cost"] + high


def check_split(whole: Experiment, budgets: tuple[float, ...], seed: int) -> list[dict[str, float]]:
    """Return what is said of each budget, and what the other questions cost."""
    rows = np.random.default_rng(seed).permutation(len(whole.pool))
    n_now = min(MAX_NOW, len(rows) // 2)
    now, later = (np.sort(one) for one in (rows[:n_now], rows[n_now : n_now + MAX_LATER]))
    parts: list[Any] = [
        replace(
            whole,
            pool=whole.pool.take(one),
            seed=seed,
            n_permutations=n,
            max_assignments=None,
        )
        for one, n in ((now, whole.n_permutations), (later, 1))
    ]
    experiment = parts[0]
    score = score_policy(experiment, "sequential")
    final = experiment.fit_final(find_factory("sequential"))
    found = []
    for budget in budgets:
        said = calibrate(score, final, budget=budget)
        cost = measure_cost(final, parts[1], float(said["price"]))
        low, high = predict(said, cost)
        found.append(
            {"cost": said["cost"], "cost_low": low, "cost_high": high, "true": float(cost.mean())}
        )
    return found


def draw_gold(whole: Experiment, seed: int, n_assignments: int | None) -> Experiment:
    """Draw the correct answer of every question from its own answers."""
    answers, rng = whole.pool.answers, np.random.default_rng(seed)
    correct = np.zeros_like(answers.correct)
    for start, end in itertools.pairwise(answers.offsets.tolist()):
        own = answers.answer[start:end]
        known = np.unique(own[own != UNPARSED])
        if len(known):
            correct[start:end] = own == rng.choice(known)
    pool = replace(whole.pool, answers=replace(answers, correct=correct))
    return replace(whole, pool=pool, seed=seed, max_assignments=n_assignments)


def count_gains(whole: Experiment, seeds: range, n_assignments: int | None) -> None:
    """Print how often the verdict is "gain" although nothing can be gained."""
    counts, start = {True: 0, False: 0}, time.perf_counter()
    for i, seed in enumerate(seeds, start=1):
        pool = draw_gold(whole, seed, n_assignments)
        for sees_signals in counts:
            experiment = replace(pool, use_confidence=sees_signals)
            final = experiment.fit_final(find_factory("sequential"))
            score = score_policy(experiment, "sequential")
            said = calibrate(score, final, budget=NULL_BUDGET)
            counts[sees_signals] += said["verdict"] == "gain"
        elapsed_s = time.perf_counter() - start
        shown = f"{counts[True]} of {i} with signals, {counts[False]} of {i} by votes"
        print(f"{shown}, {elapsed_s:.0f} s", flush=True)


def main() -> None:
    """Print how often intervals contain the cost of other questions."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("set")
    parser.add_argument("splits", type=int)
    parser.add_argument("--first", type=int, default=0, help="seed of the first split")
    parser.add_argument("--null", action="store_true")
    parser.add_argument("--assignments", type=int, help="of questions to folds, with --null")
    options = parser.parse_args()
    whole = make_experiment(options.set, list_sets()[options.set], 0)
    seeds, budgets = range(options.first, options.first + options.splits), (2.0, 4.0)
    if options.null:
        count_gains(whole, seeds, options.assignments)
        return
    if whole.pool.has_arms:
        low, high = whole.budgets[0], whole.budgets[-1]
        budgets = (low + PLACES[0] * (high - low), low + PLACES[1] * (high - low))
    start, every = time.perf_counter(), []
    for seed in seeds:
        every.append(check_split(whole, budgets, seed))
        shown = []
        for budget, found in zip(budgets, zip(*every, strict=True), strict=True):
            inside = sum(one["cost_low"] <= one["true"] <= one["cost_high"] for one in found)
            half = np.mean([(one["cost_high"] - one["cost_low"]) / 2 for one in found])
            error = np.sqrt(np.mean([(one["true"] - one["cost"]) ** 2 for one in found]))
            ratio = half / max(NORMAL_QUANTILE * float(error), 1e-12)
            shown.append(f"B = {budget:.3g}: {inside} of {len(found)} inside, {ratio:.2f} x")
        print("; ".join(shown), f"{time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
