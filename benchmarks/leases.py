"""Leases: how much of a cap is exceeded or left unused, against replicas, staleness and lease size.

Run it with ``python -m benchmarks.leases --figure leases.svg``; the figure also has the results of
``benchmarks/pacing_replicas.py``. It simulates replicas over
``spending.accounts.exchange`` with a clock of its own: 1,333 calls per second reach random
replicas, each reserves 10 units and spends 1 to 10 half a second later, and after about 15 s the
cap is reached. A run lasts 30 s. There are three kinds of runs:

    calm     nothing fails
    faults   the server restarts empty at 4 s and from a copy of second 5 at 9 s; every 0.5 s a
             replica is killed: until second 14 it is back after 2 s, later ones stay away
    lost     at 4 s, 1 % of the replicas, at least one, start, take a lease and die before another
             replica has copied the account, and the server restarts empty

The bound: leases are granted out of one account, so replicas never hold more than the cap, unless
``k`` replicas die with leases of size ``L`` that are in no copy of an account that is lost. Then
they hold at most ``k·L`` more, where ``L`` is the seconds of a lease times the mean spending of a
replica, or one call if that is more. The run fails if it finds more. What stays unused at the end
is what killed replicas had left, and less than one call per replica, unless a recovery took long.

Columns: the most that replicas held above the cap, and the bound; what was not spent, and the part
of it that dead replicas have; all in percent of the cap; seconds in which nothing was granted after
a loss; messages to the server per second.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from adacompute.report.plot_style import COLOURS, MARKERS, panels
from adacompute.spending.accounts import CapAccount, Entry, LeaseRequest, exchange
from benchmarks import pacing_replicas
from benchmarks.pacing_replicas import EXCHANGES_S, Tracking
from scripts.svg_theme import figure_svg

Kind = Literal["calm", "faults", "lost"]

LIMIT, CALLS_PER_S, MAX_COST, MEAN_COST = 110_000, 1_333, 10, 5.5
STEP_S, DURATION_S, CALL_S = 0.1, 30.0, 0.5
REPLICAS = (1, 8, 64, 250, 1_000)
SETTINGS = ((1.0, 2.0), (5.0, 2.0), (1.0, 10.0))
"""Seconds between refreshes, and seconds of spending that a lease is meant to last."""

TEXT_SIZE = 12.5
"""Of the figure: 11 pixels on a phone."""


@dataclass(eq=False)
class SimulatedReplica:
    """The leases of a replica: what is on its disk, and what it needs."""

    name: str
    entry: Entry = field(default_factory=Entry)
    used: int = 0
    known: CapAccount | None = None
    server: str = ""
    back_at: float = 0.0
    is_refused: bool = False
    used_before: int = 0
    step: int = 0

    @property
    def left(self) -> int:
        """What can be reserved without asking."""
        return self.entry.held - self.used


@dataclass(frozen=True)
class Outcome:
    """What a run found, in shares of the cap; see the columns of the table."""

    excess: float
    bound: float
    unused: float
    unused_of_dead: float
    blocked_s: float
    messages_per_s: float


class Simulation:
    """One run."""

    def __init__(self, n_replicas: int, refresh_s: float, lease_s: float, kind: Kind) -> None:
        self.rng = random.Random(n_replicas)  # noqa: S311 - no secret
        self.refresh_s, self.lease_s, self.kind = refresh_s, lease_s, kind
        self.replicas = [SimulatedReplica(str(i), server="0") for i in range(n_replicas)]
        self.stored: CapAccount | None = CapAccount(server="0")
        self.copy: CapAccount | None = None
        self.n_restarts = self.n_messages = self.excess = self.bound = 0
        self.now = self.blocked_s = 0.0
        self.calls: deque[tuple[float, SimulatedReplica, int]] = deque()

    def exchange(self, replica: SimulatedReplica, minimum: int = 0, wanted: int = 0) -> None:
        """Send a replica's counters, and adopt the reply."""
        self.n_messages += 1
        request = LeaseRequest(
            replica.name, replica.entry, LIMIT, minimum, wanted, replica.known, replica.server
        )
        server = str(self.n_restarts)
        reply = exchange(self.stored, request, server=server, now=self.now)
        self.stored = replica.known = reply.account
        replica.entry = replica.entry.merge(reply.account.entries[replica.name])
        replica.is_refused = reply.status != "granted"
        if reply.account.recovery is None:
            replica.server = server

    def refresh(self, replica: SimulatedReplica) -> None:
        """Give back what the recent rate does not need, and send the counters."""
        grown = max(0, replica.used - replica.used_before)
        needed = int(self.lease_s * grown / self.refresh_s)
        replica.used_before, replica.step = replica.used, 0
        given = max(0, replica.left - needed)
        replica.entry = replace(replica.entry, returned=replica.entry.returned + given)
        self.exchange(replica)

    def call(self, replica: SimulatedReplica) -> None:
        """Reserve a call, with a larger lease if needed."""
        if replica.left < MAX_COST:
            if replica.is_refused:
                return
            rate = (replica.used - replica.used_before) / self.refresh_s
            minimum = MAX_COST - replica.left
            replica.step = max(2 * replica.step, minimum, int(self.lease_s * rate))
            self.exchange(replica, minimum, replica.step)
        if replica.left >= MAX_COST:
            replica.used += MAX_COST
            self.calls.append((self.now + CALL_S, replica, self.rng.randint(1, MAX_COST)))

    def settle(self) -> None:
        """End the calls that are over; those of dead replicas count at their maximum."""
        while self.calls and self.calls[0][0] <= self.now:
            _, replica, cost = self.calls.popleft()
            cost = MAX_COST if replica.back_at > self.now else cost
            replica.used -= MAX_COST - cost
            replica.entry = replace(replica.entry, spent=replica.entry.spent + cost)

    def restart(self, stored: CapAccount | None) -> None:
        """Restart the server with other data."""
        self.n_restarts += 1
        self.stored = stored

    def lose_replicas(self) -> None:
        """Start replicas that take a lease and die, and lose the account before it is copied."""
        size = max(MAX_COST, int(self.lease_s * CALLS_PER_S * MEAN_COST / len(self.replicas)))
        n_lost = max(1, len(self.replicas) // 100)
        self.bound = n_lost * size
        for number in range(n_lost):
            lost = SimulatedReplica(f"lost {number}", server=str(self.n_restarts), back_at=1e9)
            self.exchange(lost, MAX_COST, size)
            self.replicas.append(lost)
        self.restart(None)

    def fail(self, step: int) -> None:
        """Let the failures of a step happen."""
        if self.kind == "lost" and step == 40:
            self.lose_replicas()
        if self.kind != "faults":
            return
        if step == 50:
            self.copy = self.stored
        if step in {40, 90}:
            self.restart(None if step == 40 else self.copy)
        alive = [one for one in self.replicas if one.back_at <= self.now]
        if step % 5 == 0 and len(alive) > 1:
            self.rng.choice(alive).back_at = self.now + 2.0 if step < 140 else 1e9

    def run(self) -> Outcome:
        """Run it, and compare what replicas hold with the bound after every step."""
        period = round(self.refresh_s / STEP_S)
        n_steps = round(DURATION_S / STEP_S)
        n_calls = round(CALLS_PER_S * STEP_S)
        for step in range(n_steps):
            self.now = step * STEP_S
            self.fail(step)
            self.settle()
            alive = [one for one in self.replicas if one.back_at <= self.now]
            for i, replica in enumerate(alive):
                if (step + i) % period == 0 or replica.back_at > self.now - STEP_S > 0:
                    self.refresh(replica)
            for replica in self.rng.choices(alive, k=n_calls):
                self.call(replica)
            is_blocked = self.stored is None or self.stored.recovery is not None
            self.blocked_s += STEP_S * is_blocked
            held = sum(one.entry.held for one in self.replicas)
            self.excess = max(self.excess, held - LIMIT)
            assert self.excess <= self.bound, (self.excess, self.bound)
        unused_of_dead = sum(one.left for one in self.replicas if one.back_at > self.now)
        used = sum(one.used for one in self.replicas)
        return Outcome(
            self.excess / LIMIT,
            self.bound / LIMIT,
            (LIMIT - used) / LIMIT,
            unused_of_dead / LIMIT,
            self.blocked_s,
            self.n_messages / DURATION_S,
        )


def run_all(sizes: list[int]) -> Iterator[tuple[int, float, float, Kind, Outcome]]:
    """Run all settings, and print the rows of a table."""
    print(
        "| replicas | refresh, s | lease, s | run | above the cap, % | bound, % | unused, % "
        "| of dead replicas, % | blocked, s | messages per s |\n" + "|---:" * 10 + "|"
    )
    kinds: tuple[Kind, ...] = ("calm", "faults", "lost")
    for size in sizes:
        is_large = size >= 250  # these runs take longest
        for refresh_s, lease_s in SETTINGS[:2] if is_large else SETTINGS:
            for kind in kinds[1:] if is_large else kinds:
                found = Simulation(size, refresh_s, lease_s, kind).run()
                print(
                    f"| {size:,} | {refresh_s:g} | {lease_s:g} | {kind} | {100 * found.excess:.2f} "
                    f"| {100 * found.bound:.2f} | {100 * found.unused:.2f} "
                    f"| {100 * found.unused_of_dead:.2f} | {found.blocked_s:.1f} "
                    f"| {found.messages_per_s:,.0f} |",
                    flush=True,
                )
                yield size, refresh_s, lease_s, kind, found


def draw(
    rows: list[tuple[int, float, float, Kind, Outcome]],
    tracked: list[tuple[int, float, Tracking]],
    path: Path,
) -> None:
    """Draw what is exceeded when accounts are lost, what is unused, and how a mean is held."""
    with panels(rows=3, width=5.4, height=3.4) as (figure, (excess, unused, tracking)):
        styles = list(zip(COLOURS, MARKERS, strict=True))
        for (colour, marker), (refresh_s, lease_s) in zip(styles, SETTINGS, strict=False):
            style: dict[str, Any] = {"color": colour, "marker": marker}
            style["label"] = f"refresh {refresh_s:g} s, lease {lease_s:g} s"
            for axes, kind in ((unused, "faults"), (excess, "lost")):
                chosen = [row for row in rows if row[1:4] == (refresh_s, lease_s, kind)]
                values = [row[4].unused if kind == "faults" else row[4].excess for row in chosen]
                axes.plot([row[0] for row in chosen], [100 * one for one in values], **style)
            bounds = [100 * row[4].bound for row in chosen]
            excess.plot([row[0] for row in chosen], bounds, "--", color=colour)
        for (colour, marker), exchange_s in zip(styles, EXCHANGES_S, strict=False):
            own = [(size, found) for size, one, found in tracked if one == exchange_s]
            values = [100 * found.window for _, found in own]
            label = f"exchange every {exchange_s:g} s"
            tracking.plot(
                [size for size, _ in own], values, color=colour, marker=marker, label=label
            )
        titles = {
            excess: ("Above the cap, accounts lost", "% of the cap; dashed: bound"),
            unused: ("Unused, with faults", "% of the cap"),
            tracking: ("Mean cost, worst window", "% off the budget"),
        }
        for axes, (title, unit) in titles.items():
            axes.set(xscale="log")
            axes.set_xlabel("replicas", fontsize=TEXT_SIZE)
            axes.set_ylabel(unit, fontsize=TEXT_SIZE)
            axes.set_title(title, fontsize=TEXT_SIZE + 1)
            axes.tick_params(labelsize=TEXT_SIZE)
            axes.set_xticks(REPLICAS, [f"{size:,}" for size in REPLICAS])
            axes.set_xlim(0.8, 1_400)
            axes.legend(fontsize=TEXT_SIZE)
        for axes, ticks in {excess: (0.1, 1, 10, 100), tracking: (1, 2, 5, 10, 20, 50)}.items():
            axes.set_yscale("log")
            axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        tracking.legend(loc="center right", bbox_to_anchor=(1, 0.68), fontsize=TEXT_SIZE)
        for axes in titles:
            axes.minorticks_off()
        path.write_text(
            figure_svg(
                figure,
                shown=560,
                title="Caps and budgets held by 1 to 1,000 replicas",
                description="Top: the share of a cap that is exceeded when accounts are lost."
                " Middle: the share that stays unused with faults. Bottom: the worst deviation of"
                " the mean cost in a window of 5,000 questions, for three periods of exchange.",
            )
        )


def main() -> None:
    """Run the simulations."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicas", type=int, nargs="+", default=list(REPLICAS))
    parser.add_argument("--figure", type=Path)
    options = parser.parse_args()
    started = time.perf_counter()
    rows = list(run_all(options.replicas))
    print(f"\n{time.perf_counter() - started:.0f} s")
    if options.figure:
        draw(rows, list(pacing_replicas.run_all(options.replicas)), options.figure)


if __name__ == "__main__":
    main()
