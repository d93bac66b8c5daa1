"""Collection from an upstream that fails a fifth of all calls, each fault in turn.

``ADACOMPUTE_FAULTS=10000`` is the full size; CI draws fewer.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

pytest.importorskip("aiohttp", reason="the extra 'serve' is not installed")

from adacompute.models.capabilities_cache import cache_path, save_cached
from adacompute.models.messages import Capabilities
from adacompute.testing.fake_openai import FakeSettings, serve_fake
from test_support.arithmetic import generate_problems

SAMPLES = int(os.environ.get("ADACOMPUTE_FAULTS", "240"))
DRAWS = 8
SHARE = 0.2
NATIVE = Capabilities(n="native", seed="reproducible", seed_with_n="distinct")

pytestmark = pytest.mark.slow

CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "429": ("429", {}, "answered 429: the fake asks to slow down"),
    "429 with Retry-After": ("429", {"retry_after_s": 0.2}, "answered 429: the fake asks"),
    "500": ("500", {}, "answered 500: the fake fails"),
    "502": ("502", {}, "answered 502: the fake cannot reach"),
    "reset": ("reset", {}, "lost the connection"),
    "half a body": ("half", {}, "lost the connection"),
    "half a JSON document": ("garbled", {}, "its body is no JSON"),
    "stall": ("stall", {}, "did not begin to answer within 0.5 s"),
    "fewer choices": ("few", {}, ""),
    "wrong content type": ("type", {}, "its content type is text/html"),
}


def collect(tmp_path: Path, base_url: str) -> tuple[int, dict[str, Any], str]:
    source = tmp_path / "questions.jsonl"
    rows = [
        {"question_id": q.id, "question": q.question, "gold": q.gold}
        for q in generate_problems(SAMPLES // DRAWS, seed=1)
    ]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [sys.executable, "-m", "adacompute", "collect", str(source), "--json"]
    command += ["--run", str(tmp_path / "run"), "--base-url", base_url, "--model", "fake"]
    command += ["--grader", "numeric", "--samples", f"{DRAWS}", "--config", "timeout=0.5"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, json.loads(done.stdout)["arms"][0], done.stderr


@pytest.mark.parametrize("name", CASES)
def test_faults_lose_no_sample_repeat_none_and_are_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    fault, options, cause = CASES[name]
    known = NATIVE if fault == "few" else Capabilities()
    with serve_fake(FakeSettings(fault_rates={fault: SHARE}, **options)) as fake:
        save_cached(cache_path(), fake.base_url, "fake", known, ttl_s=3600)  # nothing is probed
        code, arm, error = collect(tmp_path, fake.base_url)
        served = fake.stats()
    assert (code, arm["samples"], arm["missing"], error) == (0, SAMPLES, 0, "")
    table = pq.read_table(tmp_path / "run" / "samples.parquet")
    pairs = zip(table["question_id"].to_pylist(), table["sample"].to_pylist(), strict=True)
    assert len(set(pairs)) == table.num_rows == SAMPLES == served["choices"]
    met, log = served["faults"][fault], tmp_path / "run" / "collect.log"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    events = Counter(line["event"] for line in lines)
    calls = SAMPLES / (DRAWS if fault == "few" else 1)
    print(f"{name}: {SAMPLES} samples, {served['calls']} calls, {met} faults, {dict(events)}")  # noqa: T201
    assert served["calls"] <= calls / (1 - SHARE) + 6 * math.sqrt(calls) + DRAWS
    if fault == "few":
        assert events == {"short": met}
    elif fault == "reset":  # on a connection that was used before, it is repeated at once
        assert 0 < events["retry"] + events["failed"] <= met
    else:
        assert events["retry"] + events["failed"] == met
    assert all(cause in line.get("cause", "") for line in lines)
