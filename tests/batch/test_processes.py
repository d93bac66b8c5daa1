"""Tasks on processes: every result comes once, and failures are said."""

from __future__ import annotations

import os

import pytest

from adacompute.batch.processes import WorkerProcesses, count_workers
from adacompute.core.errors import AdaComputeError, ConfigError, DataError


def double(number: int) -> int:
    return 2 * number


def where(_: int) -> int:
    return os.getpid()


def die(_: int) -> None:
    os._exit(9)


def refuse(number: int) -> None:
    raise DataError(f"no {number}")


def test_results_come_with_their_tasks_and_processes_are_kept() -> None:
    tasks = list(range(20))
    with WorkerProcesses(2) as processes:
        assert dict(processes.run(double, tasks)) == {task: 2 * task for task in tasks}
        first = {pid for _, pid in processes.run(where, tasks)}
        again = {pid for _, pid in processes.run(where, tasks)}
        assert os.getpid() not in first
        assert len(first | again) <= 2
        with pytest.raises(DataError, match="no"):
            list(processes.run(refuse, tasks))
        with pytest.raises(AdaComputeError, match="died"):
            list(processes.run(die, tasks))


def test_one_task_or_one_worker_needs_no_process() -> None:
    with WorkerProcesses(1) as processes:
        assert {pid for _, pid in processes.run(where, [1, 2, 3])} == {os.getpid()}
    with WorkerProcesses(2) as processes:
        assert {pid for _, pid in processes.run(where, [1])} == {os.getpid()}
        assert list(processes.run(where, [])) == []


def test_workers_are_counted() -> None:
    assert count_workers(None) >= 1
    assert count_workers(3) == 3
    with pytest.raises(ConfigError):
        count_workers(0)
