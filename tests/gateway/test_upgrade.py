"""A gateway that is replaced by a newer one keeps its account, by the count of the upstream."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

pytest.importorskip("starlette", reason="the extra 'serve' is not installed")

from adacompute.stages.caps import list_caps
from adacompute.stages.spend import sum_spend
from adacompute.storage.calls import find_accounts, read_calls
from adacompute.testing.fake_openai import FakeSettings, FakeUpstream, serve_fake
from test_support.gateways import free_port, send, wait_for
from test_support.spend import compare_spend

CONFIG = """
[serve]
base_url = "{base_url}"
port = {port}
workers = {workers}
probe = false
decision_log = "{log}"
[serve.models.voted]
bundle = "{bundle}"
budget = 2
model = "fake"
grader = "numeric"
[[serve.caps]]
amount = {amount}
unit = "samples"
period = "all"
"""


def ask_all(port: int, statuses: list[int]) -> None:
    """Send one request per expected status."""
    for number, status in enumerate(statuses):
        messages = [{"role": "user", "content": f"{number} + 1?"}]
        body = json.dumps({"model": "voted", "messages": messages, "seed": number}).encode()
        headers = [("Content-Type", "application/json"), ("x-request-id", uuid4().hex)]
        answer = send(port, "POST", "/v1/chat/completions", headers=headers, body=body)
        assert answer.status == status


def count_samples(fake: FakeUpstream) -> int:
    """Return how many samples the upstream counted."""
    return int(fake.stats()["choices"])


def test_a_newer_gateway_continues_the_account_of_the_older_one(
    policies: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    config, port = tmp_path / "gateway.toml", free_port()
    command = [sys.executable, "-m", "adacompute", "serve", "--config", str(config)]

    def serve(statuses: list[int], **changed: Any) -> None:
        known = {"base_url": fake.base_url, "port": port, "workers": 1, "log": "none"}
        config.write_text(CONFIG.format(**{**known, **changed}))
        process = subprocess.Popen(command)
        try:
            wait_for(f"http://127.0.0.1:{port + 1}/ready")
            ask_all(port, statuses)
        finally:
            process.terminate()
            process.wait(timeout=30)

    with serve_fake(FakeSettings(record_calls=True)) as fake:
        serve([200] * 5, bundle=policies / "two", amount=100)
        n_before = count_samples(fake)
        assert n_before == 10
        assert list_caps(config)["accounts"][0]["spent"] == n_before
        n_more = 12
        newer = {"workers": 2, "log": "answers", "bundle": policies / "one"}
        serve([200] * n_more + [429], **newer, amount=n_before + n_more)
        assert count_samples(fake) == n_before + n_more
        calls = json.loads(send(fake.port, "GET", "/calls").body)["calls"]
        (state,) = find_accounts()
        comparison = compare_spend(read_calls(state), calls)
    (account,) = list_caps(config)["accounts"]
    assert (account["spent"], account["limit"]) == (n_before + n_more, n_before + n_more)
    assert comparison.is_right
    assert comparison.n_exact == comparison.n_served == len(calls)
    found = sum_spend()
    assert found["directories"] == [str(tmp_path / "state" / "adacompute" / str(port))]
    assert sum(row["calls"] for row in found["spend"]) == len(calls)
    assert {path.name for path in state.iterdir()} >= {"accounts.sqlite", "replicas", "decisions"}
