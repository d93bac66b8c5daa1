"""How well answers are that are right are separated from those that are wrong, on recorded sets.

``python -m benchmarks.correctness score DIR`` measures ``p_correct``, agreement and mean
log-probability on all recorded sets with at least 100 questions, at two samples per question, in
five fold assignments: area under the ROC curve, accuracy of the surer half, and the calibration
error, all three calibrated in the same way. ``table DIR`` prints the means over sets and Holm's
test of each set. ``bins SET`` prints how often the answers of ten bins of ``p_correct`` are right.
``guarantees SET TARGETS COUNT`` splits a set into halves, COUNT times, and counts
how often a precision that was guaranteed on one half is not that of the other;
``guarantees synthetic TARGETS COUNT`` draws populations of 4,000 questions with 8 samples, whose
truth is that of 20,000 fresh questions; ``--first`` is the first of them, so that a count can be
done in parts. ``shuffled`` instead of a target mixes the grades up.
Recorded samples are found in ``ADACOMPUTE_DATA``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from adacompute.evaluation.experiment import Experiment
from adacompute.evaluation.factories import find_factory
from adacompute.evaluation.intervals import Mean
from adacompute.evaluation.pool import Pool
from adacompute.evaluation.scoring.correctness import (
    LEARNED,
    N_BINS,
    SHARES,
    RankedAnswers,
    measure_calibration,
    rank_answers,
    replay_ends,
)
from adacompute.evaluation.scoring.frontier import CalibrationSettings, PriceFrontier
from adacompute.evaluation.scoring.held_out import score_held_out
from adacompute.evaluation.scoring.policy_score import PolicyScore
from adacompute.evaluation.scoring.precision import find_precision
from adacompute.policies.correctness import Correctness
from benchmarks.arms import adjust, p_value_of_loss
from benchmarks.policy_change import list_sets, make_experiment
from test_support.populations import make_population

SEEDS = (0, 1, 2, 3, 4)
MIN_QUESTIONS, BUDGET_PLACE, HALF = 100, 1, 0.5
POPULATION, N_SAMPLES, FRESH = 4000, 8, 20_000
ERROR = 0.05
"""What the calibration error should be at most, in the mean."""


def rank(experiment: Experiment, policy: str, budget: float) -> tuple[RankedAnswers, PriceFrontier]:
    """Rank the answers of one fold assignment."""
    factory = find_factory(policy)
    curve = score_held_out(experiment, factory, n_assignments=1)
    score = PolicyScore(experiment, factory, curve, curve)
    frontier = PriceFrontier(score, experiment.fit_final(factory), CalibrationSettings())
    found = rank_answers(frontier, frontier.find(budget))
    if found is None:
        raise ValueError(f"{policy} does not know the arms")
    return found, frontier


def describe(ranked: RankedAnswers) -> dict[str, Any]:
    """Return the figures of every score, and the influence of each question on its area."""
    found: dict[str, Any] = {}
    for name in ranked.delivered.scores:
        area, influence = ranked.find_area(name)
        by_question = np.bincount(ranked.question, influence) * len(ranked.fold) / len(influence)
        error = measure_calibration(ranked.calibrate(name)[0], ranked.delivered.correct)
        half = ranked.trace(name)[SHARES.index(HALF)].value
        figures = {"area": area, "half": half, "error": error}
        found[name] = {**figures, "influence": by_question.tolist()}
    return found


def score(place: Path, names: list[str], policy: str) -> None:
    """Measure sets; what is there is not computed again."""
    place.mkdir(parents=True, exist_ok=True)
    sets = {name: file for name, file in list_sets().items() if not names or name in names}
    for seed, (name, file) in itertools.product(SEEDS, sets.items()):
        path = place / f"{name} {seed}.json"
        if path.exists():
            continue
        start, experiment = time.perf_counter(), make_experiment(name, file, seed)
        if len(experiment.pool) < MIN_QUESTIONS:
            continue
        budget = experiment.budgets[min(BUDGET_PLACE, len(experiment.budgets) - 1)]
        found = describe(rank(experiment, policy, budget)[0])
        found["group"] = [str(one) for one in experiment.pool.group]
        path.write_text(json.dumps(found))
        shown = " ".join(f"{found[one]['area']:.3f}" for one in found if one != "group")
        print(f"{name} {seed}: {shown} ({time.perf_counter() - start:.0f} s)", flush=True)


def table(place: Path) -> None:
    """Print the figures of each set, their means, and which areas are smaller than another's."""
    rows, losses = [], []
    for name in list_sets():
        files = [json.loads(one.read_text()) for one in sorted(place.glob(f"{name} ?.json"))]
        if not files:
            continue
        scores = [one for one in files[0] if one != "group"]
        mean = {
            (one, key): float(np.mean([file[one][key] for file in files]))
            for one in scores
            for key in ("area", "half", "error")
        }
        other = max((one for one in scores if one != LEARNED), key=lambda one: mean[one, "area"])
        difference = mean[LEARNED, "area"] - mean[other, "area"]
        influence = np.mean(
            [np.subtract(one[LEARNED]["influence"], one[other]["influence"]) for one in files], 0
        )
        group = np.unique(files[0]["group"], return_inverse=True)[1]
        total = np.bincount(group, influence)
        margin = 1.96 * math.sqrt(float((total**2).sum())) / len(influence)
        losses.append(p_value_of_loss(difference, difference - margin, difference + margin))
        rows.append((name, mean, other, difference, margin))
        shown = "; ".join(
            f"{one} {mean[one, 'area']:.3f} {mean[one, 'half']:.3f} {mean[one, 'error']:.3f}"
            for one in scores
        )
        print(f"{name} ({len(files)}): {shown}; {difference:+.3f} ± {margin:.3f}")
    worse = [row[0] for row, p in zip(rows, adjust(losses), strict=True) if p < ERROR]
    for key in ("area", "half", "error"):
        learned, best = (
            float(np.mean([row[1][one or row[2], key] for row in rows])) for one in (LEARNED, "")
        )
        print(f"{key}: p_correct {learned:.4f}, the better of the others {best:.4f}")
    print(f"{len(rows)} sets; area significantly smaller on: {', '.join(worse) or 'none'}")


def bins(name: str, policy: str, seeds: tuple[int, ...] = SEEDS) -> None:
    """Print the mean probability and the share of right answers in ten equally filled bins."""
    found = []
    for seed in seeds:
        experiment = make_experiment(name, list_sets()[name], seed)
        ranked, _ = rank(experiment, policy, experiment.budgets[BUDGET_PLACE])
        found.append([describe_bin(ranked, own) for own in split_bins(ranked)])
        print(f"| bin | p_correct | right | low | high |  ({len(found)} fold assignments)")
        for number, (chance, right, margin) in enumerate(np.mean(found, axis=0).tolist(), start=1):
            low, high = max(0.0, right - margin), min(1.0, right + margin)
            print(f"| {number} | {chance:.3f} | {right:.3f} | {low:.3f} | {high:.3f} |", flush=True)


def split_bins(ranked: RankedAnswers) -> list[np.ndarray]:
    """Return the rows of ten equally filled bins, by rising probability."""
    return np.array_split(np.argsort(ranked.calibrate()[0], kind="stable"), N_BINS)


def describe_bin(ranked: RankedAnswers, own: np.ndarray) -> tuple[float, float, float]:
    """Return the mean probability of some answers, how many are right, and 1.96 standard errors.

    The answers to one question, and to its copies, count as one observation.
    """
    right, group = ranked.delivered.correct[own], ranked.group[ranked.question[own]]
    share = float(right.mean())
    margin = Mean.of(right, group).margin(0.975)
    return float(ranked.calibrate()[0][own].mean()), share, margin


def split(name: str, seeds: range, *, is_shuffled: bool) -> Iterator[tuple[Experiment, Experiment]]:
    """Yield halves of a set, or populations with fresh questions."""
    whole = None if name == "synthetic" else make_experiment(name, list_sets()[name], 0)
    for seed in seeds:
        rng = np.random.default_rng(seed)
        if whole is None:
            one, two = (draw(size, seed, part) for part, size in enumerate((POPULATION, FRESH)))
        else:
            texts = np.unique(whole.pool.group)
            is_first = np.isin(whole.pool.group, rng.permutation(texts)[: len(texts) // 2])
            one, two = (
                replace(whole, pool=whole.pool.take(np.flatnonzero(rows)), seed=seed)
                for rows in (is_first, ~is_first)
            )
        if is_shuffled:
            answers = one.pool.answers
            mixed = rng.permutation(answers.correct) & (answers.answer >= 0)
            one = replace(one, pool=replace(one.pool, answers=replace(answers, correct=mixed)))
        yield one, two


def draw(size: int, seed: int, part: int) -> Experiment:
    """Return questions of a synthetic population."""
    population, _ = make_population(size, feature_signal=0.7, seed=2 * seed + part)
    key = np.arange(size, dtype=np.uint64) + np.uint64(part * POPULATION)
    samples = np.ones(size * N_SAMPLES)
    answers = population.sample(N_SAMPLES, seed=2 * seed + part)
    pool = Pool(
        answers=answers, key=key, group=key, features=population.features, sample_cost=samples
    )
    return Experiment(pool, (1, 2, 3, 4, 6, 8), (2.0,), n_permutations=8, max_assignments=1)


def check(
    model: Correctness, frontier: PriceFrontier, budget: float, fresh: Experiment
) -> tuple[np.ndarray, np.ndarray]:
    """Return the probabilities of the answers to fresh questions, and if they are right."""
    price = frontier.describe(frontier.find(budget))["price"]
    width, pool = frontier.final.features.shape[1], fresh.pool
    known = (pool.sequential_features, pool.features, np.zeros((len(pool), width), np.float32))
    features = next(one for one in known if one is not None and one.shape[1] == width)
    fitted = replace(frontier.final, features=features)
    every = frontier.score.experiment
    cost = every.sample_cost(np.arange(len(every.pool)))
    (ends,) = replay_ends(fresh, fitted, [price], cost)
    first = np.arange(len(pool)) * (len(ends.correct) // len(pool))
    return model.predict(ends.vector[first]), ends.correct[first]


def guarantee(name: str, targets: list[float], seeds: range, policy: str) -> None:
    """Count guarantees that are wrong on fresh questions, and how often one is stated."""
    totals = {target: np.zeros(4, np.int64) for target in targets}
    is_shuffled = not targets[0]
    halves = split(name, seeds, is_shuffled=is_shuffled)
    for number, (one, fresh) in enumerate(halves, start=1):
        budget = one.budgets[min(BUDGET_PLACE, len(one.budgets) - 1)]
        ranked, frontier = rank(one, policy, budget)
        chance, right = check(ranked.fit(), frontier, budget, fresh)
        surest = float(right[np.argsort(-chance, kind="stable")[: int(0.3 * len(chance))]].mean())
        for target, total in totals.items():
            wanted = target or ranked.base_rate + ERROR
            found = find_precision(ranked, wanted, confidence=0.95)
            own = right if found.threshold is None else right[chance >= found.threshold]
            margin = 0.0
            if name != "synthetic":  # the truth is that of a few answers
                margin = 1.645 * math.sqrt(wanted * (1 - wanted) / max(1, len(own)))
            is_stated, is_possible = found.threshold is not None, surest >= wanted + 0.03
            is_wrong = is_stated and len(own) > 0 and float(own.mean()) < wanted - margin
            total += [is_stated, is_wrong, is_possible, is_stated and is_possible]
            if number % 10 == 0 or number == len(seeds):
                stated, wrong, possible, both = total.tolist()
                print(
                    f"{name} {target or 'shuffled'}: {number} runs, stated {stated}, wrong {wrong},"
                    f" stated in {both} of {possible} where it was to be expected",
                    flush=True,
                )


def main() -> None:
    """Run what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=("score", "table", "bins", "guarantees"))
    parser.add_argument("what")
    parser.add_argument("target", nargs="?", default="0.9")
    parser.add_argument("count", nargs="?", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--sets", nargs="*", default=[])
    parser.add_argument("--policy", default="sequential")
    given = parser.parse_args()
    if given.action == "score":
        score(Path(given.what), given.sets, given.policy)
    elif given.action == "table":
        table(Path(given.what))
    elif given.action == "bins":
        bins(given.what, given.policy)
    else:
        targets = [0.0 if one == "shuffled" else float(one) for one in given.target.split(",")]
        seeds = range(given.first, given.first + given.count)
        guarantee(given.what, targets, seeds, given.policy)


if __name__ == "__main__":
    main()
