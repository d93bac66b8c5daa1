"""Verdicts: how often a calibration says "gain" where there is none, and covers where there is one.

Run it with ``python benchmarks/verdicts.py SAMPLES.parquet blank|cover POOLS``. ``blank`` draws the
right answer of every question anew from the letters of its exam, so that voting cannot help;
``cover`` draws questions with replacement from the recorded ones and asks whether the interval of
the gain holds the gain over all of them, each scored by a policy that was not trained on it. Exams
are told apart by the part of the question's name before its stroke.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from adacompute.core.types import hash_keys
from adacompute.evaluation.calibration import calibrate
from adacompute.evaluation.families import Contest
from adacompute.evaluation.pool import Pool
from adacompute.features.text import extract
from adacompute.storage.store import number_samples

if TYPE_CHECKING:
    from adacompute.core.types import IntArray

LADDER = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
BUDGET, ORDERS, PRICES = 2.0, 8, 16


def read(table: pa.Table) -> Pool:
    """Samples without those that could not be read, each at a cost of 1."""
    if "difficulty" not in table.column_names:
        table = table.append_column("difficulty", pa.nulls(len(table), pa.string()))
    recorded = number_samples(table)
    text = pa.array(recorded.text, pa.string())
    pool = Pool(
        answers=recorded.answers,
        key=recorded.key,
        group=recorded.group,
        features=extract(text),
        draw_cost=np.ones(len(recorded.answers.answer)),
        words=extract(text, features="words"),
    )
    return pool.even(nulls=False)


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
    contest = Contest(pool, LADDER, (BUDGET,), ORDERS, seed)
    return calibrate(contest, "sequential", budget=BUDGET, prices=PRICES)


def choose(pool: Pool, rows: IntArray) -> Pool:
    """Return questions with repetition: copies stay one group, and get keys of their own."""
    samples = int(pool.answers.samples[0])
    index = (rows[:, None] * samples + np.arange(samples)).ravel()
    answers = replace(
        pool.answers,
        offsets=np.arange(len(rows) + 1) * samples,
        answer=pool.answers.answer[index],
        right=pool.answers.right[index],
    )
    return replace(
        pool,
        answers=answers,
        key=hash_keys(np.arange(len(rows), dtype=np.uint64)),
        group=pool.group[rows],
        features=pool.features[rows],
        draw_cost=pool.draw_cost[index],
        words=None if pool.words is None else pool.words[rows],
    )


def main() -> None:
    """Print the share, and how long it took."""
    table, what, pools = pq.read_table(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    begin, found = time.perf_counter(), []
    whole = read(table)
    truth = 0.0 if what == "blank" else float(judge(whole, 0)["gain"])
    for seed in range(pools):
        rng = np.random.default_rng(seed)
        if what == "blank":
            said = judge(read(redraw(table, rng)), seed)
            found.append(said["verdict"] == "gain")
        else:
            said = judge(choose(whole, np.sort(rng.integers(0, len(whole), len(whole)))), seed)
            found.append(float(said["low"]) <= truth <= float(said["high"]))
        took = time.perf_counter() - begin
        shown = {name: said[name] for name in ("gain", "low", "high")}
        print(f"{seed + 1}: {sum(found)} of {len(found)}, {shown}, {took:.0f} s", flush=True)


if __name__ == "__main__":
    main()
