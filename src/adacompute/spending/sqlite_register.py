"""SQLite register: values that the processes of one machine share in a file.

Every call runs in a thread of its own, so a slow disk does not block the event loop. A durable
value is on disk when ``replace`` returns; others survive a crash of the process but perhaps not of
the machine. The database has a random identity, so a file that was deleted and created again is
another server. An old copy of the file has the same identity as the file itself: only the numbers
of grants tell them apart. The file must be on a local disk, not on a network file system.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from adacompute.spending.accounts import RECOVERY_S
from adacompute.spending.registers import Reading, RegisterError

T = TypeVar("T")

TIMEOUT_S = 1.0
"""How long to wait for another process that writes."""

SCHEMA = (
    "CREATE TABLE IF NOT EXISTS server (id TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS register (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
)


class SqliteRegister:
    """The register of several processes on one machine; the folder of ``path`` must exist."""

    recovery_s = RECOVERY_S

    def __init__(self, path: Path, *, timeout_s: float = TIMEOUT_S) -> None:
        self._path = path
        self._timeout_s = timeout_s
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sqlite-register")
        self._connection: sqlite3.Connection | None = None
        self._inode = 0
        self._server = ""

    async def read(self, key: str) -> Reading:
        """Return the value of a key."""
        return await self._run(lambda: self._read(key))

    async def replace(self, key: str, old: Reading, new: str, *, durable: bool = True) -> bool:
        """Replace a value, unless it or the file has changed since it was read."""
        return await self._run(lambda: self._replace(key, old, new, durable=durable))

    async def keys(self, prefix: str) -> list[str]:
        """Return all keys that begin with a prefix, sorted."""
        return await self._run(lambda: self._keys(prefix))

    async def close(self) -> None:
        """Close the file; a register that is used again opens it again."""
        await self._run(self._disconnect)

    async def _run(self, action: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, action)
        except (sqlite3.Error, OSError) as error:
            raise RegisterError(f"the register {self._path} cannot be used: {error}") from None

    def _read(self, key: str) -> Reading:
        connection = self._connect()
        return Reading(_find(connection, key), self._server, time.time())

    def _keys(self, prefix: str) -> list[str]:
        query = "SELECT key FROM register WHERE substr(key, 1, ?) = ? ORDER BY key"
        return [key for (key,) in self._connect().execute(query, (len(prefix), prefix))]

    def _replace(self, key: str, old: Reading, new: str, *, durable: bool) -> bool:
        connection = self._connect()
        connection.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
        with _transaction(connection):
            if old.server != self._server or _find(connection, key) != old.value:
                return False
            connection.execute("REPLACE INTO register VALUES (?, ?)", (key, new))
        return True

    def _connect(self) -> sqlite3.Connection:
        """Return the connection; open the file again if another one has taken its place."""
        with suppress(FileNotFoundError):
            if self._connection is not None and self._path.stat().st_ino == self._inode:
                return self._connection
        self._disconnect()
        self._connection = connection = sqlite3.connect(
            self._path, timeout=self._timeout_s, isolation_level=None
        )
        try:
            self._inode = self._path.stat().st_ino
            self._server = self._prepare(connection)
        except (sqlite3.Error, OSError):
            self._disconnect()
            raise
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> str:
        """Create the tables if there are none, and return the identity of the database."""
        self._use_write_ahead_log(connection)
        connection.execute("PRAGMA synchronous=FULL")
        with _transaction(connection):
            for statement in SCHEMA:
                connection.execute(statement)
            found = connection.execute("SELECT id FROM server").fetchone()
            if found is None:
                found = (f"sqlite-{uuid.uuid4().hex}",)
                connection.execute("INSERT INTO server VALUES (?)", found)
        return str(found[0])

    def _use_write_ahead_log(self, connection: sqlite3.Connection) -> None:
        """Switch to write-ahead logging; SQLite itself does not wait for others here."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                connection.execute("PRAGMA journal_mode=WAL")
            except sqlite3.OperationalError as error:
                locked = error.sqlite_errorcode in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
                if not locked or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
            else:
                return

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _find(connection: sqlite3.Connection, key: str) -> str | None:
    found = connection.execute("SELECT value FROM register WHERE key = ?", (key,)).fetchone()
    return None if found is None else str(found[0])


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Write everything or nothing; nobody else writes meanwhile."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
