"""What the gateway does while it does not know yet what its upstream supports."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the extra 'serve' is not installed")

from adacompute.core.errors import ModelError, RequestRejected
from adacompute.gateway.accounting.call_log import CallLog
from adacompute.gateway.accounting.metrics import Metrics
from adacompute.gateway.forwarding import probing
from adacompute.gateway.settings.config import Config, make_config
from adacompute.models.messages import Capabilities
from adacompute.models.openai import Upstream
from adacompute.storage.calls import CallFile
from adacompute.testing.fake_openai import FakeSettings, serve_fake
from test_support import gateways

BASE_URL = "http://127.0.0.1:9/v1"
BODY = b'{"model": "virtual", "messages": [{"role": "user", "content": "2 + 2?"}]}'


@pytest.fixture(autouse=True)
def no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(probing, "MIN_WAIT_S", 0.01)
    monkeypatch.setattr(probing, "LOCK_WAIT_S", 0.01)


def count_calls(port: int) -> int:
    """Ask a question; return in how many calls its samples were drawn."""
    reply = gateways.send(port, "POST", "/v1/chat/completions", body=BODY)
    n_calls: int = json.loads(reply.body)["usage"]["num_calls"]
    return n_calls


def config_for(base_url: str, policies: Path) -> Config:
    model = {"bundle": str(policies / "two"), "budget": 2, "model": "real", "grader": "numeric"}
    return make_config({"base_url": base_url, "models": {"virtual": model}})


def test_requests_are_served_with_one_sample_per_call_until_the_probe_ends(policies: Path) -> None:
    with serve_fake(FakeSettings(latency_s=0.05)) as fake:
        with gateways.serve_gateway(config_for(fake.base_url, policies)) as port:
            assert gateways.send(port, "GET", "/ready").status == 200  # whatever the upstream does
            assert count_calls(port) == 2
            end = time.monotonic() + 60
            while count_calls(port) == 2 and time.monotonic() < end:
                time.sleep(0.05)
            assert count_calls(port) == 1
        with gateways.serve_gateway(config_for(fake.base_url, policies)) as port:
            assert count_calls(port) == 1  # from the cache


def test_a_gateway_stops_while_it_probes(policies: Path) -> None:
    with serve_fake(FakeSettings(latency_s=30)) as fake:
        with gateways.serve_gateway(config_for(fake.base_url, policies)) as port:
            assert gateways.send(port, "GET", "/ready").status == 200
            begun = time.monotonic()
        assert time.monotonic() - begun < 10


Probe = Callable[[Upstream], object]


def find(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, probe: Probe, processes: int = 1
) -> list[Capabilities]:
    """Capabilities that processes find with a probe of ours."""
    monkeypatch.setattr(probing, "probe", probe)
    upstreams = [Upstream(BASE_URL, "real") for _ in range(processes)]

    async def main() -> None:
        calls = CallLog(CallFile(tmp_path), Metrics())
        each = (probing.probe_upstreams([upstream], calls) for upstream in upstreams)
        await asyncio.gather(*each)

    asyncio.run(main())
    return [upstream.capabilities for upstream in upstreams]


NATIVE = Capabilities(n="native")


def test_a_server_that_loads_its_model_is_probed_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    results = [ModelError("answered 503: Loading model")] * 3

    async def probe(_: Upstream) -> Capabilities:
        if results:
            raise results.pop()
        return NATIVE

    assert find(monkeypatch, tmp_path, probe) == [NATIVE]


@pytest.mark.parametrize(
    ("error", "timeout_s", "attempts"),
    [
        (RequestRejected("answered 401"), 60.0, range(1, 2)),
        (ModelError("answered 503"), 0.2, range(2, 20)),
    ],
)
def test_a_probe_that_fails_leaves_the_capabilities_unknown(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    error: ModelError,
    timeout_s: float,
    attempts: range,
) -> None:
    monkeypatch.setattr(probing, "LOADING_TIMEOUT_S", timeout_s)
    calls = []

    async def probe(upstream: Upstream) -> Capabilities:
        calls.append(upstream)
        raise error

    assert find(monkeypatch, tmp_path, probe) == [Capabilities()]
    assert len(calls) in attempts


def test_processes_that_start_together_probe_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls = []

    async def probe(upstream: Upstream) -> Capabilities:
        calls.append(upstream)
        await asyncio.sleep(0.1)
        return NATIVE

    assert find(monkeypatch, tmp_path, probe, processes=3) == [NATIVE] * 3
    assert len(calls) == 1


def test_a_gateway_that_is_restarted_again_and_again_stops_probing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    calls = []

    async def probe(upstream: Upstream) -> Capabilities:
        calls.append(upstream)
        raise asyncio.CancelledError  # the process ends

    for _ in range(6):
        with contextlib.suppress(asyncio.CancelledError):
            find(monkeypatch, tmp_path, probe)
    assert len(calls) == probing.MAX_ATTEMPTS
    assert "3 probes in 10 minutes found nothing" in caplog.text
    monkeypatch.setattr(probing, "ATTEMPT_WINDOW_S", 0.0)
    with contextlib.suppress(asyncio.CancelledError):
        find(monkeypatch, tmp_path, probe)
    assert len(calls) == probing.MAX_ATTEMPTS + 1


def test_without_a_cache_nothing_is_probed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))

    async def probe(_: Upstream) -> Capabilities:
        raise AssertionError

    assert find(monkeypatch, tmp_path, probe) == [Capabilities()]
    assert "XDG_CACHE_HOME" in caplog.text
    assert str(tmp_path / "file" / "adacompute") in caplog.text


def test_a_lock_that_another_process_holds_is_not_waited_for_forever(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(probing, "LOCK_TIMEOUT_S", 0.1)
    place = tmp_path / "cache" / "adacompute"
    place.mkdir(parents=True)

    async def probe(_: Upstream) -> Capabilities:
        raise AssertionError

    with (place / "probe.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert find(monkeypatch, tmp_path, probe) == [Capabilities()]
    assert "another process has been probing" in caplog.text
