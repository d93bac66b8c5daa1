"""Solver: 10 million questions × 5 levels against the paper's bisection and one memory pass.

Run it with ``python benchmarks/solver.py [QUESTIONS]``.
"""

from __future__ import annotations

import sys
import time

import numpy as np

from adacompute import UtilityTable, solve
from adacompute.core.types import FloatArray

COST = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
BUDGET = 3.0
STEPS = 50


def bisect(utility: FloatArray, cost: FloatArray, budget: float) -> float:
    """The paper's search as one writes it in numpy: 50 times an argmax over the whole table."""
    low, high = 0.0, 5.0
    for _ in range(STEPS):
        price = (low + high) / 2
        choice = np.argmax(utility - price * cost, axis=1)
        if cost[choice].mean() > budget:
            low = price
        else:
            high = price
    return high


def main() -> None:
    """Print seconds and ratios of one run."""
    questions = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000
    rng = np.random.default_rng(0)
    base = rng.random((questions, 1), dtype=np.float64)
    # Curves of all kinds: rising, flat, falling, and with ties (votes of 48 samples).
    utility = np.clip(base + rng.normal(0, 0.15, (questions, 5)) * np.arange(5) / 4, 0, 1)
    utility = np.rint(utility * 48) / 48
    total = -time.perf_counter()
    utility.sum()
    total += time.perf_counter()
    table = UtilityTable(utility, COST)
    ours = -time.perf_counter()
    found = solve(table, BUDGET)
    ours += time.perf_counter()
    own = -time.perf_counter()
    again = solve(table, BUDGET, method="bisect")
    own += time.perf_counter()
    theirs = -time.perf_counter()
    price = bisect(utility, COST, BUDGET)
    theirs += time.perf_counter()
    assert found.cost <= BUDGET
    assert abs(found.price - price) < 1e-6
    assert abs(found.mixed_utility - again.mixed_utility) < 1e-9
    print(f"questions            {questions:,} x 5")
    print(f"one sum() pass       {total:8.3f} s")
    print(f"solve                {ours:8.3f} s   {ours / total:6.1f} x sum()")
    print(f"bisection, plain     {theirs:8.3f} s   {theirs / ours:6.1f} x solve")
    print(f"bisection, ours      {own:8.3f} s   {own / ours:6.1f} x solve")


if __name__ == "__main__":
    main()
