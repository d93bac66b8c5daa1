"""Throttles count across workers, by minute and in flight."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from adacompute.gateway.requests.throttles import (
    SharedCounts,
    Throttle,
    ThrottleLimits,
    make_counts_file,
)

if TYPE_CHECKING:
    import pytest


def two_workers(tmp_path: Path, limits: ThrottleLimits) -> tuple[Throttle, Throttle]:
    path = make_counts_file(tmp_path / "counts", n_throttles=3, n_workers=2)
    first, second = (Throttle(limits, SharedCounts(3, path, slot=slot), 1) for slot in range(2))
    return first, second


def test_workers_count_what_is_in_flight_together(tmp_path: Path) -> None:
    first, second = two_workers(tmp_path, ThrottleLimits(max_concurrency=2))
    with first.in_flight(), second.in_flight():
        assert first.rejection() == second.rejection() == "max_concurrency"
    assert first.rejection() is second.rejection() is None


def test_workers_count_the_requests_of_a_minute_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [6_000.0]
    monkeypatch.setattr("adacompute.gateway.requests.throttles.time.time", lambda: clock[0])
    first, second = two_workers(tmp_path, ThrottleLimits(requests_per_minute=10))
    for throttle in (first, second) * 5:
        assert throttle.rejection() is None
        with throttle.in_flight():
            pass
    assert first.rejection() == second.rejection() == "requests_per_minute"
    clock[0] += 60 + 29  # at most half of the first ten still count
    assert first.rejection() is None
    for throttle in (first, second) * 2:
        with throttle.in_flight():
            pass
    assert first.rejection() is None
    with first.in_flight():
        pass
    assert second.rejection() == "requests_per_minute"
    clock[0] += 120
    assert first.rejection() is None


def test_a_new_worker_forgets_what_its_predecessor_left(tmp_path: Path) -> None:
    first, second = two_workers(tmp_path, ThrottleLimits(max_concurrency=1))
    with first.in_flight():
        SharedCounts(3, tmp_path / "counts", slot=0)
        assert second.rejection() is None


def test_throttles_do_not_share_numbers(tmp_path: Path) -> None:
    path = make_counts_file(tmp_path / "counts", n_throttles=2, n_workers=2)
    counts = SharedCounts(2, path, slot=1)
    limits = ThrottleLimits(max_concurrency=1)
    one, other = Throttle(limits, counts, 0), Throttle(limits, counts, 1)
    with one.in_flight():
        assert one.rejection() == "max_concurrency"
        assert other.rejection() is None
