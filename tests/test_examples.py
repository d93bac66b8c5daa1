"""The programs in examples/ and scripts/ do what they say."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from adacompute.gateway.settings.config import make_config
from adacompute.stages.solve import solve_source
from adacompute.testing.fake_openai import serve_fake
from adacompute.testing.llama import missing_requirement
from scripts.make_samples import SEED
from test_support import gateways
from test_support.arithmetic import generate_problems
from test_support.llama import LlamaServer, serve_llama

ROOT = Path(__file__).resolve().parent.parent
MAKE_SAMPLES = ROOT / "scripts" / "make_samples.py"


def run_program(path: Path, *arguments: str, **environment: str) -> str:
    """Run a program in a process of its own and return what it prints."""
    done = subprocess.run(
        [sys.executable, str(path), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def load_program(path: Path) -> Any:
    """Import a program that is no part of a package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_allocate() -> None:
    printed = run_program(ROOT / "examples" / "allocate.py")
    assert "[1, 4, 1]" in printed
    assert "0.600" in printed


@pytest.mark.slow
def test_evaluate_samples() -> None:
    printed = run_program(ROOT / "examples" / "evaluate_samples.py")
    assert re.search(r"verdict: (gain|loss)\n", printed)
    assert re.findall(r"^(\S+) +0\.\d+$", printed, re.MULTILINE) == [
        "adaptive-consistency",
        "retry",
        "mixture",
    ]


def test_gateway_client(tmp_path: Path) -> None:
    gateways.save_example_bundle(tmp_path / "policy")
    with serve_fake() as fake:
        model = {"bundle": str(tmp_path / "policy"), "budget": 2.0, "max_budget": 4.0}
        model |= {"model": "my-model", "grader": "numeric"}
        settings = {"base_url": fake.base_url, "probe": False, "models": {"my-model": model}}
        with gateways.serve_gateway(make_config(settings)) as port:
            printed = run_program(
                ROOT / "examples" / "gateway_client.py",
                "my-model",
                "What is 17 + 25?",
                OPENAI_BASE_URL=f"http://127.0.0.1:{port}/v1",
                OPENAI_API_KEY="none",
            )
    spent = re.findall(r"budget (\d+): (\d+) samples, (\d+) tokens", printed)
    assert [budget for budget, _, _ in spent] == ["2", "4"]
    assert all(1 <= int(samples) <= 4 and int(tokens) > 0 for _, samples, tokens in spent)


def ask(port: int, path: str) -> gateways.GatewayReply:
    """Send one question to a gateway."""
    question = {"role": "user", "content": "What is 17 + 25?"}
    body = json.dumps({"model": "my-model", "messages": [question]}).encode()
    headers = [("content-type", "application/json")]
    return gateways.send(port, "POST", path, headers=headers, body=body)


def find_counts(printed: str) -> list[int]:
    """Return the numbers of samples that an example prints."""
    return [int(count) for count in re.findall(r"samples: (\d+)", printed)]


@pytest.mark.slow
def test_quickstart() -> None:
    path, port = ROOT / "examples" / "quickstart.py", gateways.free_port()
    assert len(path.read_text().splitlines()) <= 40
    with serve_fake() as fake:
        server = subprocess.Popen(
            [sys.executable, "-u", str(path), "my-model", str(port)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OPENAI_BASE_URL": fake.base_url},
        )
        end = time.monotonic() + 600
        while server.poll() is None and time.monotonic() < end:
            with contextlib.suppress(OSError):
                reply = ask(port, "/v1/chat/completions")
                break
            time.sleep(0.2)
        server.send_signal(signal.SIGINT)
        printed, _ = server.communicate(timeout=60)
    assert reply.status == 200
    assert 1 <= int(reply.values("x-adacompute-samples")[0]) <= 16
    assert "Calibration of sequential at 2 samples per question\nverdict   gain" in printed
    names = re.findall(r"^(sequential|adaptive-consistency|mixture) ", printed, re.MULTILINE)
    assert len(names) == 9
    assert all(1 <= count <= 16 for count in find_counts(printed))
    assert len(find_counts(printed)) == 3


@pytest.mark.nightly
def test_own_policy() -> None:
    printed = run_program(ROOT / "examples" / "own_policy.py")
    names = re.findall(r"^(\S+) +4 ", printed, re.MULTILINE)
    assert names == ["Agreement", "adaptive-consistency", "mixture"]


@pytest.mark.slow
def test_own_loop() -> None:
    if reason := missing_requirement():
        pytest.skip(reason)
    with serve_llama() as llama:
        settings = {"OPENAI_BASE_URL": llama.base_url, "OPENAI_API_KEY": "none"}
        printed = run_program(ROOT / "examples" / "own_loop.py", llama.model, **settings)
    assert len(find_counts(printed)) == 3
    assert all(1 <= count <= 16 for count in find_counts(printed))


def test_fastapi_app(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fastapi")
    with serve_fake() as fake:
        monkeypatch.setenv("OPENAI_BASE_URL", fake.base_url)
        monkeypatch.setenv("MODEL", "my-model")
        app = load_program(ROOT / "examples" / "fastapi_app.py").app
        with gateways.serve_app(app) as port:
            reply, page = ask(port, "/llm/v1/chat/completions"), gateways.send(port, "GET", "/")
    assert reply.status == 200
    assert 1 <= int(reply.values("x-adacompute-samples")[0]) <= 16
    assert json.loads(page.body)["price"] > 0


def test_every_example_is_run_by_a_test() -> None:
    names = {path.stem for path in (ROOT / "examples").glob("*.py")}
    assert {f"test_{name}" for name in names} <= set(globals())


def test_layers_in_the_documentation_are_up_to_date() -> None:
    module = load_program(ROOT / "scripts" / "write_architecture.py")
    for path, text in module.rewritten_pages():
        assert path.read_text() == text, "run 'python -m scripts.write_architecture'"


def test_every_package_is_in_the_contract_of_layers() -> None:
    module = load_program(ROOT / "scripts" / "write_architecture.py")
    listed = [name for row in module.read_layers() for name in row]
    found = {path.parent.name for path in module.SOURCE.glob("*/__init__.py")}
    assert found | {"research"} == {*listed, "testing"}
    assert len(listed) == len(set(listed))


@pytest.mark.nightly
def test_make_samples_collects_from_the_real_model(tmp_path: Path) -> None:
    if reason := missing_requirement():
        pytest.skip(reason)
    run_program(MAKE_SAMPLES, str(tmp_path), "4", "3")
    rows = pq.read_table(tmp_path / "run" / "samples.parquet").to_pylist()
    questions = {one.id: one for one in generate_problems(4, seed=SEED)}
    collected = {(row["question_id"], row["sample"]) for row in rows}
    assert collected == {(name, number) for name in questions for number in range(3)}
    for row in rows:
        assert row["question"] == questions[row["question_id"]].question
        assert row["correct"] == (row["answer"] == row["gold"])
        assert row["mean_logprob"] < 0 < row["completion_tokens"] <= 20
        assert row["temperature"] == pytest.approx(0.7)
        assert row["model"] == LlamaServer.model
    assert sum(row["answer"] is not None for row in rows) > 6
    solved = solve_source(tmp_path / "run", budget=1.0, levels=(1,))
    assert solved["utility"] == pytest.approx(sum(row["correct"] for row in rows) / len(rows))


def test_make_samples_without_an_output_directory_prints_its_usage() -> None:
    done = subprocess.run(
        [sys.executable, str(MAKE_SAMPLES)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "OUT" in done.stderr
