"""A batch over two arms that is killed: calls that are lost count to their arm."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from adacompute.batch.calls import BatchArm
from adacompute.batch.job import BatchJob
from adacompute.batch.planning.plan import CostCurve
from adacompute.batch.progress import Progress
from adacompute.models.messages import Settings
from adacompute.models.openai import Upstream
from adacompute.models.templates import Template
from adacompute.policies.bundles.bundle import Bundle
from adacompute.spending.open_calls import OpenCalls
from adacompute.storage.paid_samples import LOST, SAMPLE, Payment, read_payments
from adacompute.testing.fake_openai import FakeSettings, serve_fake
from test_support.batches import Case, make_job, read_bytes

CASE = Case(200, 6.0, unit="tokens", concurrency=16, reserve=0.3, flush_s=0.05)
MAX_TOKENS = {"small": 40, "large": 60}
"""Different for each arm, so that the cost of a lost call tells which arm it was."""


def _make_job(directory: Path, bundle: Bundle) -> BatchJob:
    job = make_job(directory, CASE)
    points = sorted(bundle.frontier, key=lambda point: -point.price)
    job.bundle = replace(bundle, unit="tokens")
    job.curve = CostCurve(
        np.array([point.price for point in points]),
        np.array([10.0 * point.cost for point in points]),
    )
    job.arms = [
        BatchArm(name, name, Template(), Settings(max_tokens=limit))
        for name, limit in MAX_TOKENS.items()
    ]
    return job


def _run(job: BatchJob, base_url: str) -> None:
    asyncio.run(job.run(Upstream(base_url, "small")))


def _run_and_die(directory: Path, bundle: Bundle, base_url: str, n_ended: int) -> None:
    """Kill this process when so many questions have ended and calls of both arms are under way."""

    def die() -> None:
        while True:
            calls = OpenCalls(directory / "open-calls.bin")
            calls.close()
            if {one.arm for one in calls.lost} == {0, 1}:
                os.kill(os.getpid(), signal.SIGKILL)

    def watch(done: Progress) -> None:
        if done.done == n_ended:
            threading.Thread(target=die, daemon=True).start()

    job = _make_job(directory, bundle)
    job.on_progress = watch
    _run(job, base_url)


def _keys(calls: list[Payment]) -> list[tuple[int, str | None, int]]:
    return sorted((one.position, one.arm or "", one.number) for one in calls)


def test_lost_calls_count_to_the_arm_they_belonged_to(tmp_path: Path, arm_mixture: Bundle) -> None:
    directory = tmp_path / "killed"
    settings = FakeSettings(latency_s=0.06, vary_tokens=True, completion_tokens=40)
    with serve_fake(settings) as fake:
        process = multiprocessing.get_context("spawn").Process(
            target=_run_and_die, args=(directory, arm_mixture, fake.base_url, 60)
        )
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        stored = set(_keys(list(read_payments(directory / "segments"))))
        calls = OpenCalls(directory / "open-calls.bin")
        names = list(MAX_TOKENS)
        under_way = {(one.position, names[one.arm], one.number) for one in calls.lost}
        calls.close()
        _run(_make_job(directory, arm_mixture), fake.base_url)
        _run(_make_job(tmp_path / "alone", arm_mixture), fake.base_url)
    paid = list(read_payments(directory / "segments"))
    lost = [one for one in paid if one.kind == LOST]
    assert _keys(lost) == sorted(under_way - stored)
    assert {one.arm for one in lost} == set(MAX_TOKENS)
    # One that had ended, and was not stored, counts at its cost; the others at their maximum.
    assert all(0 < one.cost <= MAX_TOKENS[str(one.arm)] for one in lost)
    assert any(one.cost == MAX_TOKENS["large"] for one in lost)
    # The arm of a sample that was lost is the arm that it is drawn from again.
    drawn = _keys([one for one in paid if one.kind == SAMPLE])
    assert set(_keys(lost)) <= set(drawn)
    assert len(drawn) == len(set(drawn))
    assert read_bytes(directory) == read_bytes(tmp_path / "alone")
    arms = pq.read_table(directory / "segments")["arm"].to_pylist()
    assert set(arms) == set(MAX_TOKENS)
    assert sum(one.cost for one in paid) <= CASE.total
