"""What only the SQLite register can do: files that are locked, full, broken or replaced."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from adacompute.spending.registers import RegisterError, update
from adacompute.spending.sqlite_register import SqliteRegister
from test_support.registers import fails_within, increase, using


async def ask_sqlite(register: SqliteRegister, statement: str) -> object:
    """Return the first value of a statement, run on the connection of a register."""
    return await register._run(lambda: register._connect().execute(statement).fetchone()[0])


def test_sqlite_in_a_folder_that_does_not_exist_fails(tmp_path: Path) -> None:
    async def check() -> None:
        async with using(SqliteRegister(tmp_path / "missing" / "register.db")) as register:
            await fails_within(5, register.read("a"))

    asyncio.run(check())


def test_sqlite_that_another_process_has_locked_fails_in_bounded_time(tmp_path: Path) -> None:
    path = tmp_path / "register.db"

    async def check() -> None:
        async with using(SqliteRegister(path, timeout_s=0.2)) as register:
            reading = await register.read("a")
            with closing(sqlite3.connect(path, isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")
                await fails_within(2, register.replace("a", reading, "1"))
                other.execute("ROLLBACK")
            assert await register.replace("a", reading, "1")

    asyncio.run(check())


def test_calls_that_wait_for_each_other_fail_in_bounded_time(tmp_path: Path) -> None:
    path = tmp_path / "register.db"

    async def check() -> None:
        async with using(SqliteRegister(path, timeout_s=0.4)) as register:
            reading = await register.read("a")
            with closing(sqlite3.connect(path, isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")
                started = time.monotonic()
                calls = [register.replace(str(i), reading, "1") for i in range(20)]
                found = await asyncio.gather(*calls, return_exceptions=True)
                assert {type(one) for one in found} == {RegisterError}
                assert time.monotonic() - started < 1.5
                other.execute("ROLLBACK")
            await update(register, "a", increase)
            assert len((await register.changes(0)).values) <= 2  # and one that was under way

    asyncio.run(check())


def test_sqlite_on_a_full_disk_keeps_the_old_value(tmp_path: Path) -> None:
    async def check() -> None:
        async with using(SqliteRegister(tmp_path / "register.db")) as register:
            await update(register, "a", increase)
            reading = await register.read("a")
            n_pages = await ask_sqlite(register, "PRAGMA page_count")
            await ask_sqlite(register, f"PRAGMA max_page_count={n_pages}")
            await fails_within(5, register.replace("a", reading, "x" * 100_000))
            assert (await register.read("a")).value == reading.value
            assert await register.replace("a", reading, "2")

    asyncio.run(check())


def test_a_write_that_fails_does_not_lock_the_file(tmp_path: Path) -> None:
    async def check() -> None:
        async with (
            using(SqliteRegister(tmp_path / "register.db")) as one,
            using(SqliteRegister(tmp_path / "register.db")) as other,
        ):
            reading = await one.read("a")
            with pytest.raises(UnicodeEncodeError):
                await one.replace("a", reading, "\ud800")
            assert await other.replace("a", reading, "1")

    asyncio.run(check())


def test_a_file_that_may_not_grow_fails_until_it_may_again(tmp_path: Path) -> None:
    program = (
        "import asyncio, resource, sys\n"
        "from pathlib import Path\n"
        "from adacompute.spending.registers import RegisterError\n"
        "from adacompute.spending.sqlite_register import SqliteRegister\n"
        "async def main():\n"
        "    register = SqliteRegister(Path(sys.argv[1]))\n"
        "    reading = await register.read('a')\n"
        "    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, most))\n"
        "    try:\n"
        "        await register.replace('a', reading, 'x' * 100_000)\n"
        "    except RegisterError:\n"
        "        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))\n"
        "        sys.exit(17 if await register.replace('a', reading, 'x' * 100_000) else 0)\n"
        "asyncio.run(main())\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "register.db")]
    assert subprocess.run(command, check=False).returncode == 17


def test_a_file_that_is_no_database_fails(tmp_path: Path) -> None:
    path = tmp_path / "register.db"
    path.write_bytes(b"no database" * 1000)

    async def check() -> None:
        async with using(SqliteRegister(path)) as register:
            await fails_within(5, register.read("a"))
            path.unlink()
            assert (await register.read("a")).value is None

    asyncio.run(check())


def test_a_file_that_takes_the_place_of_another_is_another_server(tmp_path: Path) -> None:
    path, copy = tmp_path / "register.db", tmp_path / "copy.db"

    async def check() -> None:
        async with using(SqliteRegister(path)) as register, using(SqliteRegister(copy)) as other:
            await update(register, "a", increase)
            before = await register.changes(0)
            with closing(sqlite3.connect(path)) as old, closing(sqlite3.connect(copy)) as new:
                old.backup(new)
            os.replace(copy, path)  # noqa: PTH105 - as an operator would
            after = await register.changes(0)
            assert after[:2] == before[:2]
            assert after.server != before.server
            assert (await other.changes(0)).values == {}

    asyncio.run(check())


def test_only_durable_writes_of_sqlite_wait_for_the_disk(tmp_path: Path) -> None:
    async def check() -> None:
        async with using(SqliteRegister(tmp_path / "register.db")) as register:
            for durable, expected in ((False, 1), (True, 2), (False, 1)):
                reading = await register.read("a")
                assert await register.replace("a", reading, f"{durable}", durable=durable)
                assert await ask_sqlite(register, "PRAGMA synchronous") == expected
            assert await ask_sqlite(register, "PRAGMA journal_mode") == "wal"

    asyncio.run(check())
