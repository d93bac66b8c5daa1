"""Cap cluster: what capped requests notice of outages, by simulation, with up to 1,000 replicas.

``python -m benchmarks.cap_cluster [REPLICAS ...]`` runs real meters in simulated time; only the
store is not real. Every replica has a client of its own, which makes a call per second, and all
have one cap. For each number of replicas it prints a row per event, 30 s after the start:

    drain     one replica stops and loses its directory; the store restarts with its data
    killed    the store does not answer for 9 s and restarts with its data
    stopped   the store does not answer for 10 s
    emptied   the store loses its data; all replicas report
    silent    the store loses its data while a replica disappears for good
    share     nothing fails; the cap is as large as what is spent in two minutes

Columns: calls refused of clients that were seen before, and later than 5 s after the event; after
how many seconds a new client is served; the share of the cap that was used or reserved when the
first call was refused; what was billed above a cap; the longest wait of a call; messages to the
store per second.

``python -m benchmarks.cap_cluster --faults FIRST LAST`` runs seeds of random faults instead.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import tempfile
import time
from pathlib import Path

from test_support.cap_cluster import CALL_S, MAX_TOKENS, CapCluster, run_faults
from test_support.memory_register import EMPTY
from test_support.simulated_time import run_simulated

EVENTS = ("drain", "killed", "stopped", "emptied", "silent", "share")
WARM_S, AFTER_S, LATE_S, STEP_S = 30.0, 10.0, 5.0, 0.1
NEW_CLIENT = 1_000_000
MEAN_TOKENS = (1 + MAX_TOKENS) / 2
FAST = Path("/dev/shm")  # noqa: S108 - no secret
"""Files of replicas are here if there is such a directory: they are not what is measured."""


async def run(folder: Path, event: str, n_replicas: int) -> list[str]:
    """Return a row of the table."""
    rate = n_replicas * MEAN_TOKENS / (1 + CALL_S)
    limit = int(rate * (120 if event == "share" else 1_000))
    cluster = CapCluster(folder, n_replicas, (limit, limit))
    loop = asyncio.get_running_loop()
    await cluster.start()
    with cluster.load(n_replicas, 1.0, lambda client: client):
        if event == "share":
            while not cluster.refusals:  # noqa: ASYNC110 - it is simulated
                await asyncio.sleep(STEP_S)
            return _describe(cluster, "share", loop.time(), None)
        await asyncio.sleep(WARM_S)
        begun = loop.time()
        await fail(cluster, event)
        served_s = await _serve_new_client(cluster, begun)
        await asyncio.sleep(AFTER_S)
    return _describe(cluster, event, begun, served_s)


async def fail(cluster: CapCluster, event: str) -> None:
    """Let something fail."""
    register = cluster.register
    if event == "drain":
        await cluster.stop(1, is_lost=True)
        register.restart()
    elif event in {"killed", "stopped"}:
        register.is_away = True
        await asyncio.sleep(9.0 if event == "killed" else 10.0)
        register.is_away = False
        if event == "killed":
            register.restart()
    else:
        if event == "silent":
            cluster.kill(1, is_lost=True)
        register.restart(EMPTY)


async def _serve_new_client(cluster: CapCluster, begun: float) -> float:
    """Send calls of clients that were never seen until one is served; return how long it took."""
    loop, client = asyncio.get_running_loop(), NEW_CLIENT
    while not await cluster.call(0, client):
        client += 1
        await asyncio.sleep(STEP_S)
    return loop.time() - begun


def _describe(cluster: CapCluster, event: str, begun: float, served_s: float | None) -> list[str]:
    seen = [one for one in cluster.refusals if one.client < NEW_CLIENT]
    late = [one for one in seen if one.at > begun + LATE_S]
    used = f"{cluster.refusals[0].used:.4f}" if event == "share" else ""
    messages = cluster.register.n_calls / asyncio.get_running_loop().time()
    return [
        f"{len(cluster.replicas):,}",
        event,
        "" if event == "share" else f"{len(seen):,}",
        "" if event == "share" else f"{len(late):,}",
        "" if served_s is None else f"{served_s:.1f}",
        used,
        f"{sum(cluster.excess().values()):,}",
        f"{max(cluster.waits_s):.1f}",
        f"{messages:,.0f}",
    ]


def print_table(sizes: list[int]) -> None:
    """Run all events with these numbers of replicas."""
    print(
        "| replicas | event | refused | later than 5 s | new client after, s | used at first "
        "refusal | above the cap | longest wait, s | messages per s |\n" + "|---:" * 9 + "|"
    )
    for size in sizes:
        for event in EVENTS:
            with tempfile.TemporaryDirectory(dir=FAST if FAST.is_dir() else None) as folder:
                row = run_simulated(lambda: run(Path(folder), event, size))  # noqa: B023
            print("| " + " | ".join(row) + " |", flush=True)


def run_seeds(first: int, last: int) -> None:
    """Run seeds of random faults."""
    n_reached, counts = 0, dict[str, int]()
    for seed in range(first, last):
        with tempfile.TemporaryDirectory(dir=FAST if FAST.is_dir() else None) as folder:
            found = run_simulated(lambda: run_faults(Path(folder), seed))  # noqa: B023
        n_reached += found.used > 0.97
        for name, count in found.events.items():
            counts[name] = counts.get(name, 0) + count
        if found.excess:
            raise SystemExit(f"seed {seed} exceeded caps: {found}")
    print(f"{last - first} runs, caps reached in {n_reached}, none exceeded; {counts}")


def main() -> None:
    """Run the simulations."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("replicas", type=int, nargs="*", default=[3, 100, 1_000])
    parser.add_argument("--faults", type=int, nargs=2, metavar=("FIRST", "LAST"))
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    started = time.perf_counter()
    if options.faults:
        run_seeds(*options.faults)
    else:
        print_table(options.replicas)
    print(f"\n{time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
