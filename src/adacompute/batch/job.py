"""Job: a batch from its first question to its last answer, in one directory, resumable.

    job.json                what the batch is; a directory belongs to one batch
    segments/               every paid sample
    open-calls.bin          calls under way
    answers/part-*.parquet  the answers
    limited-N.parquet       questions that pass N takes up again, with what is left of the total
    manifest.json           written last

A part of the total, the reserve, pays for calls that are lost when the process is killed. It knows
nothing of votes: ``passes`` says which question is answered when.
"""

from __future__ import annotations

import fcntl
import gc
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from adacompute.batch.answers import PART_ROWS, AnswerParts, Status
from adacompute.batch.calls import BatchArm, Caller
from adacompute.batch.costs import CallCosts
from adacompute.batch.expected_spend import ExpectedSpend
from adacompute.batch.open_calls import OpenCalls
from adacompute.batch.passes import BLOCK_ROWS, Passes, Span
from adacompute.batch.plan import CostCurve
from adacompute.batch.segments import LOST, PaidCall, SegmentWriter, read_segments
from adacompute.core.errors import ConfigError, DataError, InfeasibleBudget
from adacompute.graders.grader import Grader
from adacompute.models.openai import Upstream
from adacompute.policies.bundle import Bundle
from adacompute.storage.manifest import write_atomically
from adacompute.storage.regular_files import read_json

JOB, MANIFEST = "job.json", "manifest.json"
LAG_PER_CALL, MIN_LAG = 8, 64
"""Questions that may be under way per concurrent call, and at least."""

GC_THRESHOLDS = (100_000, 20, 100)
"""Thousands of questions under way are some hundred thousand objects, none of which is garbage.
With Python's own thresholds a fifth of the CPU time went into looking through them."""


@dataclass(frozen=True)
class BatchSettings:
    """What a batch spends and how: ``total`` in the unit of its costs, ``reserve`` a share of it.

    ``lag`` is fixed when a batch starts, so that a different concurrency later changes no answer.
    """

    total: float
    reserve: float = 0.01
    concurrency: int = 64
    lag: int | None = None
    samples_per_call: int = 1
    patience_s: float = 600.0
    flush_s: float = 1.0
    part_rows: int = PART_ROWS

    def __post_init__(self) -> None:
        if not 0 <= self.reserve < 1:
            raise ConfigError(f"reserve must be 0 or more and below 1, not {self.reserve}")
        if self.concurrency < 1:
            raise ConfigError(f"concurrency must be 1 or more, not {self.concurrency}")
        if not 0 < self.total < math.inf:
            raise ConfigError(f"total must be a number above 0, not {self.total}")
        if self.part_rows < BLOCK_ROWS or self.part_rows % BLOCK_ROWS:
            raise ConfigError(f"part_rows must be a multiple of {BLOCK_ROWS}")

    @property
    def max_running(self) -> int:
        """Largest number of questions under way."""
        lag = self.lag or max(MIN_LAG, LAG_PER_CALL * self.concurrency)
        return min(self.part_rows, -(-lag // BLOCK_ROWS) * BLOCK_ROWS)


@dataclass(frozen=True)
class BatchProgress:
    """How far a batch is: questions that have ended, samples and cost of this process."""

    n_questions: int
    n_ended: int
    n_samples: int
    spent: float
    elapsed_s: float
    pass_number: int
    seconds_left: float = 0.0


@dataclass(eq=False)
class BatchJob:
    """A batch in a directory, over the questions of ``span``.

    ``curve`` gives the price of a mean cost, ``expected`` says which questions it goes to.
    ``extra`` is added to the total after the first pass, for questions that their allowance has
    stopped; below 0 it is taken from what is left.
    """

    directory: Path
    span: Span
    bundle: Bundle
    grader: Grader
    arms: Sequence[BatchArm]
    curve: CostCurve
    costs: CallCosts
    settings: BatchSettings
    expected: ExpectedSpend | None = None
    extra: float = 0.0
    identity: Mapping[str, Any] = field(default_factory=dict)
    on_progress: Callable[[BatchProgress], None] = lambda _: None

    def __post_init__(self) -> None:
        self._total = self.costs.to_amount(self.settings.total)
        self._n = self.span.n_questions
        self._spendable = self._total - math.ceil(self.settings.reserve * self._total)
        self._cheapest = max(1, self.costs.to_amount(float(self.bundle.level_cost.min())))
        self._started = time.monotonic()
        self._first_ended: int | None = None

    async def run(self, upstreams: Sequence[Upstream]) -> dict[str, Any]:
        """Answer everything that is not answered yet; return counts and costs."""
        self._check()
        self.directory.mkdir(parents=True, exist_ok=True)
        with lock_directory(self.directory), collect_rarely():
            lag = self._remember()
            self._parts = AnswerParts(
                self.directory / "answers",
                self._n,
                offset=self.span.first,
                part_rows=self.settings.part_rows,
                per_unit=self.costs.per_unit,
            )
            async with AsyncExitStack() as stack:
                for upstream in upstreams:
                    await stack.enter_async_context(upstream)
                lost = await self._open_ledger(stack, upstreams)
                spendable = min(self._spendable, self._total - lost)
                extra = self.costs.to_amount(self.extra)
                passes = Passes(
                    directory=self.directory,
                    span=self.span,
                    bundle=self.bundle,
                    grader=self.grader,
                    caller=self._caller,
                    parts=self._parts,
                    curve=self.curve,
                    expected=self.expected or ExpectedSpend.uniform(self._n),
                    spendable=spendable,
                    extra=extra,
                    lag=lag,
                    cheapest=self._cheapest,
                    on_end=self._report,
                )
                await passes.answer_all()
                await passes.finish_limited()
            return self._summarise(lost, spendable + extra)

    def _check(self) -> None:
        """Refuse a total that cannot pay for a sample of every question."""
        needed = self._n * self._cheapest
        if not self._n:
            raise DataError("there are no questions")
        if self._spendable < needed:
            per_unit = self.costs.per_unit
            raise InfeasibleBudget(
                f"a total of {self._total / per_unit:g} {self.costs.unit} with a reserve of "
                f"{self.settings.reserve:.1%} cannot pay for one sample of each of {self._n} "
                f"questions: give at least {needed / (1 - self.settings.reserve) / per_unit:.6g}"
            )
        for arm in self.arms:
            self.costs.check(arm.model, arm.settings.max_tokens)

    def _remember(self) -> int:
        """Write what the batch is, or check that the directory belongs to it; return the lag."""
        path = self.directory / JOB
        asked = describe_batch(self.settings, self.costs, self._n, self.identity)
        if path.is_file():
            known = read_json(path)
            check_same_batch(self.directory, known, asked)
            return int(known["lag"])
        lag = self.settings.max_running
        write_atomically(path, json.dumps(asked | {"lag": lag}, indent=2).encode())
        return lag

    async def _open_ledger(self, stack: AsyncExitStack, upstreams: Sequence[Upstream]) -> int:
        """Open the ledger, record calls that a kill has lost, and return the cost of all such."""
        directory, settings = self.directory / "segments", self.settings
        writer = SegmentWriter(
            directory, interval_s=settings.flush_s, patience_s=settings.patience_s
        )
        stack.push_async_callback(writer.close)
        capacity = 4 * max(settings.concurrency, settings.max_running)
        calls = stack.enter_context(OpenCalls(self.directory / "open-calls.bin", capacity))
        if calls.lost:
            first = min(call.position for call in calls.lost)
            names = [arm.name for arm in self.arms]
            stored = {
                (one.position, one.arm, one.number) for one in read_segments(directory, first=first)
            }
            lost = [
                PaidCall(call.position, names[call.arm], call.number, call.max_cost, None, LOST)
                for call in calls.lost
                if (call.position, names[call.arm], call.number) not in stored
            ]
            if lost:
                await writer.add(lost)
            calls.clear_lost()
        self._caller = Caller(
            upstreams,
            self.arms,
            costs=self.costs,
            open_calls=calls,
            segments=writer,
            concurrency=settings.concurrency,
            samples_per_call=settings.samples_per_call,
            patience_s=settings.patience_s,
        )
        return sum(one.cost for one in read_segments(directory) if one.kind == LOST)

    def _report(self, pass_number: int, n_ended: int) -> None:
        elapsed_s = time.monotonic() - self._started
        if self._first_ended is None:
            self._first_ended = n_ended
        rate = (n_ended - self._first_ended) / elapsed_s
        self.on_progress(
            BatchProgress(
                self._n,
                n_ended,
                self._caller.n_samples,
                self._caller.spent / self.costs.per_unit,
                elapsed_s,
                pass_number,
                (self._n - n_ended) / rate if rate else 0.0,
            )
        )

    def _summarise(self, lost: int, spendable: int) -> dict[str, Any]:
        """Count the answers, and write the manifest."""
        statuses: dict[str, int] = {}
        n_samples = spent = 0
        for table, costs in zip(
            self._parts.read(["status", "n_samples"]), self._parts.costs(), strict=True
        ):
            spent += int(costs.sum())
            n_samples += int(table["n_samples"].to_numpy().sum())
            for entry in table["status"].value_counts().to_pylist():
                statuses[entry["values"]] = statuses.get(entry["values"], 0) + entry["counts"]
        per_unit = self.costs.per_unit
        result = {
            "questions": self._n,
            "samples": n_samples,
            "unit": self.costs.unit,
            "total": self.settings.total,
            "cost": spent / per_unit,
            "lost_cost": lost / per_unit,
            "left": max(0, spendable - spent) / per_unit,
            "mean_cost": spent / per_unit / self._n,
            **{name: statuses.get(name, 0) for name in get_args(Status)},
            "answers": str(self.directory / "answers"),
        }
        write_atomically(self.directory / MANIFEST, json.dumps(result, indent=2).encode())
        return result


def describe_batch(
    settings: BatchSettings, costs: CallCosts, n_questions: int, identity: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what a directory must agree on with the batch that continues in it."""
    return {
        "total": settings.total,
        "unit": costs.unit,
        "reserve": settings.reserve,
        "questions": n_questions,
        **identity,
    }


def check_same_batch(directory: Path, known: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """Raise ConfigError if a directory belongs to another batch than the one that is asked for."""
    for name, value in asked.items():
        if known.get(name) != json.loads(json.dumps(value)):
            raise ConfigError(
                f"{directory} belongs to a batch with {name} {known.get(name)}, not {value}: use "
                "another directory"
            )


@contextmanager
def collect_rarely() -> Iterator[None]:
    """Collect garbage rarely; almost everything here is freed when its last reference ends."""
    before = gc.get_threshold()
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextmanager
def lock_directory(directory: Path) -> Iterator[None]:
    """Keep other processes out of a directory; the lock ends with the process."""
    with (directory / "lock").open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise DataError(f"another process works on {directory}") from None
        yield
