"""Precision, live: is a guaranteed precision kept on new questions, and do grades agree with it.

``python -m benchmarks.precision_live OUT [QUESTIONS]`` starts a llama.cpp server, and collects
samples of QUESTIONS generated problems, or uses those that `gateway_live` left in OUT. The largest
multiple of .1 that at least a tenth of the questions supports is guaranteed. As many new questions
are asked once with the official client, through a gateway that serves the bundle. The share of
right answers among those marked as sure is printed beside the smallest one that was predicted.
Every answer is graded by feedback, as a client would; what `research grade` makes of it is printed
beside the reference answers. Everything is stored in OUT, so an interrupted run can be resumed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import signal
from pathlib import Path
from typing import Any

import httpx

from benchmarks.gateway_live import (
    LEVELS,
    Case,
    ask_all,
    collect_training,
    make_questions,
    run_command,
    start_gateway,
    state_directory,
)
from test_support.arithmetic import Problem
from test_support.llama import serve_llama

QUESTIONS, SAMPLES, SLOTS = 600, 8, 8
CASE = Case(2.0, None)
TARGETS = tuple(i / 10 for i in range(9, 0, -1))
MIN_SHARE = 0.1


def guarantee(out: Path, run: Path, n_new: int) -> tuple[Path, dict[str, Any]]:
    """Return the bundle with the highest precision that enough questions support, and that."""
    trained, bundle = out / "policy", out / CASE.bundle_name
    if not trained.exists():
        policy = ("--policy", "sequential", "--levels", LEVELS)
        run_command("research", "train", str(run), *policy, "--out", str(trained))
    for target in TARGETS:
        shutil.copytree(trained, bundle, dirs_exist_ok=True)
        result = run_command(
            *("research", "calibrate", str(run), "--bundle", str(bundle)),
            *("--budget", str(CASE.budget), "--min-precision", str(target)),
            *("--config", f"horizon={n_new}"),
        )
        found: dict[str, Any] = result["precision"]
        if (found["share"] or 0.0) >= MIN_SHARE:
            return bundle, found
    raise SystemExit("no precision is supported by enough questions")


def ask_and_grade(
    out: Path, url: str, model: str, questions: list[Problem]
) -> list[dict[str, Any]]:
    """Ask every question, and send its right answer as feedback."""
    rows = asyncio.run(ask_all(url, model, questions, out / "precision.jsonl"))
    gold = {one.id: one.gold for one in questions}
    with httpx.Client(timeout=60, headers={"Authorization": "Bearer none"}) as client:
        for row in rows:
            grade = {"id": row["decision"], "answer": gold[row["id"]]}
            address = url.removesuffix("/v1") + "/adacompute/feedback"
            client.post(address, json=grade).raise_for_status()
    return rows


def count_right(rows: list[dict[str, Any]], *, sure: bool | None = None) -> str:
    """Describe how many of the answers are right by the reference answers."""
    own = [row for row in rows if sure is None or row["debug"].get("sure") is sure]
    right = sum(row["correct"][0] for row in own)
    return f"{right} of {len(own)} ({right / max(1, len(own)):.3f})"


def main() -> None:
    """Print what was guaranteed, what the reference answers say, and what feedback says."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path, help="directory of everything that is stored")
    parser.add_argument("questions", type=int, nargs="?", default=QUESTIONS)
    options = parser.parse_args()
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    training, new = make_questions(options.questions)
    with serve_llama(threads=1, slots=SLOTS, context_tokens=256) as llama:
        run = collect_training(out, training, llama, samples=SAMPLES)
        bundle, found = guarantee(out, run, len(new))
        print(f"guaranteed: {json.dumps(found)}", flush=True)
        log = 'decision_log = "answers"\n'
        process, url = start_gateway(bundle, llama, CASE, out, log)
        try:
            rows = ask_and_grade(out, url, llama.model, new)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=60)
    print(f"reference answers: sure {count_right(rows, sure=True)}", end="")
    print(f", others {count_right(rows, sure=False)}, all {count_right(rows)}")
    log_directory = state_directory(out, CASE) / "decisions"
    print("feedback:", json.dumps(run_command("research", "grade", str(log_directory))))


if __name__ == "__main__":
    main()
