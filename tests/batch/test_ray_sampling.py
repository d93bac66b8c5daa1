"""Batches on Ray: the same answers as on this machine, and lost workers are survived."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from adacompute.batch.calls import BatchArm
from adacompute.batch.job import BatchSettings
from adacompute.batch.planning.expected_spend import ExpectedSpend
from adacompute.batch.questions import open_questions
from adacompute.batch.ray import sampling as ray_sampling
from adacompute.batch.ray.cluster import SETTINGS, connect
from adacompute.batch.ray.sampling import RayBatch, sample_on_ray
from adacompute.batch.server import Server
from adacompute.core.errors import ConfigError
from adacompute.models.messages import Capabilities, Settings
from adacompute.models.templates import Template
from adacompute.policies.bundles.bundle import save_bundle
from adacompute.spending.call_costs import CallCosts
from adacompute.testing.fake_openai import FakeSettings, serve_fake
from test_support.batches import make_bundle, make_curve

os.environ |= SETTINGS  # before Ray is imported
ray = pytest.importorskip("ray", reason="needs the extra 'ray'")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
N_QUESTIONS, ROWS, BUDGET = 300, 128, 2.5


@pytest.fixture
def cluster() -> Iterator[None]:
    with connect(n_cpus=2):
        yield


@pytest.fixture
def batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RayBatch:
    monkeypatch.setattr(ray_sampling, "PART_ROWS", ROWS)
    path = tmp_path / "questions.parquet"
    texts = [f"What is {i} + {i % 7}?" for i in range(N_QUESTIONS)]
    ids = [f"q{i}" for i in range(N_QUESTIONS)]
    pq.write_table(pa.table({"question_id": ids, "question": texts}), path)
    save_bundle(make_bundle("samples"), tmp_path / "bundle")
    return RayBatch(
        directory=tmp_path / "out",
        source=open_questions([str(path)]),
        grader="numeric",
        arms=[BatchArm(None, "fake", Template(), Settings(max_tokens=30, logprobs=False))],
        curve=make_curve("samples"),
        expected=ExpectedSpend.uniform(N_QUESTIONS),
        costs=CallCosts("samples"),
        settings=BatchSettings(
            total=BUDGET * N_QUESTIONS, concurrency=8, lag=64, flush_s=0.01, reserve=0.1
        ),
        server=Server("", Capabilities()),
        identity={},
    )


def _answers(directory: Path) -> pa.Table:
    files = sorted(directory.glob("partitions/*/answers/*.parquet"))
    return pa.concat_tables(pq.read_table(file) for file in files)


@pytest.mark.usefixtures("cluster")
def test_every_question_is_answered_once_within_the_total(
    batch: RayBatch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(ray_sampling, "REPORT_S", 0.02)
    with serve_fake(FakeSettings(latency_s=0.02)) as fake:
        served = replace(batch, server=Server(fake.base_url, Capabilities()))
        result = sample_on_ray(served, tmp_path / "bundle", workers=2, report=lines.append)
        choices = fake.stats()["choices"]
        again = sample_on_ray(served, tmp_path / "bundle", workers=1)
        assert fake.stats()["choices"] == choices
    assert again == result
    # Progress is known while partitions are being sampled, not only when they have ended.
    assert any(line.startswith("0 of 300 questions") and "s left" in line for line in lines)
    table = _answers(batch.directory)
    assert table["position"].to_pylist() == list(range(N_QUESTIONS))
    assert table["question_id"].to_pylist() == [f"q{i}" for i in range(N_QUESTIONS)]
    assert choices == result["cost"] <= BUDGET * N_QUESTIONS
    assert len(list(batch.directory.glob("partitions/*"))) == 2


@pytest.mark.usefixtures("cluster")
def test_what_one_partition_leaves_goes_to_another(batch: RayBatch, tmp_path: Path) -> None:
    # The plan expects nearly all of the cost in the first partition, which cannot spend it.
    expected = ExpectedSpend(np.array([0.0, 192, N_QUESTIONS]), np.array([0.0, 0.83, 1.0]))
    total = 7.0 * N_QUESTIONS
    with serve_fake() as fake:
        served = replace(
            batch,
            server=Server(fake.base_url, Capabilities()),
            expected=expected,
            settings=replace(batch.settings, total=total),
        )
        result = sample_on_ray(served, tmp_path / "bundle", workers=2)
        choices = fake.stats()["choices"]
    rounds = sorted(batch.directory.glob("round-*.json"))
    assert len(rounds) > 1
    lease = json.loads(rounds[0].read_text())["partitions"][1]["lease"]
    second = json.loads((batch.directory / "partitions/000001/manifest.json").read_text())
    assert second["cost"] > 0.9 * lease
    assert second["limited"] == 0
    assert choices == result["cost"] <= total
    with pytest.raises(ConfigError, match="belongs to a batch with total"):
        sample_on_ray(
            replace(served, settings=replace(batch.settings, total=9 * N_QUESTIONS)),
            tmp_path / "bundle",
            workers=2,
        )


@pytest.mark.usefixtures("cluster")
def test_a_killed_worker_is_replaced_and_nothing_is_paid_twice_but_what_was_open(
    batch: RayBatch, tmp_path: Path
) -> None:
    with serve_fake(FakeSettings(latency_s=0.05)) as fake:
        served = replace(batch, server=Server(fake.base_url, Capabilities()))
        with _when_sampling(batch.directory, _kill_one_worker):
            result = sample_on_ray(served, tmp_path / "bundle", workers=2)
        choices = fake.stats()["choices"]
    _check(batch, result, choices)


def test_a_lost_node_is_survived(batch: RayBatch, tmp_path: Path) -> None:
    from ray.cluster_utils import Cluster

    options = {"num_cpus": 1, "include_dashboard": False}
    nodes = Cluster(initialize_head=True, head_node_args=options)
    try:
        lost = nodes.add_node(num_cpus=1)
        with serve_fake(FakeSettings(latency_s=0.05)) as fake:
            served = replace(batch, server=Server(fake.base_url, Capabilities()))
            with _when_sampling(
                batch.directory, lambda: nodes.remove_node(lost, allow_graceful=False)
            ):
                address = nodes.address
                result = sample_on_ray(served, tmp_path / "bundle", address=address, workers=2)
            choices = fake.stats()["choices"]
    finally:
        nodes.shutdown()  # type: ignore[no-untyped-call]
    _check(batch, result, choices)


def _check(batch: RayBatch, result: dict[str, Any], choices: int) -> None:
    """Check that every question has one answer, and that what was paid is accounted for."""
    assert _answers(batch.directory)["position"].to_pylist() == list(range(N_QUESTIONS))
    assert result["cost"] <= choices <= result["cost"] + result["lost_cost"]
    assert result["cost"] + result["lost_cost"] <= BUDGET * N_QUESTIONS
    assert result["lost_cost"] <= 4 * batch.settings.concurrency


@contextmanager
def _when_sampling(directory: Path, act: Callable[[], object]) -> Iterator[None]:
    """Do something in a thread as soon as both partitions have samples."""
    done: list[object] = []

    def wait() -> None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and not done:
            if len(list(directory.glob("partitions/*/segments/segment-00000002*"))) > 1:
                done.append(act())
            time.sleep(0.01)

    thread = threading.Thread(target=wait)
    thread.start()
    yield
    thread.join()
    assert done


def _kill_one_worker() -> int:
    """Kill a worker of Ray Data that this test has started; return its process id."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes()
        except OSError:
            continue
        if command.startswith(b"ray::MapWorker") or b"ray::_MapWorker" in command:
            os.kill(int(path.parent.name), signal.SIGKILL)
            return int(path.parent.name)
    raise AssertionError("there is no worker")
