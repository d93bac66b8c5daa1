"""The account of calls: every path that costs money, charged to the token or flagged."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the extra 'serve' is not installed")

from adacompute.gateway.accounting.call_log import CallLog, CallOrigin
from adacompute.gateway.accounting.metrics import Metrics
from adacompute.gateway.settings.config import make_config
from adacompute.models.capabilities_cache import save_cached
from adacompute.models.messages import Capabilities
from adacompute.spending.attempts import CallBound
from adacompute.storage.calls import FILES, REOPEN_S, CallFile, read_calls
from adacompute.testing.fake_openai import FakeSettings, FakeUpstream, serve_fake
from test_support.gateways import free_port, send, serve_gateway
from test_support.scripted import ScriptedReply, ScriptedServer
from test_support.spend import compare_spend

Launch = Callable[..., AbstractContextManager[int]]
Call = dict[str, Any]

JSON = [("Content-Type", "application/json")]
PRICES = "[models.fake]\ninput = 1.0\noutput = 2.0\n[models.other]\ninput = 10.0\noutput = 20.0\n"


@contextmanager
def serving(
    path: Path,
    bundle: Path,
    fake: FakeUpstream,
    settings: dict[str, Any] | None = None,
    **model: Any,
) -> Iterator[int]:
    """Serve a virtual model "voted" before a fake upstream; calls are recorded in a directory."""
    own = {"bundle": str(bundle), "budget": 2, "model": "fake", "grader": "numeric", **model}
    config = {
        "base_url": fake.base_url,
        "probe": False,
        "max_attempts": 3,
        "state_directory": str(path),
        "models": {"voted": own},
    }
    with serve_gateway(make_config({**config, **(settings or {})})) as port:
        yield port


def ask(port: int, path: str, request: str = "r1", **body: Any) -> int:
    headers = [*JSON, ("x-request-id", request)]
    data = json.dumps(body).encode()
    return send(port, "POST", f"/v1/{path}", headers=headers, body=data).status


def chat(**more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "What is 2 + 2?"}], "max_tokens": 30, **more}


def count(port: int, name: str) -> float:
    lines = send(port, "GET", "/metrics").body.decode().splitlines()
    found = [line for line in lines if line.startswith(f"adacompute_{name}")]
    return sum(float(line.rpartition(" ")[2]) for line in found)


def wait_for_calls(directory: Path, n: int) -> list[Call]:
    end = time.monotonic() + 20
    while time.monotonic() < end:
        if any(directory.glob(FILES)) and len(found := list(read_calls(directory))) >= n:
            return found
        time.sleep(0.05)
    pytest.fail("there are too few calls")


def served(fake: FakeUpstream) -> list[Call]:
    return json.loads(send(fake.port, "GET", "/calls").body)["calls"]  # type: ignore[no-any-return]


STREAMED = {"stream": True, "stream_options": {"include_usage": True}}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("chat/completions", chat(model="voted")),
        ("chat/completions", chat(model="voted", stream=True)),
        ("completions", {"model": "voted", "prompt": "What is 2 + 2?"}),
        ("responses", {"model": "voted", "input": "What is 2 + 2?"}),
        ("responses", {"model": "voted", "input": "What is 2 + 2?", "stream": True}),
        ("chat/completions", chat(model="other", n=3)),
        ("chat/completions", chat(model="other", **STREAMED)),
        ("completions", {"model": "other", "prompt": "2 + 2?", "n": 2, **STREAMED}),
        ("responses", {"model": "other", "input": "2 + 2?"}),
        ("responses", {"model": "other", "input": "2 + 2?", "stream": True}),
        ("embeddings", {"model": "other", "input": "2 + 2?"}),
    ],
)
def test_calls_whose_usage_arrived_are_charged_to_the_token(
    path: str,
    body: dict[str, Any],
    policies: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    fakes = FakeSettings(
        completion_tokens=20, reasoning_tokens=5, record_calls=True, vary_tokens=True
    )
    with serve_fake(fakes) as fake:
        known = Capabilities(usage="all")  # the usage of several choices is believed
        save_cached(tmp_path / "cache" / "adacompute", fake.base_url, "fake", known)
        with serving(tmp_path, policies / "two", fake) as port:
            assert ask(port, path, **body) == 200
            total = count(port, "tokens_total")
            assert count(port, "estimated_tokens_total") == 0
        calls = list(read_calls(tmp_path))
        found = compare_spend(calls, served(fake))
    assert found.is_right
    assert found.n_flagged == 0
    assert found.n_exact == found.n_served > 0
    assert total == found.served_tokens
    assert {call["path"] for call in calls} == {path}
    assert {call["purpose"] for call in calls} == {
        "vote" if body["model"] == "voted" else "forward"
    }
    reasoning = 0 if path == "embeddings" else 1
    assert all(call["reasoning_tokens"] >= reasoning for call in calls)


def test_each_call_is_priced_by_the_model_that_produced_it(policies: Path, tmp_path: Path) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text(PRICES)
    settings = {"token_prices": str(prices)}
    with serve_fake() as fake, serving(tmp_path, policies / "one", fake, settings) as port:
        for model in ("voted", "other", "free"):
            ask(port, "chat/completions", model, **chat(model=model))
        cost = count(port, "cost_total")
    calls = {call["request"]: call for call in read_calls(tmp_path)}
    for name, price in (("voted", 1e-6), ("other", 1e-5)):
        call = calls[name]
        tokens = call["prompt_tokens"] + 2 * call["completion_tokens"]
        assert call["cost"] == pytest.approx(price * tokens)
    assert calls["free"]["cost"] is None
    assert cost == pytest.approx(calls["voted"]["cost"] + calls["other"]["cost"])


def test_retries_and_scores_are_calls(policies: Path, tmp_path: Path) -> None:
    script = FakeSettings(fault_script=("500", "garbled", "ok"), completion_tokens=1)
    with serve_fake(script) as fake:
        scorer = f"{fake.base_url}/score"
        with serving(tmp_path, policies / "one", fake, scorer=scorer) as port:
            assert ask(port, "chat/completions", **chat(model="voted")) == 200
            wait_for_calls(tmp_path, 4)
        calls = list(read_calls(tmp_path))
    told = [(call["purpose"], call["attempt"], call["is_estimated"]) for call in calls]
    assert sorted(told) == [
        ("scorer", 1, True),
        ("vote", 1, False),  # answered 500: refused
        ("vote", 2, True),  # cannot be parsed
        ("vote", 3, False),
    ]
    assert calls[0]["completion_tokens"] == 0
    assert {call["request"] for call in calls} == {"r1"}


def test_probes_are_calls(policies: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with serve_fake(FakeSettings(record_calls=True)) as fake:
        with serving(tmp_path / "calls", policies / "one", fake, {"probe": True}):
            end = time.monotonic() + 60
            found = (tmp_path / "cache").rglob
            while not list(found("probe-*.json")) and time.monotonic() < end:
                time.sleep(0.1)
        calls = list(read_calls(tmp_path / "calls"))
        n_served = len(served(fake))
    assert {call["purpose"] for call in calls} == {"probe"}
    assert len(calls) >= n_served > 10
    assert any(not call["is_estimated"] for call in calls)


def test_the_token_is_never_recorded(launch: Launch, tmp_path: Path) -> None:
    key = "sk-0123456789abcdefghij"
    settings = f'state_directory = "{tmp_path}"\nbearer_tokens = ["{key}"]\n'
    with launch(settings=settings) as port:
        headers = [*JSON, ("Authorization", f"Bearer {key}")]
        send(port, "POST", "/v1/embeddings", headers=headers, body=b'{"input": "a"}')
    assert len(list(read_calls(tmp_path))) == 1
    assert all(key not in path.read_text() for path in tmp_path.glob(FILES))


def test_a_call_in_flight_of_a_killed_gateway_is_charged_its_bound(
    upstream: ScriptedServer, tmp_path: Path
) -> None:
    hold = threading.Event()
    upstream.answer(ScriptedReply(200, JSON, [b"{", hold, b"}"]))
    config = tmp_path / "gateway.toml"
    port = free_port()
    config.write_text(
        f'[serve]\nbase_url = "{upstream.base_url}"\nport = {port}\nprobe = false\n'
        'state_directory = "state"\n'
    )
    command = [sys.executable, "-m", "adacompute", "serve", "--config", str(config)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    body = json.dumps(chat(model="other", n=2)).encode()
    try:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            try:
                send(port, "GET", "/health")
                break
            except OSError:
                time.sleep(0.1)

        def lose() -> None:
            with pytest.raises(OSError):  # noqa: PT011 - however the connection ends
                send(port, "POST", "/v1/chat/completions", body=body)

        client = threading.Thread(target=lose)
        client.start()
        wait_for_calls(tmp_path / "state", 1)
        (path,) = (tmp_path / "state").glob(FILES)
        os.kill(int(path.stem.rpartition("-")[2]), signal.SIGKILL)
        process.kill()
        client.join(timeout=20)
    finally:
        hold.set()
        process.kill()
        process.wait(timeout=20)
    (call,) = read_calls(tmp_path / "state")
    assert call["is_estimated"]
    assert (call["prompt_tokens"], call["completion_tokens"]) == (len(body), 60)


def test_a_client_that_disconnects_leaves_a_flagged_call(
    gateway: int, upstream: ScriptedServer
) -> None:
    before = count(gateway + 1, "estimated_tokens_total")
    upstream.answer(ScriptedReply(200, JSON, [b"{", 5.0, b"}"]))
    body = json.dumps(chat(model="other")).encode()
    with pytest.raises(TimeoutError):
        send(gateway, "POST", "/v1/chat/completions", body=body, timeout_s=0.3)
    end = time.monotonic() + 5
    while count(gateway + 1, "estimated_tokens_total") == before and time.monotonic() < end:
        time.sleep(0.05)
    assert count(gateway + 1, "estimated_tokens_total") - before == len(body) + 30


@pytest.mark.parametrize("directory", ["/proc/none", "/dev/full/state"])
def test_requests_go_on_where_no_row_can_be_written(
    directory: str, policies: Path, tmp_path: Path
) -> None:
    with serve_fake() as fake:
        settings = {"state_directory": directory}
        with serving(tmp_path, policies / "two", fake, settings) as port:
            assert ask(port, "chat/completions", **chat(model="voted")) == 200
            assert ask(port, "embeddings", model="other", input="a") == 200
            assert count(port, "lost_call_rows_total") == 2 * 3
            assert count(port, "calls_total") == 3


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few kilobytes."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("only root can mount a small file system")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)  # noqa: S607 - a system's command


def test_requests_go_on_when_the_disk_is_full(
    launch: Launch, upstream: ScriptedServer, full_disk: Path
) -> None:
    usage = json.dumps({"data": [], "usage": {"prompt_tokens": 1, "total_tokens": 1}}).encode()
    upstream.answer(ScriptedReply(200, JSON, [usage]))
    state = full_disk / "state"
    state.mkdir()
    (full_disk.parent / "replicas").mkdir()
    for name in ("accounts.sqlite", "replicas"):  # which have room
        (state / name).symlink_to(full_disk.parent / name)
    with launch(settings=f'state_directory = "{state}"\n') as port:
        for _ in range(40):
            assert send(port, "POST", "/v1/embeddings", body=b'{"input": "a"}').status == 200
        assert count(port + 1, "lost_call_rows_total") > 10
        assert 2 < len(list(read_calls(state))) < 40


def test_decisions_that_a_full_disk_refuses_are_counted_and_logged_once(
    launch: Launch, upstream: ScriptedServer, full_disk: Path, policies: Path
) -> None:
    choice = {"index": 0, "message": {"content": "4"}, "finish_reason": "stop"}
    answer = json.dumps({"choices": [choice], "usage": {"completion_tokens": 1}}).encode()
    upstream.answer(ScriptedReply(200, JSON, [answer]))
    state = full_disk.parent / "state"
    state.mkdir()
    (state / "decisions").symlink_to(full_disk)
    settings = f'state_directory = "{state}"\ndecision_log = "answers"\n'
    n = 30
    with launch(settings=settings) as port:
        for _ in range(n):
            assert ask(port, "chat/completions", **chat(model="single")) == 200
        lost = count(port + 1, "lost_decisions_total")
        assert 5 < lost < n
        assert count(port + 1, "lost_call_rows_total") == 0
    told = (policies / f"gateway-{port}.log").read_text()
    assert (told.count("decisions are lost"), told.count("Traceback")) == (1, 0)
    command = [sys.executable, "-m", "adacompute", "spend", str(state)]
    said = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True).stdout
    assert json.loads(said)["lost"] == {"call_rows": 0, "decisions": lost}
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert f"{lost:.0f} decisions" in " ".join(shown.split())


def test_rows_that_are_lost_are_recorded_when_there_is_room_again(tmp_path: Path) -> None:
    directory = blocker = tmp_path / "calls"
    blocker.touch()  # a file where the directory should be
    log = CallLog(CallFile(directory), Metrics())
    origin = CallOrigin("r", "m", "forward")

    async def call() -> None:
        (await log.start(origin, "embeddings", CallBound("m", 1, 0))).end(None)

    asyncio.run(call())
    blocker.unlink()
    time.sleep(REOPEN_S)
    asyncio.run(call())
    log.close()
    lost: Counter[str] = Counter()
    assert len(list(read_calls(directory, lost))) == 1
    assert lost == {"call_rows": 2, "decisions": 0}


@pytest.mark.parametrize(
    ("path", "body", "tokens"),
    [
        ("chat/completions", {"max_tokens": 10, "max_completion_tokens": 20, "n": 3}, 60),
        ("completions", {"max_tokens": 10, "best_of": 4}, 40),
        ("completions", {"max_tokens": 10, "prompt": ["a", "b"]}, 20),
        ("completions", {"max_tokens": 10, "prompt": [1, 2, 3]}, 10),
        ("responses", {"max_output_tokens": 30}, 30),
        ("responses", {"max_output_tokens": "x"}, 4096),
        ("embeddings", {"input": "a"}, 0),
    ],
)
def test_the_bound_is_what_a_body_can_use(path: str, body: dict[str, Any], tokens: int) -> None:
    data = json.dumps({"model": "m-\u00e9\\", **body}).encode()
    bound = CallBound.read(path, data)
    assert (bound.completion_tokens, bound.prompt_tokens) == (tokens, len(data))
    assert bound.model == "m-\u00e9\\"
