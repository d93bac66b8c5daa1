"""Batch, accuracy: a batch at total N × B against what `evaluate` measures at a mean budget B.

``python -m benchmarks.batch_accuracy SAMPLES.parquet OUT [--budgets 2,4] [--orders 4]`` splits the
questions into five folds, fits ``sequential`` to four of them, and answers the fifth as a batch
whose server gives the recorded samples in a random order. It prints the accuracy and the cost of
all folds together, with an interval over questions, beside the rows of ``evaluate`` for
``sequential``, ``adaptive-consistency`` and the best mixture of uniform numbers of samples.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import adacompute as ada
from adacompute.batch.calls import BatchArm
from adacompute.batch.job import BatchJob, BatchSettings
from adacompute.batch.passes import Span
from adacompute.batch.planning.expected_spend import expect_spend
from adacompute.batch.planning.local import make_plan, prepare_batch
from adacompute.batch.processes import WorkerProcesses
from adacompute.batch.questions import open_questions
from adacompute.graders.grader import load_grader
from adacompute.models.calls import CallTracker
from adacompute.models.messages import Sample, Settings
from adacompute.models.model import CallUsage
from adacompute.models.openai import ParsedReply
from adacompute.models.templates import Template
from adacompute.policies.bundles.bundle import Bundle
from adacompute.spending.call_costs import CallCosts
from benchmarks.batch_total import OK, RandomServer

N_FOLDS, MAX_SAMPLES, BOOTSTRAPS = 5, 16, 2000
Rows = Mapping[str, list[dict[str, Any]]]


class RecordedServer(RandomServer):
    """A server that answers a question with its recorded samples, in a random order."""

    def __init__(self, rows: Rows, seed: int) -> None:
        super().__init__(seed)
        self._texts = {
            samples[0]["question"]: random.Random(f"{seed}{name}").sample(samples, len(samples))  # noqa: S311
            for name, samples in rows.items()
        }

    async def post_bytes(self, path: str, body: bytes, *, tracker: CallTracker) -> ParsedReply:
        """Answer with the next sample of the question."""
        call = await tracker.start(path, body, 1)
        await asyncio.sleep(0)
        question = json.loads(body)["messages"][-1]["content"]
        answer = self._texts[question].pop()["answer"]
        text = "" if answer is None else str(answer)
        usage = CallUsage({"prompt_tokens": 1, "completion_tokens": 1})
        call.end(usage)
        return ParsedReply(OK, {}, samples=(Sample(text, completion_tokens=1),))


def read_rows(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the samples of each question."""
    names = ["question_id", "question", "gold", "answer", "correct"]
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in pq.read_table(path, columns=names).to_pylist():
        rows.setdefault(row["question_id"], []).append(row)
    return rows


def fit_fold(path: Path, out: Path, training: set[str], budget: float) -> Bundle:
    """Return a policy that is fitted and calibrated on some of the questions."""
    table = pq.read_table(path)
    kept = pa.array([name in training for name in table["question_id"].to_pylist()])
    pq.write_table(table.filter(kept), out / "training.parquet")
    samples = ada.read_samples(str(out / "training.parquet"))
    policy = ada.Sequential(max_samples=MAX_SAMPLES).fit(samples)
    ada.calibrate(policy, samples, budget=budget)
    return policy.to_bundle()


def run_fold(out: Path, bundle: Bundle, rows: Rows, budget: float, seed: int) -> dict[str, Any]:
    """Answer questions as a batch; return whether each is correct, and its cost."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    questions = out / "questions.parquet"
    texts = [samples[0]["question"] for samples in rows.values()]
    pq.write_table(pa.table({"question_id": list(rows), "question": texts}), questions)
    source = open_questions([str(questions)])
    with WorkerProcesses(1) as processes:
        batch = prepare_batch(bundle, source, directory=out / "job", processes=processes)
    total = budget * len(rows)
    plan = make_plan(batch, total)
    settings = BatchSettings(total=total, concurrency=16, lag=64, reserve=0.0, flush_s=0.0)
    job = BatchJob(
        out / "job",
        Span.all(source),
        bundle,
        load_grader("exact"),
        [BatchArm(None, "recorded", Template(), Settings(max_tokens=9, logprobs=False))],
        plan.curve,
        CallCosts("samples"),
        settings,
        expect_spend(batch, plan),
    )
    result = asyncio.run(job.run(RecordedServer(rows, seed)))  # type: ignore[arg-type]
    found = pq.read_table(out / "job" / "answers").to_pylist()
    grader = load_grader("exact")
    correct = {
        row["question_id"]: any(
            one["correct"]
            for one in rows[row["question_id"]]
            if one["answer"] is not None and grader.extract(one["answer"]) == row["answer"]
        )
        for row in found
        if row["answer"] is not None
    }
    return {"correct": correct, "cost": result["cost"], "expected": plan.expected_cost}


def measure(path: Path, out: Path, budget: float, n_orders: int) -> dict[str, float]:
    """Return accuracy, its interval and cost of batches over all folds."""
    rows = read_rows(path)
    names = sorted(rows)
    random.Random(0).shuffle(names)  # noqa: S311
    score = dict.fromkeys(names, 0.0)
    cost = expected = 0.0
    for fold in range(N_FOLDS):
        tested = set(names[fold::N_FOLDS])
        bundle = fit_fold(path, out, set(names) - tested, budget)
        held_out = {name: rows[name] for name in names if name in tested}
        for order in range(n_orders):
            done = run_fold(out / "fold", bundle, held_out, budget, order)
            cost, expected = cost + done["cost"], expected + done["expected"]
            for name, is_correct in done["correct"].items():
                score[name] += is_correct / n_orders
    values = np.array(list(score.values()))
    rng = np.random.default_rng(0)
    drawn = rng.choice(values, (BOOTSTRAPS, len(values))).mean(axis=1)
    low, high = np.percentile(drawn, [2.5, 97.5])
    return {
        "budget": budget,
        "accuracy": float(values.mean()),
        "low": float(low),
        "high": float(high),
        "cost": cost / n_orders / len(names),
        "expected_cost": expected / n_orders / len(names),
    }


def main() -> None:
    """Print the rows of evaluate, and one line per budget."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("samples", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--budgets", default="2,4")
    parser.add_argument("--orders", type=int, default=4)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    budgets = [float(text) for text in options.budgets.split(",")]
    for budget in budgets:
        found = measure(options.samples, options.out, budget, options.orders)
        print(json.dumps({"batch": found}), flush=True)
    samples = ada.read_samples(str(options.samples))
    policies = ("sequential", "adaptive-consistency", "mixture")
    for row in ada.evaluate(policies, samples, budgets=budgets).rows:
        kept = ("policy", "budget", "cost", "accuracy", "accuracy_low", "accuracy_high")
        print(json.dumps({name: row[name] for name in kept}), flush=True)


if __name__ == "__main__":
    main()
