"""An exchange notices who leaves, and says no more than a reply can hold."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import pytest

from adacompute.gateway.connection.exchange import (
    EVENT_STREAM,
    JSON,
    ClientDisconnected,
    Exchange,
    TooLarge,
)

Message = MutableMapping[str, Any]
GONE: Message = {"type": "http.disconnect"}
SCOPE = {"method": "POST", "path": "/v1/x", "headers": [(b"content-length", b"4")]}


class Wire:
    """Both ends of a connection: messages that come, and those that were sent."""

    def __init__(self, *coming: Message) -> None:
        self.coming: asyncio.Queue[Message] = asyncio.Queue()
        self.sent: list[Message] = []
        for message in coming:
            self.coming.put_nowait(message)

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    def exchange(self, **scope: Any) -> Exchange:
        return Exchange({**SCOPE, **scope}, self.coming.get, self.send)


def run(use: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(5):
            await use()

    asyncio.run(main())


def test_a_disconnect_cancels_the_request() -> None:
    async def use() -> None:
        wire = Wire(GONE)
        with pytest.raises(ClientDisconnected), wire.exchange().cancel_on_disconnect():
            await asyncio.sleep(60)
        assert wire.sent == []

    run(use)


def test_a_disconnect_after_the_full_reply_cancels_nothing() -> None:
    done = []

    async def use() -> None:
        wire = Wire()
        exchange = wire.exchange()
        with exchange.cancel_on_disconnect():
            await exchange.reply(200, [JSON], b"{}")
            wire.coming.put_nowait(GONE)
            await asyncio.sleep(0.01)
            done.append(True)

    run(use)
    assert done == [True]


def test_cancellation_is_not_a_disconnect() -> None:
    async def wait(exchange: Exchange) -> None:
        with exchange.cancel_on_disconnect():
            await asyncio.sleep(60)

    async def use() -> None:
        task = asyncio.ensure_future(wait(Wire().exchange()))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(use)


def test_an_error_is_appended_only_to_a_stream() -> None:
    async def use() -> None:
        for headers, added in ((EVENT_STREAM, 1), ([JSON], 0)):
            wire = Wire()
            exchange = wire.exchange()
            await exchange.start(200, headers)
            await exchange.write(b"half")
            await exchange.fail(502, "it broke", "upstream_error")
            assert len(wire.sent) == 2 + added

    run(use)


def test_nothing_is_sent_after_the_end() -> None:
    async def use() -> None:
        wire = Wire()
        exchange = wire.exchange()
        await exchange.start(200, EVENT_STREAM)
        await exchange.write(b"all", more=False)
        await exchange.fail(502, "it broke", "upstream_error")
        assert len(wire.sent) == 2

    run(use)


def test_a_body_is_read_within_its_limits() -> None:
    async def use() -> None:
        parts = [
            {"type": "http.request", "body": b"ab", "more_body": more} for more in (True, False)
        ]
        assert await Wire(*parts).exchange().read(max_bytes=4, timeout_s=1) == b"abab"
        with pytest.raises(TooLarge):
            await Wire(*parts).exchange(headers=[]).read(max_bytes=3, timeout_s=1)
        with pytest.raises(TooLarge):
            await Wire().exchange().read(max_bytes=3, timeout_s=1)
        with pytest.raises(TimeoutError):
            await Wire(parts[0]).exchange().read(max_bytes=4, timeout_s=0.01)
        with pytest.raises(ClientDisconnected):
            await Wire(parts[0], GONE).exchange().read(max_bytes=4, timeout_s=1)

    run(use)
