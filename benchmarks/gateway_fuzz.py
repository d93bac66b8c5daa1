"""A fuzzer of the HTTP path: requests that hypothesis makes up, sent to a real gateway process.

A quarter of the requests are JSON bodies with the fields that the gateway describes, of their type
or of another, in any number and some of them twice; a quarter are JSON bodies with wrong members; a
quarter are raw bytes of a valid request that were cut, repeated or replaced; and a quarter have
broken framing: chunks, lengths, trailers, pipelined requests. They go in turn to a gateway without
limits and to one with a cap. The upstream answers some calls with errors and invalid data, and
counts the tokens that it generated. After each request /health must answer in time. Printed are how
many requests were sent, how they were answered, the slowest health page, the memory, the tokens
under the cap, and each distinct failure: an internal error, a worker that died, a health page that
was slow, or a traceback in the log.

    python -m benchmarks.gateway_fuzz [MINUTES] [SEED]
"""

from __future__ import annotations

import itertools
import json
import re
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import hypothesis
from hypothesis import strategies as st

from adacompute.gateway.requests.fields import DESCRIBED, describe
from test_support.gateways import (
    fetch,
    free_port,
    process_usage,
    save_example_bundle,
    wait_for,
)

HEALTH_TIMEOUT_S = 0.2
CAP_TOKENS = 200_000
REPLY_TIMEOUT_S = 0.3
"""A request that is not complete gets no reply for long."""

UPSTREAM_ERROR = b"Server got itself in trouble"
"""What the fake upstream answers to bodies that it cannot use, with 500: it is forwarded."""

PAUSE_S = 0.03
"""A pause after which a reply is taken to be complete."""
FAULTS = "429=0.02,503=0.02,reset=0.02,half=0.02,garbled=0.02,shape=0.02"
CONFIG = """
[serve]
base_url = "http://127.0.0.1:{fake_port}/v1"
port = {port}
probe = false
max_attempts = 2
log_level = "warning"
state_directory = "state"
decision_log = "texts"
allowed_paths = ["* /v1/*"]
check_upstream = false
body_timeout_s = 2
first_byte_timeout_s = 5

{limits}
[serve.models.fake]
bundle = "policy"
budget = 2
max_budget = 4
grader = "numeric"
model = "fake"
accept_verdict = true
"""

LIMITS = f"""
max_samples = 6
max_output_tokens = 40
caps = [{{ amount = {CAP_TOKENS}, unit = "tokens" }}]
"""

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
MEMBERS = [
    "messages",
    "prompt",
    "input",
    "instructions",
    "n",
    "best_of",
    "stream",
    "stream_options",
    "temperature",
    "seed",
    "stop",
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "logprobs",
    "top_logprobs",
    "response_format",
    "tools",
    "tool_choice",
    "adacompute",
    "previous_response_id",
    "background",
    "conversation",
    "include",
    "text",
    "reasoning",
]
messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "system", "assistant"]) | values},
        optional={"content": st.text(max_size=60) | values, "tool_calls": values, "name": values},
    ),
    max_size=4,
)
bodies = st.fixed_dictionaries(
    {"model": st.sampled_from(["fake", "fake@3", "fake@x", "other"]) | values},
    optional={
        **dict.fromkeys(MEMBERS, values),
        "messages": messages | values,
        "stream": st.booleans() | values,
        "n": st.integers(0, 5) | values,
    },
)
paths = st.sampled_from(
    [
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/embeddings",
        "/v1/models",
        "/v1/messages",
        "/v1/files/x",
        "/v1/../admin/reload",
        "/health",
        "/metrics",
    ]
)
LARGE = (b"{}", b"[]", b'{"a":1}', b'"a"', b"1", b'"\\ud800"')
header_text = st.text(st.characters(min_codepoint=32, max_codepoint=255), max_size=30)
headers = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "Host",
                "Content-Type",
                "Content-Length",
                "Transfer-Encoding",
                "Connection",
                "Expect",
                "Accept-Encoding",
                "Authorization",
                "Origin",
                "Trailer",
                "Upgrade",
                "Idempotency-Key",
                "X-Request-Id",
                "x-adacompute-budget",
                "traceparent",
            ]
        )
        | st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=20),
        header_text
        | st.sampled_from(["chunked", "0", "5", "close", "100-continue", "gzip", "1e9"]),
    ),
    max_size=4,
)


def write_request(
    path: str, body: bytes, more: list[tuple[str, str]], method: str = "POST"
) -> bytes:
    """Write a valid request, unless the further headers make it invalid."""
    head = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json"]
    head += [f"Content-Length: {len(body)}", *(f"{name}: {value}" for name, value in more)]
    return "\r\n".join(head).encode("latin-1", "replace") + b"\r\n\r\n" + body


OF_TYPE: dict[object, st.SearchStrategy[Any]] = {
    int: st.integers(-2, 70) | st.integers(),
    float: st.floats(-1, 3) | st.integers(-1, 3),
    bool: st.booleans(),
    str: st.text(max_size=20),
    list[str]: st.lists(st.text(max_size=5), max_size=20),
    dict[str, Any]: st.dictionaries(st.text(max_size=5), values, max_size=3),
}
"""Values of the types that fields have; those of other types are made up."""


@st.composite
def described_requests(draw: st.DrawFn) -> list[bytes]:
    """Requests with the fields of an endpoint, of the right type or another, some of them twice."""
    path = draw(st.sampled_from(DESCRIBED))
    known = describe("generic", path)
    names = draw(st.lists(st.sampled_from(sorted(known)), max_size=8))
    pairs: list[tuple[str, Any]] = [("model", draw(st.sampled_from(["fake", "fake@3", "other"])))]
    if draw(st.booleans()):
        pairs.append(("messages", [{"role": "user", "content": "2 + 2?"}]))
    for name in names:
        right = OF_TYPE.get(known[name].type, values)
        pairs.append((name, draw(right if draw(st.integers(0, 15)) else values)))
    text = ", ".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in pairs)
    body = ("{" + text + "}").encode()
    if draw(st.integers(0, 40)) == 0:
        body = body[:-1] + b', "x": [%b]}' % b",".join([draw(st.sampled_from(LARGE))] * 200_000)
    more = draw(headers) if draw(st.integers(0, 3)) == 0 else []
    return [write_request(f"/v1/{path}", body, more)]


@st.composite
def json_requests(draw: st.DrawFn) -> list[bytes]:
    """Requests with made-up members."""
    body = json.dumps(draw(bodies)).encode()
    methods = st.sampled_from(["POST"] * 8 + ["GET", "PUT", "DELETE", "OPTIONS", "HEAD"])
    return [
        write_request(
            draw(paths), body, draw(headers) if draw(st.booleans()) else [], draw(methods)
        )
    ]


@st.composite
def mutated_requests(draw: st.DrawFn) -> list[bytes]:
    """A valid request of which bytes were cut, repeated or replaced."""
    question = {"role": "user", "content": draw(st.text(max_size=40))}
    body = {"model": draw(st.sampled_from(["fake", "other"])), "messages": [question]}
    data = write_request("/v1/chat/completions", json.dumps(body).encode(), [])
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        stop = min(len(data), start + draw(st.integers(0, 40)))
        inserted = draw(st.binary(max_size=12) | st.just(data[start:stop] * 3))
        data = data[:start] + inserted + data[stop:]
    return [data]


@st.composite
def framed_requests(draw: st.DrawFn) -> list[bytes]:
    """Chunks of right or wrong sizes, trailers, and pipelined requests, in pieces."""
    body = json.dumps(
        {"model": "fake", "messages": [{"role": "user", "content": "2 + 2?"}]}
    ).encode()
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    parts = [head]
    for _ in range(draw(st.integers(1, 5))):
        size = draw(st.integers(0, len(body)))
        named = draw(st.just(size) | st.integers(0, 2**40) | st.just(-1))
        extension = draw(st.sampled_from([b"", b";x=" + b"y" * 50, b" ", b"\xff"]))
        parts.append(b"%x" % abs(named) + extension + b"\r\n" + body[:size] + b"\r\n")
    parts.append(
        draw(st.sampled_from([b"0\r\n\r\n", b"0\r\nAuthorization: Bearer x\r\n\r\n", b""]))
    )
    if draw(st.booleans()):
        parts += [write_request("/v1/models", b"", [], "GET")] * draw(st.integers(1, 20))
    return parts


requests = st.one_of(described_requests(), json_requests(), mutated_requests(), framed_requests())


class Fuzzer:
    """Sends requests and collects what went wrong."""

    def __init__(self, ports: list[int], end: float) -> None:
        self.ports = itertools.cycle(ports)
        self.port = ports[0]
        self.end = end
        self.slowest_s = 0.0
        self.answers: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.examples: dict[str, bytes] = {}

    def try_one(self, parts: list[bytes]) -> None:
        """Send a request in its parts, and check the reply and the gateway."""
        if time.monotonic() > self.end:
            return
        self.port = next(self.ports)
        received = self._send(parts)
        statuses = re.findall(rb"^HTTP/1\.1 (\d{3})", received, re.MULTILINE)
        self.answers[",".join(one.decode() for one in statuses[:1]) or "nothing"] += 1
        if b"500" in statuses and UPSTREAM_ERROR not in received:
            self._fail("status 500", [*parts, received])
        began = time.monotonic()
        try:
            fetch(f"http://127.0.0.1:{self.port}/health")
        except OSError as error:
            self._fail(f"/health: {type(error).__name__}", parts)
        taken_s = time.monotonic() - began
        self.slowest_s = max(self.slowest_s, taken_s)
        if taken_s > HEALTH_TIMEOUT_S:
            self._fail("/health took too long", parts)

    def _send(self, parts: list[bytes]) -> bytes:
        received = b""
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port)) as client:
            client.settimeout(REPLY_TIMEOUT_S)
            for part in parts:
                client.sendall(part)
            while data := client.recv(65_536):
                received += data
                client.settimeout(PAUSE_S)
        return received

    def _fail(self, kind: str, parts: list[bytes]) -> None:
        self.failures[kind] += 1
        self.examples.setdefault(kind, b"".join(parts)[:2000])


def fuzz(ports: list[int], minutes: float, seed: int) -> Fuzzer:
    """Send made-up requests for a time."""
    fuzzer = Fuzzer(ports, time.monotonic() + 60 * minutes)
    settings = hypothesis.settings(
        max_examples=500,
        deadline=None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate],
    )
    while time.monotonic() < fuzzer.end:
        seed += 1
        run: Any = hypothesis.given(requests)(fuzzer.try_one)
        hypothesis.seed(seed)(settings(run))()
    return fuzzer


@contextmanager
def run_gateway(directory: Path, limits: str) -> Iterator[tuple[int, int, int]]:
    """Run a gateway and its upstream; gives its port, its process id and the upstream's port."""
    port, fake_port = free_port(), free_port()
    directory.mkdir()
    save_example_bundle(directory / "policy")
    config = CONFIG.format(port=port, fake_port=fake_port, limits=limits)
    (directory / "gateway.toml").write_text(config)
    fake = [sys.executable, "-m", "adacompute.testing.fake_openai", "--port", str(fake_port)]
    fake += ["--fault-rates", FAULTS]
    serve = [sys.executable, "-m", "adacompute", "serve", "--config"]
    null = subprocess.DEVNULL
    with (
        (directory / "gateway.log").open("wb") as said,
        subprocess.Popen(fake, stdout=null, stderr=null) as upstream,  # noqa: S603 - our own
        subprocess.Popen([*serve, str(directory / "gateway.toml")], stderr=said) as gateway,  # noqa: S603
    ):
        try:
            wait_for(f"http://127.0.0.1:{port + 1}/ready")
            yield port, gateway.pid, fake_port
        finally:
            gateway.terminate()
            gateway.wait(60)
            upstream.terminate()


def report(directory: Path, metrics: str) -> None:
    """Print what became of a gateway: workers that died, and tracebacks in its log."""
    deaths = re.findall(r"^adacompute_worker_deaths_total (\S+)$", metrics, re.MULTILINE)
    text = (directory / "gateway.log").read_text(errors="replace")
    n_tracebacks = text.count("Traceback")
    print(f"{directory.name}: workers that died {deaths or 0}, tracebacks {n_tracebacks}")
    if n_tracebacks:
        print(text[text.index("Traceback") :][:3000])


def main() -> None:
    """Run two gateways and the fuzzer."""
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else 30.0
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    with TemporaryDirectory() as name, ExitStack() as stack:
        folders = {Path(name) / "open": "", Path(name) / "capped": LIMITS}
        found = [stack.enter_context(run_gateway(*one)) for one in folders.items()]
        ports = [port for port, _, _ in found]
        fuzz(ports, min(1.0, minutes / 10), seed)  # what is loaded once
        before = [process_usage(pid)["mb"] for _, pid, _ in found]
        fuzzer = fuzz(ports, minutes, seed + 10_000)
        after = [process_usage(pid)["mb"] for _, pid, _ in found]
        metrics = [fetch(f"http://127.0.0.1:{port + 1}/metrics") for port in ports]
        served = json.loads(fetch(f"http://127.0.0.1:{found[1][2]}/stats"))
        stack.close()
        print(f"{fuzzer.answers.total()} requests: {dict(fuzzer.answers.most_common())}")
        print(f"slowest /health {fuzzer.slowest_s:.3f} s; memory in MB {before} -> {after}")
        print(f"tokens generated under a cap of {CAP_TOKENS}: {served['tokens']}")
        for directory, text in zip(folders, metrics, strict=True):
            report(directory, text)
        print(f"failures: {dict(fuzzer.failures)}")
        for kind, example in fuzzer.examples.items():
            print(f"{kind}: {example!r}")


if __name__ == "__main__":
    main()
