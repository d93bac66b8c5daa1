"""Batches for tests and benchmarks: generated questions, answered by the fake upstream.

The fake upstream answers with a number that depends on the prompt and the seed. The grader here
compares remainders, so that answers agree by chance and questions need different numbers of
samples.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from adacompute.batch.calls import BatchArm
from adacompute.batch.job import BatchJob, BatchSettings
from adacompute.batch.passes import Span
from adacompute.batch.planning.plan import CostCurve
from adacompute.batch.progress import Progress
from adacompute.batch.questions import open_questions
from adacompute.core.types import make_levels
from adacompute.graders.grader import load_grader
from adacompute.models.connection.endpoint import EndpointLimits
from adacompute.models.messages import RetryPolicy, Settings
from adacompute.models.openai import Upstream
from adacompute.models.templates import Template
from adacompute.policies.bundles.bundle import Bundle
from adacompute.policies.price_schedule import PriceSchedule
from adacompute.policies.rule_policy import RulePolicy
from adacompute.policies.stopping import AdaptiveConsistencyRule
from adacompute.spending.call_costs import CallCosts
from adacompute.spending.token_prices import TokenPrices

MAX_TOKENS = 40
SWITCH_PRICES = (0.3, 0.1, 0.03, 0.01, 0.003)
MEAN_SAMPLES = {1: 1.0, 2: 2.0, 3: 8 / 3, 4: 10 / 3, 6: 4.22}
"""Mean number of samples of the rule by its maximum; each has a price in ``SWITCH_PRICES``."""

PRICES = {"fake": TokenPrices(input=1.0, output=10.0)}
MEAN_SAMPLE = {"samples": 1.0, "tokens": 22.0, "money": 0.00025}


class RoughGrader:
    """A grader for the numbers of the fake upstream: equal remainders are equal answers."""

    name = "exact"  # one of the graders that need no thread

    def __init__(self) -> None:
        self._numeric = load_grader("numeric")

    def extract(self, text: str) -> str | None:
        """Return the remainder of the number by 3."""
        found = self._numeric.extract(text)
        return None if found is None else str(int(float(found)) % 3)

    def equal(self, left: str, right: str) -> bool:
        """Compare remainders."""
        return left == right


def make_bundle(unit: str) -> Bundle:
    """Return a stopping rule with a maximum of samples per price, for costs in a unit."""
    rules = tuple(AdaptiveConsistencyRule(0.8, cap) for cap in MEAN_SAMPLES)
    levels = make_levels(tuple(range(1, max(MEAN_SAMPLES) + 1)))
    policy = RulePolicy("adaptive-consistency", levels, rules, PriceSchedule(SWITCH_PRICES))
    return Bundle(policy, unit=unit, sample_cost=MEAN_SAMPLE[unit])


def make_curve(unit: str) -> CostCurve:
    """Return the mean cost of that rule where each of three answers is as likely."""
    costs = np.array(list(MEAN_SAMPLES.values())) * MEAN_SAMPLE[unit]
    return CostCurve(np.array(SWITCH_PRICES), costs)


@dataclass(frozen=True)
class Case:
    """A batch to run."""

    n_questions: int
    budget: float
    unit: str = "samples"
    concurrency: int = 16
    lag: int | None = 64
    reserve: float = 0.01
    flush_s: float = 0.005
    patience_s: float = 20.0
    part_rows: int = 8192

    @property
    def total(self) -> float:
        """Total of the batch, for a budget in mean samples."""
        return self.n_questions * self.budget * MEAN_SAMPLE[self.unit]


def make_job(directory: Path, case: Case) -> BatchJob:
    """Return a job over generated questions, which are written beside its directory."""
    path = directory.parent / f"questions-{case.n_questions}.parquet"
    if not path.is_file():
        numbers = range(case.n_questions)
        columns = {
            "question_id": [f"q{i}" for i in numbers],
            "question": [f"What is {i} + {i * i % 97}?" + " Think." * (i % 7) for i in numbers],
        }
        pq.write_table(pa.table(columns), path)
    settings = Settings(max_tokens=MAX_TOKENS, logprobs=False)
    return BatchJob(
        directory,
        Span.all(open_questions([str(path)])),
        make_bundle(case.unit),
        RoughGrader(),
        [BatchArm(None, "fake", Template(), settings)],
        make_curve(case.unit),
        CallCosts(case.unit, PRICES),
        BatchSettings(
            total=case.total,
            concurrency=case.concurrency,
            lag=case.lag,
            reserve=case.reserve,
            flush_s=case.flush_s,
            patience_s=case.patience_s,
            part_rows=case.part_rows,
        ),
    )


def run_job(
    directory: Path,
    case: Case,
    base_url: str,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> dict[str, Any]:
    """Run a batch to its end; return its result."""
    retries = RetryPolicy(max_attempts=3, initial_wait_s=0.001, max_wait_s=0.01)
    upstream = Upstream(base_url, "fake", limits=EndpointLimits(retries=retries))
    job = make_job(directory, case)
    job.on_progress = on_progress
    return asyncio.run(job.run(upstream))


def read_bytes(directory: Path) -> dict[str, bytes]:
    """Return the answers of a batch, file by file."""
    return {path.name: path.read_bytes() for path in sorted((directory / "answers").iterdir())}
