"""Paid commands: what random runs need to start commands, and on Ray to kill their workers.

The commands have a cache and a state of their own. Ray is one cluster of this machine for all runs
of a context, with a token of its own; it ends with the context. This module does not know what is
paid.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from test_support.forked import ForkedCommands, fork_commands
from test_support.gateways import process_tree


@dataclass(frozen=True)
class PaidCommands:
    """What runs commands: forked processes, and a Ray cluster with its first process if needed."""

    forked: ForkedCommands
    ray_address: str | None = None
    ray_pid: int = 0


@contextmanager
def open_commands(folder: Path, *, with_ray: bool = False) -> Iterator[PaidCommands]:
    """Be ready to run commands, with a cache of their own; Ray is for all runs of the context."""
    own = {"XDG_CACHE_HOME": str(folder / "cache"), "XDG_STATE_HOME": str(folder / "state")}
    if with_ray:  # only these commands may connect to this cluster, and they to no other
        own |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    before = {name: os.environ.get(name) for name in own}
    os.environ |= own
    try:
        with fork_commands(with_ray=with_ray) as forked:
            if not with_ray:
                yield PaidCommands(forked)
                return
            with _start_ray(folder) as (address, pid):
                yield PaidCommands(forked, address, pid)
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


SITE = """import sys
if any("default_worker" in word for word in sys.orig_argv):
    from test_support.forked import shorten_waits
    shorten_waits()
"""
"""What Python runs when it starts: it shortens waits of Ray's workers as those of commands."""


@contextmanager
def _start_ray(folder: Path) -> Iterator[tuple[str, int]]:
    """Start Ray in a process of its own; yield its address and that process."""
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(SITE)
    paths = os.pathsep.join([str(folder / "site"), *filter(None, sys.path)])
    code = (
        "import sys; from adacompute.batch.ray.cluster import connect\n"
        "with connect(n_cpus=2):\n"
        "    import ray\n"
        "    print(ray.get_runtime_context().gcs_address, file=sys.__stdout__, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address, "Ray did not start"
        yield address, process.pid
    finally:
        tree = process_tree(process.pid)
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=30)
        for pid in tree:
            if pid == process.pid or _read_command(pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        process.wait(10)


def kill_workers(commands: PaidCommands) -> None:
    """Kill the workers of Ray Data, which sample, with signal 9; Ray replaces them."""
    for pid in process_tree(commands.ray_pid):
        if b"MapWorker" in _read_command(pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _read_command(pid: int) -> bytes:
    """Return the name under which a process runs; nothing if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0]
    except (FileNotFoundError, ProcessLookupError):
        return b""
