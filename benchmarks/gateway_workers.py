"""Gateway workers: processes that serve as the workers of a gateway do, and that start fast.

They are forked from a process that has imported everything. Each has a port, and serves the
application that ``adacompute serve`` would serve there, without a supervisor. They can be killed
and started again with the same settings.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from adacompute.gateway.app import build
from adacompute.gateway.connection.http_server import HttpServer, run_in_fast_loop
from adacompute.gateway.processes.logs import set_up_logging
from adacompute.gateway.settings.config import make_config
from adacompute.gateway.voting.model_loading import load_models
from test_support.gateways import fetch

START_TIMEOUT_S, STOP_TIMEOUT_S = 60.0, 20.0
PRELOADED = (
    "benchmarks.gateway_workers",
    "adacompute.gateway.processes.worker",
    "msgspec",
    "prometheus_client.multiprocess",
    "redis.asyncio.cluster",
    "starlette.applications",
    "uvloop",
)
"""What workers import."""


def serve(settings: Mapping[str, Any], log: Path) -> None:
    """Serve in this process until a signal stops it; ``log`` is the file of its messages."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, sys.stderr.fileno())
    config = make_config(settings)
    set_up_logging(config.log_format, config.log_level)
    listener = socket.create_server(("127.0.0.1", config.port), backlog=4096)
    application = build(config, load_models(config), register=config.open_register())
    run_in_fast_loop(HttpServer(application, listener).run_until_stopped())


class GatewayWorker:
    """One process, which ``start`` starts again after it was killed."""

    def __init__(self, settings: Mapping[str, Any], log: Path) -> None:
        self.port: int = settings["port"]
        self.log = log
        self._settings = settings
        self._context = multiprocessing.get_context("forkserver")
        self._process: Any = None

    def start(self) -> None:
        """Start the process; ``wait_ready`` waits until it serves."""
        self._process = self._context.Process(target=serve, args=(self._settings, self.log))
        self._process.start()

    def wait_ready(self) -> None:
        """Wait until it serves."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                fetch(f"http://127.0.0.1:{self.port}/health")
            except OSError:
                if time.monotonic() > deadline or not self._process.is_alive():
                    raise SystemExit(f"a worker does not start: see {self.log}") from None
                time.sleep(0.02)
            else:
                return

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()
        self._process.join()

    def stop(self) -> None:
        """Ask the process to end; ``join`` waits for it."""
        self._process.terminate()

    def join(self) -> bool:
        """Wait until the process has ended, and return whether it did so in time."""
        self._process.join(STOP_TIMEOUT_S)
        has_ended = self._process.exitcode is not None
        if not has_ended:
            self.kill()
        return has_ended


@contextmanager
def start_workers(workers: Sequence[GatewayWorker], preload: Sequence[str]) -> Iterator[None]:
    """Start workers and wait until they serve; at the end of the block, those left are killed.

    ``preload`` names what the main module imports: every worker imports the main module again.
    """
    multiprocessing.set_forkserver_preload([*PRELOADED, *preload])
    try:
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.wait_ready()
        yield
    finally:
        for worker in workers:
            worker.kill()
