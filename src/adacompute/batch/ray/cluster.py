"""Ray cluster: the one place that imports Ray.

It starts Ray on this machine, reachable from this machine only, or connects to a cluster by its
address. The numbers of tasks are the rows of a Ray Dataset and actors are its map stage, so Ray
distributes them, grows the pool of actors, and gives the tasks of lost workers and nodes to others.
Everything that must survive is in files, not in Ray. This module does not know what the tasks are.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from typing import Any, Protocol

from adacompute.core.errors import AdaComputeError, ConfigError, needs_extra

LOOPBACK = "127.0.0.1"
SETTINGS = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""Variables that keep a local Ray on the loopback interface, and from reporting its use."""

CONNECT_S = 10.0
"""How long a cluster may take to accept a connection."""

START_TRIES = 3
"""How often Ray is started on this machine: it gives up after 30 s, too few on a busy machine."""

SCALING: dict[str, Any] = {"actor_pool_util_upscaling_threshold": 1.0}
"""Start another actor as soon as all are busy: tasks are few and long. By default an actor queues
several tasks before another one is started."""

TASK, RESULT = "task", "result"
"""Columns of the dataset."""


@contextmanager
def connect(address: str | None = None, *, n_cpus: int | None = None) -> Iterator[None]:
    """Connect to Ray while the context lasts; a connection that is open already is used.

    Without an address, Ray is started on this machine with ``n_cpus`` cores.
    """
    if address is None:
        for name, value in SETTINGS.items():
            os.environ.setdefault(name, value)
    with needs_extra("ray"):
        import ray
    if ray.is_initialized():
        yield
        return
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:
        options |= {"address": "local", "num_cpus": n_cpus, "include_dashboard": False}
        options["_node_ip_address"] = LOOPBACK
    else:
        _check_reachable(address)
        options["address"] = address
    for tries_left in reversed(range(START_TRIES)):
        try:
            ray.init(**options)
            break
        except ConnectionError as error:
            raise AdaComputeError(f"there is no Ray cluster at {address}: {error}") from None
        except BaseException as error:
            is_slow = type(error) is Exception  # a start of more than 30 s has no class of its own
            if is_slow and tries_left:
                ray.shutdown()
                continue
            if is_slow:
                raise AdaComputeError(f"Ray did not start, try again: {error}") from None
            raise
    with redirect_stdout(sys.stderr):  # Ray prints that workers died, and that is no result
        try:
            if address is None:
                _check_loopback(ray.nodes())  # type: ignore[no-untyped-call]
            yield
        finally:
            ray.shutdown()


def _check_reachable(address: str) -> None:
    """Raise an error if nothing listens at an address: Ray itself would wait for minutes."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host or not port.isdecimal():
        return  # "auto", or an address that Ray checks itself
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_S).close()
    except OSError as error:
        raise AdaComputeError(f"there is no Ray cluster at {address}: {error}") from None


def _check_loopback(nodes: list[dict[str, Any]]) -> None:
    """Refuse a local Ray that other machines can reach."""
    for node in nodes:
        if node["NodeManagerAddress"] != LOOPBACK:
            raise ConfigError(
                f"Ray listens on {node['NodeManagerAddress']}, because it was imported before: set "
                "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0 in the environment"
            )


def count_cpus() -> int:
    """Return the number of cores of the cluster."""
    import ray

    resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return max(1, int(resources.get("CPU", 1)))


class TaskWorker(Protocol):
    """Runs tasks by their number, in an actor."""

    def __call__(self, number: int) -> str:
        """Run one task, and return its result."""


def map_tasks(
    worker: Callable[..., TaskWorker],
    arguments: Mapping[str, Any],
    *,
    n_tasks: int,
    max_workers: int,
) -> Iterator[tuple[int, str]]:
    """Run tasks on a pool of actors; yield their numbers and results as they finish.

    Each actor makes one worker, with the arguments. A task whose actor is lost is run again, so a
    task may run twice.
    """
    import ray
    import ray.data

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.execution_options.preserve_order = False
    context.raise_original_map_exception = True
    context.autoscaling_config = replace(context.autoscaling_config, **SCALING)
    rows = [{TASK: number} for number in range(n_tasks)]
    results = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
        _Actor,
        batch_size=1,
        fn_constructor_kwargs={"worker": worker, "arguments": dict(arguments)},
        compute=ray.data.ActorPoolStrategy(
            min_size=1, max_size=max_workers, max_tasks_in_flight_per_actor=1
        ),
        num_cpus=1,
    )
    try:
        for row in results.iter_rows():
            yield row[TASK], row[RESULT]
    except ray.exceptions.RayError as error:
        raise _find_cause(error) from None


class _Actor:
    """Makes a worker, and calls it with each task of a batch."""

    def __init__(self, worker: Callable[..., TaskWorker], arguments: Mapping[str, Any]) -> None:
        self.worker = worker(**arguments)

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, list[Any]]:
        numbers = [int(number) for number in batch[TASK]]
        return {TASK: numbers, RESULT: [self.worker(number) for number in numbers]}


def _find_cause(error: BaseException) -> AdaComputeError:
    """Return our own error behind one of Ray, or one that names the failure."""
    seen: BaseException | None = error
    while seen is not None:
        cause = getattr(seen, "cause", None) or seen.__cause__
        if isinstance(cause, AdaComputeError):
            return cause
        seen = cause if isinstance(cause, BaseException) else None
    last = str(error).strip().splitlines()
    return AdaComputeError(f"Ray failed: {last[-1] if last else type(error).__name__}")
