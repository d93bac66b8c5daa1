"""Batches end to end against the fake upstream: the total, restarts, and what is written."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from adacompute.batch.calls import ServersUnavailable
from adacompute.batch.progress import Progress
from adacompute.core.errors import ConfigError, DataError, InfeasibleBudget
from adacompute.storage.paid_samples import (
    FAILED,
    Payment,
    lock_directory,
    read_payments,
    write_segment,
)
from adacompute.testing.fake_openai import FakeSettings, serve_fake
from test_support.batches import Case, make_job, read_bytes, run_job
from test_support.gateways import free_port

FAULTS = {"500": 0.03, "reset": 0.03, "half": 0.03, "garbled": 0.02, "429": 0.03}


def _answers(directory: Path) -> pa.Table:
    return pq.read_table(directory / "answers")


def test_every_question_gets_an_answer_within_the_total(tmp_path: Path) -> None:
    case = Case(400, 2.5)
    with serve_fake() as fake:
        result = run_job(tmp_path / "job", case, fake.base_url)
        choices = fake.stats()["choices"]
    table = _answers(tmp_path / "job")
    assert table["position"].to_pylist() == list(range(400))
    assert result["answered"] + result["limited"] == 400
    assert result["cost"] == result["samples"] == choices == sum(table["n_samples"].to_pylist())
    assert 0.95 * case.total <= choices <= case.total


@pytest.mark.parametrize("unit", ["samples", "tokens", "money"])
@pytest.mark.parametrize("seed", range(3))
def test_the_total_is_never_exceeded_and_hardly_wasted(
    tmp_path: Path, unit: str, seed: int
) -> None:
    case = Case(300, 2.2 + 0.4 * seed, unit=unit)
    settings = FakeSettings(
        fault_rates=FAULTS, seed=seed, vary_tokens=True, completion_tokens=40, latency_s=0.002
    )
    with serve_fake(settings) as fake:
        result = run_job(tmp_path / "job", case, fake.base_url)
        served = fake.stats()
    paid = list(read_payments(tmp_path / "job" / "segments"))
    amounts = sum(call.cost for call in paid)
    per_unit = 10**9 if unit == "money" else 1
    assert amounts <= case.total * per_unit
    assert result["cost"] == pytest.approx(amounts / per_unit)
    assert any(call.kind == FAILED for call in paid)
    if unit == "samples":
        assert served["choices"] <= amounts
    if unit == "tokens":
        assert served["tokens"] <= amounts


def test_answers_do_not_depend_on_timing(tmp_path: Path) -> None:
    outputs = []
    for concurrency, latency_s in ((1, 0.0), (16, 0.003), (64, 0.01)):
        directory = tmp_path / str(concurrency)
        with serve_fake(FakeSettings(latency_s=latency_s, vary_tokens=True)) as fake:
            run_job(
                directory, Case(260, 2.0, unit="tokens", concurrency=concurrency), fake.base_url
            )
        outputs.append(read_bytes(directory))
    assert outputs[0] == outputs[1] == outputs[2]


def test_a_finished_batch_is_not_paid_again(tmp_path: Path) -> None:
    case = Case(150, 2.0)
    with serve_fake() as fake:
        first = run_job(tmp_path / "job", case, fake.base_url)
        before = fake.stats()["calls"]
        again = run_job(tmp_path / "job", case, fake.base_url)
        assert fake.stats()["calls"] == before
    assert again == first == json.loads((tmp_path / "job" / "manifest.json").read_text())


@pytest.mark.parametrize("unit", ["samples", "tokens"])
def test_a_batch_that_is_stopped_again_and_again_ends_like_one_that_is_not(
    tmp_path: Path, unit: str
) -> None:
    case = Case(500, 3.0, unit=unit, part_rows=128, reserve=0.25)
    settings = FakeSettings(vary_tokens=True, completion_tokens=40)
    n_stops = 0
    with serve_fake(settings) as fake:
        run_job(tmp_path / "alone", case, fake.base_url)
        alone = fake.stats()["choices"]
        while not (tmp_path / "stopped" / "manifest.json").is_file():
            n_answers = 70 + 10 * n_stops
            with suppress(_StoppedError):
                run_job(tmp_path / "stopped", case, fake.base_url, _stop_after(n_answers))
            n_stops += 1
        paid = fake.stats()["choices"] - alone
    assert n_stops > 3
    assert read_bytes(tmp_path / "stopped") == read_bytes(tmp_path / "alone")
    assert alone <= paid <= alone + n_stops * 2 * case.concurrency


class _StoppedError(Exception):
    """A batch is stopped in the middle."""


def _stop_after(count: int) -> Callable[[Progress], None]:
    left = [count]

    def stop(_: Progress) -> None:
        left[0] -= 1
        if not left[0]:
            raise _StoppedError

    return stop


def test_a_row_without_text_and_a_rejected_request_are_errors_of_their_own(tmp_path: Path) -> None:
    case = Case(100, 2.0)
    job = make_job(tmp_path / "job", case)
    path = tmp_path / "questions-100.parquet"
    table = pq.read_table(path).to_pydict()
    table["question"][7] = None
    pq.write_table(pa.table(table), path)
    del job
    with serve_fake() as fake:
        result = run_job(tmp_path / "job", case, fake.base_url)
    rows = _answers(tmp_path / "job").to_pylist()
    assert result["error"] == 1
    assert rows[7]["status"] == "error"
    assert rows[7]["error"]
    assert rows[7]["cost"] == 0


def test_a_server_that_rejects_every_request_is_written_as_errors(tmp_path: Path) -> None:
    case = Case(70, 2.0)
    with serve_fake(FakeSettings(rejected_fields=("messages",))) as fake:
        result = run_job(tmp_path / "job", case, fake.base_url)
    assert result["error"] == 70
    assert result["cost"] == 0


def test_a_total_below_one_sample_per_question_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InfeasibleBudget, match="101"):
        run_job(tmp_path / "job", Case(100, 1.0), "http://127.0.0.1:9/v1")


def test_a_directory_belongs_to_one_batch(tmp_path: Path) -> None:
    with serve_fake() as fake:
        run_job(tmp_path / "job", Case(80, 2.0), fake.base_url)
        with pytest.raises(ConfigError, match="total"):
            run_job(tmp_path / "job", Case(80, 3.0), fake.base_url)


def test_two_processes_cannot_share_a_directory(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    with (
        lock_directory(tmp_path / "job"),
        pytest.raises(DataError, match="another process"),
    ):
        run_job(tmp_path / "job", Case(80, 2.0), "http://127.0.0.1:9/v1")


def test_a_batch_stops_if_no_server_answers_and_goes_on_when_one_does(tmp_path: Path) -> None:
    case = Case(80, 2.0, patience_s=1.0)
    with pytest.raises(ServersUnavailable):
        run_job(tmp_path / "job", case, f"http://127.0.0.1:{free_port()}/v1")
    with serve_fake() as fake:
        result = run_job(tmp_path / "job", case, fake.base_url)
    assert result["error"] == 0


def test_a_server_that_is_gone_for_a_while_is_waited_for(tmp_path: Path) -> None:
    script = ("ok",) * 30 + ("503",) * 200
    with serve_fake(FakeSettings(fault_script=script)) as fake:
        result = run_job(tmp_path / "job", Case(80, 2.0), fake.base_url)
    assert result["error"] == 0
    assert result["cost"] == result["samples"]


def test_a_question_whose_retries_use_up_its_allowance_is_limited(tmp_path: Path) -> None:
    case = Case(64, 1.3, unit="tokens", concurrency=1, patience_s=5.0)
    with serve_fake(FakeSettings(fault_script=("garbled",) * 40, completion_tokens=22)) as fake:
        result = run_job(tmp_path / "job", case, fake.base_url)
    assert result["limited"] > 0
    assert result["unanswered"] == result["error"] == 0
    assert result["cost"] <= case.total


def test_a_full_disk_stops_a_batch_that_goes_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(200, 2.0, patience_s=0.1, reserve=0.1)
    n_segments = 0

    def write(directory: Path, number: int, rows: Sequence[Payment]) -> None:
        nonlocal n_segments
        n_segments += 1
        if n_segments > 5:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_segment(directory, number, rows)

    with serve_fake() as fake:
        with monkeypatch.context() as patch:
            patch.setattr("adacompute.storage.paid_samples.write_segment", write)
            with pytest.raises(DataError, match=r"job/segments cannot be written: No space left"):
                run_job(tmp_path / "job", case, fake.base_url)
        result = run_job(tmp_path / "job", case, fake.base_url)
        served = fake.stats()["choices"]
    assert result["lost_cost"] > 0
    assert served <= result["cost"] + result["lost_cost"] <= case.total
    assert result["error"] == 0
