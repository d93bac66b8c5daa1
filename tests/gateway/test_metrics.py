"""Metrics are those of all processes together."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("prometheus_client", reason="the extra 'serve' is not installed")

from adacompute.gateway.accounting.metrics import SHARED_DIRECTORY, Metrics

PROGRAM = """
import sys
from adacompute.gateway.accounting.metrics import Metrics, forget_process
metrics = Metrics()
if sys.argv[1] == "show":
    print(metrics.scrape().decode())
elif sys.argv[1] == "forget":
    forget_process(int(sys.argv[2]))
else:
    metrics.set_mean("request_cost_mean", "m", [float(one) for one in sys.argv[1:]])
    import os
    print(os.getpid())
"""


def run(directory: Path, *arguments: object) -> str:
    command = [sys.executable, "-c", PROGRAM, *map(str, arguments)]
    environment = {**os.environ, SHARED_DIRECTORY: str(directory)}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True
    ).stdout


def mean(shown: str) -> float:
    (line,) = [one for one in shown.splitlines() if one.startswith("adacompute_request_cost_mean{")]
    assert "window" not in shown
    return float(line.split()[-1])


def test_a_mean_is_that_of_the_requests_of_all_processes(tmp_path: Path) -> None:
    first = run(tmp_path, 1, 1, 1)
    run(tmp_path, 5)
    assert mean(run(tmp_path, "show")) == 2.0
    run(tmp_path, "forget", first.strip())
    assert mean(run(tmp_path, "show")) == 5.0


def test_a_mean_of_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SHARED_DIRECTORY, raising=False)
    metrics = Metrics()
    metrics.set_mean("request_cost_mean", "m", [1.0, 4.0])
    assert mean(metrics.scrape().decode()) == 2.5
    assert "feature_drift{" not in metrics.scrape().decode()
