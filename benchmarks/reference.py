"""Reference: the table of docs/research/results.md, from recorded samples of a real model.

Run it with ``python -m benchmarks.reference SAMPLES.parquet [--drop-unparsed]``.

The table is from 1,000 exam questions × 50 samples of gpt-3.5-turbo, published by Renze and Guven
(github.com/matthewrenze/jhu-llm-temperature, BSD-2-Clause; temperatures 0.6 to 1.0 pooled).
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from adacompute.stages.evaluate import evaluate_run
from adacompute.stages.research.import_samples import import_samples

BUDGETS = (1.5, 2.0, 3.0, 4.0, 6.0)
LEVELS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)


def main() -> None:
    """Print the table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("samples", type=Path, help="file of recorded samples")
    parser.add_argument("--drop-unparsed", action="store_true", help="remove unparsed samples")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        run = Path(directory) / "run"
        import_samples(options.samples, run)
        start = time.perf_counter()
        result = evaluate_run(
            run, budgets=BUDGETS, levels=LEVELS, drop_unparsed=options.drop_unparsed
        )
        elapsed_s = time.perf_counter() - start
    print("| policy | " + " | ".join(f"{b:g}" for b in BUDGETS) + " |")
    print("|---" * (len(BUDGETS) + 1) + "|")
    for name in dict.fromkeys(row["policy"] for row in result["rows"]):
        cells = [
            f"{row['accuracy']:.3f}"
            + ("" if row["headroom"] is None else f" ({100 * row['headroom']:.0f})")
            for row in result["rows"]
            if row["policy"] == name
        ]
        print(f"| {name} | " + " | ".join(cells) + " |")
    print(f"\n{result['questions']} questions x {result['samples']} samples, {elapsed_s:.0f} s")


if __name__ == "__main__":
    main()
