"""Job: a batch from its first question to its last answer, in one directory, resumable.

    job.json                what the batch is; a directory belongs to one batch
    segments/               the store of paid samples: the account of the batch
    open-calls.bin          attempts under way
    answers/part-*.parquet  the answers
    limited-N.parquet       questions that pass N takes up again, with what is left of the total
    manifest.json           written last

The total is the limit of the account, which no attempt can exceed. The reserve, a part of it, is
not planned with: it pays for attempts that are lost when the process is killed. What is lost beyond
it leaves less for the rest. It knows nothing of votes: ``passes`` says which question is answered
when.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from adacompute.batch.answers import PART_ROWS, AnswerParts, Status
from adacompute.batch.call_limits import FixedLimiter
from adacompute.batch.calls import BatchArm, Caller, collect_rarely
from adacompute.batch.passes import BLOCK_ROWS, Passes, Span
from adacompute.batch.planning.expected_spend import ExpectedSpend
from adacompute.batch.planning.plan import CostCurve
from adacompute.batch.progress import Progress, ProgressClock
from adacompute.core.errors import ConfigError, DataError, InfeasibleBudget
from adacompute.graders.grader import Grader
from adacompute.models.openai import Upstream
from adacompute.policies.bundles.bundle import Bundle
from adacompute.spending.account import SpendingAccount
from adacompute.spending.call_costs import CallCosts
from adacompute.storage.paid_samples import SEGMENTS, PaidTotals, lock_directory, sum_payments
from adacompute.storage.regular_files import read_json, write_atomically

JOB, MANIFEST = "job.json", "manifest.json"
LAG_PER_CALL, MIN_LAG = 8, 64
"""Questions that may be under way per concurrent call, and at least."""


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
    on_progress: Callable[[Progress], None] = lambda _: None

    def __post_init__(self) -> None:
        self._total = self.costs.to_amount(self.settings.total)
        self._n = self.span.n_questions
        self._spendable = self._total - math.ceil(self.settings.reserve * self._total)
        self._cheapest = max(1, self.costs.to_amount(float(self.bundle.level_cost.min())))

    async def run(self, upstream: Upstream) -> dict[str, Any]:
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
            extra = self.costs.to_amount(self.extra)
            async with AsyncExitStack() as stack:
                await stack.enter_async_context(upstream)
                account = await stack.enter_async_context(
                    SpendingAccount(
                        self.directory,
                        self.costs,
                        limit=self._total + extra,
                        arms=[arm.name for arm in self.arms],
                        flush_s=self.settings.flush_s,
                        patience_s=self.settings.patience_s,
                    )
                )
                passes = Passes(
                    directory=self.directory,
                    span=self.span,
                    bundle=self.bundle,
                    grader=self.grader,
                    caller=self._make_caller(upstream, account),
                    parts=self._parts,
                    curve=self.curve,
                    expected=self.expected or ExpectedSpend.uniform(self._n),
                    spendable=min(self._spendable, self._total - account.totals.lost),
                    extra=extra,
                    lag=lag,
                    cheapest=self._cheapest,
                    on_end=self._make_report(account),
                )
                await passes.answer_all()
                await passes.finish_limited()
            return self._summarise()

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

    def _make_caller(self, upstream: Upstream, account: SpendingAccount) -> Caller:
        return Caller(
            upstream,
            self.arms,
            account,
            FixedLimiter(self.settings.concurrency),
            samples_per_call=self.settings.samples_per_call,
            patience_s=self.settings.patience_s,
        )

    def _make_report(self, account: SpendingAccount) -> Callable[[int, int], None]:
        """Return what reports how far the batch is, by the pass and the questions that ended."""
        clock = make_clock(account.totals, self.costs, self.curve, self._n, self._spendable)

        def report(pass_number: int, n_ended: int) -> None:
            stage = f", pass {pass_number + 1}" if pass_number else ""
            self.on_progress(clock.record(account.totals, n_ended, stage=stage))

        return report

    def _summarise(self) -> dict[str, Any]:
        """Add up the store, count the answers, and write the manifest."""
        statuses: dict[str, int] = {}
        for table in self._parts.read(["status"]):
            for entry in table["status"].value_counts().to_pylist():
                statuses[entry["values"]] = statuses.get(entry["values"], 0) + entry["counts"]
        result = {
            **describe_spending(self.directory, self.costs, self.settings.total + self.extra),
            "questions": self._n,
            "total": self.settings.total,
            **{name: statuses.get(name, 0) for name in get_args(Status)},
            "answers": str(self.directory / "answers"),
        }
        result["mean_cost"] = result["cost"] / self._n
        write_atomically(self.directory / MANIFEST, json.dumps(result, indent=2).encode())
        return result


def make_clock(
    totals: PaidTotals, costs: CallCosts, curve: CostCurve, n_questions: int, spendable: int
) -> ProgressClock:
    """Return the clock of a batch, which expects to spend what it may, if the policy wants it."""
    clock = ProgressClock(
        totals, noun="questions", planned=n_questions, unit=costs.unit, per_unit=costs.per_unit
    )
    clock.expected = min(float(spendable), n_questions * curve.costs[-1] * costs.per_unit)
    return clock


def describe_spending(directory: Path, costs: CallCosts, limit: float) -> dict[str, Any]:
    """Return what the store of a directory says was spent, in the unit, and what is left."""
    totals = sum_payments(directory / SEGMENTS)
    return {
        "samples": totals.samples,
        "unit": costs.unit,
        "cost": (totals.spent - totals.lost) / costs.per_unit,
        "lost_cost": totals.lost / costs.per_unit,
        "left": max(0.0, limit - totals.spent / costs.per_unit),
    }


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
