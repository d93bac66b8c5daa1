"""What operators are given, from a configuration to start with to a stop that leaves nothing."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

pytest.importorskip("starlette", reason="the extra 'serve' is not installed")

from adacompute.core.errors import ConfigError
from adacompute.gateway.accounting.metrics import (
    CAP_GAUGES,
    COUNTERS,
    GAUGES,
    HISTOGRAMS,
    IN_FLIGHT,
    NOT_READY,
    PREFIX,
    STORE_GAUGES,
)
from adacompute.gateway.error_replies import ERROR_CODES
from adacompute.gateway.processes.supervisor import run
from adacompute.gateway.settings.config import make_config, read_config
from adacompute.gateway.voting.model_loading import load_models
from test_support import gateways
from test_support.scripted import ScriptedReply, ScriptedServer

Launch = Callable[..., AbstractContextManager[int]]
ROOT = Path(__file__).resolve().parent.parent.parent
_NAME = re.compile(rf"{PREFIX}[a-z_]+")


def names() -> list[str]:
    """Return the name of every metric as it is scraped, with the parts of histograms."""
    parts = [f"{name}_{part}" for name in HISTOGRAMS for part in ("bucket", "sum", "count")]
    gauges = (*GAUGES, *CAP_GAUGES, *STORE_GAUGES, IN_FLIGHT, NOT_READY)
    return [PREFIX + name for name in (*COUNTERS, *gauges, *parts)]


def documented_names() -> set[str]:
    """Return the name of every metric as the documentation has it, histograms as a whole."""
    tables = (COUNTERS, HISTOGRAMS, GAUGES, CAP_GAUGES, STORE_GAUGES, (IN_FLIGHT, NOT_READY))
    return {PREFIX + name for table in tables for name in table}


def test_every_query_of_the_dashboard_names_metrics_that_exist() -> None:
    board = json.loads((ROOT / "deploy" / "grafana" / "dashboard.json").read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    used = {name for query in queries for name in _NAME.findall(query)}
    assert used <= set(names())
    assert len(used) > 15


def test_every_alert_names_metrics_that_exist_and_says_what_to_do() -> None:
    groups = yaml.safe_load((ROOT / "deploy" / "alerts.yaml").read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    for rule in rules:
        used = set(_NAME.findall(rule["expr"]))
        assert set() < used <= {*names()}
        assert set(re.findall(r'reason="(\w+)"', rule["expr"])) <= set(ERROR_CODES)
        assert rule.keys() - {"for"} == {"alert", "expr", "labels", "annotations"}
        assert rule["labels"] in ({"severity": "critical"}, {"severity": "warning"})
        assert rule["annotations"].keys() == {"summary", "runbook"}
        told = " ".join(rule["annotations"].values())
        assert told.endswith(".")
        assert set(_NAME.findall(told)) <= documented_names()
    assert len({rule["alert"] for rule in rules}) == len(rules) > 10


def test_the_page_for_operators_names_metrics_that_exist() -> None:
    page = (ROOT / "docs" / "how-to" / "observe.md").read_text()
    named = set(_NAME.findall(page))
    assert named <= documented_names()
    assert len(named) > 20


def test_the_deployed_configuration_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UPSTREAM_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("UPSTREAM_KEY", "sk-none")
    monkeypatch.setenv("GATEWAY_TOKEN", "0123456789abcdef" * 4)
    monkeypatch.setenv("REDIS_PASSWORD", "fedcba9876543210")
    config = read_config(ROOT / "deploy" / "gateway" / "gateway.toml", {})
    (virtual,) = load_models(config).values()
    assert virtual.bundle.template is not None
    host = urlsplit(config.account_store or "").hostname
    for file, name in (
        ("compose.yaml", f"\n  {host}:\n"),
        ("kubernetes.yaml", f"{{name: {host}}}"),
    ):
        text = (ROOT / "deploy" / file).read_text()
        assert name in text
        assert '--appendonly, "yes", --appendfsync, always' in text


@pytest.mark.parametrize("workers", [1, 2])
def test_stopping_leaves_no_process_or_file_behind(
    workers: int,
    launch: Callable[..., AbstractContextManager[int]],
    upstream: ScriptedServer,
    tmp_path: Path,
) -> None:
    upstream.answer(ScriptedReply(200, [], [b"{}"]))
    with launch(workers=workers, TMPDIR=str(tmp_path)) as port:
        assert gateways.send(port, "GET", "/v1/x").status == 200
        assert len(list(tmp_path.iterdir())) == 1  # the metrics that processes share
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("workers", [1, 2])
def test_the_last_line_says_what_was_served(
    workers: int,
    launch: Callable[..., AbstractContextManager[int]],
    upstream: ScriptedServer,
    policies: Path,
) -> None:
    choice = {"index": 0, "message": {"role": "assistant", "content": "4"}, "finish_reason": "stop"}
    answer = json.dumps({"choices": [choice], "usage": {"completion_tokens": 1}}).encode()
    upstream.answer(ScriptedReply(200, [("Content-Type", "application/json")], [answer]))
    body = b'{"model": "thrifty", "messages": [{"role": "user", "content": "2 + 2?"}]}'
    with launch(workers=workers) as port:
        replies = [gateways.send(port, "POST", "/v1/chat/completions", body=body) for _ in "abc"]
    assert [reply.status for reply in replies] == [200] * 3
    last = (policies / f"gateway-{port}.log").read_text().splitlines()[-1]
    assert re.findall(r"\d+", last) == ["3", "6"]  # requests, samples


@pytest.mark.parametrize("workers", [1, 2])
def test_ready_answers_503_before_the_port_closes(
    workers: int, launch: Callable[..., AbstractContextManager[int]], upstream: ScriptedServer
) -> None:
    upstream.answer(ScriptedReply(200, [], [b"{}"]))
    seen: set[int] = set()

    def watch() -> None:
        with suppress(OSError):
            while True:
                status = gateways.send(port + 1, "GET", "/ready").status
                seen.update((status, gateways.send(port, "GET", "/v1/x").status + 1000))
                time.sleep(0.02)

    with launch(workers=workers, settings="shutdown_delay_s = 1.5") as port:
        thread = threading.Thread(target=watch)
        thread.start()
        time.sleep(0.2)
        begun = time.monotonic()
    thread.join()
    assert seen == {200, 503, 1200}
    assert 1.5 <= time.monotonic() - begun < 8


def test_a_port_in_use_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as plug:
        port = plug.getsockname()[1]
        config = make_config({"base_url": "http://127.0.0.1:9/v1", "port": port, "probe": False})
        said: list[str] = []
        with pytest.raises(ConfigError, match=f"port {port}.*in use"):
            run(config, said.append)
    assert said == []


def test_a_log_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    config = tmp_path / "gateway.toml"
    config.write_text(
        f'[serve]\nbase_url = "http://127.0.0.1:9/v1"\nport = {gateways.free_port()}\n'
        'probe = false\nstate_directory = "file"\ndecision_log = "answers"\n'
    )
    command = [sys.executable, "-m", "adacompute", "serve", "--config", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line == f"adacompute: {tmp_path}/file/decisions cannot be used: Not a directory"


@pytest.mark.parametrize(
    "variables",
    [
        {"TMPDIR": "/nonexistent"},
        {"XDG_CACHE_HOME": "/proc/nowhere"},  # no directory can be made there, even by root
        {"XDG_STATE_HOME": "/proc/nowhere"},
        {"HOME": "/proc/nowhere"},
    ],
)
def test_a_gateway_serves_without_directories_of_its_own(
    variables: dict[str, str], launch: Launch, upstream: ScriptedServer
) -> None:
    upstream.answer(ScriptedReply(200, [("Content-Type", "application/json")], [b"{}"]))
    with launch(**variables) as port:
        body = b'{"model": "other", "messages": [{"role": "user", "content": "2 + 2?"}]}'
        assert gateways.send(port, "POST", "/v1/chat/completions", body=body).status == 200


def test_a_gateway_starts_before_its_upstream(launch: Launch) -> None:
    port = gateways.free_port()
    with launch(base_url=f"http://127.0.0.1:{port}/v1") as gateway:
        body = b'{"model": "other", "messages": [{"role": "user", "content": "2 + 2?"}]}'
        assert gateways.send(gateway, "POST", "/v1/chat/completions", body=body).status == 503
        fake = [sys.executable, "-m", "adacompute.testing.fake_openai", "--port", str(port)]
        with subprocess.Popen(fake, stdout=subprocess.DEVNULL) as process:
            gateways.wait_for(f"http://127.0.0.1:{port}/stats")
            assert gateways.send(gateway, "POST", "/v1/chat/completions", body=body).status == 200
            process.terminate()


def test_listing_models_ends_when_the_client_disconnects(
    gateway: int, upstream: ScriptedServer
) -> None:
    hold = threading.Event()
    upstream.answer(ScriptedReply(200, [], [b"{", hold, b"}"]))
    with socket.create_connection(("127.0.0.1", gateway)) as plug:
        plug.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n")
        time.sleep(0.3)
    told = 'requests_total{model="-",path="other",status="499"}'
    end, seen = time.monotonic() + 5, ""
    while told not in seen and time.monotonic() < end:
        seen = gateways.send(gateway + 1, "GET", "/metrics").body.decode()
    hold.set()
    assert told in seen


def test_an_idle_connection_is_not_reused(
    upstream: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adacompute.models.connection.http_session.IDLE_S", 0.1)
    upstream.answer(ScriptedReply(200, [], [b"{}"]))
    with gateways.serve_gateway(make_config({"base_url": upstream.base_url})) as port:
        before = upstream.connections
        for pause in (0.0, 0.0, 0.3):
            time.sleep(pause)
            gateways.send(port, "POST", "/v1/embeddings", body=b"{}")
    assert upstream.connections - before == 2
