"""The ledger of a batch: segments on the disk, open calls of a killed process, costs of calls."""

from __future__ import annotations

import asyncio
import errno
import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from adacompute.batch.costs import CallCosts
from adacompute.batch.open_calls import OpenCall, OpenCalls
from adacompute.batch.segments import FAILED, PaidCall, SegmentWriter, read_segments
from adacompute.core.errors import ConfigError, DataError
from adacompute.models.messages import Sample
from adacompute.models.model import CallUsage
from adacompute.spending.token_prices import TokenPrices


def _call(position: int, number: int = 0) -> PaidCall:
    sample = Sample(
        f"text {position}", mean_logprob=-0.5, completion_tokens=7, token_logprobs=b"\x01\x02"
    )
    return PaidCall(position, None, number, 7, sample)


def test_what_is_added_is_read_again(tmp_path: Path) -> None:
    async def write() -> None:
        writer = SegmentWriter(tmp_path / "s", interval_s=0.0)
        await writer.add([_call(3), PaidCall(3, "big", 1, 9, None, FAILED)])
        await writer.add([_call(900, 2)])

    asyncio.run(write())
    assert list(read_segments(tmp_path / "s")) == [
        _call(3),
        PaidCall(3, "big", 1, 9, None, FAILED),
        _call(900, 2),
    ]
    assert [call.position for call in read_segments(tmp_path / "s", first=4)] == [900]
    assert [call.position for call in read_segments(tmp_path / "s", last=4)] == [3, 3]


def test_samples_that_arrive_together_share_a_segment(tmp_path: Path) -> None:
    async def write() -> None:
        writer = SegmentWriter(tmp_path, interval_s=0.05)
        await writer.add([_call(0)])
        await asyncio.gather(*(writer.add([_call(i)]) for i in range(1, 50)))

    asyncio.run(write())
    assert len(list(tmp_path.glob("*.parquet"))) == 2
    assert [call.position for call in read_segments(tmp_path)] == list(range(50))


def test_a_full_disk_is_waited_for_and_then_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [OSError(errno.ENOSPC, "No space left on device")] * 2
    original = SegmentWriter._write

    def write(self: SegmentWriter, rows: list[PaidCall]) -> None:
        if failures:
            raise failures.pop()
        original(self, rows)

    monkeypatch.setattr(SegmentWriter, "_write", write)

    async def run(patience_s: float) -> None:
        writer = SegmentWriter(tmp_path, interval_s=0.0, patience_s=patience_s)
        await writer.add([_call(1)])

    monkeypatch.setattr("adacompute.batch.segments.RETRY_S", 0.01)
    asyncio.run(run(5.0))
    assert [call.position for call in read_segments(tmp_path)] == [1]
    failures += [OSError(errno.ENOSPC, "No space left on device")] * 1000
    with pytest.raises(DataError, match="No space left"):
        asyncio.run(run(0.05))


def _open_and_die(path: Path) -> None:
    calls = OpenCalls(path, 8)
    first = calls.begin(OpenCall(5, 0, 0, 40))
    calls.begin(OpenCall(6, 1, 2, 41))
    calls.end(first)
    os.kill(os.getpid(), signal.SIGKILL)


def test_calls_under_way_survive_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "open-calls.bin"
    process = multiprocessing.get_context("spawn").Process(target=_open_and_die, args=(path,))
    process.start()
    process.join()
    with OpenCalls(path, 4) as calls:
        assert calls.lost == [OpenCall(6, 1, 2, 41)]
        calls.clear_lost()
    with OpenCalls(path, 4) as calls:
        assert calls.lost == []


def test_costs_of_calls() -> None:
    usage = CallUsage({"prompt_tokens": 100, "completion_tokens": 20})
    prices = {"m": TokenPrices(input=1.0, output=10.0)}
    assert CallCosts("samples").cost("m", usage, n=3) == 3
    assert CallCosts("tokens").cost("m", usage, n=3) == 20
    money = CallCosts("money", prices)
    assert money.cost("m", usage, n=1) == 300_000
    assert money.max_cost("m", n=1, max_tokens=50, prompt_bytes=400) == 900_000
    assert money.to_amount(0.25) == 250_000_000


def test_costs_without_a_bound_are_refused() -> None:
    with pytest.raises(ConfigError, match="--max-output-tokens"):
        CallCosts("tokens").check("m", None)
    with pytest.raises(ConfigError, match="seconds"):
        CallCosts("seconds")
    with pytest.raises(ConfigError, match="token prices"):
        CallCosts("money").check("m", 10)
