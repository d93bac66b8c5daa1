"""Replica file: the leases of one replica and what it used of them, in memory that survives it.

A replica is a process that spends under caps. Its file is mapped into memory, so counting a call
takes no system call, and the kernel keeps the counts when the process is killed. Each counter has a
row of numbers. Each number is written by one instruction, so a killed process leaves no half of it.

``used`` is what was spent plus what is reserved for open calls. When a file is opened again, all of
it counts as spent: calls that were open are counted at their maximum. Only ``sync`` protects
against a crash of the machine. After one, everything that a lease still held counts as spent.

A process locks its file. Another process in the same directory takes the next one. Next to the file
is a database with copies of values in the register that this replica saw last; it is not synced. A
replica file must not be copied: two replicas with one name would spend one lease twice.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import sqlite3
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from adacompute.core.errors import DataError
from adacompute.spending.caps.accounts import Entry
from adacompute.spending.caps.counters import UNITS, Counter

MAGIC = 0x_41_64_61_43_61_70_01
"""First number of a file, with the version of the format."""

ROW_BYTES, WORDS = 512, 64
"""Bytes of a row, which is a sector of a disk, and numbers in it; the first row is the header."""

NAME_AT = 64
GRANTED, RETURNED, USED, SPENT, LIMIT, ENDS_AT, UNIT, NAME_BYTES = range(8)
MIN_ROWS = 64
MAX_FILES = 4096
FILE_PREFIX, FIRST_FILE = "replica-", "replica-0"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Row:
    """The numbers of one counter; assigning one writes it to the file.

    They only grow, apart from ``used``, which falls when a reservation is settled for less.
    ``is_stale`` says that the machine has crashed since: then ``used`` is all that was held.
    """

    __slots__ = (
        "_at",
        "_words",
        "counter",
        "granted",
        "is_stale",
        "returned",
        "spent",
        "used",
    )

    def __init__(self, words: memoryview[int], index: int, counter: Counter) -> None:
        self._words, self._at = words, index * WORDS
        self.counter = counter
        self.is_stale = False
        self.granted, self.returned, self.used, self.spent = words[self._at : self._at + 4]

    @property
    def index(self) -> int:
        """Number of the row in the file."""
        return self._at // WORDS

    @property
    def entry(self) -> Entry:
        """The row as an entry of the counter's account."""
        return Entry(self.granted, self.returned, self.spent)

    def set_granted(self, granted: int) -> None:
        """Write what was granted in total."""
        self.granted = self._words[self._at + GRANTED] = granted

    def set_returned(self, returned: int) -> None:
        """Write what was given back in total."""
        self.returned = self._words[self._at + RETURNED] = returned

    def set_used(self, used: int) -> None:
        """Write what is spent or reserved."""
        self.used = self._words[self._at + USED] = used

    def set_spent(self, spent: int) -> None:
        """Write what was spent; ``used`` decides what counts when the file is opened again."""
        self.spent = self._words[self._at + SPENT] = spent

    def set_limit(self, counter: Counter) -> None:
        """Write another limit of the same counter."""
        self.counter = counter
        self._words[self._at + LIMIT] = counter.limit

    def set_held_spent(self, returned: int) -> None:
        """Count everything that was held as spent, given what the register knows was returned."""
        self.is_stale = False
        self.set_returned(max(self.returned, returned))
        self.set_used(self.granted - self.returned)
        self.set_spent(max(self.spent, self.used))

    def move(self, words: memoryview[int]) -> None:
        """Use another map of the same file."""
        self._words = words

    def detach(self) -> None:
        """Write no longer to the file, which may use the row for another counter."""
        self._words, self._at = memoryview(bytearray(ROW_BYTES)).cast("q"), 0


class ReplicaFile:
    """The open and locked file of one replica; use ``open``, in one thread apart from ``sync``.

    ``is_first`` says that it was created now and that its directory had no other.
    """

    def __init__(self, path: Path, descriptor: int, boot_id: str) -> None:
        self.path = path
        self.rows: dict[str, Row] = {}
        self.is_first = False
        self._descriptor = descriptor
        self._boot_id = boot_id
        self._free: list[int] = []
        self._size = os.fstat(descriptor).st_size // ROW_BYTES * ROW_BYTES
        self._map: mmap.mmap | None = None
        self._copies: sqlite3.Connection | None = None
        if self._size < MIN_ROWS * ROW_BYTES:
            self._size = 0
            self._grow(MIN_ROWS)
        else:
            self._open_map()
        self._read()

    @classmethod
    def open(cls, directory: Path, *, boot_id: str | None = None) -> Self:
        """Open the first file of a directory that no other process uses, or create one."""
        boot_id = boot_id or BOOT_ID.read_text().strip()
        directory.mkdir(parents=True, exist_ok=True)
        for number in range(MAX_FILES):
            path = directory / f"{FILE_PREFIX}{number}"
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return cls(path, descriptor, boot_id)
            except BlockingIOError:
                os.close(descriptor)
            except BaseException:
                os.close(descriptor)
                raise
        raise DataError(f"{directory} is used by {MAX_FILES} other processes: use another one")

    def add(self, counter: Counter) -> Row:
        """Add the row of a counter, with zeros; OSError if the disk is full."""
        if not self._free:
            self._grow(2 * self._size // ROW_BYTES)
        row = Row(self._words, self._free.pop(), counter)
        at, name = row.index * WORDS, counter.name.encode()
        for value in (row.set_granted, row.set_returned, row.set_used, row.set_spent):
            value(0)
        ends_at = -1 if counter.ends_at > 2**40 else round(counter.ends_at * 1000)
        self._words[at + LIMIT], self._words[at + ENDS_AT] = counter.limit, ends_at
        self._words[at + UNIT] = UNITS.index(counter.unit)
        start = row.index * ROW_BYTES + NAME_AT
        self._bytes[start : start + len(name)] = name
        self._words[at + NAME_BYTES] = len(name)  # last: a row without it is free
        self.rows[counter.name] = row
        return row

    def remove(self, row: Row) -> None:
        """Free a row; later changes of it are not written."""
        self._words[row.index * WORDS + NAME_BYTES] = 0
        self._free.append(row.index)
        del self.rows[row.counter.name]
        row.detach()

    def sync(self) -> None:
        """Make the file durable; this blocks, and may be called from any thread."""
        os.fdatasync(self._descriptor)

    def read_copies(self) -> dict[str, str]:
        """Return the values that were saved, by key; none if one of them cannot be read."""
        try:
            found = dict(self._open_copies().execute("SELECT key, value FROM copies"))
            for text in found.values():
                json.loads(text)  # after a crash of the machine, a part of it may be missing
        except (sqlite3.DatabaseError, ValueError, TypeError):
            self._close_copies()
            self._copies_path.unlink(missing_ok=True)
            return {}
        return found

    def save_copies(self, values: Mapping[str, str | None]) -> None:
        """Save JSON by key, and delete what is None; OSError if the disk is full."""
        saved = [(key, value) for key, value in values.items() if value is not None]
        deleted = [(key,) for key, value in values.items() if value is None]
        try:
            with self._open_copies() as copies:
                copies.executemany("REPLACE INTO copies VALUES (?, ?)", saved)
                copies.executemany("DELETE FROM copies WHERE key = ?", deleted)
        except sqlite3.Error as error:
            self._close_copies()
            raise OSError(f"{self._copies_path} cannot be written: {error}") from None

    def close(self) -> None:
        """Unlock the file; later changes of its rows are not written."""
        for row in self.rows.values():
            row.detach()
        self._close_map()
        self._close_copies()
        os.close(self._descriptor)

    @property
    def _copies_path(self) -> Path:
        return self.path.with_suffix(".sqlite")

    def _open_copies(self) -> sqlite3.Connection:
        """Return the database of copies, which survives the process, but not the machine."""
        if self._copies is None:
            self._copies = sqlite3.connect(self._copies_path, check_same_thread=False)
            self._copies.execute("PRAGMA journal_mode=WAL")
            self._copies.execute("PRAGMA synchronous=OFF")
            # Without rowids there is no index, so that reading everything checks everything.
            self._copies.execute(
                "CREATE TABLE IF NOT EXISTS copies (key PRIMARY KEY, value) WITHOUT ROWID"
            )
        return self._copies

    def _close_copies(self) -> None:
        if self._copies is not None:
            self._copies.close()
            self._copies = None

    def _grow(self, n_rows: int) -> None:
        """Make the file larger; the disk space is allocated now, so that no write to it fails."""
        os.posix_fallocate(self._descriptor, 0, n_rows * ROW_BYTES)
        os.fsync(self._descriptor)
        self._close_map()
        first, self._size = max(1, self._size // ROW_BYTES), n_rows * ROW_BYTES
        self._open_map()
        self._free = [*range(n_rows - 1, first - 1, -1), *self._free]
        for row in self.rows.values():
            row.move(self._words)

    def _open_map(self) -> None:
        self._map = mmap.mmap(self._descriptor, self._size)
        self._bytes = memoryview(self._map)
        self._words = self._bytes.cast("q")

    def _close_map(self) -> None:
        if self._map is not None:
            self._words.release()
            self._bytes.release()
            self._map.close()
            self._map = None

    def _read(self) -> None:
        """Read the rows; what was used before counts as spent."""
        if self._words[0] == 0:
            self._create()
        if self._words[0] != MAGIC:
            raise DataError(
                f"{self.path} is no replica file of this version: use another directory"
            )
        self.replica, boot_id = bytes(self._bytes[8:40]).decode(), bytes(self._bytes[40:76])
        same_boot = boot_id == self._boot_id.encode()[:36].ljust(36)
        self._free = []
        for index in range(self._size // ROW_BYTES - 1, 0, -1):
            if self._words[index * WORDS + NAME_BYTES] == 0:
                self._free.append(index)
                continue
            row = Row(self._words, index, self._read_counter(index))
            if same_boot:
                row.set_spent(row.used)
            else:
                row.is_stale = True
                row.set_used(max(row.used, row.granted - row.returned))
            self.rows[row.counter.name] = row
        self.sync()
        self._bytes[40:76] = self._boot_id.encode()[:36].ljust(36)

    def _create(self) -> None:
        """Write the header of a new file, its first number last."""
        self.is_first = self.path.name == FIRST_FILE
        self._bytes[8:40] = uuid.uuid4().hex.encode()
        self._bytes[40:76] = self._boot_id.encode()[:36].ljust(36)
        self.sync()
        self._words[0] = MAGIC
        self.sync()
        directory = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def _read_counter(self, index: int) -> Counter:
        numbers = self._words[index * WORDS : (index + 1) * WORDS].tolist()
        start = index * ROW_BYTES + NAME_AT
        name = bytes(self._bytes[start : start + numbers[NAME_BYTES]])
        ends_at = float("inf") if numbers[ENDS_AT] < 0 else numbers[ENDS_AT] / 1000
        try:
            return Counter(name.decode(), UNITS[numbers[UNIT]], numbers[LIMIT], ends_at)
        except (ValueError, IndexError) as error:
            raise DataError(f"row {index} of {self.path} cannot be read: {error}") from None
