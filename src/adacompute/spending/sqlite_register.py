"""SQLite register: values that the processes of one machine share in a file.

Calls run in a thread, one after another, so a slow disk does not block the event loop. A call takes
at most ``timeout_s``, of which it waits at most half for another process that writes. A durable
value is on disk when ``replace`` returns; others survive a crash of the process but perhaps not of
the machine. The identity of the server is a random number in the file and the file's number on its
disk, so a file that was deleted, or replaced by an old copy, is another server. The file must be on
a local disk, not on a network file system.
"""

from __future__ import annotations

import asyncio
import math
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from adacompute.spending.registers import PAGE_SIZE, Changes, Reading, RegisterError

T = TypeVar("T")

TIMEOUT_S = 5.0

SCHEMA = (
    "CREATE TABLE IF NOT EXISTS server (id TEXT NOT NULL, number INTEGER NOT NULL)",
    """CREATE TABLE IF NOT EXISTS register (
        key TEXT PRIMARY KEY, value TEXT NOT NULL, number INTEGER NOT NULL, expires_at REAL NOT NULL
    )""",
    "CREATE INDEX IF NOT EXISTS changes ON register (number)",
    "CREATE INDEX IF NOT EXISTS expiries ON register (expires_at)",
)


class SqliteRegister:
    """The register of several processes on one machine; the folder of ``path`` must exist."""

    is_local = True

    def __init__(self, path: Path, *, timeout_s: float = TIMEOUT_S) -> None:
        self._path = path
        self._timeout_s = timeout_s
        self._lock_s = timeout_s / 2
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sqlite-register")
        self._connection: sqlite3.Connection | None = None
        self._inode = 0

    async def read(self, key: str) -> Reading:
        """Return the value of a key."""
        return await self._run(lambda: self._read(key))

    async def replace(
        self,
        key: str,
        old: Reading,
        new: str,
        *,
        durable: bool = True,
        expires_at: float = math.inf,
    ) -> bool:
        """Replace a value, unless it or the file has changed since it was read."""
        return await self._run(lambda: self._replace(key, old, new, expires_at, durable=durable))

    async def changes(self, after: int) -> Changes:
        """Return values whose last change has a number above ``after``, one page."""
        return await self._run(lambda: self._changes(after))

    async def renew(self, server: str) -> None:
        """Give the database another identity, if it still has this one."""
        await self._run(lambda: self._renew(server))

    async def check(self) -> str | None:
        """Return None: the durability of a file needs no configuration."""
        return None

    async def close(self) -> None:
        """Close the file; a register that is used again opens it again."""
        await self._run(self._disconnect)

    async def _run(self, action: Callable[[], T]) -> T:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await asyncio.get_running_loop().run_in_executor(self._thread, action)
        except (sqlite3.Error, OSError) as error:
            raise RegisterError(
                f"the register {self._path} cannot be used: {str(error) or 'it is too slow'}"
            ) from None

    def _read(self, key: str) -> Reading:
        connection = self._connect()
        server, _ = self._find_server(connection)
        return Reading(_find(connection, key), server, time.time())

    def _replace(
        self, key: str, old: Reading, new: str, expires_at: float, *, durable: bool
    ) -> bool:
        connection = self._connect()
        connection.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
        with _transaction(connection):
            server, number = self._find_server(connection)
            if old.server != server or _find(connection, key) != old.value:
                return False
            connection.execute("UPDATE server SET number = ?", (number + 1,))
            row = key, new, number + 1, expires_at
            connection.execute("REPLACE INTO register VALUES (?, ?, ?, ?)", row)
            connection.execute("DELETE FROM register WHERE expires_at <= ?", (time.time(),))
        return True

    def _changes(self, after: int) -> Changes:
        connection = self._connect()
        query = "SELECT key, value, number FROM register WHERE number > ? ORDER BY number LIMIT ?"
        server, number = self._find_server(connection)  # first: later changes are listed again
        found = connection.execute(query, (after, PAGE_SIZE)).fetchall()
        is_last = len(found) < PAGE_SIZE
        values = {key: value for key, value, _ in found}
        return Changes(values, number if is_last else found[-1][2], server, time.time(), is_last)

    def _renew(self, server: str) -> None:
        connection = self._connect()
        connection.execute("PRAGMA synchronous=FULL")
        with _transaction(connection):
            if self._find_server(connection)[0] == server:
                connection.execute("UPDATE server SET id = ?", (uuid.uuid4().hex,))

    def _find_server(self, connection: sqlite3.Connection) -> tuple[str, int]:
        """Return the identity of the server, and the number of its last change."""
        identity, number = connection.execute("SELECT id, number FROM server").fetchone()
        return f"{identity}/{self._inode}", int(number)

    def _connect(self) -> sqlite3.Connection:
        """Return the connection; open the file again if another one has taken its place."""
        with suppress(FileNotFoundError):
            if self._connection is not None and self._path.stat().st_ino == self._inode:
                return self._connection
        self._disconnect()
        self._connection = connection = sqlite3.connect(
            self._path, timeout=self._lock_s, isolation_level=None
        )
        try:
            self._inode = self._path.stat().st_ino
            self._prepare(connection)
        except (sqlite3.Error, OSError):
            self._disconnect()
            raise
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Create the tables if there are none."""
        self._use_write_ahead_log(connection)
        connection.execute("PRAGMA synchronous=FULL")
        with _transaction(connection):
            for statement in SCHEMA:
                connection.execute(statement)
            if connection.execute("SELECT id FROM server").fetchone() is None:
                connection.execute("INSERT INTO server VALUES (?, 0)", (uuid.uuid4().hex,))

    def _use_write_ahead_log(self, connection: sqlite3.Connection) -> None:
        """Switch to write-ahead logging; SQLite itself does not wait for others here."""
        deadline = time.monotonic() + self._lock_s
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
