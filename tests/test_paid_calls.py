"""Random runs of commands that pay for calls, with faults and kills: none spends too much.

Each run is one of the benchmark ``paid_calls``, by its seed.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("aiohttp", reason="the extra 'serve' is not installed")

from test_support.paid_commands import PaidCommands, open_commands
from test_support.paid_parameters import BATCH, COLLECT, KINDS, RAY, draw_run
from test_support.paid_runs import count_served, make_run

COLLECT_SEEDS, BATCH_SEEDS, RAY_SEEDS = (0, 3, 7, 10, 13), (1, 3, 4, 10, 17), (2, 4, 6)


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PaidCommands]:
    with open_commands(tmp_path_factory.mktemp("commands")) as opened:
        yield opened


@pytest.fixture(scope="module")
def ray_commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PaidCommands]:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("needs the extra 'ray'")
    with open_commands(tmp_path_factory.mktemp("ray"), with_ray=True) as opened:
        yield opened


def check(found: dict[str, Any]) -> None:
    assert found["violations"] == [], found


@pytest.mark.parametrize("seed", COLLECT_SEEDS)
def test_a_collection_stays_within_its_maximum_and_says_all_of_it(
    seed: int, tmp_path: Path, commands: PaidCommands
) -> None:
    check(make_run(COLLECT, seed, tmp_path / "run", commands))


@pytest.mark.parametrize("seed", BATCH_SEEDS)
def test_a_batch_stays_within_its_total_and_says_all_of_it(
    seed: int, tmp_path: Path, commands: PaidCommands
) -> None:
    check(make_run(BATCH, seed, tmp_path / "run", commands))


@pytest.mark.slow
@pytest.mark.parametrize("seed", RAY_SEEDS)
def test_a_batch_on_ray_stays_within_its_total_and_says_all_of_it(
    seed: int, tmp_path: Path, ray_commands: PaidCommands
) -> None:
    check(make_run(RAY, seed, tmp_path / "run", ray_commands))


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_gives_the_same_parameters(kind: str) -> None:
    assert draw_run(kind, 7) == draw_run(kind, 7) != draw_run(kind, 8)
    drawn = [draw_run(kind, seed) for seed in range(200)]
    assert {len(run.kills) for run in drawn} == {
        COLLECT: {0, 1, 2, 3},
        BATCH: {1, 2, 3, 4, 5},
        RAY: {1, 2, 3},
    }[kind]
    assert {run.n for run in drawn} == {"native", "limit:4", "ignored"}
    assert all(40 <= run.n_questions <= 400 for run in drawn)


@pytest.mark.parametrize(
    ("unit", "expected"), [("samples", 3.0), ("tokens", 41.0), ("money", 0.500403)]
)
def test_what_was_served_is_counted_in_the_unit_of_the_run(unit: str, expected: float) -> None:
    run = replace(draw_run(COLLECT, 0), unit=unit, input_price=1.0, score_price=0.5)
    call = {"path": "chat/completions", "is_refused": False, "prompt_tokens": 3}
    nothing = {"is_refused": True, "choices": 0, "prompt_tokens": 0, "completion_tokens": 0}
    calls = [
        call | {"choices": 2, "completion_tokens": 40},
        call | {"path": "score", "choices": 1, "completion_tokens": 1},
        call | nothing,
        call | nothing | {"path": "score"},
    ]
    assert count_served(run, calls) == expected
