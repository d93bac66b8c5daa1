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
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq

from adacompute.evaluation.experiment import Experiment
from adacompute.evaluation.factories import find_factory
from adacompute.evaluation.scoring.frontier import CalibrationSettings
from adacompute.evaluation.scoring.policy_score import score_policy
from adacompute.evaluation.scoring.today import Today
from adacompute.evaluation.scoring.verdict import calibrate
from benchmarks.savings_truth import (
    SAMPLE_COUNTS,
    cheapest_cost,
    draw_alike,
    is_inside,
    measure_distribution,
    measure_policy,
    vary_mix,
)
from benchmarks.verdicts import make_pool
from test_support.pools import record_samples

if TYPE_CHECKING:
    from collections.abc import Callable

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
