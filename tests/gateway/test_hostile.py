"""Nothing that a client or an upstream sends makes the gateway fail, hang, tell or go astray."""

from __future__ import annotations

import gzip
import hashlib
import json
import logging
import socket
import threading
import time
import zlib
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from adacompute.gateway import gateway as gateway_module
from adacompute.gateway.connection.exchange import Receive, Scope, Send
from adacompute.gateway.forwarding.passthrough import MAX_BUFFERED
from adacompute.gateway.forwarding.usage_reader import DECOMPRESSED_CHUNK, MAX_KEPT, UsageReader
from adacompute.gateway.requests.openai_replies import add_models
from adacompute.gateway.requests.openai_requests import has_dot_segments
from adacompute.gateway.requests.reading import Arrival, read_request
from adacompute.gateway.requests.refusals import BadRequest
from adacompute.gateway.requests.rules import ModelRules, Rules
from adacompute.gateway.settings.config import make_config
from adacompute.gateway.voting.engine import Engine
from adacompute.gateway.voting.virtual_model import VirtualModel
from adacompute.graders.grader import load_grader
from adacompute.models.formats.body import DROP, MAX_FIELDS, Body, InvalidBody, TooManyFields
from adacompute.models.formats.failures import Failure
from adacompute.models.formats.openai_format import MalformedReply
from adacompute.models.formats.stream_events import EventReader, parse_event
from adacompute.models.formats.streams import parse_stream
from adacompute.models.model import CallUsage, merge_usage, sum_usage
from adacompute.models.openai import Upstream
from adacompute.policies.bundles.bundle import load_bundle
from test_support import scripted
from test_support.gateways import GatewayReply, free_port, send, send_raw, serve_gateway
from test_support.scripted import ScriptedReply, ScriptedServer

for name in ("aiohttp", "starlette", "uvicorn", "prometheus_client"):
    pytest.importorskip(name, reason="needs the extra 'serve'")

CHAT = "/v1/chat/completions"
CLIENT = "sk-client-fedcba9876543210"
UPSTREAM = "sk-upstream-0123456789abcdef"
BEARER = ("Authorization", f"Bearer {CLIENT}")
JSON = ("Content-Type", "application/json")
OK = ScriptedReply(200, [JSON], [b'{"choices":[{"message":{"content":"It is 4."}}]}'])
LIMIT = 20_000
BODY_S = 0.4


@pytest.fixture(scope="module")
def evil() -> Iterator[ScriptedServer]:
    """A server that nobody may be led to; it lives beside the upstream."""
    with scripted.serve_scripted() as server:
        yield server
        assert server.connections == 0


@pytest.fixture(scope="module")
def strict(upstream: ScriptedServer, policies: Path) -> Iterator[int]:
    """A gateway with keys and narrow limits."""
    model = {"bundle": str(policies / "two"), "budget": 2, "model": "real", "grader": "numeric"}
    config = make_config(
        {
            "base_url": upstream.base_url,
            "upstream_api_key": UPSTREAM,
            "bearer_tokens": [CLIENT, "ab0123456789" * 5],
            "max_body_mb": LIMIT / 1e6,
            "max_attempts": 1,
            "allowed_paths": ["* /v1/*"],
            "probe": False,
            "models": {"thrifty": model},
        }
    )
    with mock.patch.object(gateway_module, "BODY_TIMEOUT_S", BODY_S), serve_gateway(config) as port:
        yield port


def ask(port: int, content: Any = "2+2?", **members: Any) -> GatewayReply:
    body = {"model": "thrifty", "messages": [{"role": "user", "content": content}], **members}
    return send(port, "POST", CHAT, headers=[BEARER, JSON], body=json.dumps(body).encode())


def is_error(answer: GatewayReply, status: int) -> bool:
    """Whether an answer is an error as OpenAI's clients read it."""
    error = json.loads(answer.body)["error"]
    return answer.status == status and set(error) == {"message", "type", "param", "code"}


# What is read.

RULES = Rules(models={"thrifty": ModelRules()})

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from(["\ud800", "user", "text", "thrifty", "10" * 200]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)
spaces = st.text(" \t\n\r", max_size=2)
names = st.sampled_from(["model", "n", "seed", "x", "é", "a\\b", 'q"'])
members = st.lists(
    st.tuples(names, values, spaces, spaces, spaces), max_size=6, unique_by=lambda one: one[0]
)


def spell(parts: list[tuple[str, Any, str, str, str]], *, ascii_only: bool) -> bytes:
    shown = [
        a + json.dumps(name, ensure_ascii=ascii_only) + b + ":" + c + json.dumps(value)
        for name, value, a, b, c in parts
    ]
    return ("{" + ",".join(shown) + " }").encode()


def raws(body: Body) -> list[tuple[str, str]]:
    return [(one.name, body.data[one.begin : one.end].decode()) for one in body._members]


@given(st.binary() | st.text().map(str.encode) | values.map(json.dumps).map(str.encode))
@example(b"{" * 100_000)
@example(b'{"a":' * 100_000)
@example(b'{"a":1,}')
@example(b'{"a" 1}')
@example(b'\xef\xbb\xbf{"a":1}')
@example(b'{"a":NaN}')
@example(b'{"a":"\\ud800", "b":"\\ud83d\\ude00"}')
def test_any_bytes_parse_to_an_object_or_none(data: bytes) -> None:
    try:
        body = Body.parse(data)
    except InvalidBody:
        return
    if body is not None:
        assert body.edit({}) == data
        assert isinstance(json.loads(data), dict)


@given(members, st.dictionaries(names, values | st.just(DROP), max_size=3), st.booleans())
def test_an_edit_keeps_every_other_byte(
    parts: list[tuple[str, Any, str, str, str]],
    changes: dict[str, Any],
    ascii_only: bool,  # noqa: FBT001 - drawn
) -> None:
    body = Body.parse(spell(parts, ascii_only=ascii_only))
    assert body is not None
    edited = Body.parse(body.edit(changes))
    assert edited is not None
    assert [one for one in raws(edited) if one[0] not in changes] == [
        one for one in raws(body) if one[0] not in changes
    ]
    wanted = {name: value for name, value in changes.items() if value is not DROP}
    found = {name: value for name, value in json.loads(edited.data).items() if name in changes}
    assert json.dumps(found, sort_keys=True) == json.dumps(wanted, sort_keys=True)
    assert len({name for name, _ in raws(edited)} & set(changes)) == len(wanted)


@given(members.filter(bool), st.integers(0, 5), values, st.integers(0, 6), st.booleans())
def test_a_member_that_occurs_twice_is_rejected(
    parts: list[tuple[str, Any, str, str, str]],
    which: int,
    value: Any,
    where: int,
    ascii_only: bool,  # noqa: FBT001 - drawn
) -> None:
    name = parts[which % len(parts)][0]
    parts = [*parts[:where], (name, value, "", " ", "\n"), *parts[where:]]
    with pytest.raises(InvalidBody):
        Body.parse(spell(parts, ascii_only=ascii_only))


@pytest.fixture(scope="module")
def engine(policies: Path) -> Engine:
    bundle = load_bundle(policies / "two")
    virtual = VirtualModel("thrifty", "real", bundle, 2.0, load_grader("numeric"))
    return Engine(virtual, {None: Upstream("http://127.0.0.1:1/v1", "real")})


messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "system"]) | values},
        optional={
            "content": values | st.lists(st.fixed_dictionaries({"type": st.just("text")})),
            "tool_calls": values,
        },
    ),
    max_size=3,
)
settings_of = st.fixed_dictionaries(
    {"model": st.sampled_from(["thrifty", "thrifty@3", "other"]) | values},
    optional={
        "messages": messages | values,
        "prompt": values,
        "adacompute": values | st.fixed_dictionaries({"budget": values}),
        **dict.fromkeys(["n", "temperature", "stream", "stream_options", "seed", "stop"], values),
    },
)


@given(settings_of, st.sampled_from(["/v1/chat/completions", "/v1/completions"]), st.text())
def test_any_request_is_voted_on_forwarded_or_rejected(
    engine: Engine, content: dict[str, Any], path: str, header: str
) -> None:
    try:
        data = json.dumps(content).encode()
        found = read_request(RULES, Arrival("POST", path, header or None), data)
        if found.virtual is not None and found.reason is None:
            decision = engine.open(found.virtual)
            assert engine.ends_after_one_sample(decision) is False
            assert decision.budget >= 2
    except BadRequest as error:
        refused = str(error)
    else:
        refused = ""
    assert len(refused) < 300


lines = st.sampled_from(
    [
        b'data: {"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}]}',
        b'data: {"choices":[{"delta":7}], "usage": {"completion_tokens": -1}}',
        b'data: {"choices":7, "usage": [], "error": null}',
        b'data: {"usage": {"completion_tokens": 1e400, "prompt_tokens": "x"}}',
        b"data: [DONE]",
        b"data:",
        b"data",
        b": comment",
        b"event: x",
        b"\xff",
        b"",
    ]
)
ends = st.sampled_from([b"\n", b"\r\n", b"\r", b"\n\n", b"\r\n\r\n"])
streams = st.lists(st.tuples(lines | st.binary(max_size=9), ends), max_size=8).map(
    lambda found: b"".join(line + end for line, end in found)
)


@given(streams | st.binary(), st.sampled_from([200, 204, 302, 400, 429, 500, 999]))
@example(b"data: " + b"[" * 100_000, 200)
@example(b"data: " + b"9" * 5_000, 200)
def test_any_stream_is_parsed_or_a_failure(data: bytes, status: int) -> None:
    try:
        draw = parse_stream(status, {"Content-Type": "text/event-stream"}, data).to_sample(0.0)
    except Failure:
        return
    assert (draw.completion_tokens or 0) >= 0
    assert draw.prompt_tokens is None or draw.prompt_tokens >= 0


@given(st.binary() | values.map(lambda value: b"data: " + json.dumps(value).encode()))
def test_any_line_of_a_stream_is_an_event_or_malformed(line: bytes) -> None:
    try:
        events = [parse_event(data) for data in EventReader(1_000).feed(line + b"\n")]
    except MalformedReply:
        return
    assert all(isinstance(event, dict) for event in events)


bills = st.dictionaries(
    st.sampled_from(["prompt_tokens", "completion_tokens", "details", "cost"]), values
)


@given(st.lists(bills, max_size=3))
def test_any_usage_can_be_summed(given_bills: list[dict[str, Any]]) -> None:
    cleaned = [merge_usage(bill) for bill in given_bills]
    total = sum_usage([CallUsage(tokens) for tokens in cleaned])
    assert total["total_tokens"] >= 0
    assert total["num_calls"] == len(given_bills)
    assert merge_usage(total) == total


@given(st.binary() | values.map(json.dumps).map(str.encode))
def test_any_list_of_models_can_be_added_to(data: bytes) -> None:
    assert json.loads(add_models(data, ["thrifty"]))["data"][-1]["id"] == "thrifty"


BULKY = {
    "members": b'{"model": "thrifty"%b}' % (b',"a":1' * 500_000),
    "spaces": b'{"model":%b"thrifty"}' % (b" " * 3_000_000),
}


@pytest.mark.parametrize("name", BULKY)
def test_hostile_bodies_are_parsed_quickly(name: str) -> None:
    arrival = Arrival("POST", CHAT)
    read_request(RULES, arrival, b'{"model": "thrifty"}')  # libraries are imported
    begun = time.process_time()
    with suppress(BadRequest):
        read_request(RULES, arrival, BULKY[name])
    assert time.process_time() - begun < 0.15


MAX_SHARE = 0.75
"""Of the time of a long request, what a small one beside it may take; 1 where it blocks them."""


def beside(port: int, work: Callable[[], GatewayReply]) -> tuple[GatewayReply, float]:
    """Do something, and tell the longest that a small request took beside it."""
    longest, done = 0.0, threading.Event()

    def small() -> None:
        nonlocal longest
        while not done.is_set():
            begun = time.monotonic()
            send(port, "GET", "/health")
            longest = max(longest, time.monotonic() - begun)

    thread = threading.Thread(target=small)
    thread.start()
    try:
        return work(), longest
    finally:
        done.set()
        thread.join()


def test_a_long_question_does_not_block_other_requests(
    gateway: int, upstream: ScriptedServer
) -> None:
    upstream.answer(OK)
    text = "Tom has 12 apples. " * 400_000
    begun = time.monotonic()
    answer, longest = beside(gateway, lambda: ask(gateway, text))
    assert answer.status == 200
    assert longest < MAX_SHARE * (time.monotonic() - begun)


def test_a_long_answer_does_not_block_other_requests(
    gateway: int, upstream: ScriptedServer
) -> None:
    said = "Tom has 12 apples = 3. " * 100_000
    data = json.dumps({"choices": [{"message": {"content": said}}]}).encode()
    upstream.answer(ScriptedReply(200, [JSON], [data]))
    begun = time.monotonic()
    answer, longest = beside(gateway, lambda: ask(gateway))
    assert answer.status == 200
    assert longest < MAX_SHARE * (time.monotonic() - begun)


def test_the_fields_of_a_body_are_limited() -> None:
    inner = {f"f{number}": 1 for number in range(2 * MAX_FIELDS)}
    fields = {f"f{number}": 1 for number in range(MAX_FIELDS - 1)}
    assert Body.parse(json.dumps({"x": [inner] * 20, **fields}).encode()) is not None
    with pytest.raises(TooManyFields):
        Body.parse(json.dumps({"x": 1, "y": 2, **fields}).encode())


VALID = {
    "long field": b'"metadata":{"x":"%b"}' % (b"x" * 7_900_000),
    "many tokens": b'"prompt":[%b]' % b",".join([b"12345"] * 1_300_000),
    "many messages": b'"messages":[%b]' % b",".join([b'{"role":"user","content":"a"}'] * 260_000),
    "many brackets": b'"x":[%b]' % b",".join([b"[]"] * 2_600_000),
}


@pytest.mark.parametrize("model", ["other", "thrifty"])
@pytest.mark.parametrize("name", VALID)
def test_a_valid_body_below_the_limit_is_not_refused(
    name: str, model: str, gateway: int, upstream: ScriptedServer
) -> None:
    upstream.answer(OK)
    body = b'{"model":"%b","tools":[1],%b}' % (model.encode(), VALID[name])
    assert 7_000_000 < len(body) < 8_000_000
    assert send(gateway, "POST", CHAT, headers=[JSON], body=body).status == 200
    (received,) = upstream.received
    assert received.body == body.replace(b'"thrifty"', b'"real"', 1)


def test_a_body_with_too_many_fields_or_bytes_is_413(
    gateway: int, upstream: ScriptedServer
) -> None:
    upstream.answer(OK)
    fields = b",".join(b'"f%d":1' % number for number in range(MAX_FIELDS))
    bodies = b'{"model":"thrifty",%b}' % fields, b'{"model":"other","x":"%b"}' % (b"x" * 8_000_000)
    for body in bodies:
        answer = send(gateway, "POST", CHAT, headers=[JSON], body=body)
        assert is_error(answer, 413)
        assert json.loads(answer.body)["error"]["code"] == "too_large"
    assert upstream.received == []


# What is said to a socket.


def test_a_body_with_too_large_a_length_is_rejected_unread(strict: int) -> None:
    head = f"POST {CHAT} HTTP/1.1\r\nHost: a\r\n{': '.join(BEARER)}\r\n"
    said = send_raw(strict, f"{head}Content-Length: {LIMIT + 1}\r\n\r\n".encode(), timeout_s=1)
    assert said.startswith(b"HTTP/1.1 413 ")


def test_a_body_that_grows_too_large_is_rejected(strict: int, upstream: ScriptedServer) -> None:
    upstream.answer(OK)
    head = f"POST {CHAT} HTTP/1.1\r\nHost: a\r\n{': '.join(BEARER)}\r\n"
    chunk = b"%x\r\n%b\r\n" % (LIMIT, b"x" * LIMIT)
    sent = f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + chunk * 2
    said = send_raw(strict, sent, timeout_s=1)
    assert said.startswith(b"HTTP/1.1 413 ")
    assert upstream.received == []


def test_a_body_of_the_maximum_size_is_accepted(strict: int, upstream: ScriptedServer) -> None:
    upstream.answer(OK)
    body = b'{"model": "other", "x": "' + b"x" * (LIMIT - 27) + b'"}'
    assert len(body) == LIMIT
    assert send(strict, "POST", CHAT, headers=[BEARER], body=body).status == 200


@pytest.mark.parametrize("pause", [0.05, 60], ids=["trickles", "stalls"])
def test_a_slow_body_times_out(pause: float, strict: int, upstream: ScriptedServer) -> None:
    upstream.answer(OK)
    head = f"POST {CHAT} HTTP/1.1\r\nHost: a\r\n{': '.join(BEARER)}\r\nContent-Length: 999\r\n\r\n"
    begun = time.monotonic()
    with socket.create_connection(("127.0.0.1", strict), timeout=pause) as plug:
        plug.sendall(head.encode())
        said = b""
        while not said and time.monotonic() < begun + 10:
            plug.sendall(b"x")
            try:
                said = plug.recv(65_536)
            except TimeoutError:
                continue
    assert said.startswith(b"HTTP/1.1 408 ")
    assert BODY_S * 0.9 < time.monotonic() - begun < BODY_S + 5
    assert upstream.received == []


def raw(*lines: str, target: str = CHAT, method: str = "POST", body: str = "") -> bytes:
    head = [f"{method} {target} HTTP/1.1", "Host: a", ": ".join(BEARER), *lines, "", ""]
    return ("\r\n".join(head) + body).encode("latin-1")


SMUGGLED = "GET /v1/smuggled HTTP/1.1\r\nHost: a\r\n" + ": ".join(BEARER) + "\r\n\r\n"
SMUGGLERS = {
    "both": raw("Content-Length: 4", "Transfer-Encoding: chunked", body="0\r\n\r\n" + SMUGGLED),
    "both-turned": raw(
        "Transfer-Encoding: chunked", "Content-Length: 4", body="0\r\n\r\n" + SMUGGLED
    ),
    "two-lengths": raw("Content-Length: 2", f"Content-Length: {len(SMUGGLED)}", body="{}"),
    "signed-length": raw("Content-Length: +2", body="{}" + SMUGGLED),
    "odd-length": raw("Content-Length: 0x2", body="{}" + SMUGGLED),
    "folded": raw("X-A: b", " Transfer-Encoding: chunked", "Content-Length: 2", body="{}"),
    "odd-coding": raw("Transfer-Encoding: xchunked", body="0\r\n\r\n" + SMUGGLED),
    "gzip-coding": raw("Transfer-Encoding: gzip, chunked", body="0\r\n\r\n" + SMUGGLED),
    "two-codings": raw(
        "Transfer-Encoding: gzip", "Transfer-Encoding: chunked", body="0\r\n\r\n" + SMUGGLED
    ),
    "coding-twice": raw("Transfer-Encoding: chunked, identity", body="0\r\n\r\n" + SMUGGLED),
    "spaced-name": raw("Content-Length : 2", body="{}" + SMUGGLED),
    "bad-chunk": raw("Transfer-Encoding: chunked", body="zz\r\n{}\r\n0\r\n\r\n" + SMUGGLED),
    "bare-return": raw("X-A: b\rContent-Length: 2", body="{}"),
    "zero-byte": raw("X-A: b\0c", "Content-Length: 2", body="{}"),
    "odd-version": SMUGGLED.replace("HTTP/1.1", "HTTP/9.9").encode(),
    "binary": bytes(range(256)),
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
}


@pytest.mark.parametrize("name", SMUGGLERS)
def test_an_ambiguous_request_is_rejected(name: str, strict: int, upstream: ScriptedServer) -> None:
    upstream.answer(OK)
    said = send_raw(strict, SMUGGLERS[name], timeout_s=1.5)
    statuses = [line.split()[1] for line in said.splitlines() if line.startswith(b"HTTP/1.1 ")]
    assert statuses
    assert set(statuses) <= {b"400", b"408"}
    assert b"Traceback" not in said
    assert upstream.received == []


def test_folded_headers_do_not_reach_the_upstream(strict: int, upstream: ScriptedServer) -> None:
    upstream.answer(OK)
    send_raw(strict, raw("X-A: b", "\tX-B: c", "Content-Length: 2", body="{}"), timeout_s=1)
    assert all(not received.values("x-b") for received in upstream.received)


def test_pipelined_requests_are_answered_in_order(strict: int, upstream: ScriptedServer) -> None:
    upstream.answer(OK)
    two = raw("Content-Length: 2", body="{}") + raw("Connection: close", method="GET")
    said = send_raw(strict, two, timeout_s=5)
    assert said.count(b"HTTP/1.1 200 ") == 2
    assert [received.method for received in upstream.received] == ["POST", "GET"]


# Where it leads.

ASTRAY = [
    "/v1/../admin",
    "/v1/%2e%2e/admin",
    "/v1/%2E%2e/%2E./admin",
    "/v1/..%2fadmin",
    "/v1/%252e%252e/admin",
    "/v1/..%5cadmin",
    "/v1/..;a=b/admin",
    "/v1/a/b/../../../admin",
]
ELSEWHERE = [
    "//127.0.0.1:{port}/v1/models",
    "/%76%31/models",
    "/v1%2Fmodels",
    "/V1/models",
    "/",
    "/v1",
    "/admin?x=/v1/",
    "/health/../v1/models",
]


@pytest.mark.parametrize("target", ASTRAY)
def test_a_path_with_dot_segments_is_rejected(
    target: str, strict: int, upstream: ScriptedServer
) -> None:
    upstream.answer(OK)
    assert is_error(send(strict, "GET", target, headers=[BEARER]), 400)
    assert upstream.received == []


@pytest.mark.parametrize("target", ELSEWHERE)
def test_a_path_outside_v1_is_not_forwarded(
    target: str, strict: int, upstream: ScriptedServer, evil: ScriptedServer
) -> None:
    upstream.answer(OK)
    found = send(strict, "GET", target.format(port=evil.port), headers=[BEARER])
    assert is_error(found, 404)
    assert upstream.received == []


@given(st.text(max_size=20))
def test_only_two_dots_are_a_dot_segment(path: str) -> None:
    assert has_dot_segments(f"/v1/{path}/../x")
    assert not has_dot_segments("/v1/" + path.replace(".", "").replace("%", ""))


@pytest.mark.parametrize(
    "line",
    [
        "GET http://127.0.0.1:{port}/v1/files HTTP/1.1",
        "GET http://127.0.0.1:{port} HTTP/1.1",
        "POST http://user:pass@127.0.0.1:{port}/v1/chat/completions HTTP/1.1",
        "CONNECT 127.0.0.1:{port} HTTP/1.1",
        "OPTIONS * HTTP/1.1",
        "GET @127.0.0.1:{port}/v1/files HTTP/1.1",
        "GET /v1/@127.0.0.1:{port}/ HTTP/1.1",
        "GET /v1//127.0.0.1:{port}/ HTTP/1.1",
        "GET /v1/http://127.0.0.1:{port}/ HTTP/1.1",
        "GET /v1/\\127.0.0.1:{port} HTTP/1.1",
        "GET /v1/files#@127.0.0.1:{port}/ HTTP/1.1",
        "GET /v1/caf\xe9 HTTP/1.1",
        "TRACE /v1/files HTTP/1.1",
        "GET /v1/files?next=http://127.0.0.1:{port}/ HTTP/1.0",
    ],
)
def test_no_request_target_reaches_another_server(
    line: str, strict: int, upstream: ScriptedServer, evil: ScriptedServer
) -> None:
    upstream.answer(OK)
    head = f"Host: 127.0.0.1:{evil.port}\r\n{': '.join(BEARER)}\r\nContent-Length: 0\r\n"
    sent = f"{line.format(port=evil.port)}\r\n{head}Connection: close\r\n\r\n"
    said = send_raw(strict, sent.encode("latin-1"), timeout_s=3)
    assert said.split()[1] in {b"200", b"400", b"404", b"405"}
    assert evil.connections == 0
    assert all(r.target.startswith("/v1/") for r in upstream.received)
    assert all(r.values("host") == [f"127.0.0.1:{upstream.port}"] for r in upstream.received)


def test_an_upstreams_redirect_is_not_followed(
    strict: int, upstream: ScriptedServer, evil: ScriptedServer
) -> None:
    upstream.answer(
        ScriptedReply(307, [("Location", f"{evil.base_url}/chat/completions")], [b"{}"])
    )
    assert send(strict, "POST", CHAT, headers=[BEARER], body=b"{}").status == 307
    assert ask(strict).status in range(300, 600)
    assert evil.connections == 0


def test_an_upgrade_is_not_forwarded(strict: int, upstream: ScriptedServer) -> None:
    upstream.answer(OK)
    socket_key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
    upgrade = ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"]
    said = send_raw(strict, raw(*upgrade, socket_key, method="GET"), timeout_s=1)
    assert not said.startswith(b"HTTP/1.1 101")
    assert all(not received.values("upgrade") for received in upstream.received)


# Who may ask.


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("Authorization", "")],
        [("Authorization", "Bearer")],
        [("Authorization", "Bearer ")],
        [("Authorization", f"Basic {CLIENT}")],
        [("Authorization", CLIENT)],
        [("Authorization", f"Bearer {CLIENT}x")],
        [("Authorization", f"Bearer {CLIENT[:-1]}")],
        [("Authorization", f"Bearer {UPSTREAM}")],
        [("Authorization", "Bearer " + hashlib.sha256(CLIENT.encode()).hexdigest())],
        [("Authorization", "Bearer \xe9\xff")],
        [("Authorization", "Bearer x"), BEARER],
        [("X-Api-Key", CLIENT)],
        [("Cookie", f"key={CLIENT}")],
    ],
)
def test_a_request_without_a_valid_token_is_rejected(
    headers: list[tuple[str, str]],
    strict: int,
    upstream: ScriptedServer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    upstream.answer(OK)
    caplog.set_level(logging.DEBUG)
    for method, target in (("POST", CHAT), ("GET", "/v1/models"), ("DELETE", "/v1/files/1")):
        answer = send(strict, method, target, headers=headers)
        assert is_error(answer, 401)
        assert not any(key in str(answer) for key in (CLIENT, UPSTREAM))
    assert upstream.received == []
    assert not any(key in caplog.text for key in (CLIENT, UPSTREAM))


def test_every_token_is_compared_in_constant_time(
    strict: int, upstream: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream.answer(OK)
    compared = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return one == other

    monkeypatch.setattr("adacompute.gateway.requests.access.hmac.compare_digest", compare)
    for key in (CLIENT, "wrong"):
        send(strict, "GET", "/v1/x", headers=[("Authorization", f"Bearer {key}")])
        assert len(compared) == 2  # as many as there are tokens, found or not
        assert all(len(one) == len(other) == 32 for one, other in compared)
        compared.clear()


@pytest.mark.parametrize("model", ["thrifty", "other"])
@pytest.mark.parametrize("status", [400, 401, 500])
def test_the_upstreams_key_is_redacted_from_errors(
    status: int, model: str, strict: int, upstream: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    told = json.dumps({"error": {"message": f"Incorrect API key provided: {UPSTREAM}"}})
    upstream.answer(ScriptedReply(status, [JSON], [told.encode()]))
    answer = ask(strict, model=model)
    assert answer.status >= 400
    assert b"Incorrect API key provided" in answer.body
    assert UPSTREAM not in str(answer)
    assert UPSTREAM not in caplog.text
    assert upstream.received[0].values("authorization") == [f"Bearer {UPSTREAM}"]
    assert CLIENT not in str(upstream.received)


PACKINGS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": lambda data: b"\x0b\x02\x80" + data + b"\x03",
    "gzip, gzip": lambda data: gzip.compress(gzip.compress(data)),
}


@pytest.mark.parametrize("target", [CHAT, "/v1/models"])
@pytest.mark.parametrize("coding", PACKINGS)
def test_the_upstreams_key_is_redacted_from_compressed_errors(
    coding: str, target: str, strict: int, upstream: ScriptedServer
) -> None:
    data = PACKINGS[coding](json.dumps({"error": {"message": f"wrong key {UPSTREAM}"}}).encode())
    upstream.answer(
        ScriptedReply(401, [JSON, ("Content-Encoding", coding), ("X-End", "1")], [data])
    )
    method = "POST" if target == CHAT else "GET"
    answer = send(strict, method, target, headers=[BEARER], body=b"{}" if target == CHAT else b"")
    assert (answer.status, answer.values("content-encoding")) == (401, [])
    assert (answer.values("content-type"), answer.values("x-end")) == ([JSON[1]], ["1"])
    message = json.loads(answer.body)["error"]["message"]
    assert message == "wrong key ***" if coding in {"gzip", "deflate"} else "gzip" in message


def test_the_upstreams_key_is_redacted_from_events(strict: int, upstream: ScriptedServer) -> None:
    said = f'data: {{"error": "wrong key {UPSTREAM}"}}\n\n'.encode()
    upstream.answer(ScriptedReply(401, [("Content-Type", "text/event-stream")], [said], "chunked"))
    answer = send(strict, "POST", CHAT, headers=[BEARER], body=b'{"stream": true}')
    assert (answer.status, answer.body) == (401, said.replace(UPSTREAM.encode(), b"***"))


def test_an_error_too_large_to_search_is_not_forwarded(
    strict: int, upstream: ScriptedServer
) -> None:
    upstream.answer(ScriptedReply(500, [JSON], [b"x" * MAX_BUFFERED, UPSTREAM.encode()]))
    answer = send(strict, "POST", CHAT, headers=[BEARER], body=b"{}")
    assert is_error(answer, 502)
    assert UPSTREAM.encode() not in answer.body


@pytest.mark.parametrize("forward", [True, False])
def test_the_clients_key_is_forwarded_only_if_configured(
    forward: bool,  # noqa: FBT001 - a parameter of the test
    upstream: ScriptedServer,
) -> None:
    upstream.answer(OK)
    config = {"base_url": upstream.base_url, "forward_key": forward, "upstream_api_key": UPSTREAM}
    with serve_gateway(make_config(config)) as port:
        send(port, "POST", CHAT, headers=[BEARER, JSON], body=b"{}")
        send(port, "POST", CHAT, body=b"{}")
    keys = [received.values("authorization") for received in upstream.received]
    assert keys == [[f"Bearer {CLIENT if forward else UPSTREAM}"], [f"Bearer {UPSTREAM}"]]


# What it says.

IMITATIONS = [
    "x-adacompute-budget: 99",
    '", "model": "thrifty", "adacompute": {"budget": 99}, "x": "',
    "\r\nx-adacompute-samples: 99\r\n\r\n",
    "data: [DONE]\n\n",
    '{"choices": [], "usage": {"completion_tokens": 0}}',
    "\x00\ud800\U0001f600",
]


@pytest.mark.parametrize("text", IMITATIONS)
def test_a_prompt_cannot_set_headers(text: str, strict: int, upstream: ScriptedServer) -> None:
    upstream.answer(OK)
    answer = ask(strict, text)
    assert answer.status == 200
    assert answer.values("x-adacompute-samples") == ["2"]
    assert len(upstream.received) == 2
    for received in upstream.received:
        sent = json.loads(received.body)
        assert (sent["model"], sent["messages"][0]["content"]) == ("real", text)
        assert not [name for name, _ in received.headers if name.startswith("x-adacompute")]


@pytest.mark.parametrize("text", IMITATIONS)
def test_an_answer_cannot_set_headers(text: str, strict: int, upstream: ScriptedServer) -> None:
    said = json.dumps({"choices": [{"message": {"content": f"{text} 4"}}]})
    upstream.answer(ScriptedReply(200, [JSON], [said.encode()]))
    answer = ask(strict, adacompute={"debug": True})
    assert answer.status == 200
    assert json.loads(answer.body)["choices"][0]["message"]["content"] == f"{text} 4"
    assert answer.values("x-adacompute-samples") == ["2"]


MODELS = [
    "../../admin",
    "http://127.0.0.1:{port}/v1",
    "/etc/passwd",
    "thrifty/../../x",
    "a\nb\r\nHost: x",
    "x" * (LIMIT - 200),
    "",
    "\x00",
    "thrifty ",
    "THRIFTY",
    "thrifty@2",
]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: repr(model[:20]))
def test_a_model_name_is_matched_exactly(
    model: str, strict: int, upstream: ScriptedServer, evil: ScriptedServer
) -> None:
    upstream.answer(OK)
    named = model.format(port=evil.port)
    assert ask(strict, model=named).status == 200
    (received,) = upstream.received
    assert json.loads(received.body)["model"] == named
    assert received.target == CHAT
    assert evil.connections == 0


def test_a_long_model_name_is_forwarded(gateway: int, upstream: ScriptedServer) -> None:
    upstream.answer(OK)
    assert ask(gateway, model="x" * 1_000_000).status == 200


@pytest.mark.parametrize(
    "budget", ["http://a", "../..", "nan", "inf", "-1", "0", "1e999", "2@3", "9" * 5000, "\n", "é"]
)
def test_an_invalid_budget_gets_a_short_error(
    budget: str, strict: int, upstream: ScriptedServer
) -> None:
    upstream.answer(OK)
    answer = ask(strict, adacompute={"budget": budget})
    assert is_error(answer, 400)
    assert len(answer.body) < 400
    assert upstream.received == []


@pytest.mark.parametrize("depth", [300, 900, 960, 985, 990, 995, 1000, 3000])
def test_deep_nesting_is_handled(depth: int, strict: int, upstream: ScriptedServer) -> None:
    upstream.answer(OK)
    deep = "[" * depth + "]" * depth
    said = '"messages": [{"role": "user", "content": "a"}]'
    for stream in ("true", "false"):
        options = f'"stream": {stream}, "stream_options": {{"x": {deep}}}'
        body = f'{{"model": "thrifty", {said}, {options}}}'.encode()
        answer = send(strict, "POST", CHAT, headers=[BEARER], body=body)
        assert answer.status in {200, 400}, answer


# What an upstream sends back.


def test_a_decompression_bomb_is_not_read_to_its_end() -> None:
    reader = UsageReader([(b"content-encoding", b"gzip")], keep_body=True)
    begun = time.monotonic()
    reader.feed(gzip.compress(bytes(200_000_000), compresslevel=1))
    assert len(reader.kept) <= MAX_KEPT + DECOMPRESSED_CHUNK
    assert time.monotonic() - begun < 20


@pytest.mark.parametrize("texts", [True, False])
def test_half_a_surrogate_pair_can_be_answered_and_logged(
    texts: bool,  # noqa: FBT001 - a parameter of the test
    upstream: ScriptedServer,
    policies: Path,
    tmp_path: Path,
) -> None:
    model = {"bundle": str(policies / "two"), "budget": 2, "model": "real", "grader": "numeric"}
    config = {
        "base_url": upstream.base_url,
        "probe": False,
        "models": {"thrifty": model},
        "state_directory": str(tmp_path),
        "decision_log": "texts" if texts else "answers",
    }
    said = json.dumps({"choices": [{"message": {"content": "\ud800 4"}}]})
    upstream.answer(ScriptedReply(200, [JSON], [said.encode()]))
    with serve_gateway(make_config(config)) as port:
        answers = [ask(port, "\udfff 2+2?"), ask(port, "2+2?")]
    assert [answer.status for answer in answers] == [200, 200]
    assert all(json.loads(answer.body)["choices"][0]["message"] for answer in answers)


@pytest.mark.parametrize("texts", [True, False])
def test_texts_are_stored_only_if_enabled(
    texts: bool,  # noqa: FBT001 - a parameter of the test
    upstream: ScriptedServer,
    policies: Path,
    tmp_path: Path,
) -> None:
    model = {"bundle": str(policies / "two"), "budget": 2, "model": "real", "grader": "numeric"}
    config = {
        "base_url": upstream.base_url,
        "probe": False,
        "models": {"thrifty": model},
        "decision_log": "texts" if texts else "answers",
        "state_directory": str(tmp_path),
    }
    said = json.dumps({"choices": [{"message": {"content": "a secret completion: 4"}}]})
    upstream.answer(ScriptedReply(200, [JSON], [said.encode()]))
    with serve_gateway(make_config(config)) as port:
        assert ask(port, "a secret question: 2+2?").status == 200
        assert ask(port, "a secret question: 2+2?", model="other").status == 200
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"samples_used" in stored
    assert (b"secret completion" in stored, b"secret question" in stored) == (texts, texts)


ODD_USAGE = [
    {"prompt_tokens": "many", "completion_tokens": None},
    {"prompt_tokens": {"a": 1}, "completion_tokens": [1]},
    {"prompt_tokens": -5, "completion_tokens": 1e300, "prompt_tokens_details": 7},
    {"prompt_tokens_details": {"cached_tokens": "x"}, "completion_tokens_details": []},
    {"total_tokens": True, "x": {"y": {"z": 1}}},
    [],
    "free",
]


@pytest.mark.parametrize("usage", ODD_USAGE)
def test_malformed_usage_is_estimated(usage: Any, strict: int, upstream: ScriptedServer) -> None:
    document = {"choices": [{"message": {"content": "It is 4."}}], "usage": usage}
    upstream.answer(ScriptedReply(200, [JSON], [json.dumps(document).encode()]))
    answer = ask(strict)
    assert answer.status == 200
    total = json.loads(answer.body)["usage"]
    assert total["num_calls"] == 2
    assert total["completion_tokens"] > 0


ODD_REPLIES = {
    "illegal-header": ScriptedReply(200, [JSON, ("X-Bad", "a\x01b")], [b"{}"]),
    "long-header": ScriptedReply(200, [JSON, ("X-Long", "a" * 20_000)], [b"{}"]),
    "endless-header": ScriptedReply(200, [JSON, ("X-Long", "a" * 200_000)], [b"{}"]),
    "lengths": ScriptedReply(200, [JSON, ("Content-Length", "1")], [b"{}"]),
    "coding": ScriptedReply(200, [JSON, ("Content-Encoding", "gzip")], [b"no gzip"]),
    "status": ScriptedReply(999, [JSON], [b"{}"]),
    "no-status": ScriptedReply(0, [JSON], [b"{}"]),
    "not-a-type": ScriptedReply(200, [("Content-Type", "\xff")], [b"\xff"]),
    "garbage-events": ScriptedReply(200, [("Content-Type", "text/event-stream")], [b"\xff\n\n"]),
    "half-head": ScriptedReply(200, [("X", "a\r\n\r")], [b"{}"], cut=True),
}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("model", ["thrifty", "other"])
@pytest.mark.parametrize("name", ODD_REPLIES)
def test_a_malformed_reply_is_an_upstream_error(
    name: str,
    model: str,
    stream: bool,  # noqa: FBT001 - a parameter of the test
    strict: int,
    upstream: ScriptedServer,
) -> None:
    upstream.answer(ODD_REPLIES[name])
    answer = ask(strict, model=model, stream=stream)
    assert answer.status in {200, 502}
    assert b"Traceback" not in answer.body
    if answer.status == 502:
        assert is_error(answer, 502)


def test_a_client_that_leaves_with_requests_waiting_ends_the_one_being_answered(
    strict: int, upstream: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    upstream.answer(ScriptedReply(200, [JSON], [1.0, b"{}"]))
    body = b'{"model": "other", "messages": []}'
    request = b"POST %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: %s\r\nContent-Length: %d\r\n"
    request = request % (CHAT.encode(), BEARER[1].encode(), len(body))
    request += b"Content-Type: application/json\r\n\r\n" + body
    with socket.create_connection(("127.0.0.1", strict)) as client:
        client.sendall(3 * request)
        time.sleep(0.3)
    time.sleep(1.0)
    assert ask(strict, model="other").status == 200
    assert "ASGI" not in caplog.text
    assert "exception" not in caplog.text


def test_requests_beyond_the_largest_number_are_refused(upstream: ScriptedServer) -> None:
    release = threading.Event()
    upstream.answer(ScriptedReply(200, [JSON], [release, b"{}"]))
    config = {"base_url": upstream.base_url, "max_concurrency": 1}
    with serve_gateway(make_config(config)) as port:
        first = threading.Thread(target=ask, args=(port,))
        first.start()
        while not upstream.received:
            time.sleep(0.01)
        refused = ask(port)
        release.set()
        first.join()
        served = ask(port)
    assert (refused.status, served.status) == (503, 200)


@contextmanager
def impatient(application: Callable[..., Awaitable[None]]) -> Iterator[int]:
    """A server whose patience ends soon; gives its port."""
    uvicorn = pytest.importorskip("uvicorn")
    from adacompute.gateway.connection.client_protocol import ClientProtocol

    class Impatient(ClientProtocol):
        headers_timeout_s = 0.3
        send_timeout_s = 1.0

    port = free_port()
    settings = uvicorn.Config(
        application,
        port=port,
        http=Impatient,
        lifespan="off",
        log_config=None,
    )
    server = uvicorn.Server(settings)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield port
    server.should_exit = True
    thread.join(timeout=10)


def test_a_connection_with_unfinished_headers_is_closed() -> None:
    async def application(scope: Scope, *_: object) -> None:
        raise AssertionError(scope)

    with impatient(application) as port:
        begun = time.monotonic()
        for sent in (b"", b"POST /v1/x HTTP/1.1\r\nHost: a\r\nX-Slow: "):
            assert send_raw(port, sent, timeout_s=5) == b""
        assert time.monotonic() - begun < 4


@pytest.mark.parametrize("reads", [True, False])
def test_a_client_that_stops_reading_is_disconnected(
    reads: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    size, left = 20_000_000, threading.Event()

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["path"] == "/"
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": b"x" * size, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
        while (await receive())["type"] != "http.disconnect":
            pass
        left.set()

    with impatient(application) as port, socket.socket() as plug:
        plug.connect(("127.0.0.1", port))
        plug.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        begun = time.monotonic()
        seen = 0
        while reads and (part := plug.recv(100_000)):  # slowly, for longer than the patience
            seen += len(part)
            time.sleep(0.01)
        assert left.wait(timeout=5)
        taken = time.monotonic() - begun
    assert (seen > size and taken > 1.5) if reads else taken < 4
