"""Redis register: values that replicas on many machines share in Redis or Valkey.

All keys are in one hash slot, so Redis Cluster works too. The identity of the server is its
``run_id``, which is another one after every restart and on every machine, and a random number in
its data; a value is replaced only on the server that it was read from. A call takes at most
``timeout_s``, with the connection and one reconnection. How durable a value is depends on the
server: ``appendonly yes`` and ``appendfsync always`` keep everything.
"""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from adacompute.core.errors import ConfigError, needs_extra
from adacompute.spending.registers import PAGE_SIZE, Changes, Reading, RegisterError

if TYPE_CHECKING:
    from redis.asyncio import Redis, RedisCluster

T = TypeVar("T")

TIMEOUT_S = 0.5
MAX_CALLS = 32
"""Calls at a time, each on a connection of its own."""

PREFIX = "adacompute:{caps}:"
"""Beginning of all keys in Redis; what is in braces decides their hash slot."""

KEYS = [PREFIX + name for name in ("identity", "number", "changes")]
"""Keys that every script uses besides that of a value."""

FIND_SERVER = """
local run_id = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
if not run_id then return redis.error_reply('INFO does not show the run_id of the server') end
redis.call('SET', KEYS[1], ARGV[1], 'NX')
local server = run_id .. '/' .. redis.call('GET', KEYS[1])
local time = redis.call('TIME')
"""
"""Beginning of every script; its first argument is an identity for data that have none."""

READ = FIND_SERVER + "return {server, time[1], time[2], redis.call('GET', KEYS[4])}"

REPLACE = (
    FIND_SERVER
    + """
local old = ARGV[3] == '1' and ARGV[4]
if server ~= ARGV[2] or redis.call('GET', KEYS[4]) ~= old then return 0 end
redis.call('SET', KEYS[4], ARGV[5])
if ARGV[6] ~= '' then redis.call('EXPIREAT', KEYS[4], ARGV[6]) end
redis.call('ZADD', KEYS[3], redis.call('INCR', KEYS[2]), KEYS[4])
return 1
"""
)

LIST_CHANGES = (
    FIND_SERVER
    + """
local found = redis.call('ZRANGEBYSCORE', KEYS[3], '(' .. ARGV[2], '+inf', 'WITHSCORES',
  'LIMIT', 0, ARGV[3])
return {server, time[1], time[2], redis.call('GET', KEYS[2]) or '0', found}
"""
)

RENEW = FIND_SERVER + "if server == ARGV[2] then redis.call('SET', KEYS[1], ARGV[1]) end return 1"


class RedisRegister:
    """The register of replicas on many machines.

    ``url`` is as in redis-py: ``redis://user:password@host:6379/0``, ``rediss://`` for TLS. A
    server in cluster mode is recognised.
    """

    is_local = False

    def __init__(self, url: str, *, timeout_s: float = TIMEOUT_S) -> None:
        with needs_extra("serve"):
            from redis.asyncio import Redis
            from redis.asyncio.retry import Retry
            from redis.backoff import NoBackoff

        self._url = url
        self._slots = asyncio.Semaphore(MAX_CALLS)
        self._timeout_s = timeout_s
        self._options: dict[str, Any] = {
            "decode_responses": True,
            "retry": Retry(NoBackoff(), 0),
            "socket_connect_timeout": timeout_s,
            # With a timeout of its own, redis-py uses asyncio.wait_for, which in Python 3.11 may
            # lose the cancellation of a task: then a process does not stop.
            "socket_timeout": None,
        }
        try:
            self._redis = Redis.from_url(url, **self._options)
            self._address = urlsplit(url).netloc.rpartition("@")[2]
        except ValueError as error:
            raise ConfigError(f"the address of Redis cannot be used: {error}") from None
        self._chosen: Redis | RedisCluster | None = None

    async def read(self, key: str) -> Reading:
        """Return the value of a key."""
        server, *time, value = await self._run(READ, [PREFIX + key])
        return Reading(value, server, _to_seconds(*time))

    async def replace(
        self,
        key: str,
        old: Reading,
        new: str,
        *,
        durable: bool = True,
        expires_at: float = math.inf,
    ) -> bool:
        """Replace a value, unless it or its server has changed since it was read."""
        del durable  # the configuration of the server decides
        values = ["0" if old.value is None else "1", old.value or "", new]
        expiry = "" if expires_at == math.inf else str(math.ceil(expires_at))
        return bool(await self._run(REPLACE, [PREFIX + key], old.server, *values, expiry))

    async def changes(self, after: int) -> Changes:
        """Return values whose last change has a number above ``after``, one page."""
        server, *time, number, found = await self._run(LIST_CHANGES, [], str(after), str(PAGE_SIZE))
        keys, is_last = found[::2], len(found) < 2 * PAGE_SIZE
        values = await self._call(lambda client: client.mget(keys)) if keys else []
        known = {
            key.removeprefix(PREFIX): value
            for key, value in zip(keys, values, strict=True)
            if value is not None
        }
        if expired := [key for key in keys if key.removeprefix(PREFIX) not in known]:
            await self._call(lambda client: client.zrem(KEYS[2], *expired))
        last = int(number) if is_last else int(float(found[-1]))
        return Changes(known, last, server, _to_seconds(*time), is_last)

    async def renew(self, server: str) -> None:
        """Give the server another identity, if it still has this one."""
        await self._run(RENEW, [], server)

    async def check(self) -> str | None:
        """Say whether a crash of the server can lose data; None if it cannot, or does not say."""
        from redis.exceptions import ResponseError

        try:
            found = await self._call(lambda client: client.config_get("append*"))
        except RegisterError as error:
            if isinstance(error.__context__, ResponseError):  # CONFIG is not allowed
                return None
            raise
        if found.get("appendonly") != "yes":
            return (
                f"the store {self._address} has appendonly off: a crash loses what was spent; set "
                "appendonly yes and appendfsync always"
            )
        return None

    async def close(self) -> None:
        """Close connections; RegisterError if the server does not react in time."""
        from redis.exceptions import RedisError

        try:
            await self._forget_cluster()
            await self._redis.aclose()
        except (RedisError, OSError) as error:
            raise RegisterError(f"connections to {self._address} remain open: {error}") from None

    async def _run(self, script: str, keys: list[str], *arguments: str) -> Any:  # noqa: ANN401
        """Run a script; its replies are a number or a list."""
        given = [*KEYS, *keys]
        identity = uuid.uuid4().hex
        return await self._call(
            lambda client: client.eval(script, len(given), *given, identity, *arguments)
        )

    async def _call(self, command: Callable[[Any], Awaitable[T]]) -> T:
        """Send a command in time, and once more on a new connection if the old one is closed."""
        from redis.exceptions import ConnectionError as Disconnected
        from redis.exceptions import RedisClusterException, RedisError

        try:
            async with asyncio.timeout(self._timeout_s), self._slots:
                try:
                    return await command(await self._client())
                except Disconnected:  # the server has restarted: the next try connects again
                    return await command(await self._client())
        except (RedisError, RedisClusterException, OSError) as error:
            if isinstance(error, RedisClusterException):
                await self._forget_cluster()
            raise RegisterError(
                f"the register {self._address} cannot be used: {str(error) or 'it is too slow'}"
            ) from None

    async def _client(self) -> Redis | RedisCluster:
        if self._chosen is None:
            self._chosen = await self._choose_client()
        return self._chosen

    async def _choose_client(self) -> Redis | RedisCluster:
        """Return a client for one server, or for the cluster that it belongs to."""
        found = await self._redis.info("cluster")
        if not found.get("cluster_enabled"):
            return self._redis
        from redis.asyncio import RedisCluster

        return RedisCluster.from_url(self._url, **self._options)

    async def _forget_cluster(self) -> None:
        """Look for the cluster again at the next call: its client knows no server that answers."""
        chosen, self._chosen = self._chosen, None
        if chosen is not None and chosen is not self._redis:
            await chosen.aclose()


def _to_seconds(seconds: str, microseconds: str) -> float:
    return int(seconds) + int(microseconds) / 1e6
