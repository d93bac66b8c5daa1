"""Caps of many replicas in simulated time are never exceeded, whatever fails."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from test_support.cap_cluster import run_faults
from test_support.simulated_time import run_simulated


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
