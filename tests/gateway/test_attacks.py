"""Attacks on the gateway, one test each: what was tried, and what must come of it.

Each runs against a gateway that is a process of its own, over raw sockets where a client library
would not send what an attacker sends. `docs/how-to/secure.md` lists them.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import Any

import pytest

from adacompute.core.errors import ConfigError, ModelError
from adacompute.gateway.connection.connection_limits import ConnectionLimits
from adacompute.gateway.requests.contract import Limits
from adacompute.gateway.requests.reading import Arrival, read_request
from adacompute.gateway.requests.refusals import Forbidden
from adacompute.gateway.requests.rules import Rules
from adacompute.gateway.settings.config import make_config
from adacompute.models.calls import UNTRACKED
from adacompute.models.connection.endpoint import EndpointLimits
from adacompute.models.messages import RetryPolicy
from adacompute.models.scorer import HttpScorer
from test_support.gateways import process_usage, send
from test_support.scripted import ScriptedReply, ScriptedServer

for name in ("aiohttp", "starlette", "uvicorn", "prometheus_client", "msgspec"):
    pytest.importorskip(name, reason="needs the extra 'serve'")

CHAT = "/v1/chat/completions"
JSON = ("Content-Type", "application/json")
CLIENT = "sk-client-fedcba9876543210"
OLD = "sk-limited-0123456789abcdef"
OK = ScriptedReply(200, [JSON], [b'{"choices":[{"message":{"content":"It is 4."}}]}'])
KNOWN = ConnectionLimits()
MAX_HEADERS, MAX_CONNECTIONS = KNOWN.max_headers, KNOWN.max_connections_per_address
LIMITS = 'trusted_proxies = ["127.0.0.8/31"]\n'
Launch = Callable[..., AbstractContextManager[int]]
TIMEOUT_S = 60.0
"""Patience with a loaded machine; nothing here waits for it to pass."""


@pytest.fixture(scope="module")
def target(launch: Launch) -> Iterator[int]:
    """Port of the gateway that is attacked: no token."""
    with launch(settings=LIMITS, all_paths=False) as port:
        yield port


@pytest.fixture(scope="module")
def keyed(launch: Launch) -> Iterator[int]:
    """Port of a gateway with two tokens, one of them on its way out."""
    settings = f"""{LIMITS}
    max_samples = 64
    bearer_tokens = ["{CLIENT}", "{OLD}"]
    """
    with launch(settings=settings, all_paths=False) as port:
        yield port


@pytest.fixture(autouse=True)
def still_serving(target: int, upstream: ScriptedServer) -> Iterator[None]:
    """Every attack leaves a gateway that answers."""
    upstream.answer(OK)
    yield
    assert send(target, "GET", "/health", timeout_s=TIMEOUT_S).status == 200


@contextmanager
def connect(port: int, address: str = "127.0.0.1") -> Iterator[socket.socket]:
    """Connect from an address of this machine."""
    source = (address, 0)
    with socket.create_connection(("127.0.0.1", port), TIMEOUT_S, source_address=source) as plug:
        yield plug


def receive(plug: socket.socket) -> bytes:
    """Return what arrives until the gateway closes the connection."""
    received = b""
    with suppress(ConnectionResetError):
        while part := plug.recv(65_536):
            received += part
    return received


def exchange(port: int, *parts: bytes, address: str = "127.0.0.1") -> bytes:
    """Send parts one after the other, as far as the gateway reads them; return what it answers."""
    with connect(port, address) as plug:
        with suppress(ConnectionResetError, BrokenPipeError):
            for part in parts:
                plug.sendall(part)
                time.sleep(0.01)  # else they may arrive as one
        return receive(plug)


def growth_mb(port: int, pid: int, parts: list[bytes]) -> int:
    """Send parts on one connection; return by how much the memory of the gateway grows."""
    before = process_usage(pid)["mb"]
    exchange(port, *parts)
    return process_usage(pid)["mb"] - before


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def status(reply: bytes) -> int:
    return int(reply.split(b" ", 2)[1]) if reply else 0


def error_code(reply: bytes) -> str:
    code: str = json.loads(reply.partition(b"\r\n\r\n")[2])["error"]["code"]
    return code


def head(*lines: str, method: str = "POST", target: str = CHAT) -> bytes:
    first = [f"{method} {target} HTTP/1.1", "Host: localhost", f"{JSON[0]}: {JSON[1]}"]
    return "\r\n".join([*first, *lines, "", ""]).encode("latin-1")


CHUNKED = head("Transfer-Encoding: chunked", "Connection: close")
BODY = b'{"model": "other"}'
REQUEST = head("Content-Length: 18", "Connection: close") + BODY
CHUNK = b"%x\r\n%b\r\n" % (len(BODY), BODY)


# Before authentication: connections and headers.


def test_many_headers_are_rejected(target: int) -> None:
    sent = head(*[f"X-{i}: a" for i in range(MAX_HEADERS)])
    assert status(exchange(target, sent)) == 431


def test_large_headers_are_rejected(target: int) -> None:
    sent = head(*[f"X-{i}: {'a' * 1000}" for i in range(40)])
    assert status(exchange(target, sent)) == 431


def test_headers_up_to_the_limit_are_accepted(target: int) -> None:
    lines = [f"X-{i}: {'a' * 100}" for i in range(MAX_HEADERS - 6)]
    assert (
        status(exchange(target, head(*lines, "Content-Length: 18", "Connection: close"), BODY))
        == 200
    )


def test_one_giant_header_that_never_ends_is_rejected(target: int, pids: dict[int, int]) -> None:
    """The parser reports only complete headers, so the gateway must count bytes itself."""
    parts = [head()[:-2] + b"X-Giant: ", *[b"a" * 65_536] * 800]
    assert status(exchange(target, *parts[:20])) == 431
    assert growth_mb(target, pids[target], parts) < 5


def test_54_mb_of_headers_are_not_kept(target: int, pids: dict[int, int]) -> None:
    line = b"X-Many: " + b"a" * 1000 + b"\r\n"
    assert growth_mb(target, pids[target], [head()[:-2], *[line * 64] * 840]) < 5


def test_a_long_request_line_is_rejected(target: int) -> None:
    assert status(exchange(target, head(target="/v1/" + "a" * KNOWN.max_request_line_bytes))) == 431
    assert status(exchange(target, b"GET /" + b"a" * 40_000, b"a" * 40_000)) == 431


def test_large_trailers_are_rejected(target: int) -> None:
    trailer = b"X-Trailer: " + b"a" * 1000 + b"\r\n"
    assert status(exchange(target, CHUNKED + CHUNK + b"0\r\n", *[trailer] * 100)) in {400, 431}


def test_one_giant_trailer_that_never_ends_is_rejected(target: int) -> None:
    sent = [CHUNKED + CHUNK + b"0\r\nX-Trailer: ", *[b"a" * 10_000] * 20]
    assert status(exchange(target, *sent)) in {400, 431}


def test_a_giant_chunk_extension_is_rejected(target: int) -> None:
    assert status(exchange(target, CHUNKED + b"1;x=", *[b"a" * 10_000] * 20)) == 400


def test_many_chunk_extensions_are_rejected(target: int) -> None:
    chunk = b"1;x=" + b"a" * 1000 + b"\r\n{\r\n"
    assert status(exchange(target, CHUNKED, *[chunk * 10] * 10)) == 400


def test_a_body_of_one_byte_chunks_is_rejected(target: int) -> None:
    assert status(exchange(target, CHUNKED, *[b"1\r\n{\r\n" * 1000] * 20)) == 400


def test_a_chunked_body_is_accepted(target: int, upstream: ScriptedServer) -> None:
    assert status(exchange(target, CHUNKED, CHUNK, b"0\r\n\r\n")) == 200
    assert upstream.received[0].body == BODY


def test_an_endless_body_after_the_reply_is_cut_off(keyed: int) -> None:
    """A request without a token is answered before its body, which must not be read for ever."""
    parts = [b"%x\r\n%b\r\n" % (65_536, b" " * 65_536)] * 1000
    sent = 0
    with connect(keyed) as plug:
        plug.sendall(head("Transfer-Encoding: chunked"))
        assert status(plug.recv(65_536)) == 401
        with suppress(ConnectionResetError, BrokenPipeError):
            for part in parts:
                plug.sendall(part)
                sent += len(part)
    assert sent < 20_000_000


def test_thousands_of_pipelined_requests_are_not_queued(
    target: int, upstream: ScriptedServer
) -> None:
    release = threading.Event()
    upstream.answer(ScriptedReply(200, [JSON], [release, b"{}"]))
    first = head("Content-Length: 18") + BODY
    try:
        assert (
            exchange(
                target, first, *[b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1000] * 50
            )
            == b""
        )
    finally:
        release.set()


def test_connections_of_one_address_are_limited(target: int) -> None:
    with ExitStack() as stack:
        for _ in range(MAX_CONNECTIONS):
            stack.enter_context(connect(target, "127.0.0.2"))
        for _ in range(20):
            with connect(target, "127.0.0.2") as plug:
                assert status(receive(plug)) == 429
        assert status(exchange(target, REQUEST, address="127.0.0.3")) == 200
        assert status(exchange(target, REQUEST, address="127.0.0.1")) == 200
    wait_until(lambda: status(exchange(target, REQUEST, address="127.0.0.2")) == 200)


def test_loopback_and_trusted_proxies_have_no_connection_limit(target: int) -> None:
    for address in ("127.0.0.1", "127.0.0.9"):
        with ExitStack() as stack:
            plugs = [stack.enter_context(connect(target, address)) for _ in range(20)]
            plugs[-1].sendall(REQUEST)
            assert status(receive(plugs[-1])) == 200


# Before authentication: trailers.


@pytest.mark.parametrize("trailer", [f"Authorization: Bearer {CLIENT}", "x-adacompute-budget: 99"])
def test_a_trailer_is_not_a_header(trailer: str, keyed: int, upstream: ScriptedServer) -> None:
    key = f"Authorization: Bearer {CLIENT}"
    given = [] if trailer == key else [key]
    sent = head(*given, "Transfer-Encoding: chunked", "Connection: close")
    body = b'{"model": "thrifty", "messages": [{"role": "user", "content": "2+2?"}]}'
    chunk = b"%x\r\n%b\r\n0\r\n" % (len(body), body)
    reply = exchange(keyed, sent + chunk + trailer.encode() + b"\r\n\r\n")
    assert status(reply) == (200 if given else 401)
    assert all(not received.values("x-adacompute-budget") for received in upstream.received)


# Before authentication: web pages.

FOREIGN = {
    "rebound-name": ("invalid_host", ["Host: attacker.example", "Origin: http://attacker.example"]),
    "public-address": ("invalid_host", ["Host: 192.0.2.1:8000"]),
    "loopback-prefix": ("invalid_host", ["Host: 127.0.0.1.attacker.example"]),
    "no-host": ("invalid_host", []),
    "two-hosts": ("invalid_host", ["Host: attacker.example", "Host: localhost"]),
}


@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.parametrize("path", [CHAT, "/metrics"])
def test_a_name_of_others_does_not_reach_a_gateway_without_token(
    name: str, path: str, target: int, upstream: ScriptedServer
) -> None:
    code, lines = FOREIGN[name]
    form = [f"{JSON[0]}: {JSON[1]}", "Content-Length: 18", "Connection: close", "", ""]
    version = "HTTP/1.1" if lines else "HTTP/1.0"
    sent = "\r\n".join([f"POST {path} {version}", *lines, *form]).encode() + BODY
    reply = exchange(target, sent)
    assert (status(reply), error_code(reply)) == (403, code)
    assert upstream.received == []


@pytest.mark.parametrize("host", ["localhost", "localhost:1234", "127.0.0.1:80", "[::1]:8000"])
def test_a_loopback_host_is_accepted(host: str, target: int) -> None:
    assert status(exchange(target, REQUEST.replace(b"localhost", host.encode()))) == 200


# Before authentication: bodies.

BOMB = b"[" + b"[]," * 1_000_000 + b"[]]"
VIRTUAL = {
    "model": b'"thrifty"',
    "messages": b'[{"role": "user", "content": "2+2?"}]',
    **dict.fromkeys(("stream", "stream_options", "temperature", "n", "seed"), b"null"),
    **dict.fromkeys(("max_tokens", "tools", "logprobs", "adacompute", "unknown"), b"null"),
}


def spell(members: dict[str, bytes]) -> bytes:
    pairs = [b'"%b": %b' % (name.encode(), value) for name, value in members.items()]
    return b"{" + b", ".join(pairs) + b"}"


@pytest.mark.parametrize("member", VIRTUAL)
def test_a_bomb_of_brackets_is_rejected_in_every_member(
    member: str, target: int, upstream: ScriptedServer
) -> None:
    body = spell({**VIRTUAL, member: BOMB})
    # With the name elsewhere, so that the body is parsed.
    body = body[:-1] + b', "user": "thrifty"}'
    reply = send(target, "POST", CHAT, headers=[JSON], body=body, timeout_s=TIMEOUT_S)
    # Requests with tools or in odd forms are not voted on: they are forwarded byte for byte.
    assert reply.status in {200, 400}
    assert len(upstream.received) <= 1


@pytest.mark.parametrize("first", ["other", "thrifty"])
def test_two_models_in_one_body_are_rejected(
    first: str, target: int, upstream: ScriptedServer
) -> None:
    second = {"other": "thrifty", "thrifty": "other"}[first]
    for name in ("model", "mod\\u0065l"):
        body = spell({**VIRTUAL, "model": b'"%b"' % first.encode()})
        body = body[:-1] + f', "{name}": "{second}"}}'.encode()
        assert send(target, "POST", CHAT, headers=[JSON], body=body).status == 400
    assert upstream.received == []


# What the upstream sends.


@pytest.fixture(scope="module")
def gzip_bomb() -> bytes:
    """0.1 MB that become 150 MB."""
    packer = zlib.compressobj(9, wbits=31)
    return b"".join([packer.compress(b" " * 10_000_000) for _ in range(15)]) + packer.flush()


PACKED = [JSON, ("Content-Encoding", "gzip")]
HELD = {
    "voted": (200, PACKED, "thrifty", False),
    "voted-stream": (200, [("Content-Type", "text/event-stream"), PACKED[1]], "thrifty", True),
    "voted-rejection": (400, PACKED, "thrifty", False),
    "voted-failure": (500, PACKED, "thrifty", False),
    "forwarded-error": (400, PACKED, "other", False),
}


@pytest.mark.parametrize("name", HELD)
def test_a_gzip_bomb_of_the_upstream_is_not_unpacked(
    name: str, target: int, pids: dict[int, int], upstream: ScriptedServer, gzip_bomb: bytes
) -> None:
    code, headers, model, stream = HELD[name]
    upstream.answer(ScriptedReply(code, headers, [gzip_bomb]))
    body = spell({**VIRTUAL, "model": b'"%b"' % model.encode(), "adacompute": b"{}"})
    body = body.replace(b'"stream": null', b'"stream": true') if stream else body
    before = process_usage(pids[target])["mb"]
    reply = send(target, "POST", CHAT, headers=[JSON], body=body, timeout_s=TIMEOUT_S)
    assert reply.status == 200 if stream else reply.status in {400, 502}
    assert b'"error"' in reply.body
    assert process_usage(pids[target])["mb"] - before < 100


def test_a_gzip_bomb_instead_of_models_is_not_unpacked(
    target: int, pids: dict[int, int], upstream: ScriptedServer, gzip_bomb: bytes
) -> None:
    before = process_usage(pids[target])["mb"]
    for code in (200, 401):
        upstream.answer(ScriptedReply(code, PACKED, [gzip_bomb]))
        send(target, "GET", "/v1/models", timeout_s=TIMEOUT_S)
    assert process_usage(pids[target])["mb"] - before < 100


def test_an_endless_list_of_models_is_not_kept(target: int, upstream: ScriptedServer) -> None:
    upstream.answer(ScriptedReply(200, [JSON], [b" " * 1_000_000] * 20, "chunked"))
    assert send(target, "GET", "/v1/models", timeout_s=TIMEOUT_S).status == 502


@pytest.mark.parametrize("bomb", ["gzip", "brackets"])
def test_a_bomb_of_the_scorer_is_an_error(
    bomb: str, upstream: ScriptedServer, gzip_bomb: bytes
) -> None:
    sent = {"gzip": (PACKED, gzip_bomb), "brackets": ([JSON], BOMB)}[bomb]
    upstream.answer(ScriptedReply(200, sent[0], [sent[1]]))

    async def score() -> None:
        retries = RetryPolicy(max_attempts=1)
        async with HttpScorer(upstream.base_url, limits=EndpointLimits(retries=retries)) as scorer:
            await scorer.score("2+2?", "4", tracker=UNTRACKED)

    with pytest.raises(ModelError):
        asyncio.run(score())


# Authorization.

ELSEWHERE = [
    ("DELETE", "/v1/files/file-1"),
    ("GET", "/v1/files"),
    ("GET", "/v1/organization/admin_api_keys"),
    ("POST", "/v1/batches"),
    ("POST", "/v1/fine_tuning/jobs"),
    ("GET", "/v1/responses/resp_1"),
    ("DELETE", "/v1/models/real"),
    ("PUT", CHAT),
    ("POST", "/v1/chat/completions/"),
    ("POST", "/v1/%63hat/completions"),
    ("POST", "/v1//chat/completions"),
    ("POST", "/v1/chat/completions;x=1"),
    ("OPTIONS", CHAT),
]


RESPONSE = {**VIRTUAL, "model": b'"other"', "messages": b"null", "input": b'"2?"'}


def ask(port: int, key: str, path: str = CHAT, method: str = "POST", /, **members: bytes) -> int:
    asked = VIRTUAL if path != "/v1/responses" else RESPONSE
    body = spell({**asked, "adacompute": b"{}", **members}) if method == "POST" else b""
    headers = [("Authorization", f"Bearer {key}"), JSON]
    return send(port, method, path, headers=headers, body=body, timeout_s=TIMEOUT_S).status


@pytest.mark.parametrize(("method", "path"), ELSEWHERE)
def test_the_token_does_not_reach_other_paths_of_the_upstream(
    method: str, path: str, keyed: int, target: int, upstream: ScriptedServer
) -> None:
    assert ask(keyed, CLIENT, path, method) == 403
    assert ask(target, CLIENT, path, method) == 403
    assert upstream.received == []


@pytest.mark.parametrize("member", ["previous_response_id", "conversation", "background"])
def test_a_response_does_not_refer_to_stored_ones(
    member: str, keyed: int, upstream: ScriptedServer
) -> None:
    assert ask(keyed, CLIENT, "/v1/responses", **{member: b'"resp_1"'}) == 403
    twice = {member: b"null", member.replace("_", "\\u005f").replace("b", "\\u0062", 1): b'"x"'}
    assert ask(keyed, CLIENT, "/v1/responses", **twice) in {400, 403}
    assert upstream.received == []
    assert ask(keyed, CLIENT, "/v1/responses", **{member: b"null"}) == 200


@pytest.mark.parametrize("budget", [b'{"budget": 1e9}', b'{"budget": 1.01}'])
def test_no_client_raises_its_budget_above_the_one_that_the_operator_set(
    budget: bytes, keyed: int, target: int, upstream: ScriptedServer
) -> None:
    asked = {"model": b'"single"', "adacompute": budget}
    assert ask(keyed, CLIENT, **asked) == 403
    assert ask(target, CLIENT, **asked) == 403
    assert upstream.received == []


@pytest.mark.parametrize("member", ["n", "best_of", "\\u006e"])
def test_no_client_asks_for_more_choices_than_one_request_may_draw(
    member: str, keyed: int, upstream: ScriptedServer
) -> None:
    refused = {400} if "u" in member else {403}  # escaped names are refused
    assert ask(keyed, CLIENT, model=b'"other"', **{member: b"65"}) in refused
    assert ask(keyed, CLIENT, **{member: b"1000000000"}) in refused
    assert ask(keyed, CLIENT, **{member: b"1e9"}) == 400
    assert upstream.received == []
    assert ask(keyed, CLIENT, **{member.replace("\\u006e", "n"): b"3"}) == 200


def test_a_file_that_looks_like_a_large_body_is_forwarded() -> None:
    rules = Rules(Limits(max_samples=1), paths=["POST /v1/files"])
    arrival = Arrival("POST", "/v1/files")
    read_request(rules, arrival, b'--x\r\n"n"' + b"[,{" * 200_000)
    with pytest.raises(Forbidden):
        read_request(rules, arrival, b'{"x": [' + b"1," * 400_000 + b'1], "n": 2}')


@pytest.mark.parametrize("path", ["/v1/chat/completions/", "/v1/files", "/v1//completions"])
@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH"])
def test_a_path_that_is_not_described_is_refused_under_limits(method: str, path: str) -> None:
    rules = Rules(Limits(max_output_tokens=1), paths=["POST /v1/audio/speech"])
    with pytest.raises(Forbidden):
        read_request(rules, Arrival(method, path), b"{}")
    read_request(rules, Arrival("POST", "/v1/audio/speech"), b"{}")
    read_request(Rules(), Arrival(method, path), b"{}")


@pytest.mark.parametrize("stream", [b"true", b"false"])
@pytest.mark.parametrize("model", [b'"thrifty"', b'"other"'])
def test_errors_do_not_show_the_address_of_the_upstream(
    stream: bytes, model: bytes, launch: Launch
) -> None:
    with launch(base_url="http://127.0.0.1:9/v1") as port:
        body = spell({**VIRTUAL, "model": model, "stream": stream})
        reply = send(port, "POST", CHAT, headers=[JSON], body=body, timeout_s=TIMEOUT_S)
        listed = send(port, "GET", "/v1/models", timeout_s=TIMEOUT_S)
    assert b"error" in reply.body
    assert b"error" in listed.body
    assert b"127.0.0.1" not in reply.body + listed.body


# The token.

PLACES = [("POST", CHAT), ("GET", "/v1/models"), ("GET", "/v1/files/1"), ("OPTIONS", CHAT)]
WRONG = {
    "none": [],
    "empty": ["Authorization:"],
    "kind": [f"Authorization: Basic {CLIENT}"],
    "bare": [f"Authorization: {CLIENT}"],
    "prefix": [f"Authorization: Bearer {CLIENT[:-1]}"],
    "longer": [f"Authorization: Bearer {CLIENT}0"],
    "both": [f"Authorization: Bearer {CLIENT} {OLD}"],
    "list": [f"Authorization: Bearer {CLIENT}, Bearer {OLD}"],
    "digest": [f"Authorization: Bearer {hashlib.sha256(CLIENT.encode()).hexdigest()}"],
    "case": [f"Authorization: Bearer {CLIENT.upper()}"],
    "bytes": ["Authorization: Bearer \xff\x80"],
    "long": [f"Authorization: Bearer {'A' * 30_000}"],
    "second": ["Authorization: Bearer x", f"Authorization: Bearer {CLIENT}"],
    "other-header": [f"X-Api-Key: {CLIENT}", f"Cookie: token={CLIENT}"],
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize(("method", "path"), PLACES)
def test_nothing_is_served_without_the_token(
    method: str, path: str, name: str, keyed: int, upstream: ScriptedServer
) -> None:
    length = ["Content-Length: 18"] if method == "POST" else []
    sent = head(*WRONG[name], *length, "Connection: close", method=method, target=path)
    reply = exchange(keyed, sent + (BODY if length else b""))
    assert (status(reply), error_code(reply)) == (401, "invalid_api_key")
    assert CLIENT.encode() not in reply
    assert upstream.received == []


def test_health_is_open_and_any_host_may_be_asked_with_the_token(keyed: int) -> None:
    assert status(exchange(keyed, head("Connection: close", method="GET", target="/health"))) == 200
    named = head(f"Authorization: Bearer {CLIENT}", "Content-Length: 18", "Connection: close")
    assert status(exchange(keyed, named.replace(b"localhost", b"gateway.example") + BODY)) == 200


@pytest.mark.parametrize("token", [CLIENT, OLD])
def test_both_tokens_are_valid_during_a_rotation_and_neither_is_forwarded(
    token: str, keyed: int, upstream: ScriptedServer
) -> None:
    for model in (b'"thrifty"', b'"other"'):
        assert ask(keyed, token, model=model) == 200
    for received in upstream.received:
        assert received.values("authorization") == ["Bearer sk-upstream-0123456789abcdef"]
        assert token.encode() not in received.head + received.body
    shown = send(keyed + 1, "GET", "/metrics", timeout_s=TIMEOUT_S).body.decode()
    assert token not in shown


@pytest.mark.parametrize(
    "tokens",
    [
        *([""], ["test"], ["k" * 19], ["k" * 40], [f"{CLIENT}\n"], [f"{CLIENT} "]),
        *([f"\u00e9{CLIENT}"], [CLIENT, OLD, f"{OLD}1"], CLIENT, [5]),
    ],
    ids=str,
)
def test_a_token_that_protects_nothing_is_refused_and_not_shown(tokens: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        make_config({"base_url": "http://127.0.0.1:1/v1", "bearer_tokens": tokens})
    assert "bearer_tokens" in str(caught.value)
    assert CLIENT not in str(caught.value)


def test_the_token_is_not_in_what_a_configuration_shows_and_never_sent_upstream() -> None:
    content = {"base_url": "http://127.0.0.1:1/v1", "bearer_tokens": [CLIENT]}
    assert CLIENT not in repr(make_config(content))
    with pytest.raises(ConfigError):
        make_config({**content, "forward_key": True})
