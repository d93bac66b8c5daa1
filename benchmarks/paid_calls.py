"""Paid calls: no run spends more than its limit, and no account says less than was served.

``python -m benchmarks.paid_calls KIND RUNS`` makes random runs of a kind (``collect``, ``batch`` or
``ray``) against a fake server that counts for itself: with replies that break off, refusals, and
processes killed with signal 9 and started again. It prints a line of JSON per run, with the seed,
the parameters, what was served, the limit, the account and the violations; the last line counts
these. ``--first`` is the first seed: a run has the same parameters whenever its seed is the same.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from test_support.paid_commands import open_commands
from test_support.paid_parameters import KINDS, RAY
from test_support.paid_runs import make_run


def summarise(kind: str, found: list[dict[str, Any]]) -> dict[str, Any]:
    """Count the violations, and find the largest ones."""
    counted = Counter(name for one in found for name in one["violations"])
    shares = [one["served"] / one["limit"] for one in found]
    known = [one["account"] / one["served"] for one in found if one.get("account") is not None]
    return {
        "kind": kind,
        "runs": len(found),
        "killed": sum(one["n_killed"] for one in found),
        "wrong": sum(bool(one["violations"]) for one in found),
        "violations": dict(counted),
        "max_served_of_limit": round(max(shares), 4),
        "min_account_of_served": round(min(known, default=0.0), 4),
        "median_seconds": statistics.median(one["seconds"] for one in found),
        "max_seconds": max(one["seconds"] for one in found),
    }


def main() -> None:
    """Print one JSON line per run, and one for all."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("runs", type=int)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    options = parser.parse_args()
    found = []
    with (
        tempfile.TemporaryDirectory() as name,
        open_commands(Path(name), with_ray=options.kind == RAY) as commands,
    ):
        for seed in range(options.first, options.first + options.runs):
            folder = Path(name) / f"{options.kind}-{seed}"
            found.append(make_run(options.kind, seed, folder, commands))
            shutil.rmtree(folder)
            print(json.dumps(found[-1]), flush=True)
    summary = summarise(options.kind, found)
    print(json.dumps(summary), flush=True)
    sys.exit(bool(summary["wrong"]))


if __name__ == "__main__":
    main()
