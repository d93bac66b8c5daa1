"""What operators are given: a dashboard, a page about metrics, a configuration to start from."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the extra 'serve' is not installed")

from adacompute.gateway.config import read_config
from adacompute.gateway.metrics import COUNTERS, GAUGES, HISTOGRAMS, PREFIX, names
from adacompute.gateway.server import load_models

ROOT = Path(__file__).resolve().parent.parent.parent
_NAME = re.compile(rf"{PREFIX}[a-z_]+")


def test_every_query_of_the_dashboard_names_metrics_that_exist() -> None:
    board = json.loads((ROOT / "deploy" / "grafana" / "dashboard.json").read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    used = {name for query in queries for name in _NAME.findall(query)}
    assert used <= set(names())
    assert len(used) > 15


def test_the_page_for_operators_names_every_metric_and_no_other() -> None:
    page = (ROOT / "docs" / "operate.md").read_text()
    told = {name.removeprefix(PREFIX) for name in _NAME.findall(page)}
    assert told == {*COUNTERS, *HISTOGRAMS, *GAUGES, "open_requests"}


def test_the_configuration_that_is_deployed_can_be_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UPSTREAM_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("UPSTREAM_KEY", "sk-none")
    config = read_config(ROOT / "deploy" / "gateway" / "gateway.toml", {})
    (virtual,) = load_models(config).values()
    assert virtual.bundle.template is not None
