"""Batch, deaths: kill -9 at random moments changes no answer and buys no sample twice.

``python -m benchmarks.batch_deaths OUT [KILLS] [QUESTIONS]`` runs a batch against the fake upstream
in a process that is killed KILLS times (20) at random moments and started again, and once more
without a kill, and compares the bytes of the answers. The upstream answers by the seed of a
request, so both runs get the same samples. It prints, for each unit, the calls of both runs, the
cost that counts as lost, and whether the answers are equal.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from pathlib import Path

from adacompute.testing.fake_openai import FakeSettings, serve_fake
from test_support.batches import Case, read_bytes, run_job

CONCURRENCY, LAG = 32, 256


def run_once(directory: Path, case: Case, url: str) -> subprocess.Popen[bytes]:
    """Start a process that runs the batch."""
    command = [sys.executable, "-m", "benchmarks.batch_deaths", str(directory), "--child", url]
    options = ["--unit", case.unit, "--questions", str(case.n_questions)]
    return subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL)  # noqa: S603


def make_case(unit: str, n_questions: int) -> Case:
    """Return the batch; its reserve pays for many lost calls."""
    return Case(
        n_questions, 2.4, unit=unit, concurrency=CONCURRENCY, lag=LAG, reserve=0.3, flush_s=0.05
    )


def measure(out: Path, unit: str, n_kills: int, n_questions: int) -> dict[str, object]:
    """Run a batch with and without kills, and compare."""
    case, rng = make_case(unit, n_questions), random.Random(n_kills)  # noqa: S311
    settings = FakeSettings(latency_s=0.02, vary_tokens=True, completion_tokens=40)
    n_killed = 0
    with serve_fake(settings) as fake:
        start = time.monotonic()
        while True:
            process = run_once(out / f"{unit}-killed", case, fake.base_url)
            try:
                # Starting takes seconds; the moment of the kill is after it.
                limit = rng.uniform(1.5, 6.0) if n_killed < n_kills else None
                if process.wait(timeout=limit) != 0:
                    raise SystemExit("the batch failed")
                break
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                n_killed += 1
        killed_s, killed = time.monotonic() - start, fake.stats()
    with serve_fake(settings) as fake:
        run_job(out / f"{unit}-alone", case, fake.base_url)
        alone = fake.stats()
    manifest = json.loads((out / f"{unit}-killed" / "manifest.json").read_text())
    return {
        "unit": unit,
        "kills": n_killed,
        "seconds": round(killed_s, 1),
        "choices": killed["choices"],
        "choices_without_kills": alone["choices"],
        "lost_cost": manifest["lost_cost"],
        "total": manifest["total"],
        "cost": manifest["cost"],
        "tokens_of_upstream": killed["tokens"],
        "equal": read_bytes(out / f"{unit}-killed") == read_bytes(out / f"{unit}-alone"),
    }


def main() -> None:
    """Print one JSON line per unit."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("kills", type=int, nargs="?", default=20)
    parser.add_argument("--questions", type=int, default=2000)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--unit", choices=["samples", "tokens", "money"])
    options = parser.parse_args()
    if options.child:
        run_job(options.out, make_case(options.unit, options.questions), options.child)
        return
    for unit in [options.unit] if options.unit else ["samples", "tokens"]:
        found = measure(options.out, unit, options.kills, options.questions)
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
