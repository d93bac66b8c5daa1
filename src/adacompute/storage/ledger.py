"""Ledger: every sample that was paid for, in SQLite, while they are being collected.

A sample is keyed by (question, mode, draw): a mode is a level with its model, template and
settings. It is durable before it counts as done, and the same key is never stored twice; a score
may be added to it later, once. Several
processes may collect into one ledger: each claims questions before it draws for them, and a claim
ends with its owner, by death or by silence. It knows nothing of models or money: costs are whole
numbers it is given.
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

FORMAT = 1
SILENCE_S = 60.0
"""An owner on another machine that was not heard of for this long is dead."""

SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS modes (
  mode INTEGER PRIMARY KEY, level TEXT NOT NULL, model TEXT NOT NULL, template TEXT NOT NULL,
  settings TEXT NOT NULL, UNIQUE (level, model, template, settings));
CREATE TABLE IF NOT EXISTS samples (
  question TEXT NOT NULL, mode INTEGER NOT NULL, draw INTEGER NOT NULL,
  text TEXT NOT NULL, finish TEXT, prompt_tokens INTEGER, cached_tokens INTEGER NOT NULL,
  completion_tokens INTEGER, reasoning_tokens INTEGER NOT NULL, logprob REAL,
  estimated INTEGER NOT NULL, latency_s REAL NOT NULL, shared INTEGER NOT NULL,
  cost INTEGER NOT NULL, score REAL,
  PRIMARY KEY (question, mode, draw)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS owners (
  owner TEXT PRIMARY KEY, host TEXT NOT NULL, pid INTEGER NOT NULL, heard REAL NOT NULL)
  WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS claims (
  question TEXT NOT NULL, mode INTEGER NOT NULL, owner TEXT NOT NULL,
  PRIMARY KEY (question, mode)) WITHOUT ROWID;
"""


@dataclass(frozen=True)
class StoredSample:
    """One finished sample, as it is stored."""

    question: str
    mode: int
    draw: int
    text: str
    finish: str | None
    prompt_tokens: int | None
    cached_tokens: int
    completion_tokens: int | None
    reasoning_tokens: int
    logprob: float | None
    estimated: bool
    latency_s: float
    shared: int
    cost: int
    score: float | None = None


_COLUMNS = tuple(f.name for f in fields(StoredSample))
_values = operator.attrgetter(*_COLUMNS)
_INSERT = (
    f"INSERT INTO samples ({', '.join(_COLUMNS)}) "  # noqa: S608 - our own names
    f"VALUES ({', '.join('?' * len(_COLUMNS))}) "
    "ON CONFLICT (question, mode, draw) DO UPDATE SET score = excluded.score, cost = excluded.cost "
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
            # FULL also survives a power cut, which samples that cost money deserve.
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.executescript(SCHEMA)
            self._db.execute("INSERT OR IGNORE INTO meta VALUES ('format', ?)", (str(FORMAT),))
        except sqlite3.DatabaseError as error:
            raise DataError(f"{self.path} cannot be used as a ledger: {error}") from None
        (version,) = self._db.execute("SELECT value FROM meta WHERE name = 'format'").fetchone()
        if version != str(FORMAT):
            raise DataError(
                f"{self.path} is of ledger format {version} and this version reads {FORMAT}: "
                "use the version that made it"
            )
        self.hear()

    def close(self) -> None:
        """Give back all claims and close."""
        with self._transaction():
            self._db.execute("DELETE FROM claims WHERE owner = ?", (self.owner,))
            self._db.execute("DELETE FROM owners WHERE owner = ?", (self.owner,))
        self._db.close()

    def hear(self) -> None:
        """Tell other processes that this one is alive."""
        self._db.execute(
            "INSERT OR REPLACE INTO owners VALUES (?, ?, ?, ?)",
            (self.owner, socket.gethostname(), os.getpid(), time.time()),
        )

    def _transaction(self) -> _Transaction:
        return _Transaction(self._db)

    def mode(self, *, level: str, model: str, template: str, settings: str) -> int:
        """Number of a mode, made when it is new."""
        key = (level, model, template, settings)
        self._db.execute(
            "INSERT OR IGNORE INTO modes (level, model, template, settings) VALUES (?, ?, ?, ?)",
            key,
        )
        (number,) = self._db.execute(
            "SELECT mode FROM modes "
            "WHERE level = ? AND model = ? AND template = ? AND settings = ?",
            key,
        ).fetchone()
        return int(number)

    def modes(self, *, drawn: bool = False) -> dict[int, dict[str, str]]:
        """All modes by number, or those that have samples."""
        rows = self._db.execute(
            "SELECT mode, level, model, template, settings FROM modes "
            "WHERE NOT ? OR EXISTS (SELECT 1 FROM samples WHERE samples.mode = modes.mode)",
            (drawn,),
        )
        return {
            m: {"level": level, "model": model, "template": t, "settings": s}
            for m, level, model, t, s in rows
        }

    def claim(
        self, questions: Sequence[str], mode: int, draws: int, *, scored: bool = False
    ) -> dict[str, list[int]]:
        """Claim those questions that lack draws and that nobody else is drawing for.

        Returns the missing draws of each question claimed; with ``scored``, those without a score
        are missing too.
        """
        with self._transaction():
            self._bury_owners()
            missing: dict[str, list[int]] = {}
            for question in questions:
                have = {
                    d
                    for (d,) in self._db.execute(
                        "SELECT draw FROM samples WHERE question = ? AND mode = ? AND draw < ? "
                        "AND (score IS NOT NULL OR NOT ?)",
                        (question, mode, draws, scored),
                    )
                }
                if len(have) == draws:
                    continue
                taken = self._db.execute(
                    "INSERT OR IGNORE INTO claims VALUES (?, ?, ?)", (question, mode, self.owner)
                )
                if taken.rowcount or self._own(question, mode):
                    missing[question] = [d for d in range(draws) if d not in have]
            return missing

    def _own(self, question: str, mode: int) -> bool:
        row = self._db.execute(
            "SELECT owner FROM claims WHERE question = ? AND mode = ?", (question, mode)
        ).fetchone()
        return row is not None and row[0] == self.owner

    def _bury_owners(self) -> None:
        """End the claims of processes that are gone."""
        here, now = socket.gethostname(), time.time()
        for owner, host, pid, heard in self._db.execute("SELECT * FROM owners").fetchall():
            if owner == self.owner:
                continue
            gone = not Path(f"/proc/{pid}").exists() if host == here else now - heard > SILENCE_S
            if gone:
                self._db.execute("DELETE FROM claims WHERE owner = ?", (owner,))
                self._db.execute("DELETE FROM owners WHERE owner = ?", (owner,))

    def record(self, samples: Sequence[StoredSample]) -> int:
        """Store samples durably; returns how many of them were new.

        A sample that is stored without a score, and comes again with one, gets it and its cost.
        """
        rows = [_values(sampled) for sampled in samples]
        try:
            with self._transaction():
                before = self._db.total_changes
                self._db.executemany(_INSERT, rows)
                return self._db.total_changes - before
        except sqlite3.Error as error:
            raise DataError(f"{self.path} cannot be written: {error}") from None

    def release(self, questions: Sequence[str], mode: int) -> None:
        """Give back claims."""
        with self._transaction():
            self._db.executemany(
                "DELETE FROM claims WHERE question = ? AND mode = ? AND owner = ?",
                [(question, mode, self.owner) for question in questions],
            )

    def count(self, questions: Sequence[str], mode: int, *, below: int) -> tuple[int, int]:
        """Number of these questions' samples whose draw is below a number, and with a score."""
        samples, scored = self._db.execute(
            "SELECT COUNT(*), COUNT(score) FROM json_each(?) JOIN samples ON question = value "
            "WHERE mode = ? AND draw < ?",
            (json.dumps(list(questions)), mode, below),
        ).fetchone()
        return int(samples), int(scored)

    def totals(self) -> dict[str, int]:
        """Tokens and cost of everything collected so far."""
        names = ("prompt_tokens", "completion_tokens", "reasoning_tokens", "cost")
        sums = ", ".join(f"COALESCE(SUM({name}), 0)" for name in names)
        row = self._db.execute(f"SELECT {sums} FROM samples").fetchone()  # noqa: S608
        return dict(zip(names, row, strict=True))

    def samples(self, mode: int) -> Iterator[StoredSample]:
        """Every sample of a mode, by question and draw."""
        return self._select("mode = ? ORDER BY question, draw", mode)

    def unscored(self, question: str, mode: int) -> dict[int, StoredSample]:
        """Samples of a question that have no score, by draw."""
        where = "question = ? AND mode = ? AND score IS NULL"
        return {sampled.draw: sampled for sampled in self._select(where, question, mode)}

    def _select(self, where: str, *values: object) -> Iterator[StoredSample]:
        query = f"SELECT {', '.join(_COLUMNS)} FROM samples WHERE {where}"  # noqa: S608
        for row in self._db.execute(query, values):
            found: dict[str, Any] = dict(zip(_COLUMNS, row, strict=True))
            yield StoredSample(**found | {"estimated": bool(found["estimated"])})


@dataclass(frozen=True)
class _Transaction:
    """One write that happens whole or not at all, and waits for other writers."""

    db: sqlite3.Connection

    def __enter__(self) -> None:
        self.db.execute("BEGIN IMMEDIATE")

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        self.db.execute("ROLLBACK" if error else "COMMIT")
