"""Redis register: values that replicas on many machines share in Redis or Valkey.

Every script touches one key, and each key is in a hash slot of its own, so Redis Cluster works
too. The identity of the server is its ``run_id``, which is another one after every restart and on
every machine; a value is replaced only on the server that it was read from. A call takes at most
``timeout_s``, with the connection and one reconnection. How durable a value is depends on the
server: ``appendonly yes`` and ``appendfsync always`` keep everything.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from adacompute.core.errors import ConfigError, needs_extra
from adacompute.spending.accounts import RECOVERY_S
from adacompute.spending.registers import Reading, RegisterError

if TYPE_CHECKING:
    from redis.asyncio import Redis, RedisCluster

T = TypeVar("T")

TIMEOUT_S = 0.5
MAX_CALLS = 32
"""Calls at a time, each on a connection of its own."""

PAGE_SIZE = 1_000
"""Keys that are looked at in one step when keys are listed."""

KEY_START, KEY_END = "adacompute:{", "}"
"""A key in Redis; what is in braces decides its hash slot."""

READ = """
local server = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') or ''
local time = redis.call('TIME')
return {server, time[1], time[2], redis.call('GET', KEYS[1])}
"""

REPLACE = """
local server = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') or ''
local old = ARGV[2] == '1' and ARGV[3]
if server ~= ARGV[1] or redis.call('GET', KEYS[1]) ~= old then return 0 end
redis.call('SET', KEYS[1], ARGV[4])
return 1
"""


class RedisRegister:
    """The register of replicas on many machines.

    ``url`` is as in redis-py: ``redis://user:password@host:6379/0``, ``rediss://`` for TLS. A
    server in cluster mode is recognised.
    """

    recovery_s = RECOVERY_S

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
        server, seconds, microseconds, value = await self._run(READ, key)
        if not server:
            raise RegisterError(f"the server {self._address} does not show its run_id in INFO")
        return Reading(value, server, int(seconds) + int(microseconds) / 1e6)

    async def replace(self, key: str, old: Reading, new: str, *, durable: bool = True) -> bool:
        """Replace a value, unless it or its server has changed since it was read."""
        del durable  # the configuration of the server decides
        has_value = "0" if old.value is None else "1"
        return bool(await self._run(REPLACE, key, old.server, has_value, old.value or "", new))

    async def keys(self, prefix: str) -> list[str]:
        """Return all keys that begin with a prefix, sorted; ``timeout_s`` is for each step."""
        pattern = KEY_START + re.sub(r"([\\*?\[\]])", r"\\\1", prefix) + "*"

        async def scan() -> set[str]:  # a cluster is scanned on all its primaries
            async with asyncio.timeout(self._timeout_s):
                client = await self._client()
            pages = client.scan_iter(match=pattern, count=PAGE_SIZE)
            found: set[str] = set()
            while True:
                async with asyncio.timeout(self._timeout_s):
                    key = await anext(pages, None)
                if key is None:
                    return found
                found.add(key)

        found = await self._try_twice(scan)
        return sorted(key[len(KEY_START) : -len(KEY_END)] for key in found)

    async def close(self) -> None:
        """Close connections; RegisterError if the server does not react in time."""
        from redis.exceptions import RedisError

        try:
            await self._forget_cluster()
            await self._redis.aclose()
        except (RedisError, OSError) as error:
            raise RegisterError(f"connections to {self._address} remain open: {error}") from None

    async def _run(self, script: str, key: str, *arguments: str) -> Any:  # noqa: ANN401
        """Run a script; its replies are a number or a list."""

        async def evaluate() -> Any:  # noqa: ANN401
            client = await self._client()
            return await client.eval(script, 1, KEY_START + key + KEY_END, *arguments)

        return await self._try_twice(evaluate, timeout_s=self._timeout_s)

    async def _try_twice(
        self, call: Callable[[], Awaitable[T]], *, timeout_s: float | None = None
    ) -> T:
        """Make a call, and repeat it once on a new connection if the old one is closed."""
        from redis.exceptions import ConnectionError as Disconnected
        from redis.exceptions import RedisClusterException, RedisError

        try:
            async with asyncio.timeout(timeout_s), self._slots:
                try:
                    return await call()
                except Disconnected:  # the server has restarted: the next try connects again
                    return await call()
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
