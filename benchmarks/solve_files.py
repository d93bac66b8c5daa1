"""Solve files: time and memory for a utility table on disk, against bare scans of it.

Run it with ``python -m benchmarks.solve_files [QUESTIONS] [--grid 16]``. It writes utilities of
five levels as uncompressed float32, measures a bare scan of the warm files, the time per row of the
solver on a table in memory, and then ``solve_files`` in a process of its own.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import time
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from adacompute import UtilityTable, solve
from adacompute.stages.research.solve_files import BLOCK_ROWS, solve_files

COST = (1.0, 2.0, 4.0, 8.0, 16.0)
BUDGET = 3.0
FILE_ROWS = 5_000_000
MEMORY_ROWS = 10_000_000


def write_utilities(folder: Path, n_questions: int, grid: int | None) -> None:
    """Write rising, flat and falling curves of utility."""
    folder.mkdir(parents=True, exist_ok=True)
    for first in range(0, n_questions, FILE_ROWS):
        path = folder / f"{first // FILE_ROWS:04}.parquet"
        if path.exists():
            continue
        n = min(FILE_ROWS, n_questions - first)
        rng = np.random.default_rng(first)
        base = rng.random(n, dtype=np.float32)
        columns = {}
        for k, cost in enumerate(COST):
            noise = rng.standard_normal(n, dtype=np.float32) * np.float32(0.15 * k / 4)
            column = np.clip(base + noise, 0, 1)
            columns[f"utility_{cost:.0f}"] = (
                column if grid is None else np.rint(column * grid) / grid
            )
        table = pa.table({name: column.astype(np.float32) for name, column in columns.items()})
        pq.write_table(
            table, path, compression="none", use_dictionary=False, row_group_size=BLOCK_ROWS * 4
        )


def scan(folder: Path) -> float:
    """Read all columns once, and sum them."""
    total = 0.0
    for path in sorted(folder.iterdir()):
        for batch in pq.ParquetFile(path, memory_map=True).iter_batches(BLOCK_ROWS):
            total += sum(float(column.to_numpy().sum()) for column in batch.columns)
    return total


def solve_memory(folder: Path) -> float:
    """Return the seconds per row of the solver on a table in memory."""
    parts, rows = [], 0
    for path in sorted(folder.iterdir()):
        table = pq.read_table(path)
        parts.append(np.stack([np.asarray(column) for column in table.columns], axis=1))
        rows += len(table)
        if rows >= MEMORY_ROWS:
            break
    utility = UtilityTable(np.concatenate(parts).astype(np.float64), np.array(COST))
    start = time.perf_counter()
    solve(utility, BUDGET)
    return (time.perf_counter() - start) / len(utility)


def solve_disk(folder: Path, out: Path) -> tuple[float, float, float]:
    """Return seconds, peak memory in MB and the price of solving files."""
    start = time.perf_counter()
    result = solve_files(folder, cost=COST, budget=BUDGET, out=out)
    seconds = time.perf_counter() - start
    status = Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024
    return seconds, peak, result["price"]


def main() -> None:
    """Print seconds and ratios of one run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("questions", type=int, nargs="?", default=10_000_000)
    parser.add_argument("--grid", type=int, help="Utilities are multiples of 1 / GRID.")
    parser.add_argument("--folder", type=Path, default=Path("/tmp/adacompute-solve-files"))  # noqa: S108
    parser.add_argument("--keep", action="store_true", help="Keep the files.")
    options = parser.parse_args()
    folder = options.folder / f"{options.questions}-{options.grid or 'continuous'}"
    write_utilities(folder, options.questions, options.grid)
    scan(folder)  # warm
    start = time.perf_counter()
    scan(folder)
    scan_s = time.perf_counter() - start
    context = get_context("spawn")
    with context.Pool(1) as pool:
        row_s = pool.apply(solve_memory, (folder,))
    with context.Pool(1) as pool:
        solve_s, peak_mb, price = pool.apply(solve_disk, (folder, options.folder / "out.parquet"))
    expected = 2 * scan_s + row_s * options.questions
    print(f"questions            {options.questions:,} x 5, {options.grid or 'continuous'}")
    print(f"one bare scan        {scan_s:8.2f} s")
    print(f"solver in memory     {row_s * 1e6:8.3f} µs per question")
    print(
        f"solve_files          {solve_s:8.2f} s   {solve_s / expected:5.2f} x (two scans + solver)"
    )
    print(f"peak memory          {peak_mb:8.0f} MB (pages of mapped files included)")
    print(f"price                {price:.9g}")
    print(
        f"peak of this process {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:8.0f} MB"
    )
    if not options.keep:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
