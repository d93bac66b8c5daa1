"""Caps and audits of several processes: they hold while processes are killed and data is lost."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the extra 'serve' is not installed")

from adacompute.core.types import make_levels
from adacompute.policies.bundles.bundle import Bundle, FrontierPoint, save_bundle
from adacompute.policies.price_schedule import PriceSchedule
from adacompute.policies.rule_policy import RulePolicy
from adacompute.policies.uniform import FixedRule
from adacompute.testing.fake_answers import FakeSettings
from adacompute.testing.fake_openai import serve_fake
from test_support.gateways import free_port, send, wait_for
from test_support.redis_server import find_redis

ROOT = Path(__file__).parents[2]
needs_redis = pytest.mark.skipif(find_redis() is None, reason="redis-server is not installed")
N_CLIENTS, N_BEFORE = 64, 200
AUDITED = """
[serve]
base_url = "{base_url}"
port = {port}
workers = 4
probe = false
state_directory = "state"
[serve.models.virtual]
bundle = "policy"
budget = 1
model = "real"
grader = "numeric"
audit_share = 1.0
audit_max_share = 0.0151
"""


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


@pytest.mark.slow
def test_audits_of_all_workers_together_respect_their_share(tmp_path: Path) -> None:
    policy = RulePolicy("fixed", make_levels((1, 4)), (FixedRule(1),), PriceSchedule((0.1,)))
    point = FrontierPoint(1.0, 0.1, 1.0, 1.0, 1.0, 0.5, 0.4, 0.6, 1.0)
    save_bundle(Bundle(policy, frontier=(point,)), tmp_path / "policy")
    port, config = free_port(), tmp_path / "gateway.toml"
    body = json.dumps({"model": "virtual", "messages": [{"role": "user", "content": "2 + 2?"}]})
    barrier = threading.Barrier(N_CLIENTS)

    def ask(number: int) -> int:
        if number >= N_BEFORE:
            barrier.wait()
        return send(port, "POST", "/v1/chat/completions", body=body.encode()).status

    with serve_fake(FakeSettings(latency_s=0.05)) as fake:
        config.write_text(AUDITED.format(base_url=fake.base_url, port=port))
        command = [sys.executable, "-m", "adacompute", "serve", "--config", str(config)]
        process = subprocess.Popen(command)
        try:
            wait_for(f"http://127.0.0.1:{port + 1}/ready")
            with ThreadPoolExecutor(N_CLIENTS) as pool:
                assert set(pool.map(ask, range(N_BEFORE))) == {200}
                time.sleep(2.5)  # now all workers know what was served: 3 samples of audits fit
                assert set(pool.map(ask, range(N_BEFORE, N_BEFORE + N_CLIENTS))) == {200}
            time.sleep(1)
        finally:
            process.terminate()
            process.wait(timeout=30)
        n_extra = fake.stats()["choices"] - N_BEFORE - N_CLIENTS
    assert 0 < n_extra <= 3
