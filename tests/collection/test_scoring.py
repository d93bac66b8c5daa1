"""Scores through the command line: two fakes, one that draws and one that scores."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

pytest.importorskip("aiohttp", reason="the extra 'serve' is not installed")

from adacompute.testing.fake_answers import fake_score
from adacompute.testing.fake_openai import FakeSettings, FakeUpstream, serve_fake

QUESTIONS = 4
SAMPLES = 4


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def collect(tmp_path: Path, fake: FakeUpstream, *more: str) -> tuple[int, dict[str, Any], str]:
    questions = tmp_path / "questions.jsonl"
    rows = [{"question_id": f"q{i}", "question": f"{i} + 1?", "gold": f"{i + 1}"} for i in range(4)]
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [sys.executable, "-m", "adacompute", "collect", str(questions)]
    command += ["--run", str(tmp_path / "run"), "--base-url", fake.base_url, "--model", "fake"]
    command += ["--grader", "numeric", "--samples", f"{SAMPLES}", "--json", *more]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    arm = json.loads(done.stdout)["arms"][0] if done.stdout else {}
    return done.returncode, arm, done.stderr


def test_scores_are_collected_paid_exported_and_used(tmp_path: Path) -> None:
    with serve_fake() as fake, serve_fake(FakeSettings(fault_rates={"500": 0.1})) as scorer:
        asked = ("--config", f"scorer={scorer.base_url}/score", "--config", "scorer-price=0.25")
        code, arm, error = collect(tmp_path, fake, *asked)
        assert (code, arm["unscored"], arm["cost"], error) == (0, 0, 4.0, "")
        assert scorer.stats()["choices"] == 16
    table = pq.read_table(tmp_path / "run" / "samples.parquet")
    assert table["score"].to_pylist() == [
        fake_score(text) for text in table["completion"].to_pylist()
    ]
    assert table["cost"].to_pylist() == [0.25] * 16


def test_missing_scores_are_requested_by_the_next_run(tmp_path: Path) -> None:
    with serve_fake() as fake, serve_fake() as scorer:
        code, arm, error = collect(tmp_path, fake, "--config", f"scorer={scorer.base_url}/nowhere")
        assert (code, arm["samples"], arm["unscored"]) == (1, 16, 16)
        assert "16 scores are missing: run the same command again" in error
        choices = fake.stats()["choices"]
        code, arm, error = collect(tmp_path, fake, "--config", f"scorer={scorer.base_url}/score")
        assert (code, arm["new_samples"], arm["unscored"], error) == (0, 0, 0, "")
        assert (fake.stats()["choices"], scorer.stats()["choices"]) == (choices, 16)
    log = [json.loads(line) for line in (tmp_path / "run" / "collect.log").read_text().splitlines()]
    assert {line["scorer"] for line in log} == {f"{scorer.base_url}/nowhere"}
    assert all("there is no /v1/nowhere" in line["cause"] for line in log)


def test_max_cost_holds_when_only_the_scorer_costs(tmp_path: Path) -> None:
    with serve_fake(FakeSettings(n="ignored")) as fake, serve_fake() as scorer:
        asked = ("--config", f"scorer={scorer.base_url}/score", "--config", "scorer-price=1")
        code, arm, error = collect(tmp_path, fake, *asked, "--max-cost", "5.5")
        assert (code, arm["cost"], arm["samples"] - arm["unscored"]) == (1, 5.0, 5)
        assert scorer.stats()["choices"] == 5
        assert f"{arm['unscored']} scores are missing: run the same command again" in error
        code, arm, error = collect(tmp_path, fake, *asked, "--max-cost", "16")
        assert (code, arm["cost"], arm["samples"], arm["unscored"]) == (0, 11.0, 16, 0)
        assert scorer.stats()["choices"] == 16


def test_dry_run_counts_scores(tmp_path: Path) -> None:
    with serve_fake() as fake:
        asked = (
            "--config",
            f"scorer={fake.base_url}/score",
            "--config",
            "scorer-price=0.5",
            "--dry-run",
        )
        code, arm, _ = collect(tmp_path, fake, *asked)
        assert (code, arm["scores"], arm["max_cost"]) == (0, 16, 8.0)
        assert fake.stats()["calls"] == 0


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--config", "scorer-price=1"), "needs a scorer"),
        (("--config", "scorer=nowhere"), "base URL"),
        (
            ("--config", "scorer=http://127.0.0.1:1", "--config", "scorer-price=-1"),
            "must be 0 or more",
        ),
    ],
)
def test_wrong_use_is_refused(tmp_path: Path, more: tuple[str, ...], message: str) -> None:
    with serve_fake() as fake:
        code, _, error = collect(tmp_path, fake, *more)
        assert (code, fake.stats()["calls"]) == (2, 0)
    assert message in error
