"""How many questions and samples a verdict needs, on recorded samples.

``python -m benchmarks.sizes FILE`` draws questions at random from a file of samples, keeps the
first samples of each, calibrates ``sequential`` and prints the half-width of the gain's interval
and how many verdicts are decided: anything but "inconclusive". Rows are printed as they are
finished, smallest first; ``--minutes`` starts no other row after that time.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import adacompute as ada

CONCLUSIVE = ("gain", "loss", "no gain")


def numbers(text: str) -> list[int]:
    """Parse a list of numbers with commas."""
    return [int(one) for one in text.split(",")]


def choose(samples: ada.Samples, n_questions: int, n_samples: int, seed: int) -> ada.Samples:
    """Return the first samples of questions chosen at random."""
    rng = np.random.default_rng(seed)
    table = samples.to_arrow()
    table = table.filter(pc.less(table["sample"], n_samples))
    ids = rng.choice(np.unique(samples.question_ids), n_questions, replace=False)
    kept = pc.is_in(table["question_id"], value_set=pa.array(ids.tolist()))
    return ada.read_samples(table.filter(kept))


def main() -> None:
    """Measure every size and print one row of a table for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--questions", type=numbers, default=[50, 100, 200, 400, 1000])
    parser.add_argument("--samples", type=numbers, default=[8, 16, 32])
    parser.add_argument("--budgets", type=numbers, default=[2, 4])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=10.0)
    given = parser.parse_args()
    samples = ada.read_samples(str(given.file))
    began = time.monotonic()
    print("| questions | samples | budget | half-width, points | decided | mean gain |")
    print("|---|---|---|---|---|---|")
    for n_questions in given.questions:
        for n_samples in given.samples:
            if time.monotonic() - began > given.minutes * 60:
                return
            found: dict[int, list[ada.Calibration]] = {one: [] for one in given.budgets}
            for seed in range(given.repeats):
                chosen = choose(samples, n_questions, n_samples, seed)
                policy = ada.Sequential(max_samples=min(n_samples, 16)).fit(chosen)
                for budget in given.budgets:
                    found[budget].append(ada.calibrate(policy, chosen, budget=budget))
            for budget, results in found.items():
                width = np.mean([one.gain_high - one.gain_low for one in results]) / 2
                decided = sum(one.verdict in CONCLUSIVE for one in results)
                gain = np.mean([one.gain for one in results])
                row = f"| {n_questions} | {n_samples} | {budget} | {100 * width:.1f} "
                print(f"{row}| {decided} of {len(results)} | {100 * gain:+.1f} |", flush=True)


if __name__ == "__main__":
    main()
