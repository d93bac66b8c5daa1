"""Features: time to extract the paper's sixteen features, for one question and for many.

Run it with ``python -m benchmarks.features``.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import pyarrow as pa

from adacompute.features.text import extract_features

SENTENCE = (
    "A train leaves at 9:15 and travels 120 km in 1.5 hours. How fast is it, in km per hour? "
)
REPEATS = 2_000
N_QUESTIONS = 20_000


def main() -> None:
    """Print µs for one question of 500 characters, and questions per second for many."""
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    text = (SENTENCE * 6)[:500]
    one = pa.array([text])
    times_ns = np.empty(REPEATS)
    for i in range(REPEATS):
        start = time.perf_counter_ns()
        extract_features(one)
        times_ns[i] = time.perf_counter_ns() - start
    p50, p99 = np.quantile(times_ns[50:] / 1000, [0.5, 0.99])
    many = pa.array([f"{i} {text}"[:500] for i in range(N_QUESTIONS)])
    extract_features(many)  # warm up
    start_s = time.perf_counter()
    extract_features(many)
    elapsed_s = time.perf_counter() - start_s
    print(f"one question of 500 characters   p50 {p50:.0f} µs   p99 {p99:.0f} µs")
    print(f"{N_QUESTIONS:,} of them   {N_QUESTIONS / elapsed_s:,.0f} questions per second")


if __name__ == "__main__":
    main()
