"""What passes through is not changed: hundreds of requests and replies, compared byte for byte."""

from __future__ import annotations

import difflib
import gzip
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import product

import pytest

from test_support.gateways import GatewayReply, open_connection, send
from test_support.scripted import ReceivedRequest, ScriptedReply, ScriptedServer

Launch = Callable[..., AbstractContextManager[int]]

CHAT = "/v1/chat/completions"
KEY = "sk-client-fedcba9876543210"
UPSTREAM_KEY = "Bearer sk-upstream-0123456789abcdef"
FRAMING = {"host", "content-length", "transfer-encoding", "connection", "keep-alive"}
OURS = {"x-adacompute-passthrough"}
SECRET = {"authorization", "api-key", "x-api-key", "cookie"}
JSON = ("Content-Type", "application/json")
EVENTS = ("Content-Type", "text/event-stream; charset=utf-8")


@dataclass(frozen=True)
class Shape:
    """A request, what of it the upstream is to see where that differs, and the reply."""

    name: str
    body: bytes
    reply: ScriptedReply
    method: str = "POST"
    target: str = CHAT
    headers: tuple[tuple[str, str], ...] = (JSON,)
    expected: bytes | None = None


def chat(*members: str, model: str = "other", messages: str | None = None) -> bytes:
    said = messages or '[{"role": "user", "content": "2+2?"}]'
    return ", ".join([f'{{"model": "{model}"', f'"messages": {said}', *members]).encode() + b"}"


def user(content: str) -> str:
    return f'[{{"role": "user", "content": {content}}}]'


TOOL = (
    '"tools": [{"type":"function","function":{"name":"add","strict":true,"parameters":'
    '{"type":"object","properties":{"a":{"type":["number","null"]}},"required":["a"]}}}]'
)
PIXEL = "data:image/png;base64,iVBORw0KGgo="
IMAGE = (
    f'[{{"type":"text","text":"?"}},{{"type":"image_url","image_url":{{"url":"{PIXEL}",'
    '"detail":"low"}}]'
)
AUDIO = '[{"type":"input_audio","input_audio":{"data":"UklGRg==","format":"wav"}}]'
SCHEMA = (
    '"response_format": {"type":"json_schema","json_schema":{"name":"r","strict":true,'
    '"schema":{"type":"object","properties":{"x":{"type":"integer"}},"additionalProperties":false}}}'
)
TURNS = (
    '[{"role":"system","content":"Be brief."},{"role":"user","content":"a"},'
    '{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function",'
    '"function":{"name":"add","arguments":"{\\"a\\": 1}"}},{"id":"c2","type":"function",'
    '"function":{"name":"add","arguments":"{}"}}]},'
    '{"role":"tool","tool_call_id":"c1","content":"1"},'
    '{"role":"tool","tool_call_id":"c2","content":[{"type":"text","text":"2"}]},'
    '{"role":"user","content":"go on","name":"Ann"}]'
)

BODIES: dict[str, bytes] = {
    "plain": chat(),
    "tools": chat(TOOL, '"tool_choice": "auto", "parallel_tool_calls": true'),
    "forced-tool": chat(TOOL, '"tool_choice": {"type":"function","function":{"name":"add"}}'),
    "functions": chat('"functions": [{"name": "f", "parameters": {}}], "function_call": "auto"'),
    "images": chat(messages=user(IMAGE)),
    "audio": chat('"modalities": ["text","audio"]', messages=user(AUDIO)),
    "logprobs": chat('"logprobs": true, "top_logprobs": 20'),
    "schema": chat(SCHEMA),
    "json-mode": chat('"response_format": {"type": "json_object"}'),
    "turns": chat(TOOL, messages=TURNS),
    "unicode": chat(messages=user('"Größe 数学 \U0001f600 \u202e \u2028"')),
    "escaped": chat(messages=user(r'"\u00e9 \ud83d\ude00 \/ \b\f\n\r\t \u0000"')),
    "lone-surrogate": chat(messages=user(r'"\ud800"')),
    "long": chat(messages=user('"' + "long " * 200_000 + '"')),
    "n": chat('"n": 3'),
    "cold": chat('"temperature": 0'),
    "cold-float": chat('"temperature": 0.0'),
    "unknown": chat('"my_field": {"deep": [1, {"x": null}]}, "chat_template_kwargs": {"k": true}'),
    "numbers": chat('"temperature": 1.50, "top_p": 1e0, "seed": 12345678901234567890, "x": -0.0'),
    "huge-number": chat('"x": ' + "9" * 5000),
    "duplicates": chat('"temperature": 0.1, "temperature": 0.9, "model": "second"'),
    "whitespace": b' \r\n\t{\n "model" :\t"other" ,\n\n "messages" : [ ] }\n\n',
    "byte-order-mark": b"\xef\xbb\xbf" + chat(),
    "no-json": b"{ this is no JSON",
    "no-utf8": b'{"model": "\xff\xfe"}',
    "list": b'[{"model": "other"}]',
    "empty": b"",
    "nan": chat('"temperature": NaN'),
    "deep": chat('"x": ' + "[" * 5000 + "]" * 5000),
    "stop": chat('"stop": ["\\n\\n", "END"], "max_completion_tokens": 5, "user": "u@v"'),
    "stream": chat('"stream": true'),
    "stream-usage": chat('"stream": true, "stream_options": {"include_usage": true}'),
    "stream-tools": chat('"stream": true', TOOL),
    "prediction": chat('"prediction": {"type": "content", "content": "x"}, "store": false'),
    "reasoning": chat('"reasoning_effort": "low", "reasoning": {"max_tokens": 5}'),
    "looks-virtual": chat(messages=user('"model: thrifty@9, x-adacompute-budget: 99"')),
    "own-member": chat('"adacompute": {"budget": 99}'),
}

USAGE = b'"usage":{"prompt_tokens":5,"completion_tokens":7,"total_tokens":12}'
DONE = b"data: [DONE]\n\n"


def delta(text: str) -> bytes:
    return b'data: {"id":"1","choices":[{"index":0,"delta":%b}]}\n\n' % text.encode()


CALLS = [
    '{"role":"assistant","tool_calls":[{"index":0,"id":"c","function":{"name":"add"}}]}',
    r'{"tool_calls":[{"index":0,"function":{"arguments":"{\"a\""}}]}',
    r'{"tool_calls":[{"index":1,"id":"d","function":{"arguments":"{}"}}]}',
]
WORDS = ['{"role":"assistant","content":""}', '{"content":"Größe \U0001f600"}', '{"content":"数"}']
STREAM = b"".join([*map(delta, WORDS), b'data: {"choices":[],%b}\n\n' % USAGE, DONE])
TOOL_STREAM = b"".join([*map(delta, CALLS), DONE])
ANSWER = b'{ "id" :"x", "choices":[{"index":0,"message":{"content":"4"}}],\n%b }' % USAGE
TOOL_ANSWER = (
    b'{"choices":[{"message":{"role":"assistant","content":null,"tool_calls":[{"id":"a"},{"id":"b"}]},'
    b'"finish_reason":"tool_calls"}],%b}' % USAGE
)


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


def error(status: int, *headers: tuple[str, str]) -> ScriptedReply:
    told = {"message": f"no: é {status}", "type": "t", "param": None, "code": "c"}
    data = json.dumps({"error": told}, ensure_ascii=False, indent=1).encode()
    return ScriptedReply(status, [JSON, *headers], [data])


MANY = [
    ("Set-Cookie", "a=1; Path=/"),
    ("Set-Cookie", "b=2"),
    ("X-Request-Id", "req_1"),
    ("x-ratelimit-remaining-tokens", "149984"),
    ("openai-processing-ms", "12"),
    ("Server", "upstream/1.0"),
    ("Date", "Thu, 05 Nov 2026 08:00:00 GMT"),
    ("X-Latin", "caf\xe9"),
    ("X-Empty", ""),
    ("Vary", "Origin"),
    ("Vary", "Accept-Encoding"),
]
GZIP = ("Content-Encoding", "gzip")

REPLIES: dict[str, ScriptedReply] = {
    "json": ScriptedReply(200, [JSON], [ANSWER]),
    "tool-calls": ScriptedReply(200, [JSON], [TOOL_ANSWER]),
    "chunked": ScriptedReply(200, [JSON], cut(ANSWER, 7), framing="chunked"),
    "closed": ScriptedReply(200, [JSON], [ANSWER], framing="close"),
    "gzip": ScriptedReply(200, [JSON, GZIP], [gzip.compress(ANSWER, mtime=0)]),
    "gzip-chunked": ScriptedReply(
        200, [JSON, GZIP], cut(gzip.compress(ANSWER, mtime=0), 9), "chunked"
    ),
    "headers": ScriptedReply(200, [JSON, *MANY], [ANSWER]),
    "no-type": ScriptedReply(200, [], [b"\x00\x01\xff"]),
    "large": ScriptedReply(200, [JSON], [b'"' + b"x" * 9_000_000 + b'"']),
    "large-chunked": ScriptedReply(
        200, [JSON], cut(b"y" * 9_000_000, 1_000_000), framing="chunked"
    ),
    "stream": ScriptedReply(200, [EVENTS], cut(STREAM, 50), framing="chunked"),
    "stream-bytes": ScriptedReply(200, [EVENTS], cut(STREAM[:200], 1), framing="chunked"),
    "stream-length": ScriptedReply(200, [EVENTS], [STREAM]),
    "stream-closed": ScriptedReply(200, [EVENTS], cut(STREAM, 33), framing="close"),
    "stream-tools": ScriptedReply(200, [EVENTS], cut(TOOL_STREAM, 13), framing="chunked"),
    "stream-crlf": ScriptedReply(200, [EVENTS], cut(STREAM.replace(b"\n", b"\r\n"), 17), "chunked"),
    "stream-comments": ScriptedReply(
        200, [EVENTS], [b": hi\n\n", STREAM, b":\n\n"], framing="chunked"
    ),
    "stream-names": ScriptedReply(
        200, [EVENTS], [b"event: a\nid: 1\nretry: 5\n" + delta("{}"), DONE], "chunked"
    ),
    "stream-gzip": ScriptedReply(
        200, [EVENTS, GZIP], cut(gzip.compress(STREAM, mtime=0), 40), "chunked"
    ),
    "stream-error": ScriptedReply(
        200, [EVENTS], [delta("{}"), b'data: {"error":{}}\n\n'], "chunked"
    ),
    "400": error(400),
    "401": error(401, ("WWW-Authenticate", "Bearer")),
    "404": error(404),
    "422": error(422),
    "429": error(429, ("Retry-After", "7"), ("x-ratelimit-reset-requests", "1s")),
    "429-date": error(429, ("Retry-After", "Thu, 05 Nov 2026 08:00:00 GMT")),
    "500": error(500),
    "503": ScriptedReply(503, [("Content-Type", "text/html")], [b"<html>busy</html>"]),
    "529": error(529),
    "400-gzip": ScriptedReply(400, [JSON, GZIP], [gzip.compress(b'{"error": {}}', mtime=0)]),
    "400-events": ScriptedReply(400, [EVENTS], [b'data: {"error": {}}\n\n'], "chunked"),
    "redirect": ScriptedReply(307, [("Location", "http://127.0.0.1:1/v1/other")], []),
    "created": ScriptedReply(201, [JSON], [b"{}"]),
    "empty": ScriptedReply(200, [JSON], []),
    "204": ScriptedReply(204, [("X-Gone", "1")], framing="none"),
    "304": ScriptedReply(304, [("ETag", '"x"')], framing="none"),
}

MULTIPART = ("Content-Type", "multipart/form-data; boundary=b")
FORM = b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\n\x00\xff\r\n\r\n--b--\r\n'
ODD_HEADERS = (
    JSON,
    ("Accept", "application/json"),
    ("Accept", "text/event-stream"),
    ("Accept-Encoding", "gzip, br"),
    ("User-Agent", "OpenAI/Python 3.49"),
    ("X-Stainless-Lang", "python"),
    ("X-Utf8", "Größe".encode().decode("latin-1")),
    ("X-Empty", ""),
    ("OpenAI-Organization", "org-1"),
    ("Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    ("Idempotency-Key", "k"),
    ("X-Forwarded-For", "10.0.0.1"),
)
OTHERS = [
    Shape("get", b"", REPLIES["json"], "GET", "/v1/files/f-1?limit=2&after=a%20b+c&x=%2F", ()),
    Shape("get-list", b"", REPLIES["headers"], "GET", "/v1/files?a=1&a=2&b=", ()),
    Shape("get-model", b"", REPLIES["json"], "GET", "/v1/models/org%2Fname:tag", ()),
    Shape("delete", b"", REPLIES["204"], "DELETE", "/v1/files/f-1", ()),
    Shape("delete-body", b'{"a":1}', REPLIES["json"], "DELETE", "/v1/x", (JSON,)),
    Shape("put", b"\x00\xff", REPLIES["created"], "PUT", "/v1/x", ()),
    Shape("patch", b"{}", REPLIES["json"], "PATCH", "/v1/x", (JSON,)),
    Shape("options", b"", REPLIES["204"], "OPTIONS", CHAT, (("Origin", "http://a"),)),
    Shape("head", b"", REPLIES["json"], "HEAD", "/v1/x", ()),
    Shape("embeddings", b'{"model":"e","input":["a"]}', REPLIES["json"], "POST", "/v1/embeddings"),
    Shape("files", FORM, REPLIES["json"], "POST", "/v1/files", (MULTIPART,)),
    Shape("audio", FORM, REPLIES["json"], "POST", "/v1/audio/transcriptions", (MULTIPART,)),
    Shape("binary", b"{}", REPLIES["no-type"], "POST", "/v1/audio/speech", (JSON,)),
    Shape("responses", b'{"model":"other"}', REPLIES["stream"], "POST", "/v1/responses"),
    Shape("messages", b'{"model":"other"}', REPLIES["json"], "POST", "/v1/messages"),
    Shape("unicode-path", b"", REPLIES["404"], "GET", "/v1/%E6%95%B0?q=%E6%95%B0", ()),
    Shape("slashes", b"", REPLIES["404"], "GET", "/v1/a//b/./c/", ()),
    Shape("signs", b"", REPLIES["404"], "GET", "/v1/a;b=c,d@e:f!$'()*+~?x=[1]&y={z}|", ()),
    Shape("post-empty", b"", REPLIES["json"], "POST", "/v1/batches/b/cancel", ()),
    Shape("headers", chat(), REPLIES["json"], headers=ODD_HEADERS),
    Shape("no-type", chat(), REPLIES["json"], headers=()),
]


COMMON = ("json", "stream", "429", "gzip-chunked")


def shapes() -> Iterator[Shape]:
    for name, reply in product(BODIES, COMMON):
        yield Shape(f"{name}>{reply}", BODIES[name], REPLIES[reply])
    for name, reply in product(
        ("plain", "stream-tools"), [name for name in REPLIES if name not in COMMON]
    ):
        yield Shape(f"{name}>{reply}", BODIES[name], REPLIES[reply])
    for name in ("plain", "stream"):
        target = "/v1/completions?trace=1"
        yield Shape(f"text-{name}", BODIES[name], REPLIES["stream-bytes"], target=target)
    yield from OTHERS


# Requests to a virtual model that cannot be voted on: the rest of the body stays.
UNVOTED: dict[str, str] = {
    "tools": TOOL,
    "functions": '"functions": [{"name": "f"}]',
    "tool-turns": f'"x": 1.50, "messages": {TURNS}',
    "images": f'"messages": {user(IMAGE)}',
    "audio": f'"messages": {user(AUDIO)}',
    "n": '"n":  3',
    "cold": '"temperature": 0.00',
    "cold-int": '"temperature":0, "unknown": [1e0, "\\u00e9"]',
    "no-text": '"messages": []',
    "null-content": '"messages": [{"role": "user", "content": null}]',
    "odd-messages": '"messages": "hello"',
    "odd-role": '"messages": [{"role": ["x"], "content": "a"}]',
    "odd-temperature": '"temperature": "hot"',
    "odd-stream": '"stream": "yes"',
    "odd-n": '"n": "many"',
    "audio-out": '"audio": {"voice": "alloy"}',
}
SPELLINGS = {
    "plain": '"model": "thrifty"',
    "spaced": '"model" :\t"thrifty"',
    "escaped": r'"mod\u0065l": "thri\u0066ty"',
}
OPTION = ', "adacompute": {"budget": 3}'


def unvoted() -> Iterator[Shape]:
    said = '"messages": [{"role": "user", "content": "\U0001f600"}], '
    for (name, members), (how, model) in product(UNVOTED.items(), SPELLINGS.items()):
        for option in ("", OPTION):
            filled = '{%s, "seed": 1.0, ' + (said if '"messages"' not in members else "") + "%s%s}"
            plain = model.partition(":")[0]
            space = "\t" if how == "spaced" else " "
            expected = filled % (f'{plain}:{space}"real"', members, "")
            body = filled % (model, members, option)
            reply = REPLIES["stream-tools" if option else "tool-calls"]
            label = f"{name}-{how}{'-option' if option else ''}"
            yield Shape(label, body.encode(), reply, expected=expected.encode())


SHAPES, UNVOTED_SHAPES = list(shapes()), list(unvoted())


def kept(headers: Sequence[tuple[str, str]], without: set[str]) -> list[str]:
    lines = (f"{name.lower()}: {value}" for name, value in headers if name.lower() not in without)
    return sorted(lines)


def write(first: str, headers: list[str], body: bytes) -> list[str]:
    """What is compared, in lines, so that a difference can be read."""
    lines = [repr(line) for line in body.splitlines(keepends=True)]
    return [first, *headers, *(line[:2000] for line in lines)]


def differ(expected: list[str], found: list[str], what: str) -> str:
    return "\n".join(difflib.unified_diff(expected, found, f"{what} sent", f"{what} arrived"))


def request_difference(shape: Shape, received: ReceivedRequest) -> str:
    """Nothing of what identifies the client arrives, and the upstream's own key does."""
    body = shape.body if shape.expected is None else shape.expected
    headers = sorted([*kept(shape.headers, FRAMING | SECRET), f"authorization: {UPSTREAM_KEY}"])
    sent = write(f"{shape.method} {shape.target}", headers, body)
    first = f"{received.method} {received.target}"
    found = write(first, kept(received.headers, FRAMING), received.body)
    return differ(sent, found, "request")


def reply_difference(shape: Shape, answer: GatewayReply) -> str:
    reply, head = shape.reply, shape.method == "HEAD"
    sent = write(str(reply.status), kept(reply.headers, FRAMING), b"" if head else reply.body)
    found = write(str(answer.status), kept(answer.headers, FRAMING | OURS), answer.body)
    return differ(sent, found, "reply")


OWN = (
    ("Authorization", f"Bearer {KEY}"),
    ("Cookie", "session=1"),
    ("X-AdaCompute-Budget", "3"),
    ("x-adacompute-anything", "1"),
)


def check(
    shape: Shape, gateway: int, upstream: ScriptedServer
) -> tuple[ReceivedRequest, GatewayReply]:
    upstream.answer(shape.reply)
    answer = send(
        gateway, shape.method, shape.target, headers=[*shape.headers, *OWN], body=shape.body
    )
    assert len(upstream.received) == 1, f"{answer.status} {answer.body[:300]!r}"
    found = request_difference(shape, upstream.received[0]) + reply_difference(shape, answer)
    assert not found, found
    return upstream.received[0], answer


@pytest.fixture(scope="module")
def keyed(launch: Launch) -> Iterator[int]:
    """Port of a gateway with a token, which must not be forwarded."""
    with launch(settings=f'bearer_tokens = ["{KEY}"]') as port:
        yield port


def test_enough_shapes_are_generated() -> None:
    names = Counter(shape.name for shape in (*SHAPES, *UNVOTED_SHAPES))
    assert len(names) >= 300
    assert max(names.values()) == 1


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_requests_for_other_models_are_forwarded_unchanged(
    shape: Shape, keyed: int, upstream: ScriptedServer
) -> None:
    received, _ = check(shape, keyed, upstream)
    assert KEY not in str(received.headers)


@pytest.mark.parametrize("shape", UNVOTED_SHAPES, ids=lambda shape: shape.name)
def test_requests_that_cannot_be_voted_on_are_forwarded_with_only_the_model_changed(
    shape: Shape, keyed: int, upstream: ScriptedServer
) -> None:
    check(shape, keyed, upstream)


def test_a_difference_is_shown_line_by_line() -> None:
    shape = Shape("x", b"{}", REPLIES["json"])
    received = (("content-type", "text/plain"), ("cookie", "a=1"))
    changed = ReceivedRequest("POST", CHAT, received, b"{ }")
    shown = request_difference(shape, changed).splitlines()
    assert {"-content-type: application/json", "+content-type: text/plain", "+cookie: a=1"} <= set(
        shown
    )
    assert {"-b'{}'", "+b'{ }'"} <= set(shown)
    worse = replace(shape, reply=REPLIES["500"])
    assert {"-500", "+200"} <= set(reply_difference(worse, GatewayReply(200, (), b"")).splitlines())


@pytest.mark.parametrize("name", ["length", "chunked"])
def test_content_length_is_the_upstreams(name: str, keyed: int, upstream: ScriptedServer) -> None:
    shape = Shape("x", chat(), ScriptedReply(200, [JSON], [ANSWER], "length"))
    shape = replace(shape, reply=replace(shape.reply, framing=name))  # type: ignore[arg-type]
    _, answer = check(shape, keyed, upstream)
    assert answer.values("content-length") == [str(len(ANSWER))]


def test_a_reply_without_a_body_gets_no_length(keyed: int, upstream: ScriptedServer) -> None:
    _, answer = check(Shape("x", b"", REPLIES["204"], "DELETE", "/v1/x", ()), keyed, upstream)
    assert answer.values("content-length") == []
    assert answer.values("transfer-encoding") == []


def test_content_length_of_a_head_reply_is_kept(keyed: int, upstream: ScriptedServer) -> None:
    _, answer = check(Shape("x", b"", REPLIES["json"], "HEAD", "/v1/x", ()), keyed, upstream)
    assert answer.values("content-length") == [str(len(ANSWER))]


def test_hop_by_hop_headers_are_not_forwarded(gateway: int, upstream: ScriptedServer) -> None:
    own = [("Connection", "keep-alive, X-Hop"), ("X-Hop", "1"), ("Keep-Alive", "5"), ("TE", "x")]
    upstream.answer(ScriptedReply(200, [JSON, *own, ("X-End", "1")], [b"{}"]))
    answer = send(gateway, "POST", CHAT, headers=[JSON, *own, ("X-End", "1")], body=chat())
    for headers in (upstream.received[0].headers, answer.headers):
        assert ("x-end", "1") in headers
        assert not {"x-hop", "keep-alive", "te"} & {name for name, _ in headers}


@pytest.mark.parametrize("model", ["other", "single"])
def test_events_are_forwarded_as_they_arrive(
    model: str, gateway: int, upstream: ScriptedServer
) -> None:
    hold = threading.Event()
    upstream.answer(
        ScriptedReply(200, [EVENTS], [delta(WORDS[1]), hold, delta(WORDS[2]), DONE], "chunked")
    )
    with open_connection(gateway, 10) as connection:
        body = chat('"stream": true', model=model)
        connection.request("POST", CHAT, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        first = response.read1()
        assert first == delta(WORDS[1])
        hold.set()
        assert response.read() == delta(WORDS[2]) + DONE


def test_a_single_sample_is_forwarded_with_our_headers_added(
    gateway: int, upstream: ScriptedServer
) -> None:
    upstream.answer(REPLIES["stream-crlf"])
    packing = [JSON, ("Accept-Encoding", "br")]
    body = chat('"stream": true', model="single")
    answer = send(gateway, "POST", CHAT, headers=packing, body=body)
    assert answer.body == REPLIES["stream-crlf"].body
    assert upstream.received[0].values("accept-encoding") == ["identity"]  # it has to be read here
    assert upstream.received[0].body == chat('"stream": true', model="real")
    assert answer.values("x-adacompute-decision")


def count_tokens(gateway: int) -> dict[str, float]:
    """What was accounted for requests that name no virtual model."""
    text = send(gateway + 1, "GET", "/metrics").body.decode()
    marks = {
        "prompt": 'adacompute_tokens_total{kind="prompt"',
        "guessed": "_estimated_tokens_total{",
    }
    marks["completion"] = 'adacompute_tokens_total{kind="completion"'
    told = [line for line in text.splitlines() if 'model="-"' in line]
    return {
        kind: sum(float(line.rpartition(" ")[2]) for line in told if mark in line)
        for kind, mark in marks.items()
    }


@pytest.mark.parametrize(
    "name", ["json", "chunked", "gzip", "gzip-chunked", "stream", "stream-closed", "stream-gzip"]
)
def test_usage_of_forwarded_requests_is_counted(
    name: str, keyed: int, upstream: ScriptedServer
) -> None:
    before = count_tokens(keyed)
    check(Shape("x", chat(), REPLIES[name]), keyed, upstream)
    after = count_tokens(keyed)
    spent = {kind: after[kind] - before[kind] for kind in after}
    assert spent == {"prompt": 5, "completion": 7, "guessed": 0}


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_a_stream_without_usage_is_charged_its_bound(
    size: int, keyed: int, upstream: ScriptedServer
) -> None:
    before = count_tokens(keyed)
    reply = ScriptedReply(200, [EVENTS], cut(b"".join(map(delta, WORDS)) + DONE, size), "chunked")
    body = chat('"stream": true, "max_tokens": 50')
    check(Shape("x", body, reply), keyed, upstream)
    after = count_tokens(keyed)
    spent = {kind: after[kind] - before[kind] for kind in after}
    assert spent == {"prompt": len(body), "completion": 50, "guessed": len(body) + 50}


def test_usage_that_cannot_be_read_is_counted_as_an_upper_bound(
    keyed: int, upstream: ScriptedServer
) -> None:
    before = count_tokens(keyed)
    packed = ScriptedReply(200, [JSON, ("Content-Encoding", "br")], [b"\x0b\x02\x80{}\x03"])
    body = chat('"max_tokens": 20, "n": 3')
    check(Shape("x", body, packed), keyed, upstream)
    after = count_tokens(keyed)
    assert after["completion"] - before["completion"] == 60
    assert after["guessed"] - before["guessed"] == 60 + len(body)


@pytest.mark.parametrize("framing", ["chunked", "length"])
def test_a_broken_stream_ends_with_an_error_event(
    framing: str, gateway: int, upstream: ScriptedServer
) -> None:
    reply = ScriptedReply(200, [EVENTS], [delta(WORDS[1])], "chunked", cut=True)
    upstream.answer(replace(reply, framing=framing))  # type: ignore[arg-type]
    answer = send(gateway, "POST", CHAT, body=chat('"stream": true'))
    first, last = answer.body.split(b"\n\n")[:2]
    assert first + b"\n\n" == delta(WORDS[1])
    assert json.loads(last.removeprefix(b"data: "))["error"]["type"] == "upstream_error"


def test_a_broken_document_becomes_an_error(gateway: int, upstream: ScriptedServer) -> None:
    upstream.answer(ScriptedReply(200, [JSON], [ANSWER[:20]], cut=True))
    answer = send(gateway, "POST", CHAT, body=chat())
    assert answer.status == 502
    assert json.loads(answer.body)["error"]["type"] == "upstream_error"


def test_models_of_the_upstream_and_ours_are_listed(gateway: int, upstream: ScriptedServer) -> None:
    listed = {"object": "list", "data": [{"id": "real", "object": "model", "max_model_len": 5}]}
    upstream.answer(
        ScriptedReply(200, [JSON, ("X-Request-Id", "r")], [json.dumps(listed).encode()])
    )
    answer = send(gateway, "GET", "/v1/models?x=1", headers=[("Accept-Encoding", "gzip")])
    shown = json.loads(answer.body)["data"]
    assert shown[0] == listed["data"][0]
    assert [model["id"] for model in shown] == ["real", "thrifty", "single"]
    assert answer.values("x-request-id") == ["r"]
    assert upstream.received[0].target == "/v1/models?x=1"
    assert upstream.received[0].values("accept-encoding") == ["identity"]  # it has to be read here


@pytest.mark.parametrize("coding", ["gzip", "br"])
def test_a_compressed_list_of_models_can_be_read(
    coding: str, gateway: int, upstream: ScriptedServer
) -> None:
    listed = b'{"data": [{"id": "real"}]}'
    data = gzip.compress(listed, mtime=0) if coding == "gzip" else b"\x0b\x02\x80{}\x03"
    upstream.answer(ScriptedReply(200, [JSON, ("Content-Encoding", coding)], [data]))
    answer = send(gateway, "GET", "/v1/models")
    if coding == "gzip":
        assert json.loads(answer.body)["data"][0]["id"] == "real"
        assert answer.values("content-encoding") == []
    else:
        assert (answer.body, answer.values("content-encoding")) == (data, ["br"])


def test_our_models_are_listed_if_the_upstream_has_no_list(
    gateway: int, upstream: ScriptedServer
) -> None:
    upstream.answer(REPLIES["404"])
    answer = send(gateway, "GET", "/v1/models")
    assert [model["id"] for model in json.loads(answer.body)["data"]] == ["thrifty", "single"]


def test_a_rejected_list_of_models_is_forwarded(keyed: int, upstream: ScriptedServer) -> None:
    plain = (("Accept-Encoding", "identity"),)
    check(Shape("x", b"", REPLIES["401"], "GET", "/v1/models", plain), keyed, upstream)


@pytest.mark.parametrize(
    ("method", "target", "body", "reason"),
    [
        ("POST", "/v1/chat/completions", b'{"model": "other"}', "model"),
        ("POST", "/v1/embeddings", b'{"model": "thrifty"}', "path"),
        ("POST", "/v1/audio/speech", b'{"model": "other"}', "path"),
        ("GET", "/v1/files", b"", "path"),
        ("POST", "/v1/completions", b'{"model": "thrifty", "prompt": "2", "n": 2}', "n"),
    ],
)
@pytest.mark.parametrize("status", [200, 429])
def test_forwarded_replies_say_why_they_were_forwarded(
    gateway: int,
    upstream: ScriptedServer,
    method: str,
    target: str,
    body: bytes,
    reason: str,
    status: int,
) -> None:
    upstream.answer(ScriptedReply(status, [("Content-Type", "application/json")], [b"{}"]))
    answer = send(gateway, method, target, body=body)
    assert (answer.status, answer.values("x-adacompute-passthrough")) == (status, [reason])
