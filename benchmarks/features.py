"""Features: the paper's sixteen, for one question and for many.

Run it with ``python benchmarks/features.py``.
"""

from __future__ import annotations

import time

import numpy as np
import pyarrow as pa

from adacompute.features.text import extract

SENTENCE = (
    "A train leaves at 9:15 and travels 120 km in 1.5 hours. How fast is it, in km per hour? "
)
TIMES = 2_000
MANY = 20_000


def main() -> None:
    """Print microseconds of one question of 500 characters, and questions a second of many."""
    text = (SENTENCE * 6)[:500]
    one = pa.array([text])
    taken = np.empty(TIMES)
    for i in range(TIMES):
        start = time.perf_counter_ns()
        extract(one)
        taken[i] = time.perf_counter_ns() - start
    p50, p99 = np.quantile(taken[50:] / 1000, [0.5, 0.99])
    many = pa.array([f"{i} {text}"[:500] for i in range(MANY)])
    extract(many)
    seconds = -time.perf_counter()
    extract(many)
    seconds += time.perf_counter()
    print(f"one question of 500 characters   p50 {p50:.0f} µs   p99 {p99:.0f} µs")
    print(f"{MANY:,} of them   {MANY / seconds:,.0f} questions a second")


if __name__ == "__main__":
    main()
