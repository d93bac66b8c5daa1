"""Verdicts: how often a calibration says "gain" where there is none, and covers where there is one.

Run it with ``python benchmarks/verdicts.py SAMPLES.parquet CASE POOLS``. The cases:

    blank       the right answer of every question is drawn anew from the letters of its exam, so
                that voting cannot help: how often is there a "gain"?
    cover       questions are drawn with replacement from the recorded ones: does the interval of
                the gain hold the gain over all, each scored by a policy not trained on it?
    synthetic   the same for populations whose truth is known (the file is not looked at)
    predict     300 questions say what the next 100 will cost at most, and that they will keep 95 %
                of the accuracy of 16 samples: how often are they wrong? Without text, for speed
    predict-text    the same with text

Exams are told apart by the part of the question's name before its stroke.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from adacompute.core import votes
from adacompute.core.errors import DataError
from adacompute.core.oracle import frontier
from adacompute.core.types import UtilityTable, hash_keys
from adacompute.evaluation.factories import Experiment, find_factory
from adacompute.evaluation.pool import Pool
from adacompute.evaluation.price_search import sweep_prices
from adacompute.evaluation.replay import Replay
from adacompute.evaluation.verdict import calibrate, calibrate_share
from adacompute.features.text import extract
from adacompute.storage.store import encode_samples
from adacompute.testing.populations import mix_archetypes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from adacompute.core.types import IntArray
    from adacompute.evaluation.factories import FittedPolicy
    from adacompute.evaluation.replay import ReplayResult

LEVELS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
BUDGET, ORDERS, PRICES = 2.0, 8, 16
TOLD, NEXT, SURE, KEPT = 300, 100, 0.9, 0.95
SAMPLES, SMALL, LARGE, TELLING = 32, 300, 6000, 1 / 3


def read(table: pa.Table) -> Pool:
    """Samples without those that could not be read, each at a cost of 1."""
    if "difficulty" not in table.column_names:
        table = table.append_column("difficulty", pa.nulls(len(table), pa.string()))
    recorded = encode_samples(table)
    text = pa.array(recorded.text, pa.string())
    pool = Pool(
        answers=recorded.answers,
        key=recorded.key,
        group=recorded.group,
        features=extract(text),
        sample_cost=np.ones(len(recorded.answers.answer)),
        sequential_features=extract(text, features="words"),
    )
    return pool.equalise(drop_unparsed=True)


def redraw(table: pa.Table, rng: np.random.Generator) -> pa.Table:
    """Draw every question's right answer from the letters of its exam."""
    names, golds = table["question_id"].to_pylist(), table["gold"].to_pylist()
    letters: dict[str, set[str]] = {}
    for name, gold in zip(names, golds, strict=True):
        letters.setdefault(name.split("/")[0], set()).add(gold)
    known = {exam: sorted(found) for exam, found in letters.items()}
    new = {name: str(rng.choice(known[name.split("/")[0]])) for name in dict.fromkeys(names)}
    answers = table["answer"].to_pylist()
    correct = [answer == new[name] for name, answer in zip(names, answers, strict=True)]
    place = table.column_names.index("correct")
    return table.set_column(place, "correct", pa.array(correct, pa.bool_()))


def judge(pool: Pool, seed: int) -> dict[str, float | str]:
    """Calibrate the sequential policy on a pool."""
    experiment = Experiment(pool, LEVELS, (BUDGET,), ORDERS, seed)
    return calibrate(experiment, "sequential", budget=BUDGET, n_prices=PRICES)


def choose(pool: Pool, rows: IntArray) -> Pool:
    """Return questions with repetition: copies stay one group, and get keys of their own."""
    samples = int(pool.answers.n_samples[0])
    index = (rows[:, None] * samples + np.arange(samples)).ravel()
    features = pool.sequential_features
    answers = replace(
        pool.answers,
        offsets=np.arange(len(rows) + 1) * samples,
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


def cover(whole: Pool, pools: int) -> Iterator[tuple[bool, str]]:
    """Whether the interval of each pool's gain holds the gain over the whole."""
    truth = float(judge(whole, 0)["gain"])
    for seed in range(pools):
        rng = np.random.default_rng(seed)
        said = judge(choose(whole, np.sort(rng.integers(0, len(whole), len(whole)))), seed)
        yield float(said["gain_low"]) <= truth <= float(said["gain_high"]), _shown(said)


def blank(table: pa.Table, pools: int) -> Iterator[tuple[bool, str]]:
    """Whether each pool without anything to gain is said to have a gain."""
    for seed in range(pools):
        said = judge(read(redraw(table, np.random.default_rng(seed))), seed)
        yield said["verdict"] == "gain", _shown(said)


def draw_pool(questions: int, seed: int) -> Pool:
    """Draw questions of the four archetypes, a third of which their features give away."""
    population, _ = mix_archetypes(questions, telling=TELLING, seed=seed)
    answers = population.draw(SAMPLES, seed=seed)
    key = hash_keys(np.arange(questions, dtype=np.uint64) + np.uint64(seed << 32))
    return Pool(
        answers=answers,
        key=key,
        group=key,
        features=population.features,
        sample_cost=np.ones(len(answers.answer)),
        sequential_features=population.features,
    )


def synthetic(pools: int) -> Iterator[tuple[bool, str]]:
    """Whether intervals hold what their own policy gains over the population.

    The policy is trained on all questions of its pool and run at the price it was given, on many
    questions that it has not seen, whose utilities are known exactly.
    """
    many, _ = mix_archetypes(LARGE, telling=TELLING, seed=LARGE)
    unseen, truth = draw_pool(LARGE, LARGE), many.true_utility(LEVELS).mean(axis=0)
    mixtures = frontier(UtilityTable(truth[None, :], np.array(LEVELS, dtype=np.float64)))
    replay = Replay(unseen, ORDERS, LEVELS[-1], LARGE)
    for seed in range(pools):
        pool = draw_pool(SMALL, seed)
        said = judge(pool, seed)
        experiment = Experiment(pool, LEVELS, (BUDGET,), ORDERS, seed)
        policy = find_factory("sequential")(experiment, np.arange(SMALL)).policy
        digested = policy.prepare_features(unseen.features)
        ran = replay.run(policy, float(said["price"]), sample_cost=1.0, features=digested)
        gain = float(ran.accuracy.mean()) - mixtures.utility_at(float(ran.cost.mean()))
        yield (
            float(said["gain_low"]) <= gain <= float(said["gain_high"]),
            f"{gain:.4f} {_shown(said)}",
        )


def predict(whole: Pool, splits: int) -> Iterator[tuple[bool, str]]:
    """Whether what was said of the next questions fails: their cost, or their accuracy."""
    costs = shares = refused = 0
    for seed in range(splits):
        rows = np.random.default_rng(seed).permutation(len(whole))[: TOLD + NEXT]
        now, later = whole.take(np.sort(rows[:TOLD])), whole.take(np.sort(rows[TOLD:]))
        experiment = Experiment(now, LEVELS, (BUDGET,), ORDERS, seed)
        fitted = find_factory("sequential")(experiment, np.arange(len(now)))
        sweep = sweep_prices(experiment, find_factory("sequential"), PRICES)
        told: dict[str, Any] = {"horizon": NEXT, "confidence": SURE, "sweep": sweep}
        said = calibrate(experiment, "sequential", budget=BUDGET, **told)
        above = once(fitted, later, said["price"], seed).cost.mean() > BUDGET
        costs += above
        try:
            said = calibrate_share(experiment, "sequential", accuracy_of=16, share=KEPT, **told)
        except DataError:
            refused += 1
        else:
            kept = once(fitted, later, said["price"], seed).accuracy.mean()
            shares += kept < KEPT * once_all(later, seed)
        said_so = f"accuracies below {shares} of {seed + 1 - refused}, {refused} not said"
        yield above, f"costs above; {said_so}"


def once(fitted: FittedPolicy, later: Pool, price: float, seed: int) -> ReplayResult:
    """Run a policy once over questions that it has not seen, as live traffic would."""
    words = later.features if later.sequential_features is None else later.sequential_features
    digested = fitted.policy.prepare_features(words)
    replay = Replay(later, 1, LEVELS[-1], seed + 1)
    return replay.run(fitted.policy, price, sample_cost=1.0, features=digested)


def once_all(later: Pool, seed: int) -> float:
    """Accuracy of one vote of 16 samples on each question, drawn apart from the policy's."""
    samples = int(later.answers.n_samples[0])
    answer = later.answers.answer.reshape(-1, samples)
    right = later.answers.correct.reshape(-1, samples)
    order = np.random.default_rng(seed + 2).random(answer.shape).argsort(axis=1)[:, : LEVELS[-1]]
    first = votes.winner(np.take_along_axis(answer, order, axis=1))
    chosen = np.take_along_axis(right, order, axis=1)[np.arange(len(first)), first]
    return float(np.where(first >= 0, chosen, False).mean())


def _shown(said: dict[str, float | str]) -> str:
    return str({name: said[name] for name in ("gain", "gain_low", "gain_high")})


def main() -> None:
    """Print how often it happened, and how long that took."""
    table, case, count = pq.read_table(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    begin, found = time.perf_counter(), 0
    whole = read(table)
    if case == "predict":
        whole = replace(whole, features=whole.features[:, :0], sequential_features=None)
    cases = {
        "blank": lambda: blank(table, count),
        "cover": lambda: cover(whole, count),
        "synthetic": lambda: synthetic(count),
        "predict": lambda: predict(whole, count),
        "predict-text": lambda: predict(whole, count),
    }
    for i, (happened, shown) in enumerate(cases[case](), start=1):
        found += happened
        print(f"{i}: {found} of {i}, {shown}, {time.perf_counter() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main()
