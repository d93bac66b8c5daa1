"""Savings: how often what `calibrate` says about a saving is true.

Run it with ``python -m benchmarks.savings CASE``. Cases, and how many populations each takes:

    populations   400 synthetic populations, 300 questions of 8 or 16 samples, with and without a
                  text signal. The truth is what the delivered policy does on 20,000 further
                  questions: "saves" although it loses more than the tolerance; intervals that
                  contain the true saving; "saves" where more than 30 % can be saved; accuracy at a
                  budget of 4 below that at a budget of 3
    splits        200 splits of the questions of a file of samples (``--samples``): 300 predict what
                  the others show
    today-one     200 populations of which one sample is drawn today: nothing can be saved
    alike         200 populations whose questions all have the same distribution of answers: savings
                  above the optimum by exact backward induction

With ``--out FILE`` each population is a line of JSON there, those that are there are not repeated,
and the summary is over all lines of the case; ``--populations 0`` only prints it. Several processes
can share the work: ``--first`` is the seed of the first population.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq

from adacompute.core.states import StateMeasure, states
from adacompute.evaluation.experiment import Experiment
from adacompute.evaluation.factories import find_factory
from adacompute.evaluation.replay import Replay
from adacompute.evaluation.scoring.frontier import CalibrationSettings
from adacompute.evaluation.scoring.policy_score import score_policy
from adacompute.evaluation.scoring.today import Today
from adacompute.evaluation.scoring.verdict import calibrate
from adacompute.policies.sequential.induction import continuation_value
from adacompute.policies.uniform import FixedRule
from benchmarks.verdicts import make_pool
from test_support.pools import record_samples
from test_support.populations import Population

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from adacompute.core.types import FloatArray
    from adacompute.evaluation.experiment import FittedPolicy
    from adacompute.evaluation.pool import Pool
    from adacompute.evaluation.scoring.policy_score import PolicyScore

    Row = dict[str, Any]

LEVELS = (1, 2, 4, 8, 16)
N_TODAY, TOLERANCE = 5, 0.005
N_QUESTIONS, N_FRESH, N_SEQUENCES = 300, 20_000, 4
BUDGETS, MAX_DROP = (3.0, 4.0), 0.003
N_PRICES, N_ORDERS = 192, 20
LARGE_SAVING, NORMAL_QUANTILE = 0.3, 1.96
FRESH_SEED = 1_000_000
STATED = (
    *("verdict", "accuracy", "cost", "delivered_cost", "delivered_saving", "difference"),
    *("difference_low", "difference_high", "difference_error", "difference_std"),
    *("saving", "saving_low", "saving_high", "questions_needed", "advice"),
)

SAMPLE_COUNTS = (8, 16)
"""Recorded samples per question."""

CLASS_COUNTS = (2, 3, 4, 4, 5, 5, 10, 50)
MAX_UNPARSED = 0.1

TYPES = {
    "easy": ((0.8, 0.98), (0.0, 1.0)),
    "responsive": ((0.3, 0.6), (0.0, 0.3)),
    "diminishing": ((0.4, 0.6), (0.7, 1.0)),
    "hopeless": ((0.02, 0.25), (0.3, 1.0)),
    "guessed": ((0.15, 0.4), (0.0, 0.2)),
}
"""Ranges of the mean probability of the correct answer, and of the share of the wrong answers that
the most frequent of them has."""

EVENNESS = (0.3, 1.0, 3.0)
"""Parameters of the Dirichlet distribution of the shares of the types; the smaller, the more the
questions of a mix are of one type."""

N_GRID, N_REFINEMENTS = 65, 6
"""Prices at a time, and refinements, when the optimum is searched."""


@dataclass(frozen=True, eq=False)
class Mix:
    """A population of questions; arrays have one entry per type.

    ``top_share`` is the share of the wrong answers that the most frequent of them has. A feature is
    ``signal`` parts difficulty and the rest noise.
    """

    share: FloatArray
    accuracy: FloatArray
    concentration: FloatArray
    top_share: FloatArray
    n_classes: int
    unparsed_rate: float
    signal: float
    n_samples: int

    def draw(self, n_questions: int, *, seed: int) -> Population:
        """Draw questions; other seeds give other questions of the same population."""
        rng = np.random.default_rng([seed, n_questions])
        kind = rng.choice(len(self.share), n_questions, p=self.share)
        mean, concentration = self.accuracy[kind], self.concentration[kind]
        right = rng.beta(mean * concentration, (1 - mean) * concentration)
        wrong = np.ones((n_questions, self.n_classes - 1))
        if self.n_classes > 2:
            equal = 1 / (self.n_classes - 1)
            top = np.maximum(self.top_share[kind], equal)
            rest = rng.dirichlet(np.full(self.n_classes - 2, 5.0), n_questions)
            wrong = np.column_stack([top, (1 - top)[:, None] * rest])
        probability = np.column_stack([right, (1 - right)[:, None] * wrong])
        noise = rng.normal(size=(n_questions, 3))
        noise[:, 1] = self._blend((right - 0.5) / 0.3, noise[:, 1])
        noise[:, 2] = self._blend((probability[:, 1] - 0.3) / 0.2, noise[:, 2])
        noise[:, 0] = np.rint(200.0 * np.exp(0.5 * noise[:, 0]))  # a length
        return Population(probability, noise.astype(np.float32), self.unparsed_rate)

    def _blend(self, value: FloatArray, noise: FloatArray) -> FloatArray:
        return self.signal * value + math.sqrt(1 - self.signal**2) * noise


def vary_mix(seed: int) -> Mix:
    """Make a mix; four successive seeds have 8 and 16 samples, with and without a text signal."""
    rng = np.random.default_rng([seed, 1])
    ranges = np.array(list(TYPES.values()))
    accuracy, top_share = rng.uniform(ranges[..., 0], ranges[..., 1]).T
    return Mix(
        share=rng.dirichlet(np.full(len(TYPES), rng.choice(EVENNESS))),
        accuracy=accuracy,
        concentration=np.exp(rng.uniform(0.0, math.log(60), len(TYPES))),
        top_share=top_share,
        n_classes=int(rng.choice(CLASS_COUNTS)),
        unparsed_rate=draw_unparsed_rate(rng),
        signal=float(rng.uniform(0.5, 0.95)) if seed // 2 % 2 else 0.0,
        n_samples=SAMPLE_COUNTS[seed % 2],
    )


def draw_alike(n_questions: int, *, seed: int) -> Population:
    """Draw questions that all have the same distribution of answers; the features are noise."""
    rng = np.random.default_rng([seed, 2])
    n_classes, right = int(rng.integers(2, 6)), rng.uniform(0.3, 0.95)
    probability = np.append(right, (1 - right) * rng.dirichlet(np.ones(n_classes - 1)))
    features = rng.normal(size=(n_questions, 3)).astype(np.float32)
    return Population(np.tile(probability, (n_questions, 1)), features, draw_unparsed_rate(rng))


def draw_unparsed_rate(rng: np.random.Generator) -> float:
    """Draw a rate of unparsed samples: none in half of the populations."""
    return float(rng.choice([0.0, rng.uniform(0, MAX_UNPARSED)]))


@dataclass(frozen=True, eq=False)
class Measured:
    """A policy at falling prices beside a vote of equal weights, on the same samples.

    ``difference`` is the policy's accuracy minus that of the vote, ``error`` its standard error,
    both (prices,). ``today_accuracy`` is that of the vote.
    """

    prices: FloatArray
    cost: FloatArray
    difference: FloatArray
    error: FloatArray
    today_accuracy: float

    def at(self, price: float) -> int:
        """Return the place of one of the prices."""
        return int(np.flatnonzero(self.prices == price)[0])

    def same_accuracy_cost(self, n_errors: float = 0.0) -> float | None:
        """Return the smallest cost at which the policy is as accurate as the vote, if there is one.

        Between two prices, accuracy is linear in cost. ``n_errors`` standard errors are added to
        the differences first.
        """
        return first_crossing(self.cost, self.difference + n_errors * self.error)


def first_crossing(cost: FloatArray, difference: FloatArray) -> float | None:
    """Return the smallest of the rising costs at which the difference is 0 or more, if any is.

    >>> first_crossing(np.array([1.0, 2.0, 3.0]), np.array([-0.3, -0.1, 0.1]))
    2.5
    """
    reached = np.flatnonzero(difference >= 0)
    if not len(reached):
        return None
    after = int(reached[0])
    if after == 0:
        return float(cost[0])
    ends = slice(after - 1, after + 1)
    return float(np.interp(0.0, difference[ends], cost[ends]))


def is_inside(value: float | None, low: float | None, high: float | None) -> bool:
    """Whether an interval of a saving contains it.

    A value of None is that nothing is as accurate as today, which is below every saving. A low end
    of None includes it; a high end of None says that nothing else is possible.
    """
    if value is None:
        return low is None
    return high is not None and (low is None or low <= value) and value <= high


def measure_policy(
    fitted: FittedPolicy,
    pools: Sequence[Pool],
    prices: Sequence[float],
    *,
    today: int,
    n_permutations: int = 1,
    seed: int = 0,
) -> Measured:
    """Run a policy at some prices on pools of the same questions with other samples."""
    falling = np.unique(np.asarray(prices))[::-1]
    size = len(pools[0])
    cost, difference, votes = np.zeros(len(falling)), np.zeros((size, len(falling))), 0.0
    for pool in pools:
        features = pool.features if pool.sequential_features is None else pool.sequential_features
        prepared = fitted.policy.prepare_features(features)
        length = min(pool.n_samples, len(fitted.policy.levels))
        replay = Replay(pool, n_permutations, max(length, today), seed)
        for rows, block in replay.blocks():
            run = block.run(fitted.policy, falling.tolist(), prepared[rows], 1.0)
            vote = block.summarise(*block.play_rule(FixedRule(today))).accuracy
            cost += run.cost.sum(axis=0)
            difference[rows] += run.accuracy - vote[:, None]
            votes += float(vote.sum())
    difference /= len(pools)
    return Measured(
        prices=falling,
        cost=np.maximum.accumulate(cost / (size * len(pools))),
        difference=difference.mean(axis=0),
        error=difference.std(axis=0) / math.sqrt(size),
        today_accuracy=votes / (size * len(pools)),
    )


def measure_distribution(
    probability: FloatArray, unparsed_rate: float, max_samples: int
) -> StateMeasure:
    """Return the exact probability of every vote state of one question, (states, 1).

    Class 0 is correct. All vectors of counts are listed, each with its multinomial probability.
    """
    chance = np.append(probability * (1 - unparsed_rate), unparsed_rate)
    count = np.zeros((1, 0), dtype=np.int64)
    for _ in chance:
        left = max_samples - count.sum(axis=1)
        more = np.concatenate([np.arange(n + 1) for n in left])
        count = np.column_stack([np.repeat(count, left + 1, axis=0), more])
    factorial = np.array([math.factorial(n) for n in range(max_samples + 1)], dtype=np.float64)
    mass = factorial[count.sum(axis=1)] * (chance**count / factorial[count]).prod(axis=1)
    votes = count[:, :-1]
    leads = votes == np.maximum(votes.max(axis=1, keepdims=True), 1)
    correct = mass * leads[:, 0] / np.maximum(leads.sum(axis=1), 1)
    sorted_counts = np.column_stack([-np.sort(-votes, axis=1), count[:, -1]])
    rows, row_of = np.unique(sorted_counts, axis=0, return_inverse=True)
    table = states()
    number = {
        (votes, int(n)): i
        for i, (votes, n) in enumerate(zip(table.votes, table.n_unparsed, strict=True))
    }
    place = np.array([number[tuple(v for v in row[:-1] if v), row[-1]] for row in rows.tolist()])
    totals = np.zeros((2, int(table.first[max_samples + 1]), 1))
    for total, value in zip(totals, (mass, correct), strict=True):
        total[place, 0] = np.bincount(row_of.ravel(), value)
    return StateMeasure(*totals)


def cheapest_cost(measure: StateMeasure, accuracy: float) -> float:
    """Return the smallest mean number of samples at which a stopping rule has this accuracy.

    A rule sees the vote state after each sample, answers with the majority and draws at least one
    sample. Mixtures of rules are rules, so the smallest cost is the largest value, over all prices,
    of (accuracy − value of the best rule at the price) / price. The value of a rule is its accuracy
    minus its cost at that price; the best rule is found by backward induction.
    """
    reciprocal = np.concatenate([[0.0], np.geomspace(1e-2, 1e7, N_GRID)])
    for _ in range(N_REFINEMENTS):
        bound = accuracy * reciprocal - _best_values(measure, reciprocal)
        best = int(bound.argmax())
        ends = reciprocal[max(best - 1, 0)], reciprocal[min(best + 1, len(reciprocal) - 1)]
        reciprocal = np.linspace(*ends, N_GRID)
    return float(bound.max())


def _best_values(measure: StateMeasure, reciprocal: FloatArray) -> FloatArray:
    """Return the largest accuracy × reciprocal price − number of samples of any stopping rule."""
    table = states()
    last = int(table.n_samples[len(measure.mass) - 1])
    stopping = measure.correct_mass * reciprocal
    value = stopping[table.layer(last)]
    for n in range(last - 1, -1, -1):
        continuing = continuation_value(value, n) - measure.mass[table.layer(n)]
        value = np.maximum(stopping[table.layer(n)], continuing) if n else continuing
    return np.asarray(value[0])


def fit_pool(pool: Pool, seed: int) -> tuple[PolicyScore, FittedPolicy]:
    """Score and fit the sequential policy on a pool, as `fit` does."""
    levels = tuple(level for level in LEVELS if level <= pool.n_samples)
    experiment = Experiment(pool, levels, seed=seed)
    final = experiment.fit_final(find_factory("sequential"))
    return score_policy(experiment, "sequential"), final


def state_savings(score: PolicyScore, final: FittedPolicy, n_today: int = N_TODAY) -> Row:
    """Return what is said about the saving, and the price of the delivered setting."""
    settings = CalibrationSettings(tolerance=TOLERANCE)
    found = calibrate(score, final, budget=None, today=Today(n_samples=n_today), settings=settings)
    return {name: found["today"].get(name) for name in STATED} | {"price": found["price"]}


def list_prices(final: FittedPolicy) -> FloatArray:
    """Return the prices at which the true curve of a policy is measured."""
    return np.geomspace(final.prices[0], final.prices[-1], N_PRICES)


def check_population(seed: int, _: Pool | None = None) -> Row:
    """Compare a statement with what the policy does on many questions of the same population."""
    mix = vary_mix(seed)
    pool = record_samples(mix.draw(N_QUESTIONS, seed=seed), mix.n_samples, seed=seed)
    score, final = fit_pool(pool, seed)
    stated = state_savings(score, final)
    small, large = (float(calibrate(score, final, budget=b)["price"]) for b in BUDGETS)
    fresh, first = mix.draw(N_FRESH, seed=seed), FRESH_SEED + N_SEQUENCES * seed
    sequences = [record_samples(fresh, mix.n_samples, seed=first + i) for i in range(N_SEQUENCES)]
    prices = [*list_prices(final).tolist(), stated["price"], small, large]
    true = measure_policy(final, sequences, prices, today=N_TODAY)
    delivered, three, four = (true.at(price) for price in (stated["price"], small, large))
    return {
        "n_samples": mix.n_samples,
        "signal": mix.signal,
        "n_classes": mix.n_classes,
        "unparsed_rate": mix.unparsed_rate,
        "share": mix.share.tolist(),
        "stated": stated,
        "true_difference": float(true.difference[delivered]),
        "true_error": float(true.error[delivered]),
        "true_cost": float(true.cost[delivered]),
        "true_accuracy_today": true.today_accuracy,
        "true_saving": saving_at(true.same_accuracy_cost()),
        "true_saving_range": [saving_at(true.same_accuracy_cost(n)) for n in (-1, 1)],
        "step": float(true.difference[four] - true.difference[three]),
        "step_costs": [float(true.cost[three]), float(true.cost[four])],
        "curve": np.round([true.cost, true.difference], 5).tolist(),
    }


def saving_at(cost: float | None) -> float | None:
    """Return the share of today's samples that a cost saves; None if there is no such cost."""
    return None if cost is None else 1 - cost / N_TODAY


def check_split(seed: int, whole: Pool | None) -> Row:
    """Compare a statement with what the other questions of a file show, each answered once."""
    assert whole is not None, "this case needs --samples"
    rows = np.random.default_rng(seed).permutation(len(whole))
    now, later = (whole.take(np.sort(part)) for part in (rows[:N_QUESTIONS], rows[N_QUESTIONS:]))
    score, final = fit_pool(now, seed)
    stated = state_savings(score, final)
    prices = [*list_prices(final).tolist(), stated["price"]]
    once, often = (
        measure_policy(final, [later], prices, today=N_TODAY, n_permutations=n, seed=seed + 1)
        for n in (1, N_ORDERS)
    )
    place = once.at(stated["price"])
    return {
        "stated": stated,
        "n_later": len(later),
        "true_difference": float(once.difference[place]),
        "mean_difference": float(often.difference[place]),
        "true_error": float(once.error[place]),
        "true_cost": float(often.cost[place]),
        "true_saving": saving_at(often.same_accuracy_cost()),
    }


def check_today_one(seed: int, _: Pool | None = None) -> Row:
    """State what is saved where one sample is drawn today."""
    mix = vary_mix(seed)
    pool = record_samples(mix.draw(N_QUESTIONS, seed=seed), mix.n_samples, seed=seed)
    return {"stated": state_savings(*fit_pool(pool, seed), n_today=1)}


def check_alike(seed: int, _: Pool | None = None) -> Row:
    """Compare a saving with the largest that is possible where all questions are alike."""
    population, n_samples = draw_alike(N_QUESTIONS, seed=seed), SAMPLE_COUNTS[seed % 2]
    probability, unparsed_rate = population.probability[0], population.unparsed_rate
    measure = measure_distribution(probability, unparsed_rate, n_samples)
    accuracy = float(population.true_utility((N_TODAY,))[0, 0])
    pool = record_samples(population, n_samples, seed=seed)
    return {
        "n_samples": n_samples,
        "probability": probability.tolist(),
        "unparsed_rate": unparsed_rate,
        "stated": state_savings(*fit_pool(pool, seed)),
        "true_saving": saving_at(cheapest_cost(measure, accuracy)),
    }


def share(rows: list[Row], happened: Callable[[Row], bool]) -> str:
    """Say in how many rows something happened."""
    return f"{sum(map(happened, rows))} of {len(rows)}"


def says_saves(row: Row) -> bool:
    """Whether the verdict is that something is saved."""
    return bool(row["stated"]["verdict"] == "saves")


def contains_saving(row: Row) -> bool:
    """Whether the stated interval contains the true saving."""
    return is_inside(row["true_saving"], row["stated"]["saving_low"], row["stated"]["saving_high"])


def nearly_contains_saving(row: Row) -> bool:
    """Whether the stated interval and the true saving plus or minus its error overlap."""
    low, high = (row["stated"][name] for name in ("saving_low", "saving_high"))
    least, most = row["true_saving_range"]
    if is_inside(least, low, high) or is_inside(most, low, high):
        return True
    return high is not None and most is not None and is_inside(high, least, most)


def drops(row: Row) -> bool:
    """Whether a larger budget makes the policy less accurate by more than is allowed."""
    return bool(row["step"] < -MAX_DROP)


def summarise_populations(rows: list[Row]) -> list[str]:
    """Say how often statements about synthetic populations are true."""
    saving = np.array([-1 if row["true_saving"] is None else row["true_saving"] for row in rows])
    large = [row for row in rows if (row["true_saving"] or 0) > LARGE_SAVING]
    lines = [
        f"verdicts {dict(Counter(row['stated']['verdict'] for row in rows))}",
        f"true saving, deciles: {np.percentile(saving, np.arange(0, 101, 10)).round(2).tolist()}",
        f"loses more than {TOLERANCE:g} though it 'saves': "
        + share(rows, lambda row: says_saves(row) and row["true_difference"] < -TOLERANCE),
        f"interval contains the true saving: {share(rows, contains_saving)}",
        f"the same, within the error of the truth: {share(rows, nearly_contains_saving)}",
        f"true difference inside its interval: {share(rows, contains_difference)}",
        f"'saves' where the true saving is above {LARGE_SAVING:g}: {share(large, says_saves)}",
        f"less accurate by more than {MAX_DROP:g} at the larger budget: {share(rows, drops)}",
    ]
    for n_samples in SAMPLE_COUNTS:
        for signal in (False, True):
            part = [r for r in rows if r["n_samples"] == n_samples and (r["signal"] > 0) == signal]
            lines.append(f"  {n_samples} samples, signal {signal}: {share(part, drops)}")
    return lines


def contains_difference(row: Row) -> bool:
    """Whether the stated interval of the delivered setting contains the true difference."""
    low, high = row["stated"]["difference_low"], row["stated"]["difference_high"]
    return bool(low <= row["true_difference"] <= high)


def predicts_difference(row: Row) -> bool:
    """Whether the interval for the later questions contains the difference that they show."""
    stated, value = row["stated"], row["stated"]["difference"]
    noise = NORMAL_QUANTILE * stated["difference_std"] / math.sqrt(row["n_later"])
    low = value - math.hypot(value - stated["difference_low"], noise)
    high = value + math.hypot(stated["difference_high"] - value, noise)
    return bool(low <= row["true_difference"] <= high)


def predicts_saving(row: Row) -> bool:
    """Whether the interval for the later questions contains the saving that they show.

    Its halves are those of the stated interval, with the noise of the later questions added.
    """
    stated, wider = row["stated"], math.sqrt(1 + N_QUESTIONS / row["n_later"])
    value, low, high = (stated[name] for name in ("saving", "saving_low", "saving_high"))
    if value is not None:
        low = None if low is None else value - wider * (value - low)
        high = None if high is None else value + wider * (high - value)
    return is_inside(row["true_saving"], low, high)


def summarise_splits(rows: list[Row]) -> list[str]:
    """Say how often questions that were held out show what was predicted."""
    return [
        f"verdicts {dict(Counter(row['stated']['verdict'] for row in rows))}",
        f"interval contains the difference: {share(rows, predicts_difference)}",
        f"interval contains the saving: {share(rows, predicts_saving)}",
    ]


def summarise_alike(rows: list[Row]) -> list[str]:
    """Say how often a saving is above what is possible."""

    def is_above(row: Row) -> bool:
        return bool(row["stated"]["delivered_saving"] > row["true_saving"])

    saved = [row for row in rows if says_saves(row)]
    return [
        f"verdicts {dict(Counter(row['stated']['verdict'] for row in rows))}",
        f"delivered saving above the optimum: {share(rows, is_above)}",
        f"the same where the verdict is 'saves': {share(saved, is_above)}",
        f"interval contains the optimum: {share(rows, contains_saving)}",
    ]


def summarise_today_one(rows: list[Row]) -> list[str]:
    """Say how often something is saved where one sample is drawn."""
    return [f"'saves': {share(rows, says_saves)}"]


CASES: dict[
    str, tuple[Callable[[int, Pool | None], Row], Callable[[list[Row]], list[str]], int]
] = {
    "populations": (check_population, summarise_populations, 400),
    "splits": (check_split, summarise_splits, 200),
    "today-one": (check_today_one, summarise_today_one, 200),
    "alike": (check_alike, summarise_alike, 200),
}


def read_rows(path: Path | None, case: str) -> dict[int, Row]:
    """Return the rows of a case that a file has, by their seed."""
    if path is None or not path.exists():
        return {}
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {row["seed"]: row for row in rows if row["case"] == case}


def main() -> None:
    """Run a case on the populations that are missing, and print a summary."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--populations", type=int, help="how many; by default as above")
    parser.add_argument("--first", type=int, default=0, help="seed of the first population")
    parser.add_argument("--samples", type=Path, help="file of recorded samples, for splits")
    parser.add_argument("--out", type=Path, help="file of one line per population")
    options = parser.parse_args()
    check, summarise, count = CASES[options.case]
    count = count if options.populations is None else options.populations
    whole = None
    if options.samples is not None:
        whole = make_pool(pq.read_table(options.samples), drop_unparsed=False)
    rows = read_rows(options.out, options.case)
    for seed in range(options.first, options.first + count):
        if seed in rows:
            continue
        start = time.perf_counter()
        row = {"case": options.case, "seed": seed, **check(seed, whole)}
        row["seconds"] = round(time.perf_counter() - start, 2)
        rows[seed] = row
        if options.out is not None:
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
        true = {name: value for name, value in row.items() if name.startswith(("true", "step"))}
        print(f"{seed}: {row['stated']}, {true}, {row['seconds']} s", flush=True)
    if rows:
        print("\n".join(summarise(list(rows.values()))))


if __name__ == "__main__":
    main()
