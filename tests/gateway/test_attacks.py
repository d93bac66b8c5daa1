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

import pytest

from adacompute.core.errors import ConfigError, ModelError
from adacompute.gateway.connection.connection_limits import ConnectionLimits
from adacompute.gateway.requests.clients import Clients
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
LIMITED = "sk-limited-0123456789abcdef"
OK = ScriptedReply(200, [JSON], [b'{"choices":[{"message":{"content":"It is 4."}}]}'])
KNOWN = ConnectionLimits()
MAX_HEADERS, MAX_CONNECTIONS = KNOWN.max_headers, KNOWN.max_connections_per_address
LIMITS = 'trusted_proxies = ["127.0.0.8/31"]\n'
Launch = Callable[..., AbstractContextManager[int]]
TIMEOUT_S = 60.0
"""Patience with a loaded machine; nothing here waits for it to pass."""


@pytest.fixture(scope="module")
def target(launch: Launch) -> Iterator[int]:
    """Port of the gateway that is attacked: no client keys."""
    with launch(settings=LIMITS, all_paths=False) as port:
        yield port


@pytest.fixture(scope="module")
def keyed(launch: Launch) -> Iterator[int]:
    """Port of a gateway with a client key."""
    digest = hashlib.sha256(CLIENT.encode()).hexdigest()
    limited = hashlib.sha256(LIMITED.encode()).hexdigest()
    settings = f"""{LIMITS}
    max_samples = 64
    [serve.client_keys]
    ann = "{digest}"
    bob = "{limited}"
    [serve.client_limits.bob]
    models = ["thrifty"]
    allowed_paths = ["POST /v1/chat/completions", "POST /v1/embeddings", "GET /v1/models"]
    max_budget = 2
    max_samples = 3
    max_concurrency = 1
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
    """A request without a key is answered before its body, which must not be read for ever."""
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
    "foreign-page": ("invalid_origin", ["Host: localhost", "Origin: https://attacker.example"]),
    "local-file": ("invalid_origin", ["Host: localhost", "Origin: null"]),
    "other-port": ("invalid_origin", ["Host: localhost:8000", "Origin: http://localhost:3000"]),
    "no-origin": ("invalid_origin", ["Host: 127.0.0.1", "Sec-Fetch-Site: cross-site"]),
}


@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.parametrize("path", [CHAT, "/metrics"])
def test_a_web_page_cannot_use_a_gateway_without_keys(
    name: str, path: str, target: int, upstream: ScriptedServer
) -> None:
    code, lines = FOREIGN[name]
    form = [f"{JSON[0]}: {JSON[1]}", "Content-Length: 18", "Connection: close", "", ""]
    version = "HTTP/1.1" if lines else "HTTP/1.0"
    sent = "\r\n".join([f"POST {path} {version}", *lines, *form]).encode() + BODY
    reply = exchange(target, sent)
    assert (status(reply), error_code(reply)) == (403, code)
    assert upstream.received == []


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", None]
)
def test_only_json_is_accepted_without_keys(
    kind: str | None, target: int, upstream: ScriptedServer
) -> None:
    """Pages may send these types to other origins without asking first."""
    lines = ["Host: localhost", "Content-Length: 18", "Connection: close", "", ""]
    given = [] if kind is None else [f"Content-Type: {kind}"]
    sent = "\r\n".join([f"POST {CHAT} HTTP/1.1", *given, *lines]).encode() + BODY
    assert status(exchange(target, sent)) == 415
    assert upstream.received == []


@pytest.mark.parametrize("host", ["localhost", "localhost:1234", "127.0.0.1:80", "[::1]:8000"])
def test_a_loopback_host_is_accepted(host: str, target: int) -> None:
    assert status(exchange(target, REQUEST.replace(b"localhost", host.encode()))) == 200


def test_a_configured_origin_may_send_requests(launch: Launch) -> None:
    with launch(settings='allowed_origins = ["https://app.example"]') as port:
        origin = ("Origin", "https://app.example")
        asked = ("Access-Control-Request-Method", "POST")
        preflight = send(port, "OPTIONS", CHAT, headers=[origin, asked])
        reply = send(port, "POST", CHAT, headers=[origin, JSON], body=BODY)
        other = send(port, "POST", CHAT, headers=[("Origin", "https://x.example")], body=BODY)
    assert (preflight.status, reply.status, other.status) == (200, 200, 403)
    for answer in (preflight, reply):
        assert answer.values("access-control-allow-origin") == [origin[1]]


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
    member: str, target: int, pids: dict[int, int], upstream: ScriptedServer
) -> None:
    body = spell({**VIRTUAL, member: BOMB})
    before = process_usage(pids[target])["mb"]
    # With the name elsewhere, so that the body is parsed.
    body = body[:-1] + b', "user": "thrifty"}'
    reply = send(target, "POST", CHAT, headers=[JSON], body=body, timeout_s=TIMEOUT_S)
    # Requests with tools or in odd forms are not voted on: they are forwarded byte for byte.
    assert reply.status in {200, 400}
    assert len(upstream.received) <= 1
    assert process_usage(pids[target])["mb"] - before < 40  # the body itself, not its objects


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
def test_a_client_key_does_not_reach_other_paths_of_the_upstream(
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


def test_a_client_key_is_limited_to_its_models_and_paths(
    keyed: int, upstream: ScriptedServer
) -> None:
    assert ask(keyed, LIMITED, model=b'"other"') == 403
    assert ask(keyed, LIMITED, "/v1/embeddings", model=b'"other"') == 403
    assert ask(keyed, LIMITED, model=b"7") == 403
    assert ask(keyed, LIMITED, model=b'"thrifty", "model": "other"') == 400
    assert ask(keyed, LIMITED, "/v1/completions") == 403
    assert upstream.received == []
    assert ask(keyed, LIMITED) == 200


def test_a_client_cannot_raise_its_budget_above_its_limit(
    keyed: int, upstream: ScriptedServer
) -> None:
    assert ask(keyed, LIMITED, adacompute=b'{"budget": 9}') == 403
    assert upstream.received == []


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
    assert ask(keyed, LIMITED, **{member: b"4"}) in refused
    assert ask(keyed, CLIENT, model=b'"other"', **{member: b"65"}) in refused
    assert ask(keyed, CLIENT, **{member: b"1000000000"}) in refused
    assert ask(keyed, CLIENT, **{member: b"1e9"}) == 400
    assert upstream.received == []
    assert ask(keyed, LIMITED, **{member.replace("\\u006e", "n"): b"3"}) == 200


def test_a_file_that_looks_like_a_large_body_is_forwarded() -> None:
    rules = Rules(Limits(max_samples=1), paths=["POST /v1/files"])
    arrival = Arrival("POST", "/v1/files", "-")
    read_request(rules, arrival, b'--x\r\n"n"' + b"[,{" * 200_000)
    with pytest.raises(Forbidden):
        read_request(rules, arrival, b'{"x": [' + b"1," * 400_000 + b'1], "n": 2}')


@pytest.mark.parametrize("path", ["/v1/chat/completions/", "/v1/files", "/v1//completions"])
@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH"])
def test_a_path_that_is_not_described_is_refused_under_limits(method: str, path: str) -> None:
    rules = Rules(Limits(max_output_tokens=1), paths=["POST /v1/audio/speech"])
    with pytest.raises(Forbidden):
        read_request(rules, Arrival(method, path, "-"), b"{}")
    read_request(rules, Arrival("POST", "/v1/audio/speech", "-"), b"{}")
    read_request(Rules(), Arrival(method, path, "-"), b"{}")


def test_the_requests_of_a_minute_are_limited_across_workers(
    launch: Launch, upstream: ScriptedServer
) -> None:
    digest = hashlib.sha256(LIMITED.encode()).hexdigest()
    settings = f"""
    [serve.client_keys]
    bob = "{digest}"
    [serve.client_limits.bob]
    requests_per_minute = 6
    """
    with launch(settings=settings, workers=2) as port:
        found = [ask(port, LIMITED) for _ in range(20)]
    assert sorted(found) == [200] * 6 + [429] * 14
    assert found[-1] == 429
    assert len(upstream.received) == 12  # two samples each


def test_a_client_sees_only_its_models(keyed: int, upstream: ScriptedServer) -> None:
    listed = b'{"object": "list", "data": [{"id": "real"}, {"id": "secret-model"}]}'
    upstream.answer(ScriptedReply(200, [JSON], [listed]))
    seen = {
        "ann": {"real", "secret-model", "thrifty", "single"},
        "bob": {"thrifty"},
    }
    for name, key in (("ann", CLIENT), ("bob", LIMITED)):
        reply = send(keyed, "GET", "/v1/models", headers=[("Authorization", f"Bearer {key}")])
        assert {one["id"] for one in json.loads(reply.body)["data"]} == seen[name]


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


def test_the_requests_in_flight_of_a_client_are_limited(
    keyed: int, upstream: ScriptedServer
) -> None:
    release = threading.Event()
    upstream.answer(ScriptedReply(200, [JSON], [release, OK.body]))
    first = threading.Thread(target=ask, args=(keyed, LIMITED))
    first.start()
    try:
        wait_until(lambda: len(upstream.received) > 0)
        assert ask(keyed, LIMITED) == 429
    finally:
        release.set()
        first.join()


@pytest.mark.parametrize("key", ["test", "change-me", "secret", ""])
def test_a_well_known_key_is_refused_at_the_start(key: str) -> None:
    digest = hashlib.sha256(key.encode()).hexdigest()
    with pytest.raises(ConfigError):
        make_config({"base_url": "http://127.0.0.1:1/v1", "client_keys": {"ann": digest}})


def test_a_short_key_is_never_valid() -> None:
    key = "k" * 19
    clients = Clients({"ann": hashlib.sha256(key.encode()).hexdigest()})
    assert clients.identify(f"Bearer {key}") is None
    longer = Clients({"ann": hashlib.sha256(f"{key}k".encode()).hexdigest()})
    assert longer.identify(f"Bearer {key}k") == "ann"


def test_metrics_name_the_client_and_not_its_key(keyed: int) -> None:
    assert ask(keyed, CLIENT) == 200
    shown = send(keyed + 1, "GET", "/metrics", timeout_s=TIMEOUT_S).body.decode()
    assert 'client_requests_total{client="ann",status="200"}' in shown
    assert CLIENT not in shown
