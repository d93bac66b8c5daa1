"""Solver: time for 10 million questions × 5 levels, against the paper's bisection and one sum().

Run it with ``python -m benchmarks.solver [QUESTIONS]``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from adacompute import UtilityTable, solve
from adacompute.core.types import FloatArray
from reproduction.bisection import bisect as bisect_table

T = TypeVar("T")

COST = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
BUDGET = 3.0
STEPS = 50


def bisect(utility: FloatArray, cost: FloatArray, budget: float) -> float:
    """The paper's search in plain numpy: 50 times an argmax over the whole table."""
    low, high = 0.0, 5.0
    for _ in range(STEPS):
        price = (low + high) / 2
        choice = np.argmax(utility - price * cost, axis=1)
        if cost[choice].mean() > budget:
            low = price
        else:
            high = price
    return high


def measure(function: Callable[[], T]) -> tuple[float, T]:
    """Return the seconds that a call takes, and its result."""
    start = time.perf_counter()
    result = function()
    return time.perf_counter() - start, result


def main() -> None:
    """Print seconds and ratios of one run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("questions", type=int, nargs="?", default=10_000_000)
    n_questions = parser.parse_args().questions
    rng = np.random.default_rng(0)
    base = rng.random((n_questions, 1), dtype=np.float64)
    # Rising, flat and falling curves, and ties as in votes of 48 samples.
    utility = np.clip(base + rng.normal(0, 0.15, (n_questions, 5)) * np.arange(5) / 4, 0, 1)
    utility = np.rint(utility * 48) / 48
    sum_s, _ = measure(utility.sum)
    table = UtilityTable(utility, COST)
    solve_s, exact = measure(lambda: solve(table, BUDGET))
    ours_s, (bisected, _) = measure(lambda: bisect_table(table, BUDGET))
    plain_s, price = measure(lambda: bisect(utility, COST, BUDGET))
    assert exact.cost <= BUDGET
    assert abs(exact.price - price) < 1e-6
    assert abs(exact.mixed_utility - bisected.mixed_utility) < 1e-9
    print(f"questions            {n_questions:,} x 5")
    print(f"one sum() pass       {sum_s:8.3f} s")
    print(f"solve                {solve_s:8.3f} s   {solve_s / sum_s:6.1f} x sum()")
    print(f"bisection, plain     {plain_s:8.3f} s   {plain_s / solve_s:6.1f} x solve")
    print(f"bisection, ours      {ours_s:8.3f} s   {ours_s / solve_s:6.1f} x solve")


if __name__ == "__main__":
    main()
