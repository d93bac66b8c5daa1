"""Fixtures: the servers that the examples talk to, as processes on the loopback interface.

The upstream is a fake: its answers are numbers that depend on the prompt and on a counter. So the
tests check protocols and sums, and say nothing about accuracy.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from test_support.gateways import fetch, free_port

MODEL = "SmolLM2-135M-Instruct"
"""The model of the policy that ships with the package."""


CONFIG = """
[serve]
base_url = "{base_url}"
port = {port}
probe = false  # a probe draws samples, which the tests would have to subtract
{limits}

[serve.models.SmolLM2-135M-Instruct]
bundle = "example"
budget = 2.0
"""


@dataclass(frozen=True)
class Server:
    """A running server."""

    port: int

    @property
    def base_url(self) -> str:
        """URL to give to a client."""
        return f"http://127.0.0.1:{self.port}/v1"

    def counts(self) -> dict[str, int]:
        """What the fake upstream has served so far."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/stats", timeout=10) as page:
            counts: dict[str, int] = json.load(page)
            return counts


@contextmanager
def running(
    *command: str, folder: Path | None = None, stdout: int = subprocess.PIPE
) -> Iterator[subprocess.Popen[str]]:
    """Run a command while the context is open."""
    with subprocess.Popen(command, cwd=folder, stdout=stdout, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()


def wait_until_up(process: subprocess.Popen[str], url: str, timeout_s: float = 180.0) -> None:
    """Wait until a page of a process answers; fail if the process ends."""
    deadline = time.monotonic() + timeout_s
    while process.poll() is None and time.monotonic() < deadline:
        try:
            fetch(url)
        except OSError:
            time.sleep(0.2)
        else:
            return
    pytest.fail(f"{process.args} did not start; its exit code is {process.poll()}")


@pytest.fixture
def upstream() -> Iterator[Server]:
    """Run a fake OpenAI-compatible upstream."""
    with running(sys.executable, "-m", "adacompute.testing.fake_openai") as process:
        assert process.stdout is not None
        yield Server(int(process.stdout.readline()))


@pytest.fixture
def limits() -> str:
    """Further settings of the gateway; tests may give others."""
    return ""


@pytest.fixture
def serve(tmp_path: Path, limits: str) -> Iterator[Callable[[str], Server]]:
    """Return a function that runs the gateway in front of a URL, until the test ends."""
    contexts = []

    def start(base_url: str) -> Server:
        port = free_port()
        config = tmp_path / f"{port}.toml"
        content = CONFIG.format(base_url=base_url, port=port, limits=limits)
        config.write_text(content, encoding="utf-8")
        command = (sys.executable, "-m", "adacompute", "serve", "--config", str(config))
        contexts.append(running(*command, folder=tmp_path))
        process = contexts[-1].__enter__()
        wait_until_up(process, f"http://127.0.0.1:{port + 1}/ready")
        return Server(port)

    yield start
    for context in reversed(contexts):
        context.__exit__(None, None, None)


@pytest.fixture
def gateway(upstream: Server, serve: Callable[[str], Server]) -> Server:
    """Run the gateway in front of the fake upstream."""
    return serve(upstream.base_url)
