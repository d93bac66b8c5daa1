"""Passes: every question once, and then those again that their allowance stopped.

The first pass answers every question that has no answer yet. What it leaves of the total goes to
the questions that could not draw as many samples as the policy wanted, pass after pass, until
nothing is left or nobody needs it. Each pass can be stopped and resumed: samples that are paid come
from the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from adacompute.batch.allowances import Allowances
from adacompute.batch.answers import LIMITED, AnswerParts, BatchAnswer
from adacompute.batch.calls import Caller
from adacompute.batch.planning.expected_spend import ExpectedSpend
from adacompute.batch.planning.plan import CostCurve
from adacompute.batch.questions import QuestionSource, read_blocks
from adacompute.batch.stream import Item, Stream
from adacompute.graders.grader import Grader
from adacompute.policies.bundles.bundle import Bundle
from adacompute.storage.paid_samples import LOST, Payment, read_payments
from adacompute.storage.regular_files import read_table, write_table

BLOCK_ROWS = 64
"""Questions that share a price and a first decision."""

TARGET_RANGE = 2.0
"""The mean cost that is aimed at stays within this factor of the plan's."""

LIMITED_SCHEMA = pa.schema(
    [
        ("position", pa.int64()),
        ("price", pa.float64()),
        ("cost", pa.int64()),
        ("allowance", pa.int64()),
        ("left", pa.int64()),
    ]
)


@dataclass(frozen=True, eq=False)
class Span:
    """Consecutive questions of a source; their positions are counted from the first of them."""

    source: QuestionSource
    first: int
    n_questions: int

    @classmethod
    def all(cls, source: QuestionSource) -> Span:
        """Return all questions of a source."""
        return cls(source, 0, source.n_questions)

    def read(self, start: int, stop: int) -> Iterator[list[tuple[int, str, str | None]]]:
        """Yield blocks of questions: the position, the id and the text of each."""
        first = self.first
        for block in read_blocks(
            self.source, block_size=BLOCK_ROWS, start=first + start, stop=first + stop
        ):
            rows = zip(block.ids, block.texts, strict=True)
            yield [(block.position - first + i, *row) for i, row in enumerate(rows)]


@dataclass(eq=False)
class Passes:
    """The passes over a batch in ``directory``, which may spend ``spendable`` in all.

    ``extra`` is added to it after the first pass.

    ``curve`` gives the price of a mean cost, ``expected`` says which questions of ``span`` it goes
    to. ``cheapest`` is the mean cost of the cheapest sample.
    ``on_end`` is called with the number of the pass and of the questions that have ended in it.
    """

    directory: Path
    span: Span
    bundle: Bundle
    grader: Grader
    caller: Caller
    parts: AnswerParts
    curve: CostCurve
    expected: ExpectedSpend
    spendable: int
    lag: int
    cheapest: int
    on_end: Callable[[int, int], None]
    extra: int = 0

    async def answer_all(self) -> None:
        """Answer the questions that have no answer yet."""
        first, n_questions = self.parts.count_finished(), self.span.n_questions
        if first == n_questions:
            return
        allowances = Allowances(self.spendable, n_questions, lag=self.lag, kept=self.cheapest)
        spent = sum(int(costs.sum()) for costs in self.parts.costs())
        allowances.skip(first, spent, self.parts.last(self.lag))
        paid = _group(read_payments(self.caller.account.segments, first=first))

        def items() -> Iterator[list[Item]]:
            for block in self.span.read(first, n_questions):
                yield [
                    Item(position, question_id, text, paid.pop(position, ()))
                    for position, question_id, text in block
                ]

        await self._stream(allowances, self.parts.add, 0).run(_in_thread(items()))

    async def finish_limited(self) -> None:
        """Continue questions that their allowance stopped, while something is left."""
        number = 0
        while True:
            number += 1
            table = self._open_pass(number)
            if not table.num_rows:
                return
            done = self.directory / f"limited-{number}.done"
            if done.is_file():
                continue
            answers = await self._continue(table, number)
            costs = zip(table["position"].to_pylist(), table["cost"].to_pylist(), strict=True)
            self.parts.replace(answers)
            done.touch()
            if all(answers[position].cost <= cost for position, cost in costs):
                return

    @property
    def _mean(self) -> int:
        return max(1, self.spendable // self.span.n_questions)

    def _price_of(self, n_ended: int, spent: int) -> float:
        """Return the price at which what is left lasts for the questions that are left."""
        n_questions = self.span.n_questions
        mean = self.spendable / n_questions
        should_be_left = self.spendable * (1.0 - self.expected.share_until(n_ended))
        ratio = (self.spendable - spent) / should_be_left if should_be_left > 0 else 1.0
        target = mean * min(max(ratio, 1 / TARGET_RANGE), TARGET_RANGE)
        in_unit = target / self.caller.account.costs.per_unit
        return self.curve.price_at(max(in_unit, float(self.curve.costs[0])))

    def _stream(
        self, allowances: Allowances, on_answer: Callable[[BatchAnswer], None], number: int
    ) -> Stream:
        def answered(answer: BatchAnswer) -> None:
            on_answer(answer)
            self.on_end(number, allowances.n_settled)

        return Stream(
            self.bundle, self.grader, self.caller, allowances, self._price_of, self._mean, answered
        )

    def _open_pass(self, number: int) -> pa.Table:
        """Return the questions of a pass, which are stored before it begins."""
        path = self.directory / f"limited-{number}.parquet"
        if not path.is_file():
            write_table(path, self._find_limited())
        return read_table(path)

    def _find_limited(self) -> pa.Table:
        """Return the questions that their allowance stopped, and what is left of the total."""
        names = ("position", "price", "cost", "allowance")
        found: dict[str, list[Any]] = {name: [] for name in names}
        left = self.spendable + self.extra
        columns = ["position", "price", "status"]
        amounts = (self.parts.costs(), self.parts.costs("allowance"))
        for table, costs, allowed in zip(self.parts.read(columns), *amounts, strict=True):
            left -= int(costs.sum())
            rows = np.flatnonzero(table["status"].to_numpy() == LIMITED)
            found["position"] += (table["position"].to_numpy()[rows] - self.span.first).tolist()
            found["price"] += table["price"].to_numpy()[rows].tolist()
            found["cost"] += costs[rows].tolist()
            found["allowance"] += allowed[rows].tolist()
        found["left"] = [max(0, left)] * len(found["position"])
        return pa.table(found, schema=LIMITED_SCHEMA)

    async def _continue(self, table: pa.Table, number: int) -> dict[int, BatchAnswer]:
        """Continue questions with what is left; return their answers."""
        answers: dict[int, BatchAnswer] = {}
        left = int(table["left"][0].as_py())
        kept = min(self.cheapest, left // table.num_rows)
        allowances = Allowances(left, table.num_rows, lag=self.lag, kept=kept)

        def add(answer: BatchAnswer) -> None:
            answers[answer.position] = answer

        stream = self._stream(allowances, add, number)
        await stream.run(_in_thread(self._limited_items(table)))
        return answers

    def _limited_items(self, table: pa.Table) -> Iterator[list[Item]]:
        """Yield the questions of a pass in blocks, each with what was paid for it."""
        rows = {row["position"]: row for row in table.to_pylist()}
        size = self.parts.part_rows
        for start in sorted({position // size * size for position in rows}):
            stop = min(start + size, self.span.n_questions)
            calls = read_payments(self.caller.account.segments, first=start, last=stop - 1)
            paid = _group(call for call in calls if call.position in rows)
            for block in self.span.read(start, stop):
                yield [
                    Item(
                        position,
                        question_id,
                        text,
                        paid.get(position, ()),
                        price=rows[position]["price"],
                        base=rows[position]["cost"],
                        allowance=rows[position]["allowance"],
                    )
                    for position, question_id, text in block
                    if position in rows
                ]


def _group(calls: Iterable[Payment]) -> dict[int, list[Payment]]:
    """Return calls by the position of their question, without those that were lost."""
    found: dict[int, list[Payment]] = {}
    for call in calls:
        if call.kind != LOST:
            found.setdefault(call.position, []).append(call)
    return found


async def _in_thread(blocks: Iterator[list[Item]]) -> AsyncIterator[list[Item]]:
    """Yield blocks that are read in a thread, without empty ones."""
    while (block := await asyncio.to_thread(next, blocks, None)) is not None:
        if block:
            yield block
