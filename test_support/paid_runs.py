"""Paid runs: a command is killed and started again; what its server served is held to its account.

A run of ``paid_parameters`` is made with a fake server that counts for itself. What the fake would
bill must be at most the limit, and at most what the account says. A run may meet any fault and any
kill at any moment, so nothing is known of how many calls there are.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq

from adacompute.core.types import make_levels
from adacompute.models.capabilities_cache import cache_path, save_cached
from adacompute.models.messages import Capabilities
from adacompute.policies.bundles.bundle import Bundle, FrontierPoint, save_bundle
from adacompute.policies.price_schedule import PriceSchedule
from adacompute.policies.rule_policy import RulePolicy
from adacompute.policies.stopping import AdaptiveConsistencyRule
from adacompute.policies.uniform import FixedRule
from adacompute.spending.token_prices import NANO, TokenPrices, Usage
from adacompute.testing.fake_openai import FakeSettings, FakeUpstream, serve_fake
from test_support.forked import ForkedCommand
from test_support.killed import as_words
from test_support.paid_commands import PaidCommands, kill_workers
from test_support.paid_parameters import (
    BOTH,
    COLLECT,
    COMMAND,
    OUTPUT_PRICE,
    RAY,
    SILENT,
    WORKER,
    PaidRun,
    draw_run,
    mean_cost,
)

TIMEOUT_S = 150.0
"""How long one process of a run may take."""

STILL_S = {False: 1.0, True: 8.0}
"""A process whose calls stay unanswered for so long is killed then; on Ray if True."""

END_LATENCY_S = 0.004
"""Largest delay of replies after the last kill: a batch that has little left makes call by call."""

EPSILON = 1e-9
"""Amounts of money are whole billionths, but floats."""


def make_run(kind: str, seed: int, folder: Path, commands: PaidCommands) -> dict[str, Any]:
    """Make the run of a kind and a seed; return its parameters, what was served, and violations."""
    run, started = draw_run(kind, seed), time.monotonic()
    folder.mkdir(parents=True)
    with serve_fake(_settings(run)) as fake:
        _prepare(run, folder, fake)
        arguments = _arguments(run, folder, fake, commands.ray_address)
        n_killed, last = _kill_often(run, fake, arguments, folder, commands)
        fake.settings = replace(
            fake.settings,
            fault_rates=_end_rates(run),
            latency_s=min(run.latency_s, END_LATENCY_S),
        )
        for number in range(run.n_endings):
            if number or last is None:
                last = commands.forked.start(arguments, folder)
            try:
                last.wait(TIMEOUT_S)
            finally:
                last.kill()
        assert last is not None
        return {
            **vars(run),
            "n_killed": n_killed,
            **_compare(run, fake, last),
            "seconds": round(time.monotonic() - started, 2),
        }


def _settings(run: PaidRun) -> FakeSettings:
    return FakeSettings(
        latency_s=run.latency_s,
        completion_tokens=run.max_tokens,
        vary_tokens=run.vary_tokens,
        n=run.n,
        usage=run.usage,  # type: ignore[arg-type]
        fault_rates=run.fault_rates,
        record_calls=True,
        seed=run.seed,
    )


def _end_rates(run: PaidRun) -> dict[str, float]:
    """Return the faults of a process that nobody kills: only a time limit ends a silent call."""
    return {
        name: rate
        for name, rate in run.fault_rates.items()
        if name not in SILENT or run.timeout_s is not None
    }


def _prepare(run: PaidRun, folder: Path, fake: FakeUpstream) -> None:
    """Write questions, prices and a policy, and what is known of the fake, so nothing is probed."""
    rule, _, most = run.n.partition(":")
    known = Capabilities(
        n={"native": "native", "limit": "limited", "ignored": "ignored"}[rule],  # type: ignore[arg-type]
        max_n=int(most) if most else None,
        seed="reproducible",
        seed_with_n="distinct",
        usage={"none": "missing"}.get(run.usage, run.usage),  # type: ignore[arg-type]
    )
    save_cached(cache_path(), fake.base_url, "fake", known)
    rows = (
        {"question_id": f"q{i}", "question": f"What is {i} + 1?", "gold": f"{i + 1}"}
        for i in range(run.n_questions)
    )
    (folder / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "prices.toml").write_text(
        f"[models.fake]\ninput = {run.input_price}\noutput = {OUTPUT_PRICE}\n"
    )
    if run.kind != COLLECT:
        save_bundle(_make_bundle(run), folder / "bundle")


def _make_bundle(run: PaidRun) -> Bundle:
    """Return a policy that draws one sample at a high price and all at a low one."""
    caps = tuple(sorted({1, run.n_samples}))
    prices = (0.2, 0.1)[: len(caps)]
    rules = tuple(
        AdaptiveConsistencyRule(0.8, cap) if run.is_agreement else FixedRule(cap) for cap in caps
    )
    policy = RulePolicy(
        "rule", make_levels(tuple(range(1, run.n_samples + 1))), rules, PriceSchedule(prices)
    )
    each = mean_cost(run.unit, run.max_tokens, run.input_price, vary_tokens=run.vary_tokens)
    costs = (cap * each for cap in caps)
    frontier = tuple(
        FrontierPoint(cost, price, cost, cost, cost, 0.5, 0.4, 0.6, 1.0)
        for cost, price in zip(costs, prices, strict=True)
    )
    return Bundle(policy, frontier=frontier, unit=run.unit, sample_cost=each)


def _arguments(
    run: PaidRun, folder: Path, fake: FakeUpstream, ray_address: str | None
) -> list[str]:
    """Return the arguments of the command."""
    options: list[tuple[str, object]] = [
        ("base-url", fake.base_url),
        ("model", "fake"),
        ("grader", "numeric"),
        ("concurrency", run.concurrency),
    ]
    if run.kind == COLLECT or run.unit == "money":
        options.append(("token-prices", folder / "prices.toml"))
    flags = ["--json"]
    if run.kind == COLLECT:
        options += [("run", folder / "run"), ("samples", run.n_samples)]
        options += [("max-tokens", run.max_tokens), ("max-cost", run.limit)]
        if run.two_arms:
            options += [
                ("arm", f"name={name},temperature={t}") for name, t in (("a", 0.7), ("b", 1))
            ]
        if run.timeout_s is not None:
            options.append(("timeout", run.timeout_s))
        if run.score_price is not None:
            options.append(("scorer", f"{fake.base_url}/score"))
            options.append(("scorer-price", run.score_price))
    else:
        options += [("bundle", folder / "bundle"), ("out", folder / "out")]
        options.append(("total", run.limit))
        options.append(("max-output-tokens", run.max_tokens))
        if run.kind == RAY:
            options.append(("engine", ray_address))
    name = COLLECT if run.kind == COLLECT else "batch"
    return [name, str(folder / "questions.jsonl"), *flags, *as_words(name, options)]


def _kill_often(
    run: PaidRun,
    fake: FakeUpstream,
    arguments: Sequence[str],
    folder: Path,
    commands: PaidCommands,
) -> tuple[int, ForkedCommand | None]:
    """Start the command and make the kills of a run, until it ends before one.

    Return how many were made, and the command if it runs or has ended. Ray replaces a worker that
    is killed.
    """
    command: ForkedCommand | None = None
    for number, (n_calls, killed) in enumerate(zip(run.kills, run.killed, strict=True)):
        command = command or commands.forked.start(arguments, folder)
        try:
            if not _wait_for_calls(fake, command, n_calls, STILL_S[run.kind == RAY]):
                return number, command
            if killed != COMMAND:
                kill_workers(commands)
            if killed == BOTH:
                _wait_for_calls(fake, command, 0, STILL_S[True])
        except BaseException:
            command.kill()
            raise
        if killed != WORKER:
            command.kill()
            command = None
    return len(run.kills), command


def _wait_for_calls(
    fake: FakeUpstream, command: ForkedCommand, n_calls: int, still_s: float
) -> bool:
    """Wait until there was another call and then so many more; False if the command ends before.

    Calls that have begun and then stay away for ``still_s`` have met a server that is silent.
    """
    first, end = _count_calls(fake), time.monotonic() + TIMEOUT_S
    seen, since = first, time.monotonic()
    while (calls := _count_calls(fake)) <= first + n_calls:
        if command.poll() is not None:
            return False
        now = time.monotonic()
        assert now < end, f"the command of {command.folder} makes no calls"
        if calls != seen or calls == first:
            seen, since = calls, now
        if now > since + still_s:
            break
        time.sleep(0.001)
    return True


def _count_calls(fake: FakeUpstream) -> int:
    return int(fake.stats()["calls"])


def _compare(run: PaidRun, fake: FakeUpstream, last: ForkedCommand) -> dict[str, Any]:
    """Compare what was served with the limit and with what the last process says."""
    served, said = count_served(run, fake.calls()), last.said()
    found: dict[str, Any] = {"served": served, "exit_code": last.code}
    if said is None or last.code not in ({0, 1} if run.kind == COLLECT else {0}):
        return {**found, "violations": ["failed"], "errors": last.errors()[-400:]}
    account = read_account(run, said)
    violations = [
        name
        for name, is_wrong in {
            "exceeded": served > run.limit + EPSILON,
            "above": account > run.limit + EPSILON,
            "short": account < served - EPSILON,
            "manifest": not is_in_manifest(run, last.folder, said),
            "store": not is_in_store(run, last.folder, said),
        }.items()
        if is_wrong
    ]
    return {**found, "account": account, "violations": violations}


def count_served(run: PaidRun, calls: Sequence[dict[str, Any]]) -> float:
    """Return what the fake would bill, in the unit of the run."""
    if run.unit == "samples":
        return float(sum(call["choices"] for call in calls))
    if run.unit == "tokens":
        return float(sum(call["completion_tokens"] for call in calls))
    prices, score = TokenPrices(run.input_price, OUTPUT_PRICE), run.score_price or 0.0
    costs = (
        prices.cost(Usage(call["prompt_tokens"], call["completion_tokens"]))
        if call["path"] != "score"
        else 0
        if call["is_refused"]
        else round(score * NANO)
        for call in calls
    )
    return sum(costs) / NANO


def read_account(run: PaidRun, said: dict[str, Any]) -> float:
    """Return what a command says that was spent, in all of its processes."""
    if run.kind != COLLECT:
        return float(said["cost"] + said["lost_cost"])
    return float(said["spent"])


def is_in_manifest(run: PaidRun, folder: Path, said: dict[str, Any]) -> bool:
    """Whether the manifest of a batch says what the command printed."""
    if run.kind == COLLECT:
        return True
    manifest = json.loads((folder / "out" / "manifest.json").read_text(encoding="utf-8"))
    return all(said.get(name) == value for name, value in manifest.items())


def is_in_store(run: PaidRun, folder: Path, said: dict[str, Any]) -> bool:
    """Whether what a command says that was spent is the sum over its Parquet files."""
    paths = (folder / ("run" if run.kind == COLLECT else "out")).rglob("segments/*.parquet")
    spent = sum(pc.sum(pq.read_table(path)["cost"]).as_py() for path in paths)
    per_unit = NANO if run.unit == "money" else 1
    return bool(abs(spent / per_unit - read_account(run, said)) < EPSILON)
