"""Calls: an append-only file of every call to an upstream, and the account of what they cost.

A call has two rows: one when it starts, with an upper bound of what it can use, and one when it
ends, with what it used. Each row is one line of JSON, written by one system call and not synced, so
it survives the death of the process but not of the machine. A call without a second row, because
its process was killed or because it is still under way, is charged its bound and flagged. Each
process appends to files of its own; old ones are deleted by age and total size. This module knows
nothing of requests, models or prices.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adacompute.core.errors import DataError

FORMAT = 1
"""Version of the rows; it is in the name of every file."""

FILES = f"calls-{FORMAT}-*.jsonl"
TOKENS = ("prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens")
"""Counts of a call's last row; its first row has bounds of the first two."""

START_COLUMNS: Mapping[str, str] = {
    "call": "id of the call, in both of its rows",
    "request": "``x-request-id`` of the client's request, if it sent one",
    "model": "virtual model; ``-`` if there is none",
    "upstream_model": "the upstream's name of the model",
    "path": "path of the call",
    "purpose": "``vote``, ``forward``, ``probe`` or ``scorer``",
    "attempt": "number of the attempt, from 1",
    "started_at": "when the call started, in seconds since 1970",
    "max_prompt_tokens": "upper bound of its prompt tokens",
    "max_completion_tokens": "upper bound of its completion tokens",
    "max_cost": "upper bound of its cost; null without token prices",
}
"""Meaning of the members of a call's first row."""

END_COLUMNS: Mapping[str, str] = {
    "call": "id of the call, in both of its rows",
    "ended_at": "when the call ended, in seconds since 1970",
    "prompt_tokens": "prompt tokens that it is charged",
    "completion_tokens": "completion tokens that it is charged",
    "cached_tokens": "prompt tokens that were cached",
    "reasoning_tokens": "hidden tokens, part of ``completion_tokens``",
    "is_estimated": "whether it is charged its upper bound, because no usage arrived",
    "cost": "money that it is charged; null without token prices",
}
"""Meaning of the members of a call's last row."""

LOST = ("call_rows", "decisions")
"""What a row of losses counts: rows of this account and decisions that could not be written."""

REOPEN_S = 1.0
"""Pause before a file that could not be opened or written is tried again."""

DAY_S = 86_400.0
_ENCODE = json.JSONEncoder(ensure_ascii=True, separators=(",", ":")).encode


@dataclass
class CallFile:
    """The file that one process appends to; use it from one thread.

    Nothing is opened before the first row, and no failure is raised: ``append`` returns whether the
    row was written.
    """

    directory: Path
    rotate_bytes: int = 64_000_000
    keep_days: float = 90.0
    keep_bytes: int = 10_000_000_000
    _descriptor: int = field(default=-1, repr=False)
    _size: int = field(default=0, repr=False)
    _is_torn: bool = field(default=False, repr=False)
    _retry_at: float = field(default=0.0, repr=False)

    def append(self, row: Mapping[str, Any]) -> bool:
        """Write a row; False if it is lost, because the disk is full or cannot be written."""
        return self.append_text(_ENCODE(row))

    def append_text(self, row: str) -> bool:
        """Write a row that is already JSON, which must have no line breaks."""
        if self._descriptor < 0 and time.monotonic() < self._retry_at:
            return False
        line = f"{row}\n".encode()
        line = b"\n" + line if self._is_torn else line  # end the line that a full disk cut off
        try:
            if self._descriptor < 0:
                self._open()
            n_written = os.write(self._descriptor, line)
        except OSError:
            self._retry_at = time.monotonic() + REOPEN_S
            return False
        self._size += n_written
        self._is_torn = n_written < len(line)
        if self._size >= self.rotate_bytes:
            self.close()
        return not self._is_torn

    def close(self) -> None:
        """Close the file; the next row starts a new one."""
        if self._descriptor >= 0:
            with suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = -1

    def _open(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        name = FILES.replace("*", f"{time.time_ns()}-{os.getpid()}")
        flags = os.O_APPEND | os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC
        self._descriptor = os.open(self.directory / name, flags, 0o600)
        self._size, self._is_torn = 0, False
        with suppress(OSError):  # another process deletes the same files
            self._apply_retention()

    def _apply_retention(self) -> None:
        """Delete the oldest files until all are within ``keep_days`` and ``keep_bytes``."""
        files = [(path, path.stat()) for path in self.directory.glob(FILES)]
        size = sum(status.st_size for _, status in files)
        for path, status in sorted(files, key=lambda one: one[1].st_mtime)[:-1]:
            is_old = time.time() - status.st_mtime >= self.keep_days * DAY_S
            if not is_old and size <= self.keep_bytes:
                break
            size -= status.st_size
            path.unlink()


def default_state(port: int | str) -> Path:
    """Directory of what a gateway keeps, by its port, if no other is configured."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")  # noqa: PTH111 - it does not fail without a home
    return Path(state) / "adacompute" / str(port)


def find_accounts() -> list[Path]:
    """Return the default directories in which gateways have recorded calls."""
    return sorted({path.parent for path in default_state("").glob(f"*/{FILES}")})


def read_calls(directory: Path, lost: Counter[str] | None = None) -> Iterator[dict[str, Any]]:
    """Yield every call of an account, with what it is charged; ``is_estimated`` flags bounds.

    Calls that have ended come first. Memory is needed only for those that have not. ``lost`` counts
    what could not be written.
    """
    started: dict[str, dict[str, Any]] = {}
    for row in _rows(directory):
        if "call" not in row:
            if lost is not None:
                lost.update(_read_lost(row["lost"]))
        elif "started_at" in row:
            started[row["call"]] = row
        else:
            yield _settle(started.pop(row["call"], {}), row)
    for row in started.values():
        yield _settle(row, {"is_estimated": True})


def sum_calls(calls: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Sum calls by upstream model and purpose.

    ``estimated_…`` is the part of a sum that is a bound. ``cost`` adds up the calls that have one;
    ``unpriced_calls`` is the number of the others.
    """
    sums: dict[tuple[str, str], Counter[str]] = {}
    costs: dict[tuple[str, str], list[float]] = {}
    for call in calls:
        group = str(call.get("upstream_model") or "-"), str(call.get("purpose") or "-")
        total = sums.setdefault(group, Counter())
        total["calls"] += 1
        total["unpriced_calls"] += call["cost"] is None
        costs.setdefault(group, []).append(call["cost"] or 0.0)
        for name in TOKENS:
            total[name] += call[name]
        if call["is_estimated"]:
            total["estimated_calls"] += 1
            for name in TOKENS[:2]:
                total[f"estimated_{name}"] += call[name]
    names = ("calls", "estimated_calls", "unpriced_calls", *TOKENS)
    bounds = tuple(f"estimated_{name}" for name in TOKENS[:2])
    return [
        {
            **dict(zip(("upstream_model", "purpose"), group, strict=True)),
            **{name: sums[group][name] for name in (*names, *bounds)},
            "cost": math.fsum(costs[group]),
        }
        for group in sorted(sums)
    ]


def _rows(directory: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of all files, oldest file first; a line that was cut off is skipped."""
    files = sorted(directory.glob(FILES))
    if not files:
        raise DataError(f"{directory} holds no calls: is it the directory of a gateway's account?")
    for path in files:
        with path.open("rb") as file:
            for line in file:
                try:
                    row = json.loads(line)
                except ValueError:
                    continue
                if isinstance(row, dict) and ("call" in row or "lost" in row):
                    yield row


def _read_lost(value: object) -> dict[str, int]:
    """Return the counts of a row of losses; what is none is skipped."""
    found = value if isinstance(value, dict) else {}
    return {name: found[name] for name in LOST if isinstance(found.get(name), int)}


def _settle(start: Mapping[str, Any], end: Mapping[str, Any]) -> dict[str, Any]:
    """Combine the rows of a call; what the last row does not say is charged at its bound."""
    call = {name: value for name, value in start.items() if not name.startswith("max_")}
    call.update(end)
    call.setdefault("is_estimated", False)
    for name in TOKENS:
        call.setdefault(name, start.get(f"max_{name}", 0))
    call.setdefault("cost", start.get("max_cost"))
    return call
