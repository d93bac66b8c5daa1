"""What confidence and several arms are worth, on recorded samples of real models.

``python benchmarks/evidence.py confidence`` scores the policies on the sets that record
log-probabilities, with and without confidence. ``python benchmarks/evidence.py arms`` does it on
the sets with several models and efforts, in tokens. Names of sets after it restrict what is run.
Recorded samples are found in the directory ``ADACOMPUTE_DATA``.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from adacompute.evaluation.factories import RIVALS
from adacompute.stages.arms import list_arms
from adacompute.stages.evaluate import evaluate_run
from adacompute.stages.import_samples import import_samples

DATA = Path(os.environ.get("ADACOMPUTE_DATA", "../shared/data")) / "samples"
BUDGETS = (1.5, 2.0, 3.0, 4.0, 6.0)
LEVELS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
ONE_ARM = {
    "svamp141": DATA / "svamp141__qwen2.5-coder-1.5b.parquet",
    "arith110": DATA / "arith110__smollm2-135m.parquet",
    "example": Path("example"),
}


@dataclass(frozen=True)
class ArmSet:
    """Files of several arms on the same questions."""

    files: dict[str, Path]
    pool_answers: bool
    grader: str | None = None


def _arm_files(dataset: str, *names: str) -> dict[str, Path]:
    return {name: DATA / "arms" / f"{dataset}__{name}.parquet" for name in names}


GPT = "gpt-5.2-2025-12-11"
OPUS = "claude-opus-4-5-20251101"
ARM_SETS = {
    "gpqa-gpt-5.2": ArmSet(
        _arm_files("gpqa-diamond", *(f"{GPT}@{e}" for e in ("low", "medium", "high", "xhigh"))),
        pool_answers=False,
    ),
    "gpqa-opus-4.5": ArmSet(
        _arm_files("gpqa-diamond", *(f"{OPUS}@{e}" for e in ("default", "think16k", "think32k"))),
        pool_answers=False,
    ),
    "otis": ArmSet(
        _arm_files(
            "otis-mock-aime",
            *(f"{GPT}@{e}" for e in ("low", "medium", "high")),
            *(f"gpt-5.1@{e}" for e in ("low", "medium", "high")),
            *(f"{OPUS}@{e}" for e in ("default", "think16k", "think32k")),
        ),
        pool_answers=True,
        grader="numeric",
    ),
    "svamp": ArmSet(
        {
            **_arm_files("svamp144", *(f"qwen2.5-coder-0.5b@{p}" for p in ("short", "cot"))),
            "qwen2.5-coder-1.5b": DATA / "svamp141__qwen2.5-coder-1.5b.parquet",
        },
        pool_answers=True,
        grader="numeric",
    ),
}


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


def run_arms(names: list[str]) -> None:
    """List efficient arms, and score policies over arms in tokens."""
    for name in names or list(ARM_SETS):
        chosen = ARM_SETS[name]
        with tempfile.TemporaryDirectory() as directory:
            run = Path(directory, "run")
            known: dict[str, Any] = {"pool_answers": chosen.pool_answers, "grader": chosen.grader}
            import_samples(None, run, arms=chosen.files, **known)
            arms = list_arms(run, levels=(1, 2, 3, 4), unit="tokens")
            efficient = sorted(
                (row for row in arms["rows"] if row["efficient"]), key=lambda row: row["cost"]
            )
            start = time.perf_counter()
            found = evaluate_run(run, levels=(1, 2, 3, 4), unit="tokens")
            print(f"\n{name}, {found['questions']} questions ({time.perf_counter() - start:.0f} s)")
            named = [f"{r['arm']} × {r['samples']} ({r['cost']:.0f})" for r in efficient]
            print(f"efficient: {', '.join(named)}")
            print_rows(found["rows"], sorted({row["budget"] for row in found["rows"]}))


def main() -> None:
    """Run one of the two comparisons."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("confidence", "arms"))
    parser.add_argument("sets", nargs="*", help="names of sets (default: all)")
    options = parser.parse_args()
    (run_confidence if options.what == "confidence" else run_arms)(options.sets)


if __name__ == "__main__":
    main()
