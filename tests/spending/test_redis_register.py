"""What only the Redis register can do: servers that restart, hang, are full, or form a cluster."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Literal

import pytest

from adacompute.core.errors import ConfigError, MissingExtra
from adacompute.spending.redis_register import KEYS, RedisRegister
from adacompute.spending.registers import Reading, Register, RegisterError, update
from test_support.redis_server import RedisServer, find_redis, serve_redis
from test_support.registers import fails_within, increase, using

needs_redis = pytest.mark.skipif(find_redis() is None, reason="redis-server is not installed")

COMMANDS = [
    *("eval", "info", "time", "del", "hdel", "hget", "hincrby", "hmget", "hset"),
    *("zadd", "zrangebyscore", "zrem", "zscore"),
]
"""All that a gateway needs the right to do."""


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    if find_redis() is None:
        pytest.skip("redis-server is not installed")
    with serve_redis() as server:
        yield server


def allow(server: RedisServer, commands: list[str]) -> None:
    """Add a user that may use these commands only."""
    rights = " ".join(f"+{name}" for name in commands)
    answer = server.send(f"ACL SETUSER gateway on >secret ~adacompute:* -@all {rights}")
    assert answer.startswith("+OK")


@contextmanager
def serve_cluster() -> Iterator[tuple[RedisServer, RedisServer]]:
    """Run two servers, of which the second has the slot of all keys."""
    options = {"cluster-enabled": "yes"}
    with serve_redis(options) as one, serve_redis(options) as other:
        assert one.send("CLUSTER ADDSLOTSRANGE 0 8191").startswith("+OK")
        assert other.send("CLUSTER ADDSLOTSRANGE 8192 16383").startswith("+OK")
        assert other.send("CLUSTER SET-CONFIG-EPOCH 2").startswith("+OK")
        one.send(f"CLUSTER MEET 127.0.0.1 {other.port}")
        deadline = time.monotonic() + 30
        while not all("cluster_state:ok" in node.send("CLUSTER INFO") for node in (one, other)):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield one, other


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
            await fails_within(2, register.changes(0))
            redis.resume()
            await register.read("a")
            redis.kill()
            await fails_within(1, register.read("a"))
            await fails_within(1, register.replace("a", reading, "1"))
            await fails_within(2, register.changes(0))
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
@pytest.mark.parametrize("policy", ["noeviction", "volatile-lru", "volatile-ttl"])
def test_a_full_server_keeps_and_shows_what_it_has(redis: RedisServer, policy: str) -> None:
    async def check() -> None:
        async with using(RedisRegister(redis.url)) as register:
            await update(register, "a", increase, expires_at=time.time() + 60)
            reading = await register.read("a")
            redis.send("CONFIG SET maxmemory 1")
            redis.send(f"CONFIG SET maxmemory-policy {policy}")
            await fails_within(1, register.replace("a", reading, "2"))
            assert (await register.changes(0))[:3] == ({"a": "1"}, 1, reading.server)
            assert (await register.read("a"))[:2] == reading[:2]
            assert await register.check() is None

    redis.restart("empty")
    asyncio.run(check())


@needs_redis
def test_data_of_which_a_part_is_gone_have_another_identity(redis: RedisServer) -> None:
    async def check() -> None:
        async with using(RedisRegister(redis.url)) as register:
            await update(register, "a", increase)
            before = await register.changes(0)
            redis.send(f"DEL {KEYS[0]}")
            after = await register.changes(0)
            assert after[:2] == ({}, 0)
            assert after.server != before.server

    redis.restart("empty")
    asyncio.run(check())


@needs_redis
def test_nothing_of_a_value_that_has_expired_is_left(redis: RedisServer) -> None:
    async def check() -> None:
        async with using(RedisRegister(redis.url)) as register:
            for number in range(230):
                await update(register, str(number), increase, expires_at=time.time() + 1)
            await asyncio.sleep(2)
            for number in range(3):  # each deletes some
                await update(register, f"new {number}", increase)
            assert list((await register.changes(0)).values) == ["new 0", "new 1", "new 2"]
        sizes = [redis.send(f"HLEN {KEYS[0]}"), *(redis.send(f"ZCARD {key}") for key in KEYS[1:])]
        assert sizes == [":5\r\n", ":3\r\n", ":3\r\n"]

    redis.restart("empty")
    asyncio.run(check())


@needs_redis
@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("appendonly", "yes", None),
        ("appendonly", "no", "appendonly"),
        ("maxmemory-policy", "volatile-lru", None),
        ("maxmemory-policy", "allkeys-lru", "maxmemory-policy"),
    ],
)
def test_settings_that_can_lose_data_are_named(
    redis: RedisServer, name: str, value: str, expected: str | None
) -> None:
    async def check() -> None:
        async with using(RedisRegister(redis.url)) as register:
            found = await register.check()
        assert (found is None) == (expected is None)
        for part in (expected, str(redis.port)) if expected else ():
            assert part in str(found)

    redis.restart("empty")
    assert redis.send(f"CONFIG SET {name} {value}").startswith("+OK")
    asyncio.run(check())


@needs_redis
@pytest.mark.parametrize("missing", ["", *COMMANDS])
def test_a_user_needs_the_rights_that_are_documented(
    redis: RedisServer, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without one of them, something fails; CONFIG is not among them."""

    async def use(register: Register) -> None:
        for _ in range(2):
            await update(register, "a", increase, expires_at=0.0)
        await update(register, "b", increase)
        await register.renew((await register.changes(0)).server)
        assert await register.check() is None

    async def check() -> None:
        url = redis.url.replace("redis://", "redis://gateway:secret@")
        async with using(RedisRegister(url)) as register:
            if not missing:
                await use(register)
                return
            with pytest.raises(RegisterError):
                await use(register)

    monkeypatch.setattr("adacompute.spending.redis_register.PAGE_SIZE", 1)
    redis.restart("empty")
    allow(redis, [name for name in COMMANDS if name != missing])
    asyncio.run(check())


@needs_redis
def test_a_cluster_keeps_all_values_on_one_server() -> None:
    async def check(address: str) -> None:
        async with using(RedisRegister(address, timeout_s=5.0)) as register:
            servers = set()
            for key in "abcdefgh":
                assert await update(register, key, increase) == 1
                servers.add((await register.read(key)).server)
            changes = await register.changes(0)
            assert "".join(changes.values) == "abcdefgh"
            assert servers == {changes.server}
            assert await register.check() is None

    with serve_cluster() as (one, other):
        for node in (one, other):
            allow(node, [*COMMANDS, "cluster|slots", "command"])
        asyncio.run(check(one.url.replace("redis://", "redis://gateway:secret@")))
        assert one.send("DBSIZE") == ":0\r\n"
        assert other.send("DBSIZE") == f":{len(KEYS)}\r\n"


@needs_redis
def test_values_that_move_to_another_server_of_a_cluster_have_another_identity() -> None:
    def move(source: RedisServer, target: RedisServer) -> None:
        source_id, target_id = (
            node.send("CLUSTER MYID").split("\r\n")[1] for node in (source, target)
        )
        slot = source.send(f"CLUSTER KEYSLOT {KEYS[0]}").strip(":\r\n")
        target.send(f"CLUSTER SETSLOT {slot} IMPORTING {source_id}")
        source.send(f"CLUSTER SETSLOT {slot} MIGRATING {target_id}")
        source.send(f'MIGRATE 127.0.0.1 {target.port} "" 0 5000 KEYS {" ".join(KEYS)}')
        for node in (target, source):
            assert node.send(f"CLUSTER SETSLOT {slot} NODE {target_id}").startswith("+OK")

    async def check(one: RedisServer, other: RedisServer) -> None:
        async with using(RedisRegister(one.url, timeout_s=5.0)) as register:
            await update(register, "a", increase)
            before = await register.changes(0)
            move(other, one)
            after = await register.changes(0)
            assert after[:2] == before[:2]
            assert after.server != before.server
            reading = Reading("1", before.server, 0.0)
            assert not await register.replace("a", reading, "2")
            assert await update(register, "a", increase) == 2

    with serve_cluster() as (one, other):
        asyncio.run(check(one, other))


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
