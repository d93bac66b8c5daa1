"""Caps of several processes: they hold while processes are killed and data is lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the extra 'serve' is not installed")

from test_support.redis_server import find_redis

ROOT = Path(__file__).parents[2]
needs_redis = pytest.mark.skipif(find_redis() is None, reason="redis-server is not installed")


@pytest.mark.slow
@pytest.mark.parametrize("backend", [pytest.param("redis", marks=needs_redis), "sqlite"])
def test_a_cap_holds_while_processes_are_killed_and_redis_restarts_empty(backend: str) -> None:
    command = [sys.executable, "-m", "benchmarks.caps_under_faults", backend, "1", "300"]
    found = subprocess.run(
        [*command, "--kill-every-s", "2.5", "--restarts", "empty"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=ROOT,
    )
    assert found.returncode == 0, found.stdout + found.stderr
