"""Processes: run tasks on all cores of one machine.

Processes are started when the first tasks come and are kept for later ones. Results come as tasks
finish, in any order. A single task, or all tasks with one worker, run in this process. The module
does not know what the tasks are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Self, TypeVar

from adacompute.core.errors import AdaComputeError, ConfigError

POLL_S = 0.5
"""Time between two reports about running tasks."""

Task = TypeVar("Task")
Result = TypeVar("Result")


def count_workers(workers: int | None) -> int:
    """Return the number of processes, by default one per core that this process may use."""
    if workers is None:
        return len(os.sched_getaffinity(0))
    if workers < 1:
        raise ConfigError(f"workers must be at least 1, got {workers}")
    return workers


class WorkerProcesses:
    """A pool of processes; used as a context, it ends them."""

    def __init__(self, workers: int | None = None) -> None:
        self.n_workers = count_workers(workers)
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def run(
        self,
        function: Callable[[Task], Result],
        tasks: Sequence[Task],
        on_wait: Callable[[Iterable[Task]], None] = lambda _: None,
    ) -> Iterator[tuple[Task, Result]]:
        """Yield each task and its result; ``on_wait`` sees the running tasks now and then."""
        if self.n_workers == 1 or len(tasks) < 2:  # noqa: PLR2004 - a process would only cost time
            for task in tasks:
                yield task, function(task)
            return
        if self._pool is None:
            self._pool = ProcessPoolExecutor(self.n_workers, mp_context=get_context("spawn"))
        try:
            yield from self._run(self._pool, function, tasks, on_wait)
        except BrokenProcessPool:
            raise AdaComputeError(
                "a worker process died: run the same command again, what is finished is kept"
            ) from None

    def _run(
        self,
        pool: ProcessPoolExecutor,
        function: Callable[[Task], Result],
        tasks: Sequence[Task],
        on_wait: Callable[[Iterable[Task]], None],
    ) -> Iterator[tuple[Task, Result]]:
        """Keep a few tasks more than workers in the pool, so that it ends soon after an error."""
        waiting, running = iter(tasks), dict[Future[Result], Task]()
        while True:
            while len(running) <= self.n_workers and (task := next(waiting, None)) is not None:
                running[pool.submit(function, task)] = task
            if not running:
                return
            done, _ = wait(running, timeout=POLL_S, return_when=FIRST_COMPLETED)
            for future in done:
                yield running.pop(future), future.result()
            on_wait(running.values())
