"""Batch, total: it is never exceeded by one unit, and hardly anything of it is left.

``python -m benchmarks.batch_total OUT [RUNS]`` runs RUNS batches (200) of 5,000 questions, with
totals of 9,000 to 20,000 mean samples, in samples, tokens and money by turns. The server is an
object in this process instead of an HTTP server, so that millions of samples take minutes: it
answers out of order, with random lengths, and fails at random before or after it has charged. What
it has charged is compared with the total. Each line gives the runs so far, the largest share that
was charged, and the largest share that was left although a question wanted another sample.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from adacompute.core.errors import ModelError
from adacompute.models.calls import NO_USAGE, CallTracker
from adacompute.models.messages import Capabilities, Sample
from adacompute.models.model import CallUsage
from adacompute.models.openai import ParsedReply
from adacompute.spending.attempts import CallBound
from test_support.batches import MAX_TOKENS, MEAN_SAMPLE, PRICES, Case, make_job

N_QUESTIONS, OK = 5_000, 200
PROMPT_TOKENS = 30


class RandomServer:
    """A server in this process; ``charged`` holds what it would bill for."""

    capabilities = Capabilities()

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)  # noqa: S311 - no secrets
        self._fault_rate = self._rng.choice([0.0, 0.02, 0.1])
        self.charged: list[CallUsage] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None

    async def post_bytes(self, path: str, body: bytes, *, tracker: CallTracker) -> ParsedReply:
        """Answer a request after a random number of turns of the event loop."""
        call = await tracker.start(path, body, 1)
        for _ in range(self._rng.randrange(4)):
            await asyncio.sleep(0)
        length = min(MAX_TOKENS, 4 + int(self._rng.expovariate(1 / 18)))
        usage = CallUsage({"prompt_tokens": PROMPT_TOKENS, "completion_tokens": length})
        fault = self._rng.random() / self._fault_rate if self._fault_rate else 1.0
        if fault < 0.5:
            call.end(NO_USAGE)
            raise ModelError("refused")
        self.charged.append(usage)
        if fault < 1.0:
            call.end(None)
            raise ModelError("lost the connection")
        call.end(usage)
        text = f"The answer is {self._rng.randrange(99)}."
        sample = Sample(text, completion_tokens=length, prompt_tokens=PROMPT_TOKENS)
        return ParsedReply(OK, {}, samples=(sample,))


def count_charged(unit: str, charged: list[CallUsage]) -> int:
    """Return what a server has charged, as an integer amount."""
    if unit == "samples":
        return len(charged)
    if unit == "tokens":
        return sum(usage.completion_tokens for usage in charged)
    price = PRICES["fake"]
    each = (
        usage.prompt_tokens * price.input + usage.completion_tokens * price.output
        for usage in charged
    )
    return round(sum(each) * 1000)


def run_one(out: Path, seed: int) -> dict[str, Any]:
    """Run one batch; return what was charged and what was left."""
    rng = random.Random(seed)  # noqa: S311
    unit = ("samples", "tokens", "money")[seed % 3]
    case = Case(
        N_QUESTIONS,
        rng.uniform(1.8, 4.0),
        unit=unit,
        concurrency=rng.choice([8, 64, 256]),
        lag=rng.choice([64, 512, 2048]),
        flush_s=0.05,
    )
    job, server = make_job(out / str(seed), case), RandomServer(seed)
    result: Mapping[str, Any] = asyncio.run(job.run(server))  # type: ignore[arg-type]
    total = job.costs.to_amount(case.total)
    charged = count_charged(unit, server.charged)
    worst = job.costs.max_cost(CallBound.of("fake", n=1, max_tokens=MAX_TOKENS, body_bytes=400))
    left = total - job.costs.to_amount(result["cost"])
    allowed = max(0.01 * total, 0.01 * total + worst)
    shutil.rmtree(out / str(seed))
    return {
        "unit": unit,
        "charged": charged / total,
        "is_exceeded": charged > total,
        "left": left / total if result["limited"] else 0.0,
        "is_wasted": bool(result["limited"]) and left > allowed + 1,
        "mean_samples": case.total / MEAN_SAMPLE[unit],
    }


def main() -> None:
    """Print one line per ten runs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("runs", type=int, nargs="?", default=200)
    parser.add_argument("--first-seed", type=int, default=0)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    results = []
    for n_runs in range(1, options.runs + 1):
        results.append(run_one(options.out, options.first_seed + n_runs - 1))
        if n_runs % 10 == 0 or n_runs == options.runs:
            line = {
                "runs": len(results),
                "exceeded": sum(one["is_exceeded"] for one in results),
                "wasted": sum(one["is_wasted"] for one in results),
                "max_charged": max(one["charged"] for one in results),
                "max_left": max(one["left"] for one in results),
                "min_mean_samples": min(one["mean_samples"] for one in results),
            }
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
