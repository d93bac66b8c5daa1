"""The probe command, against a fake upstream."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("aiohttp", reason="the extra 'serve' is not installed")

from adacompute.testing.fake_openai import FakeSettings, serve_fake


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_probe_reports_capabilities() -> None:
    with serve_fake(FakeSettings(n="ignored", usage="none")) as fake:
        asked = ("probe", "--base-url", fake.base_url, "--model", "fake", "--json")
        done = subprocess.run(
            [sys.executable, "-m", "adacompute", *asked], capture_output=True, text=True, check=True
        )
    found = json.loads(done.stdout)
    assert found["capabilities"]["n"] == "ignored"
    assert found["capabilities"]["usage"] == "missing"
    assert {"feature", "found", "consequence"} == set(found["findings"][0])
