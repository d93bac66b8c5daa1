"""Paid paths: commands that cost money, run against faults at fixed call numbers.

Each path returns what the fake upstream served by its own count, and what the accounts of the
command say. Money is in the unit of the prices; batches count samples. Half of the replies are
interrupted, or the process is killed with calls under way and started again. Which amounts are
right is not known here.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

from adacompute.core.types import make_levels
from adacompute.gateway.settings.config import read_config
from adacompute.models.capabilities_cache import cache_path, save_cached
from adacompute.models.messages import Capabilities
from adacompute.policies.bundles.bundle import Bundle, FrontierPoint, save_bundle
from adacompute.policies.price_schedule import PriceSchedule
from adacompute.policies.rule_policy import RulePolicy
from adacompute.policies.uniform import FixedRule
from adacompute.spending.token_prices import NANO
from adacompute.storage.paid_samples import SAMPLE, read_payments, sum_payments
from adacompute.testing.fake_openai import FakeSettings, FakeUpstream, serve_fake
from test_support.gateways import (
    free_port,
    process_tree,
    save_example_bundle,
    send,
    serve_gateway,
    wait_for,
)
from test_support.killed import (
    TIMEOUT_S,
    as_words,
    count_served,
    count_stalled,
    run_command,
    run_until_stalled,
    script,
    start_command,
    wait_until,
    wait_until_idle,
)

Amounts = dict[str, float]
Run = Callable[..., tuple[int, dict[str, Any]]]

TOKENS, TOKEN_COST = 20, 1e-5
"""Tokens of every answer, and what one of them costs."""

N_AT_ONCE = 8
HALF = script(*[(1, "half"), (1, "ok")] * 200)
"""Every second reply breaks off."""


def serve(
    outcomes: tuple[str, ...], *, lockstep: int = 0, lockstep_s: float = 5.0
) -> AbstractContextManager[FakeUpstream]:
    """Serve a fake that records its calls, with these outcomes by call number."""
    return serve_fake(
        FakeSettings(
            completion_tokens=TOKENS,
            record_calls=True,
            fault_script=outcomes,
            lockstep=lockstep,
            lockstep_s=lockstep_s,
        )
    )


def prepare(folder: Path, fake: FakeUpstream) -> None:
    """Write questions, prices and a policy, and what is known of the fake, so nothing is probed."""
    known = Capabilities(n="native", seed="reproducible", seed_with_n="distinct", usage="all")
    save_cached(cache_path(), fake.base_url, "fake", known)
    rows = (
        {"question_id": f"q{i}", "question": f"{i} + 1?", "gold": f"{i + 1}"} for i in range(32)
    )
    (folder / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "prices.toml").write_text("[models.fake]\ninput = 0.0\noutput = 10.0\n")
    costs, prices = (1.0, 3.0), (0.2, 0.1)
    rules = tuple(FixedRule(int(cost)) for cost in costs)
    policy = RulePolicy("fixed", make_levels((1, 3)), rules, PriceSchedule(prices))
    frontier = tuple(
        FrontierPoint(cost, price, cost, cost, cost, 0.5, 0.4, 0.6, 1.0)
        for cost, price in zip(costs, prices, strict=True)
    )
    save_bundle(Bundle(policy, frontier=frontier), folder / "bundle")


def collect(folder: Path, fake: FakeUpstream, **more: object) -> list[str]:
    """Return the command that collects four samples per call at 0.0002 each."""
    options: dict[str, object] = {
        "run": "run",
        "base-url": fake.base_url,
        "model": "fake",
        "grader": "numeric",
        "samples": 4,
        "max-tokens": TOKENS,
        "token-prices": "prices.toml",
        "max-cost": 0.016,
        "concurrency": N_AT_ONCE,
        **more,
    }
    return _command(folder, "collect", options)


def batch(folder: Path, fake: FakeUpstream, **more: object) -> list[str]:
    """Return the command of a batch that wants more samples than its total pays for."""
    options: dict[str, object] = {
        "bundle": "bundle",
        "out": "out",
        "base-url": fake.base_url,
        "model": "fake",
        "grader": "numeric",
        "total": 60,
        "concurrency": N_AT_ONCE,
        **more,
    }
    return _command(folder, "batch", options)


def _command(folder: Path, name: str, options: dict[str, object]) -> list[str]:
    own = {"run", "out", "bundle", "token-prices"}
    words = [name, str(folder / "questions.jsonl"), "--json"]
    given = [(name, folder / str(one) if name in own else one) for name, one in options.items()]
    return [*words, *as_words(name, given)]


def collected(folder: Path, fake: FakeUpstream, code: int, said: dict[str, Any]) -> Amounts:
    """Return the amounts of a collection: what the upstream served, and both of its accounts."""
    stored = sum_payments(folder / "run" / "paid" / "segments")
    served = count_served(fake)
    return {
        "exit_code": code,
        "served_calls": served.calls,
        "served": round(served.completion_tokens * TOKEN_COST, 6),
        "said": round(said["spent"], 6),
        "recorded": round(stored.spent / NANO, 6),
    }


def interrupt_collect(folder: Path, run: Run = run_command) -> Amounts:
    """Collect until the maximum cost is reached, while every second reply breaks off."""
    with serve(HALF) as fake:
        prepare(folder, fake)
        return collected(folder, fake, *run(*collect(folder, fake), folder=folder))


def kill_collect(folder: Path) -> Amounts:
    """Kill a collection with eight calls under way, then one with one call, then end it."""
    outcomes = script((N_AT_ONCE, "stall"), (5, "ok"), (1, "stall"))
    with serve(outcomes) as fake:
        prepare(folder, fake)
        run_until_stalled(fake, N_AT_ONCE, *collect(folder, fake), folder=folder)
        slow = collect(folder, fake, concurrency=1)
        run_until_stalled(fake, N_AT_ONCE + 1, *slow, folder=folder)
        return collected(folder, fake, *run_command(*collect(folder, fake), folder=folder))


def counted(fake: FakeUpstream, code: int, said: dict[str, Any]) -> Amounts:
    """Return the amounts of a batch in samples."""
    return {
        "exit_code": code,
        "served": count_served(fake).completion_tokens / TOKENS,
        **{name: said[name] for name in ("total", "cost", "lost_cost")},
    }


def interrupt_batch(folder: Path, run: Run = run_command) -> Amounts:
    """Answer a batch while every second reply breaks off."""
    with serve(HALF, lockstep=N_AT_ONCE, lockstep_s=0.5) as fake:
        prepare(folder, fake)
        return counted(fake, *run(*batch(folder, fake), folder=folder))


def kill_batch(folder: Path) -> Amounts:
    """Kill a batch three times with eight calls under way, the first time after eight answers."""
    n = N_AT_ONCE
    outcomes = script((n, "ok"), (3 * n, "stall"))
    with serve(outcomes, lockstep=n) as fake:
        prepare(folder, fake)

        def is_stored() -> bool:
            paid = read_payments(folder / "out" / "segments")
            return sum(one.kind == SAMPLE for one in paid) == int(fake.stats()["choices"])

        for kills in (1, 2, 3):
            run_until_stalled(
                fake, kills * n, *batch(folder, fake), folder=folder, is_stored=is_stored
            )
        return counted(fake, *run_command(*batch(folder, fake), folder=folder))


GATEWAY = """[serve]
base_url = "{base_url}"
port = {port}
probe = false
max_attempts = 2
max_output_tokens = 20
token_prices = "prices.toml"
state_directory = "state"
caps = [{{ amount = 1.0, period = "all" }}]
models.voted = {{ bundle = "agreement", budget = 2, model = "fake", grader = "numeric" }}
"""


def ask(port: int, number: int, model: str) -> None:
    """Send one request; the gateway may be killed meanwhile."""
    messages = [{"role": "user", "content": f"{number} + 1?"}]
    body = json.dumps({"model": model, "messages": messages, "seed": number}).encode()
    with suppress(OSError, HTTPException):
        send(port, "POST", "/v1/chat/completions", body=body)


def configure(folder: Path, fake: FakeUpstream) -> tuple[Path, int]:
    """Write the configuration of a gateway; return its path and the port."""
    prepare(folder, fake)
    save_example_bundle(folder / "agreement")
    path, port = folder / "gateway.toml", free_port()
    path.write_text(GATEWAY.format(base_url=fake.base_url, port=port))
    return path, port


def spent(folder: Path, fake: FakeUpstream) -> Amounts:
    """Return the amounts of a gateway: what the upstream served, and the account of calls."""
    _, said = run_command("spend", str(folder / "state"), "--json", folder=folder)
    served = count_served(fake)
    return {
        "served_calls": served.calls,
        "served": round(served.completion_tokens * TOKEN_COST, 6),
        "calls": sum(row["calls"] for row in said["spend"]),
        "estimated_calls": sum(row["estimated_calls"] for row in said["spend"]),
        "said": round(sum(row["cost"] for row in said["spend"]), 6),
    }


def interrupt_gateway(folder: Path) -> Amounts:
    """Send requests to a gateway while every second reply of its upstream breaks off."""
    with serve(HALF) as fake:
        path, _ = configure(folder, fake)
        with serve_gateway(read_config(path, {})) as port:
            for number, model in enumerate(("voted", "fake", "voted", "fake")):
                ask(port, number, model)
        return spent(folder, fake)


def kill_gateway(folder: Path) -> Amounts:
    """Kill a gateway with two calls under way, after interrupted ones, and start it again."""
    outcomes = (*HALF[:9], "stall", "stall")
    with serve(outcomes) as fake:
        path, port = configure(folder, fake)
        command = ("serve", "--config", str(path))
        clients = [
            threading.Thread(target=ask, args=(port, number, model))
            for number, model in enumerate(("voted", "fake"))
        ]
        with start_command(*command, folder=folder) as process:
            wait_for(f"http://127.0.0.1:{port}/health", 60)
            ask(port, 0, "voted")
            ask(port, 1, "fake")
            for client in clients:
                client.start()
            wait_until(lambda: count_stalled(fake) == len(clients), process)
            wait_until_idle(process)
        for client in clients:
            client.join(20)
        with start_command(*command, folder=folder) as process:
            wait_for(f"http://127.0.0.1:{port}/health", 60)
            ask(port, 2, "voted")
            ask(port, 3, "fake")
            process.terminate()
            process.wait(60)
        _, caps = run_command("spend", "caps", str(path), "--json", folder=folder)
        capped = sum(row["spent"] for row in caps["accounts"])
        return spent(folder, fake) | {"capped": round(capped, 6)}


def kill_ray(folder: Path) -> Amounts:
    """Kill the worker of a batch on Ray twice with eight calls under way; Ray replaces it."""
    n = N_AT_ONCE
    with serve(script((2 * n, "stall")), lockstep=n) as fake:
        prepare(folder, fake)
        command = batch(folder, fake, engine="ray")
        with start_command(*command, folder=folder) as process:
            for kills in (1, 2):
                wait_until(lambda: count_stalled(fake) == kills * n, process)  # noqa: B023
                os.kill(find_worker(process.pid), signal.SIGKILL)
            code = process.wait(TIMEOUT_S)
        return counted(fake, code, json.loads((folder / "out" / "manifest.json").read_text()))


def find_worker(pid: int) -> int:
    """Return the process of the one worker of Ray Data among the children of a process."""
    (found,) = [
        child
        for child in process_tree(pid)
        if b"MapWorker" in Path(f"/proc/{child}/cmdline").read_bytes().partition(b"\0")[0]
    ]
    return found


PATHS: dict[str, Callable[[Path], Amounts]] = {
    "interrupt_collect": interrupt_collect,
    "kill_collect": kill_collect,
    "interrupt_batch": interrupt_batch,
    "kill_batch": kill_batch,
    "kill_ray": kill_ray,
    "interrupt_gateway": interrupt_gateway,
    "kill_gateway": kill_gateway,
}
"""Every path, by name."""
