"""A whole reply is one write, with the bytes that uvicorn would write in two."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from adacompute.gateway.connection.client_protocol import ClientProtocol
from adacompute.gateway.connection.exchange import JSON, Exchange, Headers, Receive, Scope, Send

REQUEST = b"POST /v1/x HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n{}"
OLD = b"POST /v1/x HTTP/1.0\r\nhost: a\r\ncontent-length: 2\r\n\r\n{}"
HEAD = b"HEAD /v1/x HTTP/1.1\r\nhost: a\r\n\r\n"


class Wire(asyncio.Transport):
    """Remembers what is written."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.written: list[bytes] = []
        self.is_closed = False

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def resume_reading(self) -> None:
        pass


def written(
    request: bytes, status: int, headers: Headers, data: bytes, *, is_wrapped: bool
) -> tuple[list[bytes], bool]:
    """What a reply becomes, and whether the connection is closed after it."""

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        async def wrapped(message: Any) -> None:
            await send(message)

        exchange = Exchange(scope, receive, wrapped if is_wrapped else send)
        await exchange.reply(status, headers, data)

    async def main() -> tuple[list[bytes], bool]:
        config = uvicorn.Config(application, log_config=None, proxy_headers=False, ws="none")
        wire, loop = Wire(), asyncio.get_running_loop()
        protocol = ClientProtocol(config, ServerState(), {}, loop)
        protocol.connection_made(wire)
        protocol.data_received(request)
        await asyncio.gather(*protocol.tasks)
        protocol.connection_lost(None)
        return [part for part in wire.written if part], wire.is_closed

    return asyncio.run(main())


@pytest.mark.parametrize("request_", [REQUEST, OLD, HEAD], ids=["1.1", "1.0", "head"])
@pytest.mark.parametrize(
    ("status", "headers", "data"),
    [
        (200, [JSON], b'{"a": 1}'),
        (200, [JSON, (b"content-length", b"99"), (b"x-a", b""), (b"x-a", b"b")], b"x" * 100_000),
        (404, [], b""),
        (400, [JSON, (b"connection", b"close")], b"{}"),
        (204, [], b""),
        (304, [(b"etag", b"a")], b""),
    ],
)
def test_a_reply_at_once_has_the_bytes_of_one_in_two_steps(
    request_: bytes, status: int, headers: Headers, data: bytes
) -> None:
    at_once, is_closed = written(request_, status, headers, data, is_wrapped=False)
    in_steps, is_closed_after_steps = written(request_, status, headers, data, is_wrapped=True)
    assert b"".join(at_once) == b"".join(in_steps)
    assert is_closed == is_closed_after_steps


def test_a_whole_reply_is_one_write() -> None:
    parts, _ = written(REQUEST, 200, [JSON], b"{}", is_wrapped=False)
    assert len(parts) == 1


@pytest.mark.parametrize("header", [(b"x-a", b"b\r\nx-c: d"), (b"x a", b"b"), (b"x-a\n", b"b")])
def test_a_header_that_splits_a_reply_is_never_written(header: tuple[bytes, bytes]) -> None:
    assert written(REQUEST, 200, [JSON, header], b"{}", is_wrapped=False) == ([], True)
