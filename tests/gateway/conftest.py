"""One scripted upstream and one gateway process in front of it, for all tests of this folder."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from adacompute.core.types import make_levels
from adacompute.policies.bundles.bundle import Bundle, FrontierPoint, save_bundle
from adacompute.policies.price_schedule import PriceSchedule
from adacompute.policies.rule_policy import RulePolicy
from adacompute.policies.uniform import FixedRule
from test_support import scripted
from test_support.gateways import free_port
from test_support.scripted import ScriptedServer

Launch = Callable[..., AbstractContextManager[int]]
START_TIMEOUT_S = 180.0
"""Patience with a loaded machine."""

CONFIG = """
[serve]
base_url = "{base_url}"
upstream_api_key = "sk-upstream-0123456789abcdef"
port = {port}
workers = {workers}
probe = false
max_attempts = 1
{settings}

[serve.models.thrifty]
bundle = "two"
budget = 2
max_budget = 100
model = "real"
grader = "numeric"

[serve.models.single]
bundle = "one"
budget = 1
model = "real"
grader = "numeric"
"""


@pytest.fixture(scope="session")
def policies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bundles that draw one and two samples for every question."""
    root = tmp_path_factory.mktemp("policies")
    for name, samples in (("one", 1), ("two", 2)):
        policy = RulePolicy(
            "fixed", make_levels((1, 2)), (FixedRule(samples),), PriceSchedule((0.1,))
        )
        cost = float(samples)
        frontier = (FrontierPoint(cost, 0.1, cost, cost, cost, 0.5, 0.4, 0.6, 1.0),)
        save_bundle(Bundle(policy, frontier=frontier), root / name)
    return root


@pytest.fixture(scope="session")
def upstream() -> Iterator[ScriptedServer]:
    with scripted.serve_scripted() as server:
        yield server


@pytest.fixture(scope="session")
def pids() -> dict[int, int]:
    """Processes of the gateways that were launched, by port."""
    return {}


@pytest.fixture(scope="session")
def launch(upstream: ScriptedServer, policies: Path, pids: dict[int, int]) -> Launch:
    """Run a gateway as a process of its own, as a user starts it; gives its port."""
    for name in ("aiohttp", "starlette", "uvicorn", "prometheus_client"):
        pytest.importorskip(name, reason="needs the extra 'serve'")
    kept = {name: text for name, text in os.environ.items() if not name.startswith("OPENAI_")}

    @contextmanager
    def start(
        *,
        workers: int = 1,
        settings: str = "",
        all_paths: bool = True,
        base_url: str = "",
        exit_code: int = 0,
        **variables: str,
    ) -> Iterator[int]:
        port = free_port()
        config, log = policies / f"gateway-{port}.toml", policies / f"gateway-{port}.log"
        paths = 'allowed_paths = ["* /v1/*"]\n' if all_paths else ""
        own = {"port": port, "workers": workers, "settings": paths + settings}
        config.write_text(CONFIG.format(base_url=base_url or upstream.base_url, **own))
        command = [sys.executable, "-m", "adacompute", "serve", "--config", str(config)]
        with log.open("wb") as said:
            process = subprocess.Popen(command, stderr=said, stdout=said, env={**kept, **variables})
            try:
                wait_until_ready(port, process, log)
                pids[port] = process.pid
                yield port
            finally:
                process.terminate()
                code = process.wait(timeout=20)
        assert code == exit_code, log.read_text()

    return start


@pytest.fixture(scope="session")
def gateway(launch: Launch) -> Iterator[int]:
    """Port of the gateway that most tests share."""
    with launch() as port:
        yield port


def wait_until_ready(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port + 1}/ready", timeout=5):
                return
        except urllib.error.URLError:
            time.sleep(0.05)
    pytest.fail(f"the gateway did not start: {log.read_text()}")
