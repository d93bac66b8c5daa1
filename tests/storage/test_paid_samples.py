"""The store of paid samples: segments on the disk, and what they add up to."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import replace
from pathlib import Path

import pytest

from adacompute.core.errors import DataError
from adacompute.models.messages import Sample
from adacompute.storage.paid_samples import (
    FAILED,
    LOST,
    PaidTotals,
    Payment,
    SegmentWriter,
    StoreReader,
    has_attempts,
    lock_directory,
    read_payments,
    sum_payments,
)


def _call(position: int, number: int = 0) -> Payment:
    sample = Sample(
        f"text {position}", mean_logprob=-0.5, completion_tokens=7, token_logprobs=b"\x01\x02"
    )
    return Payment(position, None, number, 7, sample)


def test_what_is_added_is_read_again(tmp_path: Path) -> None:
    async def write() -> None:
        writer = SegmentWriter(tmp_path / "s", interval_s=0.0)
        await writer.add([_call(3), Payment(3, "big", 1, 9, None, FAILED)])
        await writer.add([_call(900, 2)])

    asyncio.run(write())
    assert list(read_payments(tmp_path / "s")) == [
        _call(3),
        Payment(3, "big", 1, 9, None, FAILED),
        _call(900, 2),
    ]
    assert [call.position for call in read_payments(tmp_path / "s", first=4)] == [900]
    assert [call.position for call in read_payments(tmp_path / "s", last=4)] == [3, 3]


def test_samples_that_arrive_together_share_a_segment(tmp_path: Path) -> None:
    async def write() -> None:
        writer = SegmentWriter(tmp_path, interval_s=0.05)
        await writer.add([_call(0)])
        await asyncio.gather(*(writer.add([_call(i)]) for i in range(1, 50)))

    asyncio.run(write())
    assert len(list(tmp_path.glob("*.parquet"))) == 2
    assert [call.position for call in read_payments(tmp_path)] == list(range(50))


def test_a_full_disk_is_waited_for_and_then_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [OSError(errno.ENOSPC, "No space left on device")] * 2
    original = SegmentWriter._write

    def write(self: SegmentWriter, rows: list[Payment]) -> None:
        if failures:
            raise failures.pop()
        original(self, rows)

    monkeypatch.setattr(SegmentWriter, "_write", write)

    async def run(patience_s: float) -> None:
        writer = SegmentWriter(tmp_path, interval_s=0.0, patience_s=patience_s)
        await writer.add([_call(1)])

    monkeypatch.setattr("adacompute.storage.paid_samples.RETRY_S", 0.01)
    asyncio.run(run(5.0))
    assert [call.position for call in read_payments(tmp_path)] == [1]
    failures += [OSError(errno.ENOSPC, "No space left on device")] * 1000
    with pytest.raises(DataError, match="No space left"):
        asyncio.run(run(0.05))


def test_sums_are_those_of_all_payments_and_each_segment_is_read_once(tmp_path: Path) -> None:
    payments = [
        replace(_call(3), attempt=4),
        Payment(3, "big", 1, 9, None, FAILED, 5),
        Payment(4, None, 0, 11, None, LOST, 2),
    ]

    async def write(rows: list[Payment]) -> None:
        await SegmentWriter(tmp_path).add(rows)

    reader = StoreReader(tmp_path)
    assert reader.read().spent == 0
    for row in payments:
        asyncio.run(write([row]))
    totals = reader.read()
    assert (totals.spent, totals.lost, totals.samples) == (27, 11, 1)
    assert (totals.completion_tokens, totals.last_attempt) == (7, 5)
    added = PaidTotals()
    added.add(payments)
    assert added == totals == sum_payments(tmp_path) == reader.read()
    assert has_attempts(tmp_path, {2, 3, 5}) == {2, 5}
    assert [one.sample for one in read_payments(tmp_path, with_samples=False)] == [None] * 3


def test_two_processes_cannot_write_to_one_directory(tmp_path: Path) -> None:
    with lock_directory(tmp_path), pytest.raises(DataError, match="another process"):
        lock_directory(tmp_path).__enter__()
