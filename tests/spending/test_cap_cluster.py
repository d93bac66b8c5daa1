"""Caps of many replicas in simulated time: never exceeded, and served while things fail."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from benchmarks.cap_cluster import EVENTS, run
from test_support.cap_cluster import run_faults
from test_support.simulated_time import run_simulated

REFUSED, LATE, SERVED_S, USED, EXCESS = range(2, 7)
"""Columns of a row."""

MAX_SERVED_S = {
    "drain": 5.0,
    "killed": 9 + 5.0,
    "stopped": 10 + 5.0,
    "emptied": 5.0,
    "silent": 62.0,
}


@pytest.mark.parametrize("event", EVENTS)
def test_outages_refuse_no_client_that_was_seen(event: str, tmp_path: Path) -> None:
    row = run_simulated(lambda: run(tmp_path, event, 3))
    assert row[EXCESS] == "0"
    if event == "share":
        assert float(row[USED]) >= 0.97
    else:
        assert float(row[SERVED_S]) <= MAX_SERVED_S[event]
        assert event == "silent" or (row[REFUSED], row[LATE]) == ("0", "0")


@pytest.mark.parametrize("seed", range(6))
def test_caps_hold_under_random_faults(
    seed: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    found = run_simulated(lambda: run_faults(tmp_path, seed))
    assert found.excess == {}


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(6, 200))
def test_caps_hold_under_many_random_faults(
    seed: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    test_caps_hold_under_random_faults(seed, tmp_path, caplog)
