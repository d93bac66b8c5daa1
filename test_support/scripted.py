"""Scripted upstream: a server that sends prepared bytes and records the bytes it receives.

Use it to test proxies: requests are recorded byte for byte, and replies are sent exactly as
written, including invalid ones. It speaks HTTP/1.1 over real sockets, and the server knows nothing
of models. In a test:

    with serve_scripted() as upstream:
        upstream.answer(ScriptedReply(429, [("Retry-After", "7")], [b'{"error": …}']))
        …
        assert upstream.received[0].body == sent

The body of a reply is a list: bytes are sent, a number is a pause in seconds, and an event is
waited for, so that a test can delay the rest of the reply.
"""

from __future__ import annotations

import asyncio
import contextlib
import http
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from adacompute.core.errors import ConfigError

__all__ = ["ReceivedRequest", "ScriptedReply", "ScriptedServer", "chat_reply", "serve_scripted"]

Headers = Sequence[tuple[str, str]]

MAX_WAIT_S = 20.0
"""Maximum wait for an event, so that a test that never sets it does not hang."""

_MAX_HEAD_BYTES = 2**20


@dataclass(frozen=True)
class ReceivedRequest:
    """A request as received, except that header names are in lower case."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    head: bytes = b""
    """The request line and the headers, byte for byte."""

    def values(self, name: str) -> list[str]:
        """All values of a header."""
        return [value for header, value in self.headers if header == name]


@dataclass(frozen=True)
class ScriptedReply:
    """A reply: status, headers, the parts of the body, and how its end is marked.

    ``framing`` is a Content-Length, chunked encoding (one chunk per part), the end of the
    connection, or "none" for replies without a body. With ``cut`` the connection is closed before
    the end of the body.
    """

    status: int = 200
    headers: Headers = ()
    parts: Sequence[bytes | float | threading.Event] = ()
    framing: Literal["length", "chunked", "close", "none"] = "length"
    cut: bool = False

    @property
    def body(self) -> bytes:
        """All bytes of the body."""
        return b"".join(part for part in self.parts if isinstance(part, bytes))

    @property
    def head(self) -> bytes:
        """The status line and headers."""
        headers = list(self.headers)
        if self.framing == "length":
            headers.append(("Content-Length", str(len(self.body) + self.cut)))
        elif self.framing == "chunked":
            headers.append(("Transfer-Encoding", "chunked"))
        elif self.framing == "close":
            headers.append(("Connection", "close"))
        phrases = {status.value: status.phrase for status in http.HTTPStatus}
        lines = [f"HTTP/1.1 {self.status} {phrases.get(self.status, 'Unknown')}"]
        lines += [f"{name}: {value}" for name, value in headers]
        return "\r\n".join([*lines, "", ""]).encode("latin-1")


def chat_reply(*texts: str, tokens: int = 5, status: int = 200) -> ScriptedReply:
    """Return a chat completion with a choice for each text."""
    choices = [
        {"index": i, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        for i, text in enumerate(texts)
    ]
    usage = {"prompt_tokens": 7, "completion_tokens": tokens, "total_tokens": 7 + tokens}
    document = {"id": "x", "object": "chat.completion", "choices": choices, "usage": usage}
    headers = [("Content-Type", "application/json")]
    return ScriptedReply(status, headers, [json.dumps(document).encode()])


MakeReply = Callable[[ReceivedRequest], ScriptedReply]
"""Makes the reply to a request."""

OK = ScriptedReply(200, [("Content-Type", "application/json")], [b"{}"])


class ScriptedServer:
    """A scripted server with the replies to send and the requests received."""

    def __init__(self) -> None:
        self.port = 0
        self.received: list[ReceivedRequest] = []
        self.connections = 0
        self._replies: list[ScriptedReply | MakeReply] = [OK]
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def base_url(self) -> str:
        """URL to give to a client."""
        return f"http://127.0.0.1:{self.port}/v1"

    def answer(self, *replies: ScriptedReply | MakeReply) -> None:
        """Reply to the next requests with these, repeating the last; clears ``received``.

        A function is called with the request and returns the reply.
        """
        self.received.clear()
        self._replies = list(replies)

    async def run(self, ready: Callable[[], None], done: asyncio.Event) -> None:
        """Serve on a free port of the loopback interface until `done`."""
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=_MAX_HEAD_BYTES)
        self.port = server.sockets[0].getsockname()[1]
        ready()
        await done.wait()
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self.connections += 1
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                while await self._exchange(reader, writer):
                    pass
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; True if the connection stays open."""
        request = await _receive(reader)
        self.received.append(request)
        chosen = self._replies.pop(0) if len(self._replies) > 1 else self._replies[0]
        reply = chosen if isinstance(chosen, ScriptedReply) else chosen(request)
        writer.write(reply.head)
        has_body = request.method != "HEAD" and reply.framing != "none"
        for part in reply.parts if has_body else ():
            await writer.drain()
            if isinstance(part, bytes):
                chunked = reply.framing == "chunked"
                writer.write(b"%x\r\n%b\r\n" % (len(part), part) if chunked else part)
            elif isinstance(part, threading.Event):
                await asyncio.to_thread(part.wait, MAX_WAIT_S)
            else:
                await asyncio.sleep(part)
        if reply.framing == "chunked" and has_body and not reply.cut:
            writer.write(b"0\r\n\r\n")
        await writer.drain()
        return not reply.cut and reply.framing != "close"


async def _receive(reader: asyncio.StreamReader) -> ReceivedRequest:
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")[:-2]
    method, target, _ = first.split(" ", 2)
    pairs = [line.partition(":") for line in lines]
    headers = tuple((name.lower(), value.strip(" \t")) for name, _, value in pairs)
    request = ReceivedRequest(method, target, headers, b"")
    body = b""
    if request.values("transfer-encoding"):
        while size := int(await reader.readuntil(b"\r\n"), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readuntil(b"\r\n")
    elif lengths := request.values("content-length"):
        body = await reader.readexactly(int(lengths[0]))
    return ReceivedRequest(method, target, headers, body, head)


@contextmanager
def serve_scripted() -> Iterator[ScriptedServer]:
    """Run a scripted server in a background thread while the context is open."""
    started = threading.Event()
    upstream = ScriptedServer()
    stop: list[Callable[[], object]] = []

    async def main() -> None:
        done = asyncio.Event()
        loop = asyncio.get_running_loop()
        stop.append(lambda: loop.call_soon_threadsafe(done.set))
        await upstream.run(started.set, done)

    thread = threading.Thread(target=lambda: asyncio.run(main()), name="scripted", daemon=True)
    thread.start()
    if not started.wait(timeout=10):
        raise ConfigError("the scripted upstream did not start within 10 s")
    try:
        yield upstream
    finally:
        stop[0]()
        thread.join(timeout=10)
