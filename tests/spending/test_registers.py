"""Registers: the same tests for memory, SQLite and Redis, then what only one of them can do."""

from __future__ import annotations

import asyncio
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Literal

import pytest

from adacompute.core.errors import ConfigError, MissingExtra
from adacompute.spending.redis_register import RedisRegister
from adacompute.spending.registers import (
    MAX_TRIES,
    MemoryRegister,
    Reading,
    Register,
    RegisterError,
    update,
)
from adacompute.spending.sqlite_register import SqliteRegister
from test_support.redis_server import RedisServer, find_redis, serve_redis

needs_redis = pytest.mark.skipif(find_redis() is None, reason="redis-server is not installed")

Opened = Callable[[], Register]

ADD = """
import asyncio, sys
from pathlib import Path
from adacompute.spending.redis_register import RedisRegister
from adacompute.spending.registers import update
from adacompute.spending.sqlite_register import SqliteRegister

async def main(kind, address, n):
    if kind == "sqlite":
        register = SqliteRegister(Path(address), timeout_s=30.0)
    else:
        register = RedisRegister(address, timeout_s=30.0)
    for number in range(n):
        add = lambda reading: (str(int(reading.value or 0) + 1), None)
        await update(register, "sum", add, durable=number % 2 == 0)
    await register.close()

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""
"""A process that adds 1 to a value a number of times."""


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    if find_redis() is None:
        pytest.skip("redis-server is not installed")
    with serve_redis() as server:
        yield server


@pytest.fixture(params=["memory", "sqlite", "redis"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Opened:
    """Open a register of each kind; Redis and SQLite open the same values again."""
    if request.param == "memory":
        register = MemoryRegister()
        return lambda: register
    if request.param == "sqlite":
        return lambda: SqliteRegister(tmp_path / "register.db", timeout_s=10.0)
    server: RedisServer = request.getfixturevalue("redis")
    server.restart("empty")
    return lambda: RedisRegister(server.url, timeout_s=10.0)


@asynccontextmanager
async def using(register: Register) -> AsyncIterator[Register]:
    try:
        yield register
    finally:
        await register.close()


@asynccontextmanager
async def using_sqlite(folder: Path) -> AsyncIterator[SqliteRegister]:
    register = SqliteRegister(folder / "register.db")
    async with using(register):
        yield register


async def ask_sqlite(register: SqliteRegister, statement: str) -> object:
    """Return the first value of a statement, run on the connection of a register."""
    return await register._run(lambda: register._connect().execute(statement).fetchone()[0])


def increase(reading: Reading) -> tuple[str, int]:
    number = int(reading.value or 0) + 1
    return str(number), number


async def fails_within(seconds: float, call: Awaitable[object]) -> None:
    started = time.monotonic()
    with pytest.raises(RegisterError):
        await call
    assert time.monotonic() - started < seconds


def test_a_value_is_replaced_once_per_reading(opened: Opened) -> None:
    async def check() -> None:
        async with using(opened()) as register:
            empty = await register.read("a")
            assert empty.value is None
            assert empty.server
            assert abs(empty.now - time.time()) < 5
            assert await register.replace("a", empty, "")
            assert not await register.replace("a", empty, "second")
            stored = await register.read("a")
            assert (stored.value, stored.server) == ("", empty.server)
            assert await register.replace("a", stored, "é\n1", durable=False)
            assert not await register.replace("a", stored, "3")
            assert (await register.read("a")).value == "é\n1"

    asyncio.run(check())


def test_keys_are_independent(opened: Opened) -> None:
    async def check() -> None:
        async with using(opened()) as register:
            for key in ("a", "b", "client=x/tokens/2026-11", "{}", "a}"):
                reading = await register.read(key)
                assert reading.value is None
                assert await register.replace(key, reading, key)
            assert (await register.read("a")).value == "a"

    asyncio.run(check())


def test_keys_are_listed_by_their_prefix(opened: Opened) -> None:
    async def check() -> None:
        async with using(opened()) as register:
            assert await register.keys("") == []
            names = ["a/1", "a/2", "A/1", "ab", "[a]*/1", "a?/1", "é}/1", "%_/1", "\\/1"]
            for name in names:
                await update(register, name, increase)
            assert await register.keys("") == sorted(names)
            for prefix, expected in (
                ("a/", ["a/1", "a/2"]),
                ("[a]*", ["[a]*/1"]),
                ("a?", ["a?/1"]),
                ("é}", ["é}/1"]),
                ("%_", ["%_/1"]),
                ("\\", ["\\/1"]),
                ("b", []),
            ):
                assert await register.keys(prefix) == expected

    asyncio.run(check())


def test_more_keys_than_fit_a_step_are_listed_once(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adacompute.spending.redis_register.PAGE_SIZE", 7)

    async def check() -> None:
        async with using(opened()) as register:
            names = [f"cap/{number:02}" for number in range(60)]
            for name in names:
                await update(register, name, increase, durable=False)
            assert await register.keys("cap/") == names

    asyncio.run(check())


def test_a_register_that_is_opened_again_has_the_values_and_the_identity(opened: Opened) -> None:
    async def check() -> None:
        async with using(opened()) as first:
            await update(first, "a", increase)
            before = await first.read("a")
        async with using(opened()) as second:
            after = await second.read("a")
        assert (after.value, after.server) == (before.value, before.server)

    asyncio.run(check())


def test_updates_of_many_tasks_lose_nothing(opened: Opened) -> None:
    async def check() -> None:
        async with using(opened()) as one, using(opened()) as other:
            numbers = await asyncio.gather(
                *(update(register, "a", increase) for register in [one, other] * 20)
            )
            assert sorted(numbers) == list(range(1, 41))
            assert (await one.read("a")).value == "40"

    asyncio.run(check())


def test_an_update_that_changes_nothing_writes_nothing(opened: Opened) -> None:
    async def check() -> None:
        async with using(opened()) as register:
            assert await update(register, "a", lambda reading: (None, reading.value)) is None
            assert (await register.read("a")).value is None

    asyncio.run(check())


def test_an_update_gives_up_when_others_are_always_faster(opened: Opened) -> None:
    async def check() -> None:
        async with using(opened()) as register:
            tries = 0

            class Contended:
                recovery_s = 0.0

                async def read(self, key: str) -> Reading:
                    return await register.read(key)

                async def replace(
                    self, key: str, old: Reading, new: str, *, durable: bool = True
                ) -> bool:
                    nonlocal tries
                    tries += 1
                    assert await register.replace(key, old, f"{old.value}x", durable=False)
                    return await register.replace(key, old, new, durable=durable)

                async def keys(self, prefix: str) -> list[str]:
                    return await register.keys(prefix)

                async def close(self) -> None: ...

            with pytest.raises(RegisterError):
                await update(Contended(), "a", lambda _: ("mine", None))
            assert tries == MAX_TRIES

    asyncio.run(check())


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("redis", marks=needs_redis)])
def test_updates_of_several_processes_lose_nothing(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    address = str(tmp_path / "register.db")
    if kind == "redis":
        server: RedisServer = request.getfixturevalue("redis")
        server.restart("empty")
        address = server.url
    command = [sys.executable, "-c", ADD, kind, address, "40"]
    processes = [subprocess.Popen(command) for _ in range(3)]
    assert [process.wait(60) for process in processes] == [0, 0, 0]

    async def check() -> None:
        register = SqliteRegister(Path(address)) if kind == "sqlite" else RedisRegister(address)
        async with using(register):
            assert (await register.read("sum")).value == "120"

    asyncio.run(check())


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


def test_sqlite_on_a_full_disk_keeps_the_old_value(tmp_path: Path) -> None:
    async def check() -> None:
        async with using_sqlite(tmp_path) as register:
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
        async with using_sqlite(tmp_path) as one, using_sqlite(tmp_path) as other:
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


def test_a_database_that_was_deleted_is_another_server(tmp_path: Path) -> None:
    path = tmp_path / "register.db"

    async def check() -> None:
        async with using(SqliteRegister(path)) as one, using(SqliteRegister(path)) as other:
            await update(one, "a", increase)
            before = await other.read("a")
            for file in list(tmp_path.iterdir()):  # noqa: ASYNC240
                file.unlink()
            after = await one.read("a")
            assert after.value is None
            assert after.server != before.server
            assert not await other.replace("a", before, "2")
            assert (await other.read("a")).server == after.server
            assert not await one.replace("a", Reading(None, before.server, 0.0), "2")

    asyncio.run(check())


def test_only_durable_writes_of_sqlite_wait_for_the_disk(tmp_path: Path) -> None:
    async def check() -> None:
        async with using_sqlite(tmp_path) as register:
            for durable, expected in ((False, 1), (True, 2), (False, 1)):
                reading = await register.read("a")
                assert await register.replace("a", reading, f"{durable}", durable=durable)
                assert await ask_sqlite(register, "PRAGMA synchronous") == expected
            assert await ask_sqlite(register, "PRAGMA journal_mode") == "wal"

    asyncio.run(check())


@needs_redis
@pytest.mark.parametrize("data", ["kept", "empty", "snapshot"])
def test_a_restarted_redis_is_another_server(
    redis: RedisServer, data: Literal["kept", "empty", "snapshot"]
) -> None:
    async def check() -> None:
        redis.restart("empty")
        async with using(RedisRegister(redis.url)) as register:
            await update(register, "a", lambda _: ("old", None))
            redis.save_snapshot()
            await update(register, "a", lambda _: ("new", None))
            before = await register.read("a")
            redis.restart(data)
            after = await register.read("a")
            assert after.value == {"kept": "new", "empty": None, "snapshot": "old"}[data]
            assert after.server != before.server
            assert not await register.replace("a", before, "mine")
            stale = Reading(after.value, before.server, before.now)
            assert not await register.replace("a", stale, "mine")
            assert await register.replace("a", after, "mine")

    asyncio.run(check())


@needs_redis
def test_redis_that_is_killed_or_hangs_fails_in_bounded_time_and_comes_back(
    redis: RedisServer,
) -> None:
    async def check() -> None:
        async with using(RedisRegister(redis.url, timeout_s=0.3)) as register:
            reading = await register.read("a")
            redis.pause()
            await fails_within(1, register.read("a"))
            await fails_within(1, register.replace("a", reading, "1"))
            await fails_within(2, register.keys(""))
            redis.resume()
            await register.read("a")
            redis.kill()
            await fails_within(1, register.read("a"))
            await fails_within(1, register.replace("a", reading, "1"))
            await fails_within(2, register.keys(""))
            redis.start()
            await register.read("a")

    asyncio.run(check())


@needs_redis
def test_a_cancelled_call_does_not_leave_its_reply_to_another(redis: RedisServer) -> None:
    async def check() -> None:
        async with using(RedisRegister(redis.url)) as register:
            await update(register, "mine", lambda _: ("mine", None))
            await update(register, "other", lambda _: ("other", None))
            for number in range(30):
                task = asyncio.create_task(register.read("other"))
                for _ in range(number % 10):
                    await asyncio.sleep(0)
                task.cancel()
                assert (await register.read("mine")).value == "mine"
                await asyncio.gather(task, return_exceptions=True)

    asyncio.run(check())


@needs_redis
def test_a_task_that_is_cancelled_during_a_call_ends(redis: RedisServer) -> None:
    async def change_forever(register: Register) -> None:
        while True:
            await update(register, "k", increase, durable=False)

    async def main() -> None:
        async with using(RedisRegister(redis.url)) as register:
            await register.read("k")
            for i in range(100):
                task = asyncio.create_task(change_forever(register))
                await asyncio.sleep(0.0001 * i)
                task.cancel()
                done, _ = await asyncio.wait({task}, timeout=5)
                assert done

    asyncio.run(main())


@needs_redis
def test_keys_of_redis_have_slots_of_their_own(redis: RedisServer) -> None:
    async def check() -> None:
        async with using(RedisRegister(redis.url)) as register:
            await update(register, "client=a/tokens", increase)
        assert "\nadacompute:{client=a/tokens}\r" in redis.send("KEYS *client=a*")

    asyncio.run(check())


@needs_redis
def test_keys_of_all_servers_of_a_cluster_are_listed() -> None:
    async def check(server: RedisServer) -> None:
        async with using(RedisRegister(server.url, timeout_s=5.0)) as register:
            names = [f"cap/{number:02}" for number in range(40)]
            deadline = time.monotonic() + 20
            while True:  # until both servers know of each other
                try:
                    for name in names:
                        await update(register, name, increase)
                    break
                except RegisterError:
                    assert time.monotonic() < deadline
                    await asyncio.sleep(0.2)
            assert await register.keys("cap/") == names

    options = {"cluster-enabled": "yes"}
    with serve_redis(options) as one, serve_redis(options) as other:
        assert one.send("CLUSTER ADDSLOTSRANGE 0 8191").startswith("+OK")
        assert other.send("CLUSTER ADDSLOTSRANGE 8192 16383").startswith("+OK")
        assert other.send("CLUSTER SET-CONFIG-EPOCH 2").startswith("+OK")
        assert one.send(f"CLUSTER MEET 127.0.0.1 {other.port}").startswith("+OK")
        asyncio.run(check(one))


@needs_redis
def test_a_cluster_is_recognised() -> None:
    async def check(address: str) -> None:
        async with using(RedisRegister(address, timeout_s=5.0)) as register:
            servers = set()
            for key in "abcdefgh":
                assert await update(register, key, increase) == 1
                servers.add((await register.read(key)).server)
            assert len(servers) == 2
            assert await register.keys("") == list("abcdefgh")

    cluster = {"cluster-enabled": "yes"}
    with serve_redis(cluster) as one, serve_redis(cluster) as other:
        assert one.send("CLUSTER ADDSLOTSRANGE 0 8191").startswith("+OK")
        assert other.send("CLUSTER ADDSLOTSRANGE 8192 16383").startswith("+OK")
        one.send(f"CLUSTER MEET 127.0.0.1 {other.port}")
        deadline = time.monotonic() + 30
        while not all("cluster_state:ok" in node.send("CLUSTER INFO") for node in (one, other)):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        asyncio.run(check(one.url))


def test_the_time_limit_is_for_all_messages_of_a_call() -> None:
    """A server that takes a while for each message, of which the first call sends several."""

    def reply_slowly(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection, suppress(OSError):
            while connection.recv(65536):
                time.sleep(0.45)
                connection.sendall(b"+OK\r\n")

    async def check(port: int) -> None:
        async with using(RedisRegister(f"redis://127.0.0.1:{port}", timeout_s=0.5)) as register:
            await fails_within(0.85, register.read("a"))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=reply_slowly, args=[listener])
        thread.start()
        asyncio.run(check(listener.getsockname()[1]))
        thread.join()


def test_an_address_that_is_none_is_rejected() -> None:
    with pytest.raises(ConfigError):
        RedisRegister("http://localhost")


def test_errors_do_not_show_the_password() -> None:
    async def check() -> None:
        register = RedisRegister("redis://me:secret@127.0.0.1:1/0")
        with pytest.raises(RegisterError) as raised:
            await register.read("a")
        assert "secret" not in str(raised.value)
        assert "127.0.0.1:1" in str(raised.value)

    asyncio.run(check())


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis.asyncio", None)
    with pytest.raises(MissingExtra):
        RedisRegister("redis://localhost")
