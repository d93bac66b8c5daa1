"""Ledger: every paid sample, stored in SQLite while samples are being collected.

A sample is keyed by (question, arm, sample number). An arm is a name with a model, a prompt
template and settings. A sample is durable before it counts as done and is never stored twice; a
score can be added to it later, once. Several processes may collect into one ledger: each claims
questions before it samples them, and its claims end when it exits or stops sending heartbeats. The
ledger knows nothing of models or prices: costs are integers given to it.
"""

from __future__ import annotations

import json
import operator
import os
import socket
import sqlite3
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from adacompute.core.errors import DataError

FORMAT = 2
HEARTBEAT_TIMEOUT_S = 60.0
"""An owner on another machine without a heartbeat for this long is considered dead."""

SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS arms (
  arm_id INTEGER PRIMARY KEY, arm TEXT NOT NULL, model TEXT NOT NULL, template TEXT NOT NULL,
  settings TEXT NOT NULL, UNIQUE (arm, model, template, settings));
CREATE TABLE IF NOT EXISTS samples (
  question TEXT NOT NULL, arm_id INTEGER NOT NULL, sample INTEGER NOT NULL,
  text TEXT NOT NULL, finish_reason TEXT, prompt_tokens INTEGER, cached_tokens INTEGER NOT NULL,
  completion_tokens INTEGER, reasoning_tokens INTEGER NOT NULL, mean_logprob REAL,
  is_estimated INTEGER NOT NULL, latency_s REAL NOT NULL, samples_per_call INTEGER NOT NULL,
  cost INTEGER NOT NULL, score REAL, entropy REAL, top_logprobs INTEGER,
  min_logprob_window REAL, token_logprobs BLOB,
  PRIMARY KEY (question, arm_id, sample)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS owners (
  owner TEXT PRIMARY KEY, host TEXT NOT NULL, pid INTEGER NOT NULL, heartbeat REAL NOT NULL)
  WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS claims (
  question TEXT NOT NULL, arm_id INTEGER NOT NULL, owner TEXT NOT NULL,
  PRIMARY KEY (question, arm_id)) WITHOUT ROWID;
"""

ADDED_COLUMNS = {
    "entropy": "REAL",
    "top_logprobs": "INTEGER",
    "min_logprob_window": "REAL",
    "token_logprobs": "BLOB",
}
"""Columns of samples that older ledgers of the same format lack, and their types."""


@dataclass(frozen=True)
class StoredSample:
    """One finished sample as stored; fields from ``text`` on are those of the model's sample."""

    question: str
    arm_id: int
    sample: int
    text: str
    finish_reason: str | None
    prompt_tokens: int | None
    cached_tokens: int
    completion_tokens: int | None
    reasoning_tokens: int
    mean_logprob: float | None
    is_estimated: bool
    latency_s: float
    samples_per_call: int
    cost: int
    score: float | None = None
    entropy: float | None = None
    top_logprobs: int | None = None
    min_logprob_window: float | None = None
    token_logprobs: bytes | None = None


_COLUMNS = tuple(f.name for f in fields(StoredSample))
_values = operator.attrgetter(*_COLUMNS)
_INSERT = (
    f"INSERT INTO samples ({', '.join(_COLUMNS)}) "  # noqa: S608 - our own names
    f"VALUES ({', '.join('?' * len(_COLUMNS))}) "
    "ON CONFLICT (question, arm_id, sample) "
    "DO UPDATE SET score = excluded.score, cost = excluded.cost "
    "WHERE score IS NULL AND excluded.score IS NOT NULL AND text = excluded.text"
)


@dataclass
class Ledger:
    """An open ledger; use it from one thread at a time."""

    path: Path
    owner: str = field(
        default_factory=lambda: f"{socket.gethostname()}:{os.getpid()}:{time.time_ns()}"
    )

    def __post_init__(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._db = sqlite3.connect(
                self.path, timeout=60.0, isolation_level=None, check_same_thread=False
            )
            self._db.execute("PRAGMA journal_mode = WAL")
            # WAL in NORMAL mode survives the end of the process at any moment, kill -9 included;
            # FULL also survives a power cut. Samples cost money, so use FULL.
            self._db.execute("PRAGMA synchronous = FULL")
            version = self._read_format()
            if version == str(FORMAT):
                self._db.executescript(SCHEMA)
                self._add_columns()
                self._db.execute("INSERT OR IGNORE INTO meta VALUES ('format', ?)", (version,))
        except sqlite3.DatabaseError as error:
            raise DataError(f"{self.path} cannot be used as a ledger: {error}") from None
        if version != str(FORMAT):
            raise DataError(
                f"{self.path} has ledger format {version}, and this version reads {FORMAT}: "
                "collect into a new run directory, or use the version that wrote it"
            )
        self.heartbeat()

    def _add_columns(self) -> None:
        """Add columns that a ledger of the same format may lack: its samples were paid for."""
        known = {row[1] for row in self._db.execute("PRAGMA table_info(samples)")}
        for name, kind in ADDED_COLUMNS.items():
            if name not in known:
                self._db.execute(f"ALTER TABLE samples ADD COLUMN {name} {kind}")

    def _read_format(self) -> str:
        """Format of the open file; a new file has the current one."""
        has_meta = self._db.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone()
        if has_meta is None:
            return str(FORMAT)
        row = self._db.execute("SELECT value FROM meta WHERE name = 'format'").fetchone()
        return str(FORMAT) if row is None else str(row[0])

    def close(self) -> None:
        """Release all claims and close the file."""
        with self._transaction():
            self._db.execute("DELETE FROM claims WHERE owner = ?", (self.owner,))
            self._db.execute("DELETE FROM owners WHERE owner = ?", (self.owner,))
        self._db.close()

    def heartbeat(self) -> None:
        """Record that this process is alive, so that others respect its claims."""
        self._db.execute(
            "INSERT OR REPLACE INTO owners VALUES (?, ?, ?, ?)",
            (self.owner, socket.gethostname(), os.getpid(), time.time()),
        )

    def _transaction(self) -> _Transaction:
        return _Transaction(self._db)

    def register_arm(self, *, arm: str, model: str, template: str, settings: str) -> int:
        """Id of an arm; a new one gets the next id."""
        key = (arm, model, template, settings)
        self._db.execute(
            "INSERT OR IGNORE INTO arms (arm, model, template, settings) VALUES (?, ?, ?, ?)", key
        )
        (arm_id,) = self._db.execute(
            "SELECT arm_id FROM arms WHERE arm = ? AND model = ? AND template = ? AND settings = ?",
            key,
        ).fetchone()
        return int(arm_id)

    def arms(self, *, sampled_only: bool = False) -> dict[int, dict[str, str]]:
        """All arms by id, or only those with samples."""
        rows = self._db.execute(
            "SELECT arm_id, arm, model, template, settings FROM arms "
            "WHERE NOT ? OR EXISTS (SELECT 1 FROM samples WHERE samples.arm_id = arms.arm_id)",
            (sampled_only,),
        )
        return {
            arm_id: {"arm": arm, "model": model, "template": template, "settings": settings}
            for arm_id, arm, model, template, settings in rows
        }

    def claim(
        self, questions: Sequence[str], arm_id: int, n_samples: int, *, scored: bool = False
    ) -> dict[str, list[int]]:
        """Claim the questions that have fewer than ``n_samples`` and no other live owner.

        Returns the missing sample numbers of each claimed question. With ``scored``, samples
        without a score count as missing too.
        """
        with self._transaction():
            self._remove_dead_owners()
            missing: dict[str, list[int]] = {}
            for question in questions:
                stored = {
                    number
                    for (number,) in self._db.execute(
                        "SELECT sample FROM samples "
                        "WHERE question = ? AND arm_id = ? AND sample < ? "
                        "AND (score IS NOT NULL OR NOT ?)",
                        (question, arm_id, n_samples, scored),
                    )
                }
                if len(stored) == n_samples:
                    continue
                claimed = self._db.execute(
                    "INSERT OR IGNORE INTO claims VALUES (?, ?, ?)", (question, arm_id, self.owner)
                )
                if claimed.rowcount or self._is_owner(question, arm_id):
                    missing[question] = [i for i in range(n_samples) if i not in stored]
            return missing

    def _is_owner(self, question: str, arm_id: int) -> bool:
        row = self._db.execute(
            "SELECT owner FROM claims WHERE question = ? AND arm_id = ?", (question, arm_id)
        ).fetchone()
        return row is not None and row[0] == self.owner

    def _remove_dead_owners(self) -> None:
        """Delete the claims of processes that no longer run."""
        this_host, now = socket.gethostname(), time.time()
        for owner, host, pid, heartbeat in self._db.execute("SELECT * FROM owners").fetchall():
            if owner == self.owner:
                continue
            is_dead = (
                not Path(f"/proc/{pid}").exists()
                if host == this_host
                else now - heartbeat > HEARTBEAT_TIMEOUT_S
            )
            if is_dead:
                self._db.execute("DELETE FROM claims WHERE owner = ?", (owner,))
                self._db.execute("DELETE FROM owners WHERE owner = ?", (owner,))

    def record(self, samples: Sequence[StoredSample]) -> int:
        """Store samples durably and return how many were new.

        A stored sample without a score takes the score and cost of a repeated one that has it.
        """
        rows = [_values(sample) for sample in samples]
        try:
            with self._transaction():
                before = self._db.total_changes
                self._db.executemany(_INSERT, rows)
                return self._db.total_changes - before
        except sqlite3.Error as error:
            raise DataError(f"{self.path} cannot be written: {error}") from None

    def release(self, questions: Sequence[str], arm_id: int) -> None:
        """Release the claims of these questions."""
        with self._transaction():
            self._db.executemany(
                "DELETE FROM claims WHERE question = ? AND arm_id = ? AND owner = ?",
                [(question, arm_id, self.owner) for question in questions],
            )

    def count(self, questions: Sequence[str], arm_id: int, *, below: int) -> tuple[int, int]:
        """Count these questions' samples with a number below ``below``, and those with a score."""
        n_samples, n_scored = self._db.execute(
            "SELECT COUNT(*), COUNT(score) FROM json_each(?) JOIN samples ON question = value "
            "WHERE arm_id = ? AND sample < ?",
            (json.dumps(list(questions)), arm_id, below),
        ).fetchone()
        return int(n_samples), int(n_scored)

    def totals(self) -> dict[str, int]:
        """Tokens and cost of all samples."""
        names = ("prompt_tokens", "completion_tokens", "reasoning_tokens", "cost")
        sums = ", ".join(f"COALESCE(SUM({name}), 0)" for name in names)
        row = self._db.execute(f"SELECT {sums} FROM samples").fetchone()  # noqa: S608
        return dict(zip(names, row, strict=True))

    def samples(self, *arm_ids: int) -> Iterator[StoredSample]:
        """All samples of these arms, by question, arm id and sample number."""
        places = ", ".join("?" * len(arm_ids))
        where = f"arm_id IN ({places}) ORDER BY question, arm_id, sample"
        return self._select(where, *arm_ids)

    def unscored(self, question: str, arm_id: int) -> dict[int, StoredSample]:
        """Samples of a question without a score, by sample number."""
        where = "question = ? AND arm_id = ? AND score IS NULL"
        return {stored.sample: stored for stored in self._select(where, question, arm_id)}

    def _select(self, where: str, *values: object) -> Iterator[StoredSample]:
        query = f"SELECT {', '.join(_COLUMNS)} FROM samples WHERE {where}"  # noqa: S608
        for row in self._db.execute(query, values):
            columns: dict[str, Any] = dict(zip(_COLUMNS, row, strict=True))
            yield StoredSample(**columns | {"is_estimated": bool(columns["is_estimated"])})


@dataclass(frozen=True)
class _Transaction:
    """An atomic write that waits for other writers."""

    db: sqlite3.Connection

    def __enter__(self) -> None:
        self.db.execute("BEGIN IMMEDIATE")

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        self.db.execute("ROLLBACK" if error else "COMMIT")
