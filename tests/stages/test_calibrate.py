"""A bundle is calibrated on the run it was trained on, and says what was found."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adacompute.core.errors import BundleError, ConfigError, InfeasibleBudget
from adacompute.evaluation.pool import Pool
from adacompute.options.shared import TodayOptions
from adacompute.policies.bundles.bundle import load_bundle
from adacompute.stages import calibrate as calibrations
from adacompute.stages.calibrate import calibrate_run
from adacompute.stages.import_samples import import_samples
from adacompute.stages.train import train_run

Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def trained(
    tmp_path_factory: pytest.TempPathFactory, rows: Rows, write: Callable[[Path, Rows], Path]
) -> tuple[Path, Path]:
    """Return a run whose samples tell how sure they are, and a bundle of it."""
    place = tmp_path_factory.mktemp("calibrate")
    twice = [
        {
            **row,
            "question_id": f"{row['question_id']}/{i}",
            "question": f"{row['question']} {i}",
            "mean_logprob": -0.1 if row["correct"] else -0.4,
        }
        for i in range(2)
        for row in rows
    ]
    import_samples(write(place / "source.parquet", twice), place / "run")
    train_run(place / "run", policy="sequential", out=place / "policy", levels=(1, 2, 4))
    return place / "run", place / "policy"


@pytest.fixture(scope="module")
def by_votes(trained: tuple[Path, Path]) -> tuple[Path, Path]:
    """Return the run and a bundle of a policy that sees the votes alone."""
    run, policy = trained
    out = policy.with_name("by-votes")
    train_run(run, policy="sequential", out=out, levels=(1, 2, 4), evidence="votes")
    return run, out


def test_calibration_sets_price_and_frontier(trained: tuple[Path, Path]) -> None:
    run, policy = trained
    found = calibrate_run(run, bundle=policy, budget=2.0)
    assert {"verdict", "advice", "gain", "gain_low", "gain_high", "price", "cost"} <= set(found)
    assert found["cost"] == pytest.approx(2.0, abs=1e-9)
    assert found["cost_low"] < 2.0 < found["cost_high"]
    bundle = load_bundle(policy)
    assert bundle.frontier[0].cost < bundle.frontier[-1].cost
    assert bundle.notes["calibration"]["price"] == found["price"]
    assert bundle.price_for(2.0) == found["price"]
    assert bundle.max_rounds is None


def test_calibration_for_a_number_of_rounds_is_recorded(by_votes: tuple[Path, Path]) -> None:
    run, policy = by_votes
    found = calibrate_run(run, bundle=policy, budget=2.0, max_rounds=2)
    assert found["max_rounds"] == load_bundle(policy).max_rounds == 2
    assert found["rounds"] <= 2
    again = calibrate_run(run, bundle=policy, budget=2.0)
    assert load_bundle(policy).max_rounds is None
    assert again["rounds"] > found["rounds"]


def test_a_policy_that_weighs_votes_is_fitted_again_for_a_number_of_rounds(
    trained: tuple[Path, Path], tmp_path: Path
) -> None:
    run, policy = trained
    weighted = Path(shutil.copytree(policy, tmp_path / "weighted"))
    before = load_bundle(weighted)
    assert before.policy.confidence is not None
    found = calibrate_run(run, bundle=weighted, budget=2.0, max_rounds=2)
    limited = load_bundle(weighted)
    assert found["rounds"] <= 2
    assert limited.policy.plans_for(2)
    assert not limited.policy.plans_for(None)
    again = calibrate_run(run, bundle=weighted, budget=2.0)
    assert load_bundle(weighted).policy.plans_for(None)
    assert again["rounds"] > found["rounds"]
    assert load_bundle(weighted).price_for(2.0) == before.price_for(2.0)


def test_verdicts_of_other_budgets_are_kept(by_votes: tuple[Path, Path]) -> None:
    run, policy = by_votes
    first, second = (calibrate_run(run, bundle=policy, budget=budget) for budget in (2.0, 1.5))
    bundle = load_bundle(policy)
    assert [bundle.verdict(b) for b in (2.0, 1.5)] == [first["verdict"], second["verdict"]]
    assert [bundle.price_for(b) for b in (2.0, 1.5)] == [first["price"], second["price"]]
    assert bundle.verdict(1.7) == "not judged"
    calibrate_run(run, bundle=policy, budget=1.5, max_rounds=2)
    assert load_bundle(policy).verdict(2.0) == "not judged"


def test_today_alone_sets_the_price_and_states_what_is_saved(trained: tuple[Path, Path]) -> None:
    run, policy = trained
    found = calibrate_run(run, bundle=policy, today=TodayOptions("4", tolerance=0.2))
    today = found["today"]
    assert (today["samples"], today["votes"], today["cost"]) == (4, "equal", 4.0)
    assert found["cost"] == pytest.approx(today["delivered_cost"], rel=1e-3)
    assert float(f"{found['budget']:.4g}") == found["budget"]
    bundle = load_bundle(policy)
    assert bundle.price_for(found["budget"]) == found["price"]
    assert bundle.notes["calibration"]["today"] == today
    both = calibrate_run(run, bundle=policy, budget=2.0, today=TodayOptions("4", tolerance=0.2))
    assert (both["budget"], both["today"]["delivered_cost"]) == (2.0, today["delivered_cost"])


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "--budget"),
        ({}, "--today"),
        ({"today": TodayOptions("0")}, "'0'"),
        ({"today": TodayOptions("4x:0")}, "4x:0"),
        ({"today": TodayOptions("-3")}, "'-3'"),
        ({"today": TodayOptions("large")}, "large"),
        ({"today": TodayOptions("4", calls="two")}, "two"),
        ({"today": TodayOptions("4", tolerance=-0.1)}, "tolerance"),
        ({"budget": float("nan")}, "nan"),
        ({"budget": float("inf")}, "inf"),
        ({"budget": -1.0}, "-1"),
        ({"budget": 2.0, "confidence": 1.0}, "confidence"),
        ({"budget": 2.0, "confidence": 1 - 1e-16}, "confidence"),
        ({"budget": 2.0, "confidence": 0.3}, "confidence"),
        ({"budget": 2.0, "max_rounds": 0}, "max_rounds"),
    ],
)
def test_invalid_options_are_refused(
    trained: tuple[Path, Path], options: dict[str, Any], why: str
) -> None:
    run, policy = trained
    with pytest.raises(ConfigError, match=why):
        calibrate_run(run, bundle=policy, **options)


def test_infeasible_budgets_are_refused_before_the_policy_is_refitted(
    trained: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, policy = trained
    monkeypatch.setattr(calibrations, "score_policy", None)
    monkeypatch.setattr(Pool, "arm_cost", lambda pool: np.full((len(pool), 1), 3.0))
    for budget in (0.5, 2.9):
        with pytest.raises(InfeasibleBudget, match=str(budget)):
            calibrate_run(run, bundle=policy, budget=budget)


def test_bundle_of_other_samples_is_refused(
    trained: tuple[Path, Path], tmp_path: Path, rows: Rows, write: Callable[[Path, Rows], Path]
) -> None:
    _, policy = trained
    import_samples(write(tmp_path / "other.parquet", rows[:-1]), tmp_path / "run")
    with pytest.raises(BundleError, match="other samples"):
        calibrate_run(tmp_path / "run", bundle=policy, budget=2.0)
