"""Registers: the same tests for memory, SQLite and Redis."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

from adacompute.spending.redis_register import KEYS, RedisRegister
from adacompute.spending.registers import (
    MAX_TRIES,
    Changes,
    Reading,
    Register,
    RegisterError,
    update,
)
from adacompute.spending.sqlite_register import SqliteRegister
from test_support.memory_register import EMPTY, MemoryRegister
from test_support.redis_server import RedisServer, find_redis, serve_redis
from test_support.registers import increase, using

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
        await update(register, f"part {number % 5}", add, durable=False)
    await register.close()

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""
"""A process that adds 1 to values a number of times."""


class Store(NamedTuple):
    """The data of a register; ``lose`` and ``put_back`` do not restart the server."""

    open: Callable[[], Register]
    lose: Callable[[], object]
    save: Callable[[], object]
    put_back: Callable[[], object]


def use_memory() -> Store:
    register, copies = MemoryRegister(), list[tuple[int, dict[str, tuple[str, int]]]]()
    return Store(
        lambda: register,
        lambda: register.restart(EMPTY),
        lambda: copies.append(register.copy()),
        lambda: register.restart(copies[-1]),
    )


def use_sqlite(path: Path) -> Store:
    def lose() -> None:
        for file in path.parent.glob("register.db*"):
            file.unlink()

    def copy(source: str, target: str) -> None:
        with (
            closing(sqlite3.connect(path.with_name(source))) as old,
            closing(sqlite3.connect(path.with_name(target))) as new,
        ):
            old.backup(new)

    return Store(
        lambda: SqliteRegister(path, timeout_s=10.0),
        lose,
        lambda: copy(path.name, "copy.db"),
        lambda: copy("copy.db", path.name),
    )


def use_redis(server: RedisServer) -> Store:
    def copy(source: str, target: str) -> None:
        for key in KEYS:
            server.send(f"COPY {source}{key} {target}{key} REPLACE")

    server.restart("empty")
    return Store(
        lambda: RedisRegister(server.url, timeout_s=10.0),
        lambda: server.send("FLUSHALL"),
        lambda: copy("", "copy:"),
        lambda: copy("copy:", ""),
    )


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    if find_redis() is None:
        pytest.skip("redis-server is not installed")
    with serve_redis() as server:
        yield server


@pytest.fixture(params=["memory", "sqlite", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "memory":
        return use_memory()
    if request.param == "sqlite":
        return use_sqlite(tmp_path / "register.db")
    return use_redis(request.getfixturevalue("redis"))


@pytest.fixture
def set_page_size(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    def set_size(size: int) -> None:
        for module in (
            "adacompute.spending.redis_register",
            "adacompute.spending.sqlite_register",
            "test_support.memory_register",
        ):
            monkeypatch.setattr(f"{module}.PAGE_SIZE", size)

    return set_size


async def read_pages(register: Register, after: int) -> list[Changes]:
    """Read all changes after a number."""
    pages = [await register.changes(after)]
    while not pages[-1].is_last:
        pages.append(await register.changes(pages[-1].number))
    return pages


def test_a_value_is_replaced_once_per_reading(store: Store) -> None:
    async def check() -> None:
        async with using(store.open()) as register:
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


def test_keys_are_independent(store: Store) -> None:
    async def check() -> None:
        async with using(store.open()) as register:
            for key in ("a", "b", "client=x/tokens/2026-11", "{}", "a}", "identity", "number", ""):
                reading = await register.read(key)
                assert reading.value is None
                assert await register.replace(key, reading, key)
            assert (await register.read("a")).value == "a"

    asyncio.run(check())


@pytest.mark.parametrize("size", [3, 4, 100])
def test_changes_are_listed_in_order_once_per_key(
    store: Store, set_page_size: Callable[[int], None], size: int
) -> None:
    set_page_size(size)

    async def check() -> None:
        async with using(store.open()) as register:
            (empty,) = await read_pages(register, 0)
            assert (empty.values, empty.number) == ({}, 0)
            for name in "hgfedcba":
                await update(register, name, increase)
            (before,) = [page.number for page in await read_pages(register, 0) if page.is_last]
            for name in "gag":
                await update(register, name, increase, durable=False)
            pages = await read_pages(register, 0)
            found = [item for page in pages for item in page.values.items()]
            assert found == [(name, "1") for name in "hfedcb"] + [("a", "2"), ("g", "3")]
            numbers = [page.number for page in pages]
            assert max(len(page.values) for page in pages) == min(size, 8)
            assert (numbers, numbers[-1]) == (sorted(numbers), before + 3)
            later = [item for page in await read_pages(register, before) for item in page.values]
            assert later == ["a", "g"]
            last = await register.changes(before + 3)
            assert (last.values, last.number, last.is_last) == ({}, before + 3, True)
            assert last.server == (await register.read("a")).server
            assert abs(last.now - time.time()) < 5

    asyncio.run(check())


def test_a_change_that_fails_has_no_number(store: Store) -> None:
    async def check() -> None:
        async with using(store.open()) as register:
            empty = await register.read("a")
            assert await register.replace("a", empty, "1")
            before = await register.changes(0)
            assert not await register.replace("a", empty, "2")
            stored = await register.read("a")
            assert not await register.replace("a", stored._replace(server="other"), "2")
            assert (await register.changes(0))[:3] == before[:3]

    asyncio.run(check())


def test_data_that_were_deleted_are_those_of_another_server(store: Store) -> None:
    async def check() -> None:
        async with using(store.open()) as one, using(store.open()) as other:
            await update(one, "a", increase)
            before, reading = await one.changes(0), await other.read("a")
            store.lose()
            after = await one.changes(before.number)
            assert after.server != before.server
            assert after.number < before.number
            assert (await other.changes(0))[:3] == ({}, 0, after.server)
            assert not await other.replace("a", reading, "2")
            assert not await one.replace("a", Reading(None, before.server, 0.0), "2")
            await update(other, "b", increase)
            assert (await one.changes(0)).values == {"b": "1"}

    asyncio.run(check())


def test_an_old_copy_has_another_identity_or_a_smaller_number(store: Store) -> None:
    async def check() -> None:
        async with using(store.open()) as register:
            await update(register, "a", increase)
            store.save()
            await update(register, "a", increase)
            before = await register.changes(0)
            store.put_back()
            after = await register.changes(0)
            assert after.values == {"a": "1"}
            assert after.server != before.server or after.number < before.number

    asyncio.run(check())


def test_a_server_gets_another_identity_once(store: Store) -> None:
    async def check() -> None:
        async with using(store.open()) as one, using(store.open()) as other:
            await update(one, "a", increase)
            before = await one.read("a")
            await other.renew("another server")
            assert (await one.read("a")).server == before.server
            await other.renew(before.server)
            after = await one.read("a")
            assert (after.value, after.server != before.server) == ("1", True)
            await one.renew(before.server)  # others have noticed the same
            assert (await other.changes(0)).server == after.server
            assert not await one.replace("a", before, "2")
            assert await one.replace("a", after, "2")
            assert (await one.changes(0)).number == 2

    asyncio.run(check())


def test_values_that_have_expired_are_deleted(store: Store) -> None:
    async def check() -> None:
        async with using(store.open()) as register:
            now = (await register.read("a")).now
            for key, expires_at in {"a": now + 0.5, "b": now + 0.5, "c": now + 60}.items():
                await update(register, key, increase, expires_at=expires_at)
            await update(register, "b", increase)
            assert list((await register.changes(0)).values) == ["a", "c", "b"]
            await asyncio.sleep(1.6)  # Redis counts whole seconds
            await update(register, "d", increase)
            changes = await register.changes(0)
            assert (dict(changes.values), changes.number) == ({"c": "1", "b": "2", "d": "1"}, 5)
            assert (await register.read("a")).value is None
            assert await update(register, "a", increase) == 1
            assert list((await register.changes(5)).values) == ["a"]

    asyncio.run(check())


def test_a_register_that_is_opened_again_has_the_values_and_the_identity(store: Store) -> None:
    async def check() -> None:
        async with using(store.open()) as first:
            await update(first, "a", increase)
            before = await first.changes(0)
        async with using(store.open()) as second:
            after = await second.changes(0)
        assert after[:3] == before[:3]

    asyncio.run(check())


def test_updates_of_many_tasks_lose_nothing(store: Store) -> None:
    async def check() -> None:
        async with using(store.open()) as one, using(store.open()) as other:
            numbers = await asyncio.gather(
                *(update(register, "a", increase) for register in [one, other] * 20)
            )
            assert sorted(numbers) == list(range(1, 41))
            assert (await one.changes(0))[:2] == ({"a": "40"}, 40)

    asyncio.run(check())


def test_an_update_that_changes_nothing_writes_nothing(store: Store) -> None:
    async def check() -> None:
        async with using(store.open()) as register:
            assert await update(register, "a", lambda reading: (None, reading.value)) is None
            await update(register, "b", lambda _: ("same", None))
            await update(register, "b", lambda _: ("same", None))
            assert (await register.changes(0))[:2] == ({"b": "same"}, 1)

    asyncio.run(check())


def test_an_update_gives_up_when_others_are_always_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        register, n_tries = MemoryRegister(), 0
        replace = register.replace

        async def lose(key: str, old: Reading, new: str, **options: object) -> bool:
            nonlocal n_tries
            n_tries += 1
            del options
            assert await replace(key, old, f"{old.value}x")
            return await replace(key, old, new)

        monkeypatch.setattr(register, "replace", lose)
        with pytest.raises(RegisterError):
            await update(register, "a", lambda _: ("mine", None))
        assert n_tries == MAX_TRIES

    asyncio.run(check())


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_changes_of_several_processes_are_all_seen(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, set_page_size: Callable[[int], None]
) -> None:
    set_page_size(2)
    address = str(tmp_path / "register.db")
    store = use_sqlite(tmp_path / "register.db")
    if kind == "redis":
        server: RedisServer = request.getfixturevalue("redis")
        address, store = server.url, use_redis(server)
    command = [sys.executable, "-c", ADD, kind, address, "40"]
    processes = [subprocess.Popen(command) for _ in range(3)]

    async def follow() -> dict[str, str]:
        async with using(store.open()) as register:
            values, number, is_running = dict[str, str](), 0, True
            while is_running:
                is_running = any(process.poll() is None for process in processes)
                for page in await read_pages(register, number):
                    assert page.number >= number
                    values |= page.values
                    number = page.number
            return values

    values = asyncio.run(follow())
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    assert values == {"sum": "120", **{f"part {i}": "24" for i in range(5)}}
