"""What the fake upstream served, by its own count, against what every account says of it.

Faults and kills are placed by call number, so the amounts are exact: no more is served than the
maximum or the total, and no account says less than was served.
"""

from __future__ import annotations

import importlib.util
import io
import json
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("aiohttp", reason="the extra 'serve' is not installed")

from adacompute.cli.main import cli
from adacompute.core.errors import AdaComputeError
from adacompute.gateway.accounting.call_log import Call
from adacompute.spending.call_costs import CallCosts
from adacompute.spending.token_prices import NANO
from test_support.paid_paths import (
    PATHS,
    TOKEN_COST,
    Amounts,
    interrupt_batch,
    interrupt_collect,
    interrupt_gateway,
)

EXPECTED: dict[str, Amounts] = {
    # The maximum cost is 0.016. Replies that broke off count at their maximum.
    "interrupt_collect": {
        "exit_code": 1,  # samples are missing
        "served_calls": 20,
        "served": 0.016,
        "said": 0.016,
        "recorded": 0.016,
    },
    # Nine calls were lost by two kills.
    "kill_collect": {
        "exit_code": 1,
        "served_calls": 20,
        "served": 0.016,
        "said": 0.016,
        "recorded": 0.016,
    },
    "interrupt_batch": {"exit_code": 0, "served": 59, "total": 60, "cost": 59, "lost_cost": 0},
    # Eight calls are lost by each kill, the same questions' again, and each time they count.
    "kill_batch": {"exit_code": 0, "served": 58, "total": 60, "cost": 34, "lost_cost": 24},
    "kill_ray": {"exit_code": 0, "served": 58, "total": 60, "cost": 42, "lost_cost": 16},
    "interrupt_gateway": {
        "served_calls": 17,
        "served": 0.0034,
        "calls": 17,
        "estimated_calls": 9,
        "said": 0.0034,
    },
    "kill_gateway": {
        "served_calls": 16,
        "served": 0.0032,
        "calls": 16,
        "estimated_calls": 7,
        "said": 0.0032,
        "capped": 0.0032,
    },
}
"""What each path served and says: money, but samples for batches."""


@pytest.fixture(scope="module", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def run_here(*arguments: str, folder: Path) -> tuple[int, dict[str, Any]]:
    """Run a command in this process, where a test can change what it does."""
    del folder
    said = io.StringIO()
    try:
        with redirect_stdout(said):
            cli.main(list(arguments), prog_name="adacompute", standalone_mode=False)
    except (AdaComputeError, SystemExit):
        return 1, json.loads(said.getvalue())
    return 0, json.loads(said.getvalue())


def differences(expected: Amounts, found: Amounts) -> list[str]:
    """List every amount that differs."""
    names = sorted(expected.keys() | found.keys())
    pairs = [(name, expected.get(name), found.get(name)) for name in names]
    return [f"{name}: {old} became {new}" for name, old, new in pairs if old != new]


NAMES = [pytest.param(name, marks=pytest.mark.slow if name == "kill_ray" else ()) for name in PATHS]


@pytest.fixture(scope="module")
def run_path(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Amounts]:
    """Return how a path is run, once for all tests."""

    @cache
    def run(name: str) -> Amounts:
        if name == "kill_ray" and importlib.util.find_spec("ray") is None:
            pytest.skip("needs the extra 'ray'")
        return PATHS[name](tmp_path_factory.mktemp(name))

    return run


@pytest.mark.parametrize("name", NAMES)
def test_served_and_account_are_what_they_were(
    name: str, run_path: Callable[[str], Amounts]
) -> None:
    assert differences(EXPECTED[name], run_path(name)) == []


@pytest.mark.parametrize("name", NAMES)
def test_one_sample_or_token_more_is_found(name: str, run_path: Callable[[str], Amounts]) -> None:
    found = run_path(name)
    for amount, value in found.items():
        is_money = amount in {"said", "recorded", "capped"} or "served_calls" in found
        more = TOKEN_COST if is_money and "calls" not in amount else 1
        changed = differences(EXPECTED[name], {**found, amount: value + more})
        assert changed == [f"{amount}: {EXPECTED[name][amount]} became {value + more}"]


def test_a_collection_that_records_a_token_more_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cost = CallCosts.cost
    monkeypatch.setattr(CallCosts, "cost", lambda *given: cost(*given) + round(TOKEN_COST * NANO))
    found = interrupt_collect(tmp_path, run_here)
    assert differences(EXPECTED["interrupt_collect"], found) != []


def test_a_batch_that_counts_a_sample_more_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cost = CallCosts.cost
    monkeypatch.setattr(CallCosts, "cost", lambda *given: cost(*given) + 1)
    found = interrupt_batch(tmp_path, run_here)
    assert differences(EXPECTED["interrupt_batch"], found) != []


def test_a_gateway_that_records_a_token_more_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cost = Call._cost
    monkeypatch.setattr(
        Call, "_cost", lambda call, charged: (cost(call, charged) or 0.0) + TOKEN_COST
    )
    found = interrupt_gateway(tmp_path)
    assert [
        line.partition(":")[0] for line in differences(EXPECTED["interrupt_gateway"], found)
    ] == ["said"]
