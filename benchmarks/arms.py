"""What several models and efforts under one price are worth, on recorded samples.

``python -m benchmarks.arms`` lists the efficient levels of each set, and scores the policies over
arms: in tokens, in money, or in tokens times parameters. ``--max-samples 8`` counts up to eight
samples of an arm; the oracle uses at most half of the recorded ones. Names of sets restrict what is
run. ``--today qwen2.5-coder-1.5b`` prints instead what each policy costs at the accuracy of one
sample of that arm for every question. At the end, all differences to the best mixture are tested
together by Holm's method. Recorded samples are found in ``ADACOMPUTE_DATA``.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from adacompute.evaluation.intervals import Interval
from adacompute.evaluation.scoring.verdict import judge
from adacompute.options.shared import TodayOptions
from adacompute.stages.evaluate import evaluate_run
from adacompute.stages.import_samples import import_samples
from reproduction.registered_rivals import register_rivals

DATA = Path(os.environ.get("ADACOMPUTE_DATA", "../shared/data")) / "samples"
GPT, OPUS = "gpt-5.2-2025-12-11", "claude-opus-4-5-20251101"
CHARS_PER_TOKEN = 4
TWO_SIDED = NormalDist().inv_cdf(0.975)
"""Standard errors from the middle of an interval at 95 % to its ends."""

ONE_SIDED = NormalDist().inv_cdf(0.95)
"""Standard errors of a one-sided bound at 95 %."""

ALPHA = 0.05
N_WORST = 5
"""Differences that are printed with their p values."""

Prices = dict[str, tuple[float, float]]
"""Input and output, per million tokens, by model."""

LISTED: Prices = {
    GPT: (1.75, 14.0),
    "gpt-5.1": (1.25, 10.0),
    "gpt-5-2025-08-07": (1.25, 10.0),
    "gpt-5-mini-2025-08-07": (0.25, 2.0),
    "gpt-5-nano-2025-08-07": (0.05, 0.4),
    "gpt-5.4-mini-2026-03-17": (0.75, 4.5),
    "gpt-5.4-nano-2026-03-17": (0.2, 1.25),
    "gpt-5.5-pre-release": (5.0, 30.0),
    "gpt-5.5-pro-pre-release": (30.0, 180.0),
    OPUS: (5.0, 25.0),
    "claude-opus-4-6": (5.0, 25.0),
    "claude-opus-4-7": (5.0, 25.0),
    "claude-sonnet-4-6": (3.0, 15.0),
    "deepseek-reasoner": (0.28, 0.42),
    "gemini-2.5-pro": (1.25, 10.0),
    "gemini-3-flash-preview": (0.5, 3.0),
    "kimi-k2p5": (0.6, 3.0),
}
"""In dollars, from a public price list of 2026; models that no list has are left out."""

LISTED_2024: Prices = {
    "llama-2-7b-chat": (0.05, 0.25),
    "gpt-3.5-turbo": (0.5, 1.5),
    "llama-2-70b-chat": (0.65, 2.75),
    "mistral-large": (4.0, 12.0),
    "gpt-4": (30.0, 60.0),
    "claude-3-opus": (15.0, 75.0),
}
"""In dollars, as listed in mid 2024, when these were sampled."""

PARAMETERS: Prices = {
    "smollm2-135m": (0.0, 0.135),
    "qwen2.5-coder-0.5b": (0.0, 0.5),
    "qwen2.5-coder-1.5b": (0.0, 1.5),
}
"""Billions of parameters: the cost of a generated token."""


@dataclass(frozen=True)
class ArmSet:
    """Files of several arms on the same questions; without prices, costs are in tokens.

    ``budgets`` are those that are scored unless others are given; by default they are chosen.
    """

    files: dict[str, Path]
    grader: str | None = None
    prices: Prices | None = None
    prepare: Callable[[pa.Table, str], pa.Table] | None = None
    budgets: tuple[float, ...] | None = None


def arm_files(dataset: str, *names: str) -> dict[str, Path]:
    """Return the files of some arms of a dataset."""
    return {name: DATA / "arms" / f"{dataset}__{name}.parquet" for name in names}


def priced_files(dataset: str, prices: Prices) -> dict[str, Path]:
    """Return the files of all arms of a dataset whose models have a price."""
    files = sorted((DATA / "arms").glob(f"{dataset}__*.parquet"))
    arms = {file.stem.partition("__")[2]: file for file in files}
    return {arm: file for arm, file in arms.items() if arm.partition("@")[0] in prices}


def _replace(table: pa.Table, name: str, values: Any) -> pa.Table:  # noqa: ANN401 - any array
    kept = table.drop_columns([name]) if name in table.column_names else table
    return kept.append_column(name, pa.array(values))


def write_apart(table: pa.Table, arm: str) -> pa.Table:
    """Write the arm before each answer: the choices of a question were shuffled for each arm."""
    answers = [text and f"{arm} {text}" for text in table["answer"].to_pylist()]
    return _replace(table, "answer", pa.array(answers, pa.string()))


def name_model(table: pa.Table, arm: str) -> pa.Table:
    """Add the model's name and a prompt without cost."""
    table = _replace(table, "model", [arm.partition("@")[0]] * len(table))
    return _replace(table, "prompt_tokens", np.zeros(len(table), dtype=np.int64))


def count_characters(table: pa.Table, arm: str) -> pa.Table:
    """Add tokens, four characters each, where only characters were recorded."""
    chars = np.array(table["completion_chars"].to_pylist(), dtype=np.float64)
    chars = np.where(np.isnan(chars), np.nanmean(chars), chars) / CHARS_PER_TOKEN
    prompts = [len(text or "") // CHARS_PER_TOKEN for text in table["question"].to_pylist()]
    table = _replace(name_model(table, arm), "completion_tokens", chars.round().astype(np.int64))
    return _replace(table, "prompt_tokens", prompts)


SHORT, COT = "qwen2.5-coder-0.5b@short", "qwen2.5-coder-0.5b@cot"
LARGE = {"qwen2.5-coder-1.5b": DATA / "svamp141__qwen2.5-coder-1.5b.parquet"}
SVAMP: dict[str, Any] = {"grader": "numeric"}
SETS = {
    "gpqa-gpt-5.2": ArmSet(
        arm_files("gpqa-diamond", *(f"{GPT}@{e}" for e in ("low", "medium", "high", "xhigh"))),
        prepare=write_apart,
    ),
    "gpqa-opus-4.5": ArmSet(
        arm_files("gpqa-diamond", *(f"{OPUS}@{e}" for e in ("default", "think16k", "think32k"))),
        prepare=write_apart,
    ),
    "gpqa-money": ArmSet(priced_files("gpqa-diamond", LISTED), prices=LISTED, prepare=write_apart),
    "otis": ArmSet(
        arm_files(
            "otis-mock-aime",
            *(f"{GPT}@{e}" for e in ("low", "medium", "high")),
            *(f"gpt-5.1@{e}" for e in ("low", "medium", "high")),
            *(f"{OPUS}@{e}" for e in ("default", "think16k", "think32k")),
        ),
        grader="numeric",
    ),
    "mcqa-money": ArmSet(
        {model: DATA / f"mcqa-comprehensive100__{model}.parquet" for model in LISTED_2024},
        prices=LISTED_2024,
        prepare=count_characters,
    ),
    "svamp": ArmSet({**arm_files("svamp144", SHORT, COT), **LARGE}, **SVAMP),
    "svamp-parameters": ArmSet(
        {**arm_files("svamp144", "smollm2-135m@short", SHORT, COT), **LARGE},
        prices=PARAMETERS,
        prepare=name_model,
        budgets=(4e-5, 6e-5, 8e-5, 1.1e-4, 1.5e-4),
        **SVAMP,
    ),
}


def import_set(chosen: ArmSet, place: Path) -> dict[str, Any]:
    """Import a set into ``place / "run"``, and return the options of its costs."""
    files = chosen.files
    if chosen.prepare is not None:
        files = {arm: place / f"{i}.parquet" for i, arm in enumerate(chosen.files)}
        for arm, file in chosen.files.items():
            pq.write_table(chosen.prepare(pq.read_table(file), arm), files[arm])
    import_samples(None, place / "run", arms=files, grader=chosen.grader)
    if chosen.prices is None:
        return {"unit": "tokens"}
    prices = place / "prices.toml"
    tables = [
        f'[models."{model}"]\ninput = {read}\noutput = {written}\n'
        for model, (read, written) in chosen.prices.items()
    ]
    prices.write_text("\n".join(tables))
    return {"unit": "money", "token_prices": prices}


def describe_bounds(row: dict[str, Any], n_questions: int) -> str:
    """Describe the one-sided bound of a difference, and how many questions would decide it."""
    value, low, high = (row[f"difference{end}"] for end in ("", "_low", "_high"))
    bound = value - (high - low) / 2 * ONE_SIDED / TWO_SIDED
    verdict, needed = judge(Interval(value, low, high), n_questions)
    decide = f"; {needed:,} questions would decide" if needed else ""
    return f"{row['budget']:g}: above {bound * 100:+.1f} points, {verdict}{decide}"


def p_value_of_loss(value: float, low: float, high: float) -> float:
    """Return the one-sided p value of a difference below 0, from its interval at 95 %.

    >>> round(p_value_of_loss(-0.01, -0.02, 0.0), 3)
    0.025
    """
    error = (high - low) / 2 / TWO_SIDED
    if error <= 0:
        return 0.0 if value < 0 else 1.0
    return NormalDist().cdf(value / error)


def adjust(p_values: Sequence[float]) -> list[float]:
    """Return the p values adjusted by Holm's method, in the given order.

    If every adjusted p value below 0.05 is called significant, the probability of any wrong call is
    at most 0.05, however the comparisons depend on each other.

    >>> adjust([0.01, 0.5, 0.02])
    [0.03, 0.5, 0.04]
    """
    adjusted, largest = [1.0] * len(p_values), 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=lambda one: p_values[one])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = largest
    return adjusted


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


def run_set(name: str, max_samples: int, budgets: tuple[float, ...] | None) -> list[dict[str, Any]]:
    """List the efficient levels of a set, score the policies, and return rows of ``sequential``."""
    levels = tuple(range(1, max_samples + 1))
    with tempfile.TemporaryDirectory() as directory:
        costs = import_set(SETS[name], Path(directory))
        run = Path(directory, "run")
        start = time.perf_counter()
        budgets = budgets or SETS[name].budgets
        found = evaluate_run(run, levels=levels, budgets=budgets, **costs)
    arms = found["arms"]["rows"]
    efficient = sorted((row for row in arms if row["efficient"]), key=lambda row: row["cost"])
    taken = time.perf_counter() - start
    print(f"\n{name}, {found['questions']} questions, up to {max_samples} samples ({taken:.0f} s)")
    named = [
        f"{row['arm']} × {row['samples']} ({row['cost']:.3g}: {row['accuracy']:.3f})"
        for row in efficient
    ]
    print(f"efficient: {', '.join(named)}")
    print_rows(found["rows"], sorted({row["budget"] for row in found["rows"]}))
    rows = [row | {"set": name} for row in found["rows"] if row["policy"] == "sequential"]
    bounds = [describe_bounds(row, found["questions"]) for row in rows]
    print("sequential minus mixture, 95 %: " + "; ".join(bounds), flush=True)
    return rows


def compare_today(name: str, max_samples: int, today: str) -> None:
    """Print what policies cost at the accuracy of an arm that every question is asked of."""
    with tempfile.TemporaryDirectory() as directory:
        costs = import_set(SETS[name], Path(directory))
        found = evaluate_run(
            Path(directory, "run"),
            levels=tuple(range(1, max_samples + 1)),
            budgets=SETS[name].budgets,
            policies=["mixture", "sequential"],
            today=TodayOptions(today),
            **costs,
        )
    print(f"\n{name}, {found['questions']} questions, today {today}")
    for row in found["today"]:
        ends = [
            "–" if row[one] is None else f"{100 * row[one]:.0f} %"
            for one in ("saving", "saving_low", "saving_high")
        ]
        accuracy = f"{row['accuracy']:.3f} at {row['cost']:.4g}"
        print(f"{row['policy']:12} saves {ends[0]} [{ends[1]}, {ends[2]}] of {accuracy}")


def report_losses(rows: list[dict[str, Any]]) -> None:
    """Say where ``sequential`` is significantly worse than the mixture, by Holm's method."""
    ends = ("difference", "difference_low", "difference_high")
    p_values = [p_value_of_loss(*(row[end] for end in ends)) for row in rows]
    adjusted = adjust(p_values)
    n_worse = sum(one < ALPHA for one in adjusted)
    print(f"\nsignificantly worse than the mixture (Holm): {n_worse} of {len(rows)} differences")
    for i in sorted(range(len(rows)), key=lambda one: p_values[one])[:N_WORST]:
        row = rows[i]
        points = f"{row['difference'] * 100:+.1f} points"
        p = f"p = {p_values[i]:.4f}, adjusted {adjusted[i]:.3f}"
        print(f"  {row['set']} at {row['budget']:g}: {points}, {p}")


def main() -> None:
    """Print a table for each set."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("sets", nargs="*", help=f"of {', '.join(SETS)} (default: all)")
    parser.add_argument("--max-samples", type=int, default=4)
    parser.add_argument("--budgets", type=lambda text: tuple(map(float, text.split(","))))
    parser.add_argument("--today", help="arm to compare with, as fit takes it")
    options = parser.parse_args()
    if options.today:
        for name in options.sets:
            compare_today(name, options.max_samples, options.today)
        return
    register_rivals()
    rows = []
    for name in options.sets or list(SETS):
        rows += run_set(name, options.max_samples, options.budgets)
    report_losses(rows)


if __name__ == "__main__":
    main()
