"""Supervisor: the process that starts, watches, replaces and stops the workers of a gateway.

It holds the listening socket and serves the admin port; requests to models never pass through it. A
worker that dies is replaced. A new configuration starts new workers; when they serve, the old ones
take no more connections and end when their requests have ended. A configuration that does not work
changes nothing. Stopping ends every process within ``drain_s``.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Collection, Coroutine
from dataclasses import asdict
from typing import Any

from adacompute.core.errors import AdaComputeError, ConfigError, needs_extra
from adacompute.gateway.accounting.metrics import SHARED_DIRECTORY, Metrics, forget_process
from adacompute.gateway.processes.admin_pages import make_admin_pages
from adacompute.gateway.processes.logs import log, set_up_logging
from adacompute.gateway.processes.operator_pages import READY
from adacompute.gateway.processes.worker_process import WorkerProcess
from adacompute.gateway.settings.config import Config

MIN_BACKOFF_S, MAX_BACKOFF_S = 0.1, 10.0
STABLE_S = 30.0
"""A worker that served for this long is replaced at once when it dies."""

HANG_TIMEOUT_S = 60.0
"""A worker whose serving loop reports nothing for this long is killed and replaced."""

MAX_RESERVE_S, RESERVE_SHARE = 5.0, 0.6
"""Part of ``drain_s`` that is kept for ending processes: seconds at most, and as a share."""

KERNEL_SHARE = 0.95
"""Share of ``drain_s`` after which the kernel ends the supervisor."""

WATCH_INTERVAL_S = 1.0
BACKLOG = 4096
FIXED_SETTINGS = ("host", "port", "admin_host")
"""Settings that a new configuration cannot change."""


class Generation:
    """The workers of one configuration."""

    def __init__(
        self, config: Config, listener: socket.socket, secrets: Collection[str], metrics: Metrics
    ) -> None:
        self.config = config
        self._listener = listener
        self._environment = {
            name: value for name, value in os.environ.items() if name not in secrets
        }
        self._metrics = metrics
        self.workers: dict[int, WorkerProcess] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._is_ending = False

    async def start(self) -> list[str]:
        """Start all workers, and return their messages; raise ConfigError if one cannot serve."""
        slots = range(self.config.workers)
        try:
            for slot in slots:
                self.workers[slot] = await self._start_worker()
            for worker in self.workers.values():
                await worker.wait_started()
        except BaseException:
            for worker in self.workers.values():
                worker.kill()
            for worker in self.workers.values():
                await worker.wait_ended()
            raise
        self._tasks = [asyncio.create_task(self._keep_running(slot)) for slot in slots]
        return self.workers[0].messages

    def retire(self) -> None:
        """Take no more connections; requests that have begun end, however long they take."""
        self._is_ending = True
        for worker in self.workers.values():
            worker.retire()

    def close_connections(self) -> None:
        """Close each connection after its next reply."""
        for worker in self.workers.values():
            worker.close_connections()

    async def stop(self, drain_s: float) -> None:
        """End all workers within a time; the last part of it is for those that do not end."""
        self._is_ending = True
        reserve_s = min(MAX_RESERVE_S, drain_s * RESERVE_SHARE)
        for worker in self.workers.values():
            worker.stop(drain_s - reserve_s)
        await asyncio.wait([*self._tasks], timeout=drain_s - reserve_s / 2)
        for worker in self.workers.values():
            worker.kill()
        await self.wait_ended()

    async def wait_ended(self) -> None:
        """Wait until all workers have ended."""
        await asyncio.gather(*self._tasks)

    async def _start_worker(self) -> WorkerProcess:
        settings = asdict(self.config)
        log_settings = self.config.log_format, self.config.log_level
        return await WorkerProcess.start(self._listener, settings, log_settings, self._environment)

    async def _keep_running(self, slot: int) -> None:
        """Replace the worker whenever it dies, after a wait that grows while new ones die too."""
        backoff_s = MIN_BACKOFF_S
        while True:
            worker, started_at = self.workers[slot], time.monotonic()
            watching = asyncio.create_task(_kill_if_it_hangs(worker))
            code = await worker.wait_ended()
            watching.cancel()
            forget_process(worker.pid)
            if self._is_ending:
                return
            self._metrics.count("worker_deaths_total")
            log(logging.ERROR, "a worker died and is replaced", pid=worker.pid, exit_code=code)
            if time.monotonic() - started_at > STABLE_S:
                backoff_s = MIN_BACKOFF_S
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)
            if not self._is_ending:
                self.workers[slot] = await self._start_worker()


async def _kill_if_it_hangs(worker: WorkerProcess) -> None:
    while True:
        await asyncio.sleep(WATCH_INTERVAL_S)
        if time.monotonic() - worker.seen_at > HANG_TIMEOUT_S:
            log(logging.ERROR, "a worker hangs and is killed", pid=worker.pid)
            worker.kill()


class Supervisor:
    """Runs a gateway until a signal stops it.

    ``read`` reads the configuration again. ``secrets`` are environment variables that workers must
    not have. ``report`` receives sentences for the operator.
    """

    def __init__(
        self,
        config: Config,
        read: Callable[[], Config],
        secrets: Collection[str],
        report: Callable[[str], None],
    ) -> None:
        self.config = config
        self.metrics = Metrics()
        self._read = read
        self._secrets = secrets
        self._report = report
        self._state = "starting"
        self._generations: list[Generation] = []
        self._reloading = asyncio.Lock()
        self._tasks: set[asyncio.Task[object]] = set()
        self._must_stop = asyncio.Event()

    @property
    def state(self) -> str:
        """The state that /ready reports: that of the best worker, or "starting" or "stopping"."""
        if self._state != "serving":
            return self._state
        states = [worker.state for worker in self.workers]
        return READY if READY in states else next(iter(states), "starting")

    @property
    def store(self) -> str:
        """What is wrong with the account store, according to the first worker that says so."""
        return next((one.store for one in self.workers if one.store), "")

    @property
    def workers(self) -> list[WorkerProcess]:
        """The workers that take new requests."""
        return list(self._generations[-1].workers.values()) if self._generations else []

    async def run(self, listener: socket.socket, admin_listener: socket.socket) -> None:
        """Serve until SIGTERM or SIGINT; SIGHUP reads the configuration again."""
        from adacompute.gateway.connection.http_server import HttpServer

        self._listener = listener
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        loop.add_signal_handler(signal.SIGHUP, lambda: self._start_task(self.reload()))
        pages = HttpServer(make_admin_pages(self), admin_listener, handles_signals=False)
        serving = asyncio.create_task(pages.run_until_stopped())
        stopping = asyncio.create_task(self._must_stop.wait())
        starting = asyncio.create_task(self._start_generation(self.config))
        try:
            await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                self._announce(starting.result())
                self._state = "serving"
                await stopping
                self._state = "stopping"
                for generation in self._generations:
                    generation.close_connections()
                await asyncio.sleep(self.config.shutdown_delay_s)
        finally:
            self._state = "stopping"
            starting.cancel()
            await asyncio.wait({starting})
            listener.close()  # the workers close theirs: then connections are refused
            await asyncio.gather(*(one.stop(self.config.drain_s) for one in self._generations))
            pages.stop(0.1)
            await serving
        self._report(_summarize(self.metrics))

    def _stop(self) -> None:
        """Begin to stop; the kernel ends this process in time, whatever it is doing then."""
        if not self._must_stop.is_set():
            limit_s = self.config.shutdown_delay_s + KERNEL_SHARE * self.config.drain_s
            signal.setitimer(signal.ITIMER_REAL, limit_s)
        self._must_stop.set()

    async def reload(self) -> str | None:
        """Replace the workers by ones with a new configuration; return why not, if it is wrong."""
        async with self._reloading:
            if self._state != "serving":
                return f"the gateway is {self._state}"
            try:
                config = await asyncio.to_thread(self._read)
                _check_fixed(self.config, config)
                await self._start_generation(config)
            except AdaComputeError as error:
                self.metrics.count("reloads_total", "rejected")
                log(logging.ERROR, f"the configuration stays as it is: {error}")
                return str(error)
            self.config = config
            self._start_task(self._retire(self._generations[-2]))
            self.metrics.count("reloads_total", "applied")
            log(logging.INFO, "the configuration was read again")
            return None

    async def _start_generation(self, config: Config) -> list[str]:
        generation = Generation(config, self._listener, self._secrets, self.metrics)
        messages = await generation.start()
        self._generations.append(generation)
        return messages

    async def _retire(self, generation: Generation) -> None:
        generation.retire()
        await generation.wait_ended()
        if self._state == "serving":
            self._generations.remove(generation)

    def _start_task(self, work: Coroutine[Any, Any, object]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _announce(self, messages: list[str]) -> None:
        config = self.config
        for message in messages:
            self._report(message)
        names = ", ".join(config.models) or "none"
        host, port = self._listener.getsockname()[:2]
        self._report(f"listening on http://{host}:{port}/v1, deciding for: {names}")


def run(
    config: Config,
    report: Callable[[str], None],
    *,
    read: Callable[[], Config] | None = None,
    secrets: Collection[str] = (),
) -> None:
    """Serve until a signal stops the process; ``read`` reads the configuration again."""
    with needs_extra("serve"):
        from adacompute.gateway.connection.http_server import run_in_fast_loop

    set_up_logging(config.log_format, config.log_level)
    listener = _listen(config.host, config.port)
    admin_listener = _listen(config.admin_host, config.admin_port)
    try:
        shared = tempfile.TemporaryDirectory(prefix="adacompute-metrics-")
    except OSError as error:
        raise ConfigError(
            f"no directory for the metrics can be made in {tempfile.gettempdir()}: "
            f"{error.strerror}; set TMPDIR to one that can be written"
        ) from None
    with shared as directory, listener, admin_listener:
        os.environ[SHARED_DIRECTORY] = directory
        run_in_fast_loop(
            Supervisor(config, read or (lambda: config), secrets, report).run(
                listener, admin_listener
            )
        )


def _listen(host: str, port: int) -> socket.socket:
    """Return a listening socket, or raise ConfigError if the address cannot be listened on."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on port {port} of {host}: {os.strerror(error.errno or 0)}; choose "
            "another with --port"
        ) from None


def _check_fixed(old: Config, new: Config) -> None:
    for name in FIXED_SETTINGS:
        if getattr(old, name) != getattr(new, name):
            raise ConfigError(f"{name} cannot change while the gateway runs: start it again")


def _summarize(metrics: Metrics) -> str:
    """Say what a gateway that stops has served."""
    n_requests, n_samples = (
        int(metrics.total(name) or 0) for name in ("requests_total", "samples_total")
    )
    cost = metrics.total("cost_total")
    known = "unknown without token prices" if cost is None else f"{cost:.6g}"
    return f"stopped: {n_requests} requests, {n_samples} samples, cost {known}"
