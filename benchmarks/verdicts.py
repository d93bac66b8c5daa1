"""Verdicts: how often `calibrate` says "gain" wrongly, and how often its statements hold.

Run it with ``python -m benchmarks.verdicts SAMPLES.parquet CASE POOLS``. It repeats one of these
cases on POOLS pools of questions and counts:

    no-gain        the correct answer of every question is drawn at random from the letters of its
                   exam, so that voting cannot help; counts verdicts of "gain"
    coverage       questions are resampled with replacement; counts intervals that contain the mean
                   gain of such policies on the questions that their pools lack
    synthetic      the same with populations whose true gain is known (the file is not used); the
                   last line says how many standard deviations of the estimate the true gain is,
                   and how often the verdict was "gain"
    cost           300 questions predict the mean cost of 600 others at a budget of 3, each answered
                   once; counts intervals that contain it, and compares the error with that of a
                   mean over questions

The exam of a question is the part of its id before the first slash. Several processes can share the
work: ``--first`` is the seed of the first pool.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from adacompute.core.allocation.oracle import frontier
from adacompute.core.types import UtilityTable, hash_keys
from adacompute.evaluation.experiment import Experiment
from adacompute.evaluation.factories import find_factory
from adacompute.evaluation.pool import Pool
from adacompute.evaluation.scoring.policy_score import score_policy
from adacompute.evaluation.scoring.verdict import calibrate
from adacompute.features.text import extract_features
from adacompute.storage.store import encode_samples
from benchmarks.split_costs import predict
from test_support.pools import draw_pool
from test_support.populations import make_population

if TYPE_CHECKING:
    from collections.abc import Iterator

    from adacompute.core.types import IntArray
    from adacompute.evaluation.experiment import FittedPolicy
    from adacompute.evaluation.replay import ReplayResult

LEVELS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
BUDGET, PERMUTATIONS = 2.0, 8
N_NOW = 300
COST_BUDGET, COST_LATER = 3.0, 600
SYNTHETIC_SAMPLES, SYNTHETIC_QUESTIONS, TRUTH_QUESTIONS, TELLING = 32, 300, 6000, 1 / 3
CASES = ("no-gain", "coverage", "synthetic", "cost")


def make_pool(table: pa.Table, *, drop_unparsed: bool = True) -> Pool:
    """Return the samples of a table, by default the parsed ones, each at a cost of 1."""
    if "difficulty" not in table.column_names:
        table = table.append_column("difficulty", pa.nulls(len(table), pa.string()))
    recorded = encode_samples(table)
    text = pa.array(recorded.text, pa.string())
    pool = Pool(
        answers=recorded.answers,
        key=recorded.key,
        group=recorded.group,
        features=extract_features(text),
        sample_cost=np.ones(len(recorded.answers.answer)),
        sequential_features=extract_features(text, features="words"),
    )
    return pool.equalise(drop_unparsed=drop_unparsed)


def randomise_gold(table: pa.Table, rng: np.random.Generator) -> pa.Table:
    """Draw the correct answer of every question at random from the letters of its exam."""
    ids, golds = table["question_id"].to_pylist(), table["gold"].to_pylist()
    letters: dict[str, set[str]] = {}
    for question_id, gold in zip(ids, golds, strict=True):
        letters.setdefault(question_id.split("/")[0], set()).add(gold)
    choices = {exam: sorted(found) for exam, found in letters.items()}
    new = {name: str(rng.choice(choices[name.split("/")[0]])) for name in dict.fromkeys(ids)}
    answers = table["answer"].to_pylist()
    correct = [answer == new[name] for name, answer in zip(ids, answers, strict=True)]
    column = table.column_names.index("correct")
    return table.set_column(column, "correct", pa.array(correct, pa.bool_()))


def calibrate_pool(
    pool: Pool, seed: int, budget: float = BUDGET
) -> tuple[dict[str, Any], FittedPolicy]:
    """Calibrate the sequential policy on a pool; return the result and the policy."""
    experiment = Experiment(pool, LEVELS, (budget,), PERMUTATIONS, seed)
    final = find_factory("sequential")(experiment, np.arange(len(pool)))
    return calibrate(score_policy(experiment, "sequential"), final, budget=budget), final


def take_with_repeats(pool: Pool, rows: IntArray) -> Pool:
    """Return questions, some of them repeated; copies share a group and have their own keys."""
    n_samples = pool.n_samples
    index = (rows[:, None] * n_samples + np.arange(n_samples)).ravel()
    features = pool.sequential_features
    answers = replace(
        pool.answers,
        offsets=np.arange(len(rows) + 1) * n_samples,
        answer=pool.answers.answer[index],
        correct=pool.answers.correct[index],
    )
    return replace(
        pool,
        answers=answers,
        key=hash_keys(np.arange(len(rows), dtype=np.uint64)),
        group=pool.group[rows],
        features=pool.features[rows],
        sample_cost=pool.sample_cost[index],
        sequential_features=None if features is None else features[rows],
    )


def check_coverage(whole: Pool, seeds: range) -> Iterator[tuple[bool, str]]:
    """Yield whether the interval of each resampled pool contains the gain of such policies.

    A pool contains about 63 % of the questions, some of them several times. Its policy gains less
    than one that was trained on all questions. What such policies gain is therefore the mean gain,
    over all pools so far, of a pool's policy on the questions that are not in its pool. The last
    line counts the intervals of all pools that contain the mean over all pools.
    """
    found: list[tuple[float, float]] = []
    true: list[float] = []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        rows = np.sort(rng.integers(0, len(whole), len(whole)))
        result, final = calibrate_pool(take_with_repeats(whole, rows), seed)
        other = np.flatnonzero(~np.isin(whole.group, whole.group[rows]))
        true.append(gain_elsewhere(final, whole.take(other), result["price"], seed))
        found.append((result["gain_low"], result["gain_high"]))
        gain = float(np.mean(true))
        covered = sum(low <= gain <= high for low, high in found)
        yield (
            found[-1][0] <= gain <= found[-1][1],
            (
                f"{format_gain(result)}, elsewhere {true[-1]:.4f}; "
                f"{covered} contain the mean elsewhere, {gain:.4f}"
            ),
        )


def gain_elsewhere(fitted: FittedPolicy, other: Pool, price: float, seed: int) -> float:
    """Return the gain of a policy over the best mixture on questions that it did not see."""
    run = run_once(fitted, other, price, seed, PERMUTATIONS)
    utility = other.table(LEVELS).utility.mean(axis=0)
    mixtures = frontier(UtilityTable(utility[None, :], np.array(LEVELS, dtype=np.float64)))
    return float(run.accuracy.mean()) - mixtures.utility_at(float(run.cost.mean()))


def check_no_gain(table: pa.Table, seeds: range) -> Iterator[tuple[bool, str]]:
    """Yield whether each pool in which nothing can be gained gets the verdict "gain"."""
    for seed in seeds:
        pool = make_pool(randomise_gold(table, np.random.default_rng(seed)))
        result, _ = calibrate_pool(pool, seed)
        yield result["verdict"] == "gain", format_gain(result)


def draw_synthetic(n_questions: int, seed: int) -> Pool:
    """Draw synthetic questions, a third of which their features reveal."""
    return draw_pool(n_questions, SYNTHETIC_SAMPLES, feature_signal=TELLING, seed=seed)


def check_synthetic(n_questions: int, seeds: range) -> Iterator[tuple[bool, str]]:
    """Yield whether each interval contains the policy's true gain over the population.

    The policy is trained on all questions of its pool and run at the calibrated price on many
    questions that it was not trained on, whose utilities are known exactly.
    """
    population, _ = make_population(TRUTH_QUESTIONS, feature_signal=TELLING, seed=TRUTH_QUESTIONS)
    unseen = draw_synthetic(TRUTH_QUESTIONS, TRUTH_QUESTIONS)
    truth = population.true_utility(LEVELS).mean(axis=0)
    mixtures = frontier(UtilityTable(truth[None, :], np.array(LEVELS, dtype=np.float64)))
    truly = Experiment(unseen, LEVELS, (), PERMUTATIONS, TRUTH_QUESTIONS)
    true, measured, n_gains = [], [], 0
    for seed in seeds:
        result, final = calibrate_pool(draw_synthetic(n_questions, seed), seed)
        fitted = replace(final, features=unseen.features, known=None)
        run = truly.run(fitted, [float(result["price"])])
        gain = float(run.accuracy.mean()) - mixtures.utility_at(float(run.cost.mean()))
        true.append(gain)
        measured.append(result["gain"])
        n_gains += result["verdict"] == "gain"
        covered = result["gain_low"] <= gain <= result["gain_high"]
        ratio = np.mean(true) / max(float(np.std(np.subtract(measured, true))), 1e-9)
        yield covered, f"{gain:.4f} {format_gain(result)}; {ratio:.2f} sd, {n_gains} gains"


def check_cost(whole: Pool, seeds: range) -> Iterator[tuple[bool, str]]:
    """Yield whether the interval of the cost contains the mean cost of other questions."""
    errors, spreads = [], []
    for seed in seeds:
        rows = np.random.default_rng(seed).permutation(len(whole))[: N_NOW + COST_LATER]
        now, later = whole.take(np.sort(rows[:N_NOW])), whole.take(np.sort(rows[N_NOW:]))
        result, final = calibrate_pool(now, seed, COST_BUDGET)
        cost = run_once(final, later, result["price"], seed).cost[:, 0]
        errors.append(float(cost.mean()) - COST_BUDGET)
        spreads.append(float(cost.std()))
        bound = float(np.mean(spreads)) * np.sqrt(1 / len(now) + 1 / len(later))
        error = float(np.sqrt(np.mean(np.square(errors))))
        details = f"cost {cost.mean():.3f} in {result['cost_low']:.3f}..{result['cost_high']:.3f}"
        details += f", mean error {np.mean(errors):+.4f}, rms {error:.4f} = {error / bound:.2f} x"
        low, high = predict(result, cost)
        yield low <= cost.mean() <= high, details


def run_once(
    fitted: FittedPolicy, later: Pool, price: float, seed: int, permutations: int = 1
) -> ReplayResult:
    """Run a policy once on questions that it was not trained on, as live traffic would.

    With more ``permutations`` each question is asked as often, with its samples in other orders.
    """
    features = later.features if later.sequential_features is None else later.sequential_features
    experiment = Experiment(later, LEVELS, (), permutations, seed + 1)
    return experiment.run(replace(fitted, features=features, known=None), [price])


def format_gain(result: dict[str, Any]) -> str:
    """Format the gain of a calibration with its interval."""
    return str({name: result[name] for name in ("gain", "gain_low", "gain_high")})


def run_case(
    case: str, samples: Path, seeds: range, n_questions: int
) -> Iterator[tuple[bool, str]]:
    """Return the outcomes of a case."""
    if case == "synthetic":
        return check_synthetic(n_questions, seeds)
    table = pq.read_table(samples)
    if case == "no-gain":
        return check_no_gain(table, seeds)
    whole = make_pool(table)
    if case == "coverage":
        return check_coverage(whole, seeds)
    return check_cost(whole, seeds)


def main() -> None:
    """Print how often the event happened, and the elapsed time."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("samples", type=Path, help="file of recorded samples")
    parser.add_argument("case", choices=CASES)
    parser.add_argument("pools", type=int)
    parser.add_argument("--first", type=int, default=0, help="seed of the first pool")
    parser.add_argument("--questions", type=int, default=SYNTHETIC_QUESTIONS, help="synthetic")
    options = parser.parse_args()
    start, count = time.perf_counter(), 0
    seeds = range(options.first, options.first + options.pools)
    outcomes = run_case(options.case, options.samples, seeds, options.questions)
    for i, (happened, details) in enumerate(outcomes, start=1):
        count += happened
        elapsed_s = time.perf_counter() - start
        print(f"{i}: {count} of {i}, {details}, {elapsed_s:.0f} s", flush=True)


if __name__ == "__main__":
    main()
