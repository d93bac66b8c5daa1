"""Redis register: values that replicas on many machines share in Redis or Valkey.

All values are fields of one hash, with the random identity of the data. So Redis evicts either
nothing or everything, and Redis Cluster works too. The identity of the server is that of its data
and its ``run_id``, which is another one after every restart and on every machine. A script reads or
changes everything in one step; it takes at most ``timeout_s``, with the connection and one
reconnection. How durable a value is depends on the server: ``appendonly yes`` and ``appendfsync
always`` keep everything.
"""

from __future__ import annotations

import asyncio
import math
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from adacompute.core.errors import ConfigError, needs_extra
from adacompute.spending.registers import PAGE_SIZE, Changes, Reading, RegisterError

if TYPE_CHECKING:
    from redis.asyncio import Redis, RedisCluster

TIMEOUT_S = 0.5
MAX_CALLS = 32
"""Calls at a time, each on a connection of its own."""

KEYS = [f"adacompute:{{caps}}:{name}" for name in ("values", "changes", "expiries")]
"""A hash, and the numbers of the last changes and the times of expiry of its values, sorted.

What is in braces decides the hash slot.
"""

FIELD = "value/"
"""Beginning of the names of values in the hash, which also has the fields identity and number."""

FIND_SERVER = """
local run_id = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
if not run_id then return redis.error_reply('INFO does not show the run_id of the server') end
local identity, time = redis.call('HGET', KEYS[1], 'identity'), redis.call('TIME')
if not identity then
  identity = ARGV[1]
  redis.call('DEL', unpack(KEYS))
  redis.call('HSET', KEYS[1], 'identity', identity)
end
local server = run_id .. '/' .. identity
"""
"""Beginning of every script; its first argument is an identity for data that have none."""

READ = FIND_SERVER + "return {server, time[1], time[2], redis.call('HGET', KEYS[1], ARGV[2])}"

REPLACE = (
    FIND_SERVER
    + """
local field, old = ARGV[3], ARGV[4] == '1' and ARGV[5]
if server ~= ARGV[2] or redis.call('HGET', KEYS[1], field) ~= old then return 0 end
redis.call('HSET', KEYS[1], field, ARGV[6])
redis.call('ZADD', KEYS[2], redis.call('HINCRBY', KEYS[1], 'number', 1), field)
redis.call('ZADD', KEYS[3], ARGV[7], field)
local expired = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', time[1], 'LIMIT', 0, 100)
if #expired > 0 then
  redis.call('HDEL', KEYS[1], unpack(expired))
  redis.call('ZREM', KEYS[2], unpack(expired))
  redis.call('ZREM', KEYS[3], unpack(expired))
end
return 1
"""
)

LIST_CHANGES = (
    FIND_SERVER
    + """
local number = redis.call('HGET', KEYS[1], 'number') or '0'
local fields = redis.call('ZRANGEBYSCORE', KEYS[2], '(' .. ARGV[2], '+inf', 'LIMIT', 0, ARGV[3])
local values = #fields > 0 and redis.call('HMGET', KEYS[1], unpack(fields)) or {}
if #fields == tonumber(ARGV[3]) then number = redis.call('ZSCORE', KEYS[2], fields[#fields]) end
return {server, time[1], time[2], number, fields, values}
"""
)

RENEW = (
    FIND_SERVER
    + """
if server == ARGV[2] then redis.call('HSET', KEYS[1], 'identity', ARGV[1]) end
return 1
"""
)

CHECK = """
local text = redis.call('INFO', 'persistence') .. redis.call('INFO', 'memory')
local policy = string.match(text, 'maxmemory_policy:([%w-]+)') or ''
return {string.match(text, 'aof_enabled:(%d)') or '', policy}
"""


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
        server, *time, value = await self._run(READ, FIELD + key)
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
        values = "0" if old.value is None else "1", old.value or "", new, str(expires_at)
        return bool(await self._run(REPLACE, old.server, FIELD + key, *values))

    async def changes(self, after: int) -> Changes:
        """Return values whose last change has a number above ``after``, one page."""
        found = await self._run(LIST_CHANGES, str(after), str(PAGE_SIZE))
        server, *time, number, fields, values = found
        keys = [field.removeprefix(FIELD) for field in fields]
        known, is_last = dict(zip(keys, values, strict=True)), len(keys) < PAGE_SIZE
        return Changes(known, int(number), server, _to_seconds(*time), is_last)

    async def renew(self, server: str) -> None:
        """Give the server another identity, if it still has this one."""
        await self._run(RENEW, server)

    async def check(self) -> str | None:
        """Say how the server can lose data; None if it cannot, or does not say."""
        has_log, policy = await self._run(CHECK)
        problem = None
        if has_log == "0":
            problem = "appendonly no: set appendonly yes and appendfsync always"
        elif policy.startswith("allkeys"):
            problem = f"maxmemory-policy {policy}: set maxmemory-policy noeviction"
        return problem and f"the store {self._address} can lose what was spent, with {problem}"

    async def close(self) -> None:
        """Close connections; RegisterError if the server does not react in time."""
        from redis.exceptions import RedisError

        try:
            await self._forget_cluster()
            await self._redis.aclose()
        except (RedisError, OSError) as error:
            raise RegisterError(f"connections to {self._address} remain open: {error}") from None

    async def _run(self, script: str, *arguments: str) -> Any:  # noqa: ANN401 - of any type
        """Run a script, and once more on a new connection if the old one is closed."""
        from redis.exceptions import ConnectionError as Disconnected
        from redis.exceptions import RedisClusterException, RedisError

        values = *KEYS, uuid.uuid4().hex, *arguments
        try:
            async with asyncio.timeout(self._timeout_s), self._slots:
                try:
                    return await (await self._client()).eval(script, len(KEYS), *values)
                except Disconnected:  # the server has restarted: the next try connects again
                    return await (await self._client()).eval(script, len(KEYS), *values)
        except (RedisError, RedisClusterException, OSError) as error:
            if isinstance(error, RedisClusterException):
                with suppress(RedisError, OSError):
                    await self._forget_cluster()
            raise RegisterError(
                f"the register {self._address} cannot be used: {str(error) or 'it is too slow'}"
            ) from None

    async def _client(self) -> Redis | RedisCluster:
        """Return a client for one server, or for the cluster that it belongs to."""
        if self._chosen is None:
            found = await self._redis.info("cluster")
            if self._chosen is None and found.get("cluster_enabled"):
                from redis.asyncio import RedisCluster

                self._chosen = RedisCluster.from_url(self._url, **self._options)
        self._chosen = self._chosen or self._redis
        return self._chosen

    async def _forget_cluster(self) -> None:
        """Look for the cluster again at the next call: its client knows no server that answers."""
        chosen, self._chosen = self._chosen, None
        if chosen is not None and chosen is not self._redis:
            await chosen.aclose()


def _to_seconds(seconds: str, microseconds: str) -> float:
    return int(seconds) + int(microseconds) / 1e6
