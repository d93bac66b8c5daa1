"""Savings table: what each policy costs at the accuracy of 5 and of 10 samples, on many sets.

Run it with ``python -m benchmarks.savings_table DATA``, where DATA is a directory with the sets
below; ``--write`` puts the tables into docs/research/results.md and README.md.

A cell is the mean number of samples per question at which the policy is as accurate as N equal
votes by the estimates, with its 95 % interval; "–" is an end that is never reached. Policies are
scored on held-out questions. A decided vote gives the answer of all N samples, so its saving needs
no interval.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from adacompute.core.errors import DataError
from adacompute.evaluation.scoring.same_answer import compare_with_today
from adacompute.options.shared import TodayOptions
from adacompute.stages.evaluate import evaluate_run
from adacompute.stages.import_samples import import_samples
from adacompute.stages.inputs import read_pool
from adacompute.storage.store import Run

SETS = {
    "exams, gpt-3.5-turbo": "mcqa10x100__gpt-3.5-turbo.parquet",
    "exams (100), llama-2-70b": "mcqa-comprehensive100__llama-2-70b-chat.parquet",
    "exams (100), gpt-4": "mcqa-comprehensive100__gpt-4.parquet",
    "svamp141, qwen2.5-coder-1.5b": "svamp141__qwen2.5-coder-1.5b.parquet",
    "arith110, smollm2-135m": "arith110__smollm2-135m.parquet",
    "example, smollm2-135m": "example",
    "gsm8k, qwen2.5-math-1.5b": "n8/gsm8k__qwen2.5-math-1.5b-instruct.parquet",
    "math500, qwen2.5-math-1.5b": "n8/math500__qwen2.5-math-1.5b-instruct.parquet",
    "math500, r1-distill-qwen-7b": "n8/math500__deepseek-r1-distill-qwen-7b.parquet",
    "GPQA, claude-2.0": "gpqa-diamond__claude-2.0.parquet",
    "GPQA, gpt-3.5-turbo-0125": "gpqa-diamond__gpt-3.5-turbo-0125.parquet",
}
POLICIES = {
    "sequential": "sequential",
    "adaptive-consistency": "Adaptive-Consistency",
    "early-stopping": "ESC",
    "retry": "retry",
    "mixture": "baseline",
}
DECIDED = "decided vote"
IN_README = (
    "exams, gpt-3.5-turbo",
    "gsm8k, qwen2.5-math-1.5b",
    "math500, qwen2.5-math-1.5b",
    "exams (100), llama-2-70b",
    "svamp141, qwen2.5-coder-1.5b",
    "arith110, smollm2-135m",
)
"""Sets of the short table and of the picture."""

DESIGN = (
    "exams, gpt-3.5-turbo",
    "svamp141, qwen2.5-coder-1.5b",
    "arith110, smollm2-135m",
    "example, smollm2-135m",
)
"""Sets that were looked at, at least in part, while policies were designed: marked in tables."""

TODAY = (5, 10)
ROOT = Path(__file__).parents[1]


def measure(source: Path | str, *, drop_unparsed: bool) -> dict[int, dict[str, Any]]:
    """Return the savings of all policies on one set, by the number of samples of today."""
    found: dict[int, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as directory:
        run = Path(directory) / "run"
        import_samples(Path(source), run)
        try:
            pool = read_pool(Run(run)).equalise(drop_unparsed=drop_unparsed)
        except DataError:
            return {}  # too many questions have no parsed sample
        for n_samples in TODAY:
            if pool.n_samples < n_samples or (
                n_samples > min(TODAY) and pool.n_samples == n_samples
            ):
                continue  # ten samples need more than ten
            result = evaluate_run(
                run,
                budgets=[2.0],
                levels=[n for n in (1, 2, 3, 4, 5, 6, 8, 10, 12, 16) if n <= pool.n_samples],
                policies=list(POLICIES),
                drop_unparsed=drop_unparsed,
                today=TodayOptions(n_samples),
            )
            decided = compare_with_today(pool, n_samples, share=1.0)
            found[n_samples] = {
                "questions": result["questions"],
                "samples": result["samples"],
                "rows": {row["policy"]: row for row in result["today"]},
                DECIDED: decided["delivered_cost"],
            }
    return found


def format_cost(row: dict[str, Any]) -> str:
    """Write the cost at equal accuracy with its interval; bold if the verdict is "saves"."""
    if row["same_accuracy_cost"] is None:
        return "not reached"
    ends = [
        "–" if row[name] is None else f"{row['cost'] * (1 - row[name]):.1f}"
        for name in ("saving_high", "saving_low")
    ]
    cost = f"{row['same_accuracy_cost']:.2f}"
    cost = f"**{cost}**" if row["verdict"] == "saves" else cost
    return f"{cost} [{', '.join(ends)}]"


def format_table(
    found: dict[str, dict[int, dict[str, Any]]], n_samples: int, recorded: dict[str, int]
) -> list[str]:
    """Return the lines of a table of costs at the accuracy of so many samples.

    ``recorded`` is the number of questions of each set, before any are left out.
    """
    names = [*POLICIES.values(), DECIDED]
    lines = [f"| set | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for name, by_size in found.items():
        if n_samples in by_size:
            one = by_size[n_samples]
            cells = [format_cost(one["rows"][policy]) for policy in POLICIES]
            cells.append(f"{one[DECIDED]:.2f}")
            left = "" if one["questions"] == recorded[name] else f" of {recorded[name]}"
            mark = " †" if name in DESIGN else ""
            size = f"{one['questions']}{left} × {one['samples']}"
            lines.append(f"| {name} ({size}){mark} | {' | '.join(cells)} |")
    return lines


def format_savings(found: dict[str, dict[int, dict[str, Any]]]) -> list[str]:
    """Return the lines of the short table: what is saved of five samples, in per cent."""
    lines = [
        "| set | today | sequential saves | Adaptive-Consistency | baseline | decided vote |",
        "|---|---|---|---|---|---|",
    ]
    for name in IN_README:
        one = found[name][min(TODAY)]
        cells = [f"{100 * one['rows']['sequential']['accuracy']:.1f} %"]
        for policy in ("sequential", "adaptive-consistency", "mixture"):
            row = one["rows"][policy]
            values = [row[key] for key in ("saving", "saving_low", "saving_high")]
            saving, low, high = ("–" if v is None else f"{100 * v:z.0f}" for v in values)
            text = f"{saving} % [{low}, {high}]"
            cells.append(f"**{text}**" if row["verdict"] == "saves" else text)
        cells.append(f"{100 * (1 - one[DECIDED] / min(TODAY)):.0f} %")
        size = f"{one['questions']} × {one['samples']}"
        lines.append(f"| {name} ({size}) | {' | '.join(cells)} |")
    return lines


def write(path: Path, name: str, lines: list[str]) -> None:
    """Replace what is between two comments of a page."""
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
    before, _, rest = path.read_text().partition(begin)
    if not rest:
        raise SystemExit(f"{path} has no place for {name}")
    path.write_text(before + begin + "\n".join(lines) + "\n" + end + rest.partition(end)[2])


def read_known(path: Path | None) -> dict[tuple[str, str], dict[int, dict[str, Any]]]:
    """Return what an earlier run has measured, by the samples kept and the set."""
    if path is None or not path.exists():
        return {}
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {(kept, name): {int(n): one for n, one in by.items()} for kept, name, by in rows}


def main() -> None:
    """Measure every set, print the tables, and write them if that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path, help="directory of recorded samples")
    parser.add_argument("--write", action="store_true", help="write the tables into the pages")
    parser.add_argument("--out", type=Path, help="file for the numbers, to start again from")
    options = parser.parse_args()
    tables: dict[str, list[str]] = {}
    known = read_known(options.out)
    for kept, drop_unparsed in (("as recorded", False), ("unparsed samples removed", True)):
        found: dict[str, dict[int, dict[str, Any]]] = {}
        for name, file in SETS.items():
            start = time.perf_counter()
            source = file if file == "example" else options.data / file
            if (kept, name) not in known:
                known[kept, name] = measure(source, drop_unparsed=drop_unparsed)
                print(f"{kept}: {name}, {time.perf_counter() - start:.0f} s", flush=True)
                if options.out:
                    with options.out.open("a") as lines:
                        lines.write(json.dumps([kept, name, known[kept, name]]) + "\n")
            found[name] = known[kept, name]
        for n_samples in TODAY:
            recorded = {name: known["as recorded", name][min(TODAY)]["questions"] for name in found}
            tables[f"savings {n_samples}, {kept}"] = format_table(found, n_samples, recorded)
        if not drop_unparsed:
            tables["savings"] = format_savings(found)
    for name, lines in tables.items():
        print(f"\n{name}\n" + "\n".join(lines))
        if options.write:
            page = "README.md" if name == "savings" else "docs/research/results.md"
            write(ROOT / page, name, lines)


if __name__ == "__main__":
    main()
