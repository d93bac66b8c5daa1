"""The base install works, starts quickly and stays offline."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Rows = list[dict[str, Any]]
Call = Callable[..., Any]
Execute = Callable[..., Any]
Population = Callable[..., Rows]
Write = Callable[[Path, Rows], Path]


BASE_ONLY = """
for name in ("xgboost", "math_verify"):
    sys.modules[name] = None
"""


@pytest.mark.slow
def test_base_install_scores_without_routers(run: Path, execute: Execute) -> None:
    options = ("--budgets", "1.5", "--levels", "1,2")
    scores = execute("evaluate", run, *options, "--json", before=BASE_ONLY).document
    assert scores["skipped"].keys() == {"router"}
    assert all("pip install 'adacompute[router]'" in why for why in scores["skipped"].values())
    assert {row["policy"] for row in scores["rows"]} >= {"mixture", "oracle", "sequential"}
    shown = execute("evaluate", run, *options, before=BASE_ONLY)
    assert "(this needs xgboost" in " ".join(shown.out.split())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (("evaluate", "--policies", "router", "--levels", "1,2"), "router"),
        (("solve", "--budget", "1", "--grader", "math"), "math"),
    ],
)
def test_missing_extra_is_named(
    run: Path, source: Path, arguments: tuple[str, ...], extra: str, execute: Execute
) -> None:
    command, *options = arguments
    sentence = execute(
        command, source if command == "solve" else run, *options, before=BASE_ONLY
    ).refused()
    assert f"pip install 'adacompute[{extra}]'" in sentence


LOOK = """
import sys, time
opened = []
sys.addaudithook(lambda event, _: opened.append(event) if event.startswith("socket.") else None)
import adacompute
spent = time.process_time()
heavy = {"pyarrow", "rich", "xgboost", "sklearn", "math_verify", "click"}
print(sorted(heavy & set(sys.modules)), opened, spent < 1.0)
"""


def test_import_is_fast_light_and_offline() -> None:
    done = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, check=True)
    assert done.stdout == "[] [] True\n"


WATCH = """
def refuse(event, _):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.bind"):
        raise RuntimeError(event)
sys.addaudithook(refuse)
"""


def test_solve_works_offline(source: Path, execute: Execute) -> None:
    called = execute("solve", source, "--budget", "2", "--json", before=WATCH)
    assert called.document["cost"] <= 2.0
