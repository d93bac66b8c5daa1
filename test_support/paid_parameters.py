"""Paid parameters: what a random run of a command that pays for calls is made of, by its seed.

A run has questions, a limit of what it may spend, a server with faults, and kills. The same seed
gives the same parameters, not the same moments at which calls meet. Runs are sized to take a few
seconds. Nothing is run here.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

COLLECT, BATCH, RAY = "collect", "batch", "ray"
KINDS = (COLLECT, BATCH, RAY)
COMMAND, WORKER, BOTH = "command", "worker", "both"
RAY_KILLS = (COMMAND, WORKER, BOTH)
UNITS = ("samples", "tokens", "money")

REFUSALS = ("429", "500", "502", "503")
BROKEN = ("half", "reset", "garbled", "few", "shape")
SILENT = ("stall", "hang")
SILENT_S = 0.3
"""Time limit of a reply in runs of which calls stay without an answer."""

OUTPUT_PRICE = 10.0
MAX_CALLS, BUSY_S = 1200, 1.0
"""Calls that a run needs at most without faults, and how long the server takes for them at most."""


@dataclass(frozen=True)
class PaidRun:
    """A run to make: ``limit`` is in ``unit``, and ``kills`` are made after so many further calls.

    A kill is of the command, or on Ray of the ``worker`` that samples, or of the worker and then of
    the command (``both``).
    """

    kind: str
    seed: int
    unit: str
    n_questions: int
    n_samples: int
    concurrency: int
    limit: float
    kills: tuple[int, ...]
    killed: tuple[str, ...]
    max_tokens: int
    vary_tokens: bool
    input_price: float
    n: str
    usage: str
    latency_s: float
    fault_rates: Mapping[str, float] = field(default_factory=dict)
    timeout_s: float | None = None
    is_agreement: bool = False
    two_arms: bool = False
    score_price: float | None = None
    n_endings: int = 1


def draw_run(kind: str, seed: int) -> PaidRun:
    """Return the parameters of a run of a kind by its seed."""
    rng = random.Random(f"{kind}/{seed}")  # noqa: S311 - no secret
    is_collected, is_ray = kind == COLLECT, kind == RAY
    n_questions = rng.randrange(40, 120 if is_ray else 401)
    two_arms = is_collected and rng.random() < 0.25
    score_price = rng.choice((0.0, 0.0001)) if is_collected and rng.random() < 0.25 else None
    per_sample = (1 + two_arms) * (1 + (score_price is not None))
    n_samples = rng.randrange(1, 1 + max(2, min(8, MAX_CALLS // (n_questions * per_sample))))
    concurrency = rng.choice((rng.randrange(8 if is_ray else 1, 65), 64))
    n = rng.choice(("native", "limit:4", "ignored"))
    n_planned = n_questions * n_samples * (1 + two_arms)
    several = n != "ignored" and (is_collected or kind == BATCH)
    n_calls = n_planned // (min(n_samples, 4) if several else 1) or 1
    longest_s = min(0.05, BUSY_S * concurrency / n_calls)
    rates = _draw_rates(rng, kind, BUSY_S * concurrency / SILENT_S / n_calls)
    unit = "money" if is_collected else rng.choice(UNITS)
    max_tokens, vary_tokens = rng.choice((8, 20)), rng.random() < 0.5
    input_price = rng.choice((0.0, 1.0))
    mean = mean_cost(unit, max_tokens, input_price, vary_tokens=vary_tokens) + (score_price or 0.0)
    few, plenty = n_questions * 1.05, n_planned * 1.4
    limit = mean * (few if few >= plenty else few * (plenty / few) ** rng.random())
    first_kills, most_kills = (0, 3) if is_collected else (1, 3 if is_ray else 5)
    n_kills = rng.randrange(first_kills, most_kills + 1)
    n_likely = min(n_calls, limit / mean / max(1, n_planned / n_calls))
    kills = tuple(rng.randrange(max(2, int(1.5 * n_likely / n_kills))) for _ in range(n_kills))
    return PaidRun(
        kind=kind,
        seed=seed,
        unit=unit,
        n_questions=n_questions,
        n_samples=n_samples,
        concurrency=concurrency,
        limit=round(limit, 6) if unit == "money" else int(limit),
        kills=kills,
        killed=tuple(rng.choice(RAY_KILLS) if is_ray else COMMAND for _ in kills),
        max_tokens=max_tokens,
        vary_tokens=vary_tokens,
        input_price=input_price,
        n=n,
        usage=rng.choice(("all", "all", "all", "all", "one", "none")),
        latency_s=rng.choice((0.0, 1.0, rng.random())) * longest_s,
        fault_rates=rates,
        timeout_s=SILENT_S if is_collected and any(rates.get(name) for name in SILENT) else None,
        is_agreement=rng.random() < 0.5,
        two_arms=two_arms,
        score_price=score_price,
        n_endings=rng.choice((1, 1, 2)),
    )


def _draw_rates(rng: random.Random, kind: str, most_silent: float) -> dict[str, float]:
    """Return how often each fault is met: half of all replies break off in some runs."""
    most = 0.03 if kind == RAY else 0.1
    rates = {
        name: round(rng.random() * most, 4)
        for name in (*REFUSALS, *BROKEN)
        if rng.random() < (0.25 if name in REFUSALS else 0.4)
    }
    if kind != RAY and rng.random() < 0.3:
        rates["half"] = 0.4
    for name in SILENT:
        if kind != RAY and rng.random() < 0.2:  # only a kill or a time limit ends such a call
            rates[name] = round(rng.random() * min(0.03, most_silent), 4)
    return rates if rng.random() < 0.85 else {}


def mean_cost(unit: str, max_tokens: int, input_price: float, *, vary_tokens: bool) -> float:
    """Return about what one sample costs."""
    n_tokens = max_tokens / 2 if vary_tokens else max_tokens
    money = (n_tokens * OUTPUT_PRICE + 10 * input_price) / 1e6
    return {"samples": 1.0, "tokens": n_tokens, "money": money}[unit]
