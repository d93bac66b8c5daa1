"""Store outages: whether capped requests are refused while Redis or a replica is away.

``python -m benchmarks.store_outages [NAME...] [--seed N]`` runs scenarios, and prints a line of
JSON for each. Gateways share a real Redis server that writes every change to disk. Several clients
send steady requests under a cap of their own and one of all together. All but the last four
scenarios use less than half of the caps.

    drain     one of three gateways is stopped and its directory deleted, then Redis is restarted
              with its data. No request is refused later than 5 s after that
    workers   a gateway with three workers is stopped, Redis is restarted with its data, and the
              gateway is started with two workers. None is refused later than 5 s after it is ready
    killed    Redis is killed and started again 9 s later with its data. No client that was seen in
              the 30 s before is refused anything
    stopped   the same, if Redis is suspended for 10 s instead
    emptied   Redis is killed and starts without data. Clients that were never seen are served
              within 5 s; then requests are sent until all are refused, and no cap is exceeded
    flushed   the same, if the data are deleted in the running server
    silent    the same as emptied, if one gateway was killed just before and its directory deleted:
              within 60 s
    share     nothing fails. When the first request is refused, the calls that were answered and the
              maximum of those that are open are at least 97 % of the cap, whose hundredth part is
              the maximum of a call

``refused`` counts refused requests by code and by the second since the event, ``ready``, ``store``
and ``metrics`` are what the pages of gateways said, and ``above_cap`` is what the upstream served
above a cap. In no scenario is there another error, except that the killed gateway of ``silent``
loses the requests that it had. The exit code is 1 if a goal is missed; ``missed`` names it.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import sys
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

from benchmarks.capped_load import (
    CLIENTS,
    LOST,
    MAX_CALL,
    REFUSED,
    Amounts,
    GatewayProcess,
    Load,
    Request,
    Setup,
    home_client,
    new_client,
    open_setup,
    slow_client,
)

RATE, LOW_RATE, SHARE_RATE = 40.0, 4.0, 15.0
"""Requests per second."""

BEFORE_S, AFTER_S, SEEN_S = 12.0, 17.0, 30.0
MAX_REFUSED_S, MAX_EMPTY_S, MAX_SILENT_S, POLL_S = 5.0, 5.0, 60.0, 0.2
POLLING_S = 2.0
"""What waiting for gateways that poll may add to the longest time without leases."""

KILLED_S, STOPPED_S = 9.0, 10.0
MIN_SHARE, MAX_FILL_S = 0.97, 40.0
HALF_USED = Amounts(160_000, 50_000)
USED, SOON_USED = Amounts(80_000, 20_000), Amounts(40_000, 10_000)
SHARED = Amounts(400 * MAX_CALL, 100 * MAX_CALL)


class Found(NamedTuple):
    """When the event was, goals and whether each was met, and other figures."""

    event_at: float
    goals: dict[str, bool]
    figures: dict[str, Any]


async def drain(setup: Setup) -> Found:
    """Stop a gateway for good, and restart Redis."""
    load = setup.load
    async with load.steady(RATE):
        await asyncio.sleep(BEFORE_S)
        leaving = load.gateways.pop()
        await asyncio.to_thread(leaving.stop)
        leaving.delete()
        await restart(setup)
        event_at = time.monotonic()
        await asyncio.sleep(AFTER_S)
    return judge_late(load, event_at)


async def change_workers(setup: Setup) -> Found:
    """Stop the gateway, restart Redis, and start the gateway with fewer workers."""
    load, gateway = setup.load, setup.gateways[0]
    async with load.steady(RATE):
        await asyncio.sleep(BEFORE_S)
    await asyncio.to_thread(gateway.stop)
    await restart(setup)
    gateway.start(workers=2)
    await asyncio.to_thread(gateway.wait_ready)
    event_at = time.monotonic()
    async with load.steady(RATE):
        await asyncio.sleep(AFTER_S)
    return judge_late(load, event_at)


async def restart(setup: Setup) -> None:
    """Stop Redis and start it with its data."""
    await asyncio.to_thread(setup.server.stop)
    await asyncio.to_thread(setup.server.start)


def judge_late(load: Load, event_at: float) -> Found:
    """Return the figures of requests that are refused long after an event."""
    n_late = len(load.refused(event_at + MAX_REFUSED_S))
    goals = {f"none refused later than {MAX_REFUSED_S:g} s": n_late == 0}
    return Found(event_at, goals, {"refused_late": n_late})


async def kill_redis(setup: Setup) -> Found:
    """Kill Redis and start it later."""
    return await leave(setup, setup.server.kill, setup.server.start, KILLED_S)


async def stop_redis(setup: Setup) -> Found:
    """Suspend Redis for a while."""
    return await leave(setup, setup.server.pause, setup.server.resume, STOPPED_S)


async def leave(
    setup: Setup, begin: Callable[[], None], end: Callable[[], None], away_s: float
) -> Found:
    """Go on with requests while Redis is away; slow clients send one before and two meanwhile."""
    load = setup.load

    async def send_slow() -> None:
        clients = [slow_client(0), slow_client(1)]
        await asyncio.gather(*(load.send(one, gate) for one in clients for gate in load.gateways))

    async with load.steady(RATE):
        await send_slow()
        await asyncio.sleep(BEFORE_S)
        event_at = time.monotonic()
        await asyncio.to_thread(begin)
        for share in (0.25, 0.75):
            await asyncio.sleep(event_at + share * away_s - time.monotonic())
            await send_slow()
        await asyncio.sleep(event_at + away_s - time.monotonic())
        await asyncio.to_thread(end)
        await asyncio.sleep(AFTER_S)
    seen = {one.client for one in load.requests if event_at - SEEN_S < one.sent_at < event_at}
    refused = load.refused(event_at, seen)
    by_client = {name: sum(one.client == name for one in refused) for name in sorted(seen)}
    goals = {"none of the clients seen refused": not refused}
    return Found(event_at, goals, {"refused_of_seen": len(refused), "by_client": by_client})


async def empty_redis(setup: Setup) -> Found:
    """Restart Redis without its data."""
    return await lose(setup, lambda: setup.server.restart("empty"), MAX_EMPTY_S)


async def flush_redis(setup: Setup) -> Found:
    """Delete all data in the running server."""

    def flush() -> None:
        assert setup.server.send("FLUSHALL").startswith("+OK")

    return await lose(setup, flush, MAX_EMPTY_S)


async def lose_both(setup: Setup) -> Found:
    """Kill a gateway for good, and restart Redis without its data."""

    def lose_gateway() -> None:
        leaving = setup.load.gateways.pop()
        leaving.kill()
        leaving.delete()
        setup.server.restart("empty")

    return await lose(setup, lose_gateway, MAX_SILENT_S + POLLING_S, LOW_RATE)


async def lose(setup: Setup, empty: Callable[[], None], max_s: float, rate: float = RATE) -> Found:
    """Let Redis lose its data; measure when new leases are granted, then use up the caps.

    ``rate`` is that of requests from the loss until then.
    """
    load = setup.load
    async with load.steady(RATE) as pace:
        await asyncio.sleep(BEFORE_S / 2)
        await asyncio.to_thread(empty)
        event_at, pace.rate = time.monotonic(), rate
        probes = await ask_anew(load, event_at + max_s + 1.0)
    await load.exhaust([home_client(len(setup.gateways) - 1)])
    await load.exhaust([*CLIENTS, *map(home_client, range(len(setup.gateways)))])
    last = max((one.ended_at for one in probes if one.outcome != "200"), default=event_at)
    granted = [one.ended_at - event_at for one in probes if one.outcome == "200"]
    granted_s = next((one for one in granted if one >= last - event_at), None)
    goals = {f"new leases within {max_s:g} s": granted_s is not None and granted_s <= max_s}
    n_refused = sum(one.is_refused for one in probes)
    figures = {
        "granted_after_s": None if granted_s is None else round(granted_s, 2),
        "first_granted_s": round(granted[0], 2) if granted else None,
        "new_clients": {"refused": n_refused, "granted": len(granted)},
    }
    return Found(event_at, goals, figures)


async def ask_anew(load: Load, end: float) -> list[Request]:
    """Send requests of clients that no gateway has seen, until none is refused for a while.

    A client tries again until it is served.
    """
    found: list[Request] = []
    index, calm_at = 0, time.monotonic() + MAX_EMPTY_S
    while time.monotonic() < min(end, calm_at):
        gateway = load.gateways[len(found) % len(load.gateways)]
        found.append(await load.send(new_client(index), gateway))
        if found[-1].outcome == "200":
            index += 1
        else:
            calm_at = time.monotonic() + MAX_EMPTY_S
        await asyncio.sleep(POLL_S)
    return found


async def use_up(setup: Setup) -> Found:
    """Send requests until caps refuse the first: those of three clients, then the one of all."""
    load, gateways, rng = setup.load, setup.gateways, setup.load.rng
    begun_at = time.monotonic()
    weights = [rng.uniform(0.5, 1.0), rng.uniform(0.1, 0.5), rng.uniform(0.0, 0.1)]
    turns = itertools.count()
    routes: dict[str, Callable[[], GatewayProcess]] = {
        "uneven": lambda: rng.choices(gateways, weights)[0],
        "one gateway": lambda: gateways[0],
        "moving": lambda: gateways[next(turns) // 100 % len(gateways)],
    }
    clients = dict(zip(routes, CLIENTS, strict=False))
    fills = [fill(load, SHARE_RATE, {clients[name]}, route) for name, route in routes.items()]
    times = await asyncio.gather(*fills)
    rest = {*CLIENTS, home_client(0)}.difference(clients.values())
    total_at = await fill(load, 3 * SHARE_RATE, rest, routes["uneven"])
    tokens, amounts = setup.count_tokens(), setup.amounts
    shares = {}
    for (name, client), first_at in zip(clients.items(), times, strict=True):
        own = [one for one in load.requests if one.client == client]
        shares[name] = count_used(own, tokens, first_at) / amounts.per_client
    shares["all clients"] = count_used(load.requests, tokens, total_at) / amounts.total
    goals = {f"{name}: at least {MIN_SHARE:g}": one >= MIN_SHARE for name, one in shares.items()}
    return Found(begun_at, goals, {"shares": {key: round(one, 4) for key, one in shares.items()}})


async def fill(
    load: Load, rate: float, clients: Collection[str], route: Callable[[], GatewayProcess]
) -> float:
    """Send requests of some clients until one is refused, and return when that was."""
    names, end = sorted(clients), time.monotonic() + MAX_FILL_S
    async with load.steady(rate, lambda: (load.rng.choice(names), route())):
        while not load.refused(0.0, clients) and time.monotonic() < end:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    return min((one.ended_at for one in load.refused(0.0, clients)), default=end)


def count_used(requests: Iterable[Request], tokens: Mapping[str, int], at: float) -> int:
    """Return the tokens of calls that were answered by a time, and the maximum of open ones."""
    served = [one for one in requests if one.outcome == "200" and one.sent_at < at]
    return sum(tokens[one.name] if one.ended_at <= at else MAX_CALL for one in served)


class Scenario(NamedTuple):
    """What to run, and with which caps and gateways."""

    run: Callable[[Setup], Awaitable[Found]]
    amounts: Amounts
    n_gateways: int = 3
    workers: int = 1


SCENARIOS = {
    "drain": Scenario(drain, HALF_USED),
    "workers": Scenario(change_workers, HALF_USED, n_gateways=1, workers=3),
    "killed": Scenario(kill_redis, HALF_USED),
    "stopped": Scenario(stop_redis, HALF_USED),
    "emptied": Scenario(empty_redis, USED),
    "flushed": Scenario(flush_redis, USED),
    "silent": Scenario(lose_both, SOON_USED),
    "share": Scenario(use_up, SHARED),
}


async def run(name: str, seed: int) -> dict[str, Any]:
    """Run a scenario and return its line."""
    scenario, begun_at = SCENARIOS[name], time.monotonic()
    arguments = (seed, scenario.amounts, scenario.n_gateways, scenario.workers)
    async with open_setup(*arguments) as setup:
        found = await scenario.run(setup)
        described = setup.describe(found.event_at)
    expected = {"200", *REFUSED, *([LOST] if name == "silent" else [])}
    goals = {
        **found.goals,
        "no cap exceeded": not described["above_cap"],
        "no other errors": set(described["outcomes"]) <= expected,
    }
    missed = [goal for goal, is_met in goals.items() if not is_met]
    seconds = round(time.monotonic() - begun_at, 1)
    known = {"scenario": name, "seed": seed, "missed": missed, **found.figures}
    return {**known, **described, "seconds": seconds}


def main() -> None:
    """Print a line per scenario; exit with 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(SCENARIOS))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    names = options.names or list(SCENARIOS)
    if unknown := set(names).difference(SCENARIOS):
        parser.error(f"there is no scenario {', '.join(sorted(unknown))}")
    has_missed = False
    for name in names:
        line = asyncio.run(run(name, options.seed))
        print(json.dumps(line), flush=True)
        has_missed |= bool(line["missed"])
    sys.exit(has_missed)


if __name__ == "__main__":
    main()
