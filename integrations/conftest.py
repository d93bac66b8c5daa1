"""Fixtures: the servers that the examples talk to, as processes on the loopback interface.

The upstream is a fake: its answers are numbers that depend on the prompt and on a counter. So the
tests check protocols and sums, and say nothing about accuracy.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from adacompute.testing.gateways import free_port, wait_for

MODEL = "SmolLM2-135M-Instruct"
"""The model of the policy that ships with the package."""


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
def running(*command: str, folder: Path | None = None) -> Iterator[subprocess.Popen[str]]:
    """Run a command while the context is open."""
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()


@pytest.fixture
def upstream() -> Iterator[Server]:
    """Run a fake OpenAI-compatible upstream."""
    with running(sys.executable, "-m", "adacompute.testing.fake_openai") as process:
        assert process.stdout is not None
        yield Server(int(process.stdout.readline()))


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[[str], Server]]:
    """Return a function that runs the gateway in front of a URL, until the test ends."""
    contexts = []

    def start(base_url: str) -> Server:
        port = free_port()
        options = ("--bundle", "example", "--budget", "2", "--port", str(port))
        command = (sys.executable, "-m", "adacompute", "serve", "--base-url", base_url, *options)
        contexts.append(running(*command, folder=tmp_path))
        contexts[-1].__enter__()
        wait_for(f"http://127.0.0.1:{port + 1}/ready", timeout_s=60)
        return Server(port)

    yield start
    for context in reversed(contexts):
        context.__exit__(None, None, None)


@pytest.fixture
def gateway(upstream: Server, serve: Callable[[str], Server]) -> Server:
    """Run the gateway in front of the fake upstream."""
    return serve(upstream.base_url)
