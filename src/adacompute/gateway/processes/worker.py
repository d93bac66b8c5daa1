"""Worker: one process that serves requests, started and stopped by the supervisor.

It receives its configuration over a socket, so that no secret is in its environment, loads the
policies, and serves on a listening socket that all workers share. Over the same socket it reports
its state, answers pings from its serving loop, and receives the command to stop. When the
supervisor is gone, it stops. It is run by ``python -m adacompute.gateway.processes.worker CHANNEL
LISTENER LOG_FORMAT LOG_LEVEL``; the first two are file descriptors.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import socket
import sys
from collections.abc import Mapping
from typing import Any

from adacompute.core.errors import AdaComputeError
from adacompute.gateway.app import Application, build
from adacompute.gateway.connection.http_server import HttpServer, run_in_fast_loop
from adacompute.gateway.forwarding.probing import PROBE_SAMPLES, needs_probe
from adacompute.gateway.processes.logs import set_up_logging
from adacompute.gateway.settings.config import make_config
from adacompute.gateway.voting.model_loading import describe_verdict, load_models

LOG = logging.getLogger("adacompute.gateway.processes.worker")
STATE_INTERVAL_S = 0.5
MAX_MESSAGE_BYTES = 64_000_000
"""A configuration may have many models."""

GC_THRESHOLDS = (10_000, 20, 20)
"""Ten times as many new objects before a collection as by default: requests leave few cycles."""

LINGER_S, STOP_LINGER_S = 5.0, 1.0
"""Time for which idle connections stay open when a new configuration replaces the worker's, and
when the gateway stops."""


class Channel:
    """Messages between a worker and its supervisor, one JSON object per line."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, end: socket.socket) -> Channel:
        """Use one end of a pair of sockets."""
        return cls(*await asyncio.open_unix_connection(sock=end, limit=MAX_MESSAGE_BYTES))

    def send(self, **message: object) -> None:
        """Send a message; one to a process that has ended is dropped."""
        if not self._writer.is_closing():
            self._writer.write(json.dumps(message).encode() + b"\n")

    async def receive(self) -> dict[str, Any] | None:
        """Wait for a message; None when the other process has ended."""
        try:
            line = await self._reader.readline()
        except ConnectionError:
            return None
        found: dict[str, Any] | None = json.loads(line) if line.endswith(b"\n") else None
        return found

    def close(self) -> None:
        """Close this end."""
        self._writer.close()


class Worker:
    """Serves one application, and talks to the supervisor meanwhile."""

    def __init__(self, channel: Channel, application: Application, listener: socket.socket) -> None:
        self._channel = channel
        self._gateway = application.gateway
        self._server = HttpServer(application, listener, on_started=self._report_start)

    async def run(self) -> None:
        """Serve until the supervisor, its end, or a signal stops the worker."""
        tasks = [asyncio.create_task(self._obey()), asyncio.create_task(self._report_state())]
        try:
            await self._server.run_until_stopped()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def _report_start(self) -> None:
        self._channel.send(event="started", **self._state())

    async def _report_state(self) -> None:
        while True:
            await asyncio.sleep(STATE_INTERVAL_S)
            self._gateway.account.metrics.flush()
            self._channel.send(event="state", **self._state())

    def _state(self) -> dict[str, object]:
        """What the supervisor shows of this worker."""
        gateway = self._gateway
        return {"state": gateway.state, "store": gateway.store}

    async def _obey(self) -> None:
        """Answer pings, and stop on command."""
        while (message := await self._channel.receive()) is not None:
            match message["command"]:
                case "ping":
                    self._gateway.account.metrics.flush()
                    self._channel.send(event="pong", **self._state())
                case "close":  # the gateway will stop: clients should connect to another
                    self._gateway.connection_limits.is_closing = True
                    self._server.close_after_replies()
                case "retire":  # a new configuration: what has begun ends, however long it takes
                    self._gateway.connection_limits.idle_linger_s = LINGER_S
                    self._server.stop(None)
                case "stop":
                    self._stop(message["timeout_s"])
        self._stop(self._gateway.config.drain_s)

    def _stop(self, timeout_s: float) -> None:
        self._gateway.connection_limits.is_closing = True
        self._gateway.connection_limits.idle_linger_s = min(STOP_LINGER_S, timeout_s / 2)
        self._server.stop(timeout_s)


def build_application(settings: Mapping[str, Any]) -> tuple[Application, list[str]]:
    """Make the application of a worker, and what the operator should know of it."""
    config = make_config(settings)
    models = load_models(config)
    messages = [
        sentence
        for name, virtual in models.items()
        if (sentence := describe_verdict(name, virtual)) is not None
    ]
    sampled = [one for virtual in models.values() for one in virtual.upstream_models.values()]
    if config.probe and any(needs_probe(one.capabilities) for one in sampled):
        messages.append("probing the upstream in the background: until then, each sample is a call")
        messages += [
            f"the probe counts against the cap of {cap.amount:g} samples, and draws about "
            f"{PROBE_SAMPLES}: set a larger cap, or probe = false"
            for cap in config.caps
            if (cap.model, cap.unit) == (None, "samples") and cap.amount < 10 * PROBE_SAMPLES
        ]
    register = config.open_register()
    application = build(config, models, register=register, has_operator_pages=False)
    return application, messages


async def _run(channel_fd: int, listener_fd: int) -> None:
    channel = await Channel.open(socket.socket(fileno=channel_fd))
    settings = await channel.receive()
    if settings is None:
        return
    try:
        application, messages = build_application(settings)
    except (AdaComputeError, OSError) as error:
        channel.send(event="failed", message=_describe(error))
        channel.close()
        return
    channel.send(event="loaded", messages=messages)
    gc.collect()
    gc.freeze()  # modules and policies stay: no collection needs to look at them again
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        await Worker(channel, application, socket.socket(fileno=listener_fd)).run()
    except BaseException:  # the supervisor kills the process as soon as the channel is closed
        LOG.exception("a worker failed")
        raise


def _describe(error: AdaComputeError | OSError) -> str:
    """Say in one sentence why a worker cannot start."""
    if isinstance(error, OSError):
        return f"{error.filename or 'a file'} cannot be used: {error.strerror}"
    return str(error)


def main() -> None:
    """Run a worker with the file descriptors and the log settings of its arguments."""
    set_up_logging(*sys.argv[3:5])
    os.setpgrp()  # the supervisor ends this process and its children together
    run_in_fast_loop(_run(int(sys.argv[1]), int(sys.argv[2])))


if __name__ == "__main__":
    main()
