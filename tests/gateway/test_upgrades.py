"""A request that asks for another protocol is served as if it did not ask."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
from contextlib import suppress

import pytest

from test_support.gateways import send_raw
from test_support.scripted import ScriptedReply, ScriptedServer

CHAT = "/v1/chat/completions"
CHOICES = b'{"choices": []}'
OK = ScriptedReply(200, [("Content-Type", "application/json")], [CHOICES])
BODY = '{"model": "other", "messages": []}'
H2C = ["Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQCAAAA"]
LENGTH, CHUNKED = f"Content-Length: {len(BODY)}", "Transfer-Encoding: chunked"
CHUNKS = f"{len(BODY):x}\r\n{BODY}\r\n0\r\n\r\n"
NEXT = "GET /v1/next HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
PREFACE = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

TAILS = {
    "length": ([LENGTH], BODY),
    "chunks": ([CHUNKED], CHUNKS),
    "no-body": ([], ""),
    "length-and-next": ([LENGTH], BODY + NEXT),
    "chunks-and-next": ([CHUNKED], CHUNKS + NEXT),
    "no-body-and-next": ([], NEXT),
    "body-is-a-request": ([f"Content-Length: {len(NEXT)}"], NEXT + NEXT),
    "preface-as-body": ([f"Content-Length: {len(PREFACE)}"], PREFACE + NEXT),
    "close": (["Connection: close", LENGTH], BODY + NEXT),
    "both": ([LENGTH, CHUNKED], CHUNKS + NEXT),
    "both-turned": ([CHUNKED, LENGTH], CHUNKS + NEXT),
    "two-lengths": (["Content-Length: 2", LENGTH], BODY + NEXT),
    "gzip": (["Transfer-Encoding: gzip, chunked"], CHUNKS + NEXT),
    "bad-chunk": ([CHUNKED], "zz\r\n" + CHUNKS + NEXT),
    "upgrade-in-a-trailer": (
        [CHUNKED],
        CHUNKS[:-2] + "Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n" + NEXT,
    ),
    "next-has-one-too": (
        [LENGTH],
        BODY + "\r\n".join([f"POST {CHAT} HTTP/1.1", "Host: localhost", *H2C, LENGTH, "", BODY]),
    ),
}


def request(*lines: str, tail: str) -> bytes:
    kind = "Content-Type: application/json"
    head = [f"POST {CHAT} HTTP/1.1", "Host: localhost", kind, *lines, "", ""]
    return ("\r\n".join(head) + tail).encode()


def served(port: int, upstream: ScriptedServer, *parts: bytes) -> tuple[list[bytes], list[object]]:
    """The statuses that are answered, and what reaches the upstream."""
    upstream.answer(OK)
    said = b""
    with socket.create_connection(("127.0.0.1", port), timeout=1.0) as plug:
        for part in parts:
            with suppress(BrokenPipeError, ConnectionResetError):
                plug.sendall(part)
            time.sleep(0.02)  # else they may arrive as one
        with suppress(TimeoutError, ConnectionResetError):
            while part := plug.recv(65_536):
                said += part
    statuses = re.findall(rb"HTTP/1.1 (\d+)", said)
    return statuses, [(one.method, one.target, one.headers, one.body) for one in upstream.received]


@pytest.mark.parametrize("name", TAILS)
def test_what_follows_an_upgrade_is_parsed_as_without_it(
    name: str, gateway: int, upstream: ScriptedServer
) -> None:
    lines, tail = TAILS[name]
    expected = served(gateway, upstream, request(*lines, tail=tail))
    assert expected[0]
    assert served(gateway, upstream, request(*H2C, *lines, tail=tail)) == expected
    assert served(gateway, upstream, request(*lines, *H2C, tail=tail)) == expected


@pytest.mark.parametrize("cut", [10, 120, 150, 230, 255, 262, 270, 295, 310])
def test_an_upgrade_may_arrive_in_parts(cut: int, gateway: int, upstream: ScriptedServer) -> None:
    sent = request(*H2C, LENGTH, tail=BODY + NEXT)
    statuses, received = served(gateway, upstream, sent[:cut], sent[cut:])
    assert statuses == [b"200"] * 2
    assert len(received) == 2


def test_the_limits_on_a_head_are_those_of_other_requests(gateway: int) -> None:
    many = [f"X-{number}: a" for number in range(120)]
    assert send_raw(gateway, request(*H2C, *many, tail="")).startswith(b"HTTP/1.1 431 ")
    sent = request(*H2C, LENGTH, tail=BODY) * 40
    assert send_raw(gateway, sent, timeout_s=2).count(b"HTTP/1.1 200 ") <= 17


def test_a_tunnel_is_refused(gateway: int, upstream: ScriptedServer) -> None:
    upstream.answer(OK)
    for lines in ([], H2C):
        head = "\r\n".join(["CONNECT localhost:80 HTTP/1.1", "Host: localhost", *lines, "", ""])
        said = send_raw(gateway, (head + NEXT).encode(), timeout_s=1)
        assert said.startswith(b"HTTP/1.1 4")
        assert b"200" not in said
    assert all(one.target != "/v1/next" for one in upstream.received)


@pytest.mark.parametrize("size", [100, 3_000_000])
def test_curl_with_http2_is_served(size: int, gateway: int, upstream: ScriptedServer) -> None:
    if (curl := shutil.which("curl")) is None:
        pytest.skip("needs curl")
    upstream.answer(OK)
    body = json.dumps({"model": "other", "x": "x" * size})
    url = f"http://127.0.0.1:{gateway}{CHAT}"
    command = [curl, "--http2", "-sS", "-w", "%{http_code}", "--data-binary", "@-", url]
    command += ["-H", "Content-Type: application/json"]
    done = subprocess.run(command, input=body, capture_output=True, text=True, check=True)
    assert done.stdout == CHOICES.decode() + "200"
    assert [one.body for one in upstream.received] == [body.encode()]
    assert upstream.received[0].values("upgrade") == []
