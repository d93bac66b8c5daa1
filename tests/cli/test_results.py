"""What people read: titles, per cent, points and intervals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from adacompute.cli import results
from adacompute.cli.calibration_output import _expected_cost, print_calibration
from adacompute.cli.spending import _print_caps
from adacompute.stages.import_samples import import_samples

Rows = list[dict[str, Any]]
Call = Callable[..., Any]
Execute = Callable[..., Any]
Population = Callable[..., Rows]
Write = Callable[[Path, Rows], Path]


def row(policy: str, budget: float, low: float, headroom: float | None = None) -> dict[str, Any]:
    return {
        "policy": policy,
        "budget": budget,
        "cost": budget,
        "rounds": 1.26,
        "accuracy": 0.5,
        "difference_low": low,
        "difference_high": low + 0.1,
        "headroom": headroom,
    }


def test_scores_show_their_settings(capsys: pytest.CaptureFixture[str]) -> None:
    result: dict[str, Any] = {
        "unit": "tokens",
        "drop_unparsed": True,
        "questions": 20,
        "independent_questions": 20,
        "excluded": 3,
        "samples": 8,
        "fold_assignments": 1,
        "levels": [1, 2],
        "levels_excluded": [8, 16],
        "today": [],
        "arms": None,
        "unparsed_share": 0.125,
        "skipped": {"router": "this needs xgboost"},
        "rows": [row("mixture", 2.0, 0.0), row("retry", 2.0, 0.1, 0.75), row("retry", 4.0, -0.2)],
    }
    results.print_scores(result)
    printed = " ".join(capsys.readouterr().out.split())
    assert "by mean budget in tokens, held-out questions, unparsed samples removed" in printed
    assert "20 questions (3 excluded) × 8 samples, levels 1, 2 (without 8, 16: more" in printed
    assert "+10.0 to +20.0" in printed
    assert "-20.0 to -10.0" in printed
    assert "75 %" in printed
    assert "1.3" in printed
    assert "12.5 % of the samples" in printed
    assert "router (this needs xgboost)" in printed
    for cost, shown in ((5.97e-7, "0.000000597"), (307500.0, "307500"), (12.345, "12.35")):
        expensive = row("router", 10 * cost, 0.0) | {"cost": cost}
        results.print_scores({**result, "rows": [expensive]})
        assert f"cost {shown}" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("cell", "change", "shown"),
    [
        (results._accuracy, {"cost": 3.9}, "50.0 %"),
        (results._accuracy, {"cost": 2.7}, "50.0 %\ncost 2.7"),
        (results.accuracy_and_cost, {}, "50.0 %\ncost 4"),
        (results._difference, {}, ("-5.0 to +5.0", "")),
        (results._difference, {"difference_low": 0.01}, ("+1.0 to +5.0", "green")),
        (results._difference, {"difference_high": -0.01}, ("-5.0 to -1.0", "red")),
        (results._difference, {"policy": "mixture"}, None),
        (results._headroom, {"headroom": 0.5}, "50 %"),
        (results._headroom, {}, "–"),
        (results._headroom, {"policy": "fixed", "headroom": 0.5}, None),
        (results._rounds, {"rounds": 1.05}, "1.1"),
        (results._rounds, {"rounds": 1.04}, None),
    ],
)
def test_cells_of_scores(
    cell: Callable[[dict[str, Any]], Any], change: dict[str, Any], shown: object
) -> None:
    assert cell(row("retry", 4.0, -0.05) | change) == shown


CALIBRATED = {
    "bundle_digest": "0123456789abcdef",
    "policy": "sequential",
    "bundle": "seq",
    "unit": "samples",
    "budget": 2.0,
    "verdict": "gain",
    "advice": "use this policy",
    "gain": 0.04189,
    "gain_low": 0.02775,
    "gain_high": 0.05602,
    "questions_needed": 0,
    "price": 0.04119,
    "cost": 1.87,
    "cost_low": 1.759,
    "cost_high": 1.981,
    "rounds": 1.87,
    "latency_p50_s": 0.5,
    "latency_p95_s": 2.25,
    "accuracy": 0.3361,
    "confidence": 0.95,
    "questions": 300,
    "retry_gain": 0.0004,
    "gain_by_votes": 0.0,
    "today": None,
    "p_correct": None,
    "arm_shares": [],
    "precision": None,
}


def test_calibration_gives_the_gain_in_points_with_its_interval(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_calibration(CALIBRATED)
    printed = " ".join(capsys.readouterr().out.split())
    assert "+4.2 points (95 % interval +2.8 to +5.6)" in printed
    assert "33.6 %" in printed
    assert "1.759 to 1.981" in printed
    assert "1.87" in printed
    assert "2.25 s" in printed
    assert "in the long run" in _expected_cost(CALIBRATED)
    assert "further questions" not in printed.lower()
    small = {**CALIBRATED, "verdict": "no gain", "questions_needed": 467}
    print_calibration(small)
    printed = " ".join(capsys.readouterr().out.split())
    assert "467" in printed


def test_a_store_that_recovers_names_the_replicas_that_it_waits_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    replicas = {"running": 2, "status": "recovering", "waiting_for": ["0123456789abcdef", "f" * 32]}
    account = {"name": "total/tokens/all", "limit": 9, "spent": 5, "held": 7, "replicas": 3}
    _print_caps({"store": "redis:6379", "replicas": replicas, "accounts": [account]})
    printed = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "Running replicas 2 Status recovering: waits for 01234567, ffffffff " in printed
    assert "total/tokens/all 9 5 7 3 " in printed
    complete = {"running": 2, "status": "complete", "waiting_for": []}
    _print_caps({"store": "redis:6379", "replicas": complete, "accounts": []})
    assert "waits for" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "title"),
    [
        (("--budget", "1"), "Best allocation of 1 sample per question"),
        (("--budget", "2"), "Best allocation of 2 samples per question"),
        (("--budget", "9", "--unit", "tokens"), "Best allocation of 9 tokens per question"),
        (
            ("--budget", "9", "--unit", "money"),
            "Best allocation of 9000 currency units per 1,000 questions",
        ),
    ],
)
def test_title_names_the_budget_with_its_unit(
    call: Call,
    tmp_path: Path,
    options: tuple[str, ...],
    title: str,
    population: Population,
    write_samples: Write,
) -> None:
    source = write_samples(tmp_path / "s.parquet", population(cost=1.5))
    assert title in " ".join(call("solve", source, *options).out.split())


def test_independent_questions_are_counted_where_there_are_copies(
    call: Call, tmp_path: Path, population: Population, write_samples: Write
) -> None:
    rows = population(24, samples=4)
    copies = [
        {**one, "question_id": f"{one['question_id']} again", "question": f"{one['question']} "}
        for one in rows
    ]
    options = ("--config", "budgets=1.5", "--levels", "1,2", "--policies", "mixture")
    for name, source, count in (("once", rows, 24), ("twice", [*rows, *copies], 48)):
        run = tmp_path / name
        file = write_samples(tmp_path / f"{name}.parquet", source)
        import_samples(file, run)
        printed = " ".join(call("evaluate", run, *options).out.split())
        assert ("48 questions (24 independent) × 4 samples" in printed) == (count == 48)
        found = call("evaluate", run, *options, "--json").document
        assert (found["questions"], found["independent_questions"]) == (count, 24)


def test_costs_in_money_are_those_of_1000_questions(capsys: pytest.CaptureFixture[str]) -> None:
    level = {"arm": "low", "samples": 1, "cost": 4.199e-05, "accuracy": 0.5, "efficient": True}
    level |= {"accuracy_low": 0.4, "accuracy_high": 0.6, "dominated_by": None}
    level |= {"latency_p50_s": None, "latency_p95_s": None}
    results.print_arms({"rows": [level], "unit": "money", "questions": 80, "confidence": 0.95})
    printed = capsys.readouterr().out
    assert "currency units per 1,000 questions" in printed
    assert "0.04199" in printed
    assert "e-0" not in printed


def test_a_calibration_over_arms_prints_their_shares(capsys: pytest.CaptureFixture[str]) -> None:
    shares = [{"arm": "low", "share": 1.0, "cost_share": 0.04}]
    shares += [{"arm": "high", "share": 0.89, "cost_share": 0.96}]
    print_calibration({**CALIBRATED, "arm_shares": shares})
    printed = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "high 89 % 96 %" in printed
    assert "--unit tokens" in printed
