"""What the confidence of samples is worth, on recorded samples of real models.

``python -m benchmarks.evidence confidence`` scores the policies on the sets that record
log-probabilities, with and without confidence. ``signals`` does it with one signal at a time, on
sets that record three of them, and on more files (``--samples``). ``shuffled`` does it with
log-probabilities that were shuffled, which must not hurt. Names of sets after it restrict what is
run. Recorded samples are found in the directory ``ADACOMPUTE_DATA``.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from adacompute.datasets.sources import read_source
from adacompute.policies.confidence import LIKELIHOODS
from adacompute.stages.evaluate import evaluate_run
from adacompute.stages.research.import_samples import import_samples
from reproduction.registered_rivals import RIVALS, register_rivals

DATA = Path(os.environ.get("ADACOMPUTE_DATA", "../shared/data")) / "samples"
BUDGETS = (1.5, 2.0, 3.0, 4.0, 6.0)
LEVELS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
ONE_ARM = {
    "svamp141": DATA / "svamp141__qwen2.5-coder-1.5b.parquet",
    "arith110": DATA / "arith110__smollm2-135m.parquet",
    "example": Path("example"),
}


SIGNALS = {
    "0.5B short": DATA / "arms" / "svamp144__qwen2.5-coder-0.5b@short.parquet",
    "0.5B steps": DATA / "arms" / "svamp144__qwen2.5-coder-0.5b@cot.parquet",
    "135M short": DATA / "arms" / "svamp144__smollm2-135m@short.parquet",
}
"""Sets that record the log-probabilities of windows and answers besides the mean."""

SIGNAL_SETS = {"none": (), **{name: (name,) for name in LIKELIHOODS}, "all": LIKELIHOODS}


def print_rows(rows: list[dict[str, Any]], budgets: list[float]) -> None:
    """Print accuracies and differences as a Markdown table."""
    names = list(dict.fromkeys(row["policy"] for row in rows))
    print("| policy | " + " | ".join(f"{budget:g}" for budget in budgets) + " | mean |")
    print("|---" * (len(budgets) + 2) + "|")
    for name in names:
        own = [row for row in rows if row["policy"] == name]
        cells = {
            row["budget"]: f".{round(row['accuracy'] * 1000):03d} ({row['difference'] * 100:+.1f}"
            f" [{row['difference_low'] * 100:+.1f}, {row['difference_high'] * 100:+.1f}])"
            for row in own
        }
        mean = np.mean([row["accuracy"] for row in own])
        last = f".{round(mean * 1000):03d}" if len(own) == len(budgets) else "–"
        print(f"| {name} | " + " | ".join(cells.get(b, "–") for b in budgets) + f" | {last} |")


def run_confidence(names: list[str]) -> None:
    """Score policies with and without the confidence of samples."""
    ours = ("mixture-votes", "mixture", "sequential", "sequential-votes")
    policies = (*ours, "adaptive-consistency", *RIVALS, "oracle")
    for name in names or list(ONE_ARM):
        with tempfile.TemporaryDirectory() as directory:
            run = Path(directory, "run")
            import_samples(ONE_ARM[name], run)
            start = time.perf_counter()
            known: dict[str, Any] = {"budgets": BUDGETS, "levels": LEVELS}
            found = evaluate_run(run, policies=policies, **known)
            print(f"\n{name}, {found['questions']} questions ({time.perf_counter() - start:.0f} s)")
            print_rows(found["rows"], list(BUDGETS))
            votes = evaluate_run(run, policies=("sequential",), evidence="votes", **known)
            print("\nwithout confidence")
            print_rows(votes["rows"], list(BUDGETS))


def _score(table: pa.Table, *, evidence: str = "all") -> list[dict[str, Any]]:
    """Import a table of samples and score the two policies that use confidence."""
    with tempfile.TemporaryDirectory() as directory:
        file, run = Path(directory, "samples.parquet"), Path(directory, "run")
        pq.write_table(table, file)
        import_samples(file, run)
        known: dict[str, Any] = {"budgets": BUDGETS, "levels": LEVELS, "evidence": evidence}
        rows: list[dict[str, Any]] = evaluate_run(run, policies=("mixture", "sequential"), **known)[
            "rows"
        ]
    return rows


def run_signals(names: list[str], more: list[Path]) -> None:
    """Score policies with one signal at a time, and with all of them."""
    sets = {**SIGNALS, **{file.stem: file for file in more}}
    for name in names or list(sets):
        table = pq.read_table(sets[name])
        for label, kept in SIGNAL_SETS.items():
            dropped = [column for column in LIKELIHOODS if column not in kept]
            evidence = "all" if kept else "votes"
            print(f"\n{name}, {label}")
            print_rows(_score(table.drop_columns(dropped), evidence=evidence), list(BUDGETS))


def run_shuffled(names: list[str]) -> None:
    """Score policies with log-probabilities that say nothing, against votes alone."""
    rng = np.random.default_rng(0)
    for name in names or list(ONE_ARM):
        file = ONE_ARM[name]
        table = read_source(file)
        values = np.array(table["mean_logprob"].to_pylist(), dtype=np.float64)
        ids = np.array(table["question_id"].to_pylist())
        within = values.copy()
        for one in np.unique(ids):
            within[ids == one] = rng.permutation(values[ids == one])
        place = table.column_names.index("mean_logprob")
        for label, shuffled in {"within": within, "across": rng.permutation(values)}.items():
            changed = table.set_column(place, "mean_logprob", pa.array(shuffled))
            print(f"\n{name}, shuffled {label} questions")
            print_rows(_score(changed), list(BUDGETS))
        print(f"\n{name}, votes alone")
        print_rows(_score(table, evidence="votes"), list(BUDGETS))


def main() -> None:
    """Run one of the comparisons."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("confidence", "signals", "shuffled"))
    parser.add_argument("sets", nargs="*", help="names of sets (default: all)")
    parser.add_argument("--samples", type=Path, action="append", default=[], metavar="FILE")
    options = parser.parse_args()
    register_rivals()
    if options.what == "confidence":
        run_confidence(options.sets)
    elif options.what == "signals":
        run_signals(options.sets, options.samples)
    else:
        run_shuffled(options.sets)


if __name__ == "__main__":
    main()
