"""Store outages: no request is refused because Redis, or a gateway that has gone, is away."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the extra 'serve' is not installed")

from test_support.redis_server import find_redis

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.skipif(find_redis() is None, reason="redis-server is not installed")
@pytest.mark.parametrize("scenario", ["drain", "killed"])
def test_no_capped_request_is_refused(scenario: str) -> None:
    found = subprocess.run(
        [sys.executable, "-m", "benchmarks.store_outages", scenario],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=ROOT,
    )
    assert found.returncode == 0, found.stdout + found.stderr
