"""Pacing in replicas: how far the mean cost is from the budget, against replicas and staleness.

Run it with ``python -m benchmarks.pacing_replicas``. It simulates replicas over
``spending.shared_pacing`` with a clock of its own: 250 questions per second reach random replicas,
and each is settled 0.3 s later. After 10,000 of 20,000 questions they change: until then they cost
0.7 times what the frontier says, from then on 1.35 times. Replicas exchange their counts through
one register every 0.2, 1 or 5 s. The simulation has no network, no failures and no policy: the
cost of a question is a number between 1 and 16 with the mean that the frontier and the factor give.

The bound is that of ``spending.pacing``, with the questions in flight and those of two exchanges as
the delay. The run fails if the debt is larger.

Columns: the overall mean cost minus the budget, in percent of it; the largest such deviation of a
window of 5,000 questions that starts at least 500 after a change; the largest debt and its bound,
in units of the budget; seconds that the run took.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from adacompute.spending.pacing import Pacer, PriceCurve
from adacompute.spending.shared_pacing import SharedPacer
from test_support.memory_register import MemoryRegister
from test_support.pacing import deviation_bound

BUDGET, MAX_COST = 2.0, 16
CURVE = PriceCurve((1.0, 2.0, 4.0, 8.0), (0.4, 0.1, 0.025, 0.006))
PER_S, CALL_S, STEP_S, DURATION_S = 250, 0.3, 0.1, 80.0
FACTORS = (0.7, 1.35)
"""Costs before and after the change, as factors of what the frontier says."""

REPLICAS = (1, 8, 64, 250, 1_000)
EXCHANGES_S = (0.2, 1.0, 5.0)
MAX_EXCHANGES = 100_000
"""Settings with more exchanges are left out: each of them reads the counts of all replicas."""

WINDOW, SETTLING = 5000, 500


class Tracking(NamedTuple):
    """What a run found: deviations in shares of the budget, debts in units of it."""

    mean: float
    window: float
    debt: float
    bound: float


def draw_cost(rng: np.random.Generator, mean: float) -> int:
    """Draw the cost of a question: one sample, and a geometric number of others."""
    return int(min(MAX_COST, rng.geometric(1.0 / max(1.0, mean))))


async def simulate(n_replicas: int, exchange_s: float) -> Tracking:
    """Run one setting."""
    rng, register = np.random.default_rng(n_replicas), MemoryRegister()
    pacer = Pacer(CURVE, MAX_COST)
    replicas = [SharedPacer("mean", str(i), pacer, BUDGET) for i in range(n_replicas)]
    open_calls: deque[tuple[float, SharedPacer, int]] = deque()
    costs: list[int] = []
    period, n_steps = round(exchange_s / STEP_S), round(DURATION_S / STEP_S)
    for step in range(n_steps):
        now, factor = step * STEP_S, FACTORS[2 * step // n_steps]
        while open_calls and open_calls[0][0] <= now:
            _, replica, cost = open_calls.popleft()
            replica.settle(cost)
            costs.append(cost)
        for i, replica in enumerate(replicas):
            if (step + i) % period == 0:
                await replica.exchange(register)
        for i in rng.integers(n_replicas, size=round(PER_S * STEP_S)).tolist():
            replica = replicas[i]
            cost = draw_cost(rng, factor * replica.budget())
            replica.begin()
            open_calls.append((now + CALL_S, replica, cost))
    delay = round(PER_S * (CALL_S + 2 * exchange_s * (n_replicas > 1)))
    bound = deviation_bound(Pacer(CURVE, MAX_COST, max_in_flight=delay), BUDGET) / BUDGET
    found = measure(np.array(costs, dtype=np.float64) / BUDGET - 1, bound)
    assert found.debt <= bound, found
    return found


def measure(excess: np.ndarray, bound: float) -> Tracking:
    """Summarise what questions cost beyond the budget, in the order in which they settled."""
    debts = np.concatenate([[0.0], np.cumsum(excess)])
    means = (debts[WINDOW:] - debts[:-WINDOW]) / WINDOW
    starts = np.arange(len(means))
    change = len(excess) // 2
    is_counted = (starts >= SETTLING) & (starts + WINDOW <= change) | (starts >= change + SETTLING)
    window = float(np.abs(means[is_counted]).max())
    return Tracking(float(excess.mean()), window, float(np.abs(debts).max()), bound)


def run_all(sizes: list[int]) -> Iterator[tuple[int, float, Tracking]]:
    """Run all settings, and print the rows of a table."""
    print(
        "| replicas | exchange, s | mean, % | worst window, % | largest debt | bound | took, s |\n"
        + "|---:" * 7
        + "|"
    )
    for size in sizes:
        for exchange_s in EXCHANGES_S:
            if size * DURATION_S / exchange_s > MAX_EXCHANGES:
                continue
            start = time.perf_counter()
            found = asyncio.run(simulate(size, exchange_s))
            print(
                f"| {size:,} | {exchange_s:g} | {100 * found.mean:+.2f} | {100 * found.window:.2f} "
                f"| {found.debt:,.0f} | {found.bound:,.0f} | {time.perf_counter() - start:.0f} |",
                flush=True,
            )
            yield size, exchange_s, found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--replicas", type=int, nargs="+", default=list(REPLICAS))
    for _ in run_all(parser.parse_args().replicas):
        pass


if __name__ == "__main__":
    main()
