"""A second run as the last level of the sequential policy: trained, calibrated, scored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adacompute.core.errors import BundleError, ConfigError, DataError
from adacompute.evaluation.costs import CostModel
from adacompute.policies.bundle import load_bundle
from adacompute.policies.sequential import SequentialPolicy
from adacompute.spending.token_prices import TokenPrices
from adacompute.stages.calibrate import calibrate_run
from adacompute.stages.evaluate import evaluate_run
from adacompute.stages.import_samples import import_samples
from adacompute.stages.inputs import read_pool
from adacompute.stages.resorts import NAME, read_resort
from adacompute.stages.train import train_run
from adacompute.storage.store import Run, encode_samples

Rows = list[dict[str, Any]]
PRICES = """[models."small"]
input = 1
output = 2

[models."big"]
input = 10
output = 20
"""
PRICE_LIST = {
    "small": TokenPrices(input=1.0, output=2.0),
    "big": TokenPrices(input=10.0, output=20.0),
}
TOKENS = {"prompt_tokens": 100, "completion_tokens": 50}


@pytest.fixture(scope="module")
def cheap_rows() -> Rows:
    """Sixty questions, from settled ones to such that are guessed at."""
    rng = np.random.default_rng(0)
    rows = []
    for q in range(60):
        for sample in range(12):
            right = 0.3 + 0.7 * (q % 20) / 19
            answer = "a" if rng.random() < right else str(rng.choice(["b", "c", "d"]))
            row = {"question_id": f"q{q}", "question": f"Number {q}?", "sample": sample}
            row |= {"answer": answer, "correct": answer == "a", "model": "small"}
            rows.append({**row, **TOKENS})
    return rows


@pytest.fixture(scope="module")
def runs(
    tmp_path_factory: pytest.TempPathFactory, cheap_rows: Rows, write: Callable[[Path, Rows], Path]
) -> tuple[Path, Path, Path]:
    """Return a run of the small model, one of the big one in another order, and prices."""
    place = tmp_path_factory.mktemp("two")
    strong = [
        {**row, "answer": "a", "correct": True, "model": "big"}
        for row in reversed(cheap_rows)
        if row["sample"] < 3
    ]
    import_samples(write(place / "cheap.parquet", cheap_rows), place / "cheap")
    import_samples(write(place / "strong.parquet", strong), place / "strong")
    (place / "prices.toml").write_text(PRICES)
    return place / "cheap", place / "strong", place / "prices.toml"


def test_samples_of_the_other_run_are_joined_by_id(runs: tuple[Path, Path, Path]) -> None:
    cheap, strong, _ = runs
    for native_n in (False, True):
        costs = CostModel("money", PRICE_LIST, native_n=native_n, round_cost=7.0)
        pool = read_pool(Run(cheap), costs=costs, resort=strong)
        assert pool.resort is not None
        assert pool.resort.level.model == "big"
        assert pool.resort.utility.tolist() == [1.0] * 60
        assert pool.resort.cost == pytest.approx((10 * 100 + 20 * 50) / 1e6)


def test_runs_that_do_not_fit_are_refused(
    runs: tuple[Path, Path, Path],
    tmp_path: Path,
    cheap_rows: Rows,
    write: Callable[[Path, Rows], Path],
) -> None:
    cheap, strong, _ = runs
    recorded, costs = encode_samples(Run(cheap).samples()), CostModel("tokens")
    with pytest.raises(ConfigError, match="do not cost the same"):
        read_resort(recorded, Run(strong), CostModel())
    import_samples(write(tmp_path / "few.parquet", cheap_rows[:24]), tmp_path / "few")
    with pytest.raises(DataError, match="58 of 60 questions, such as 'q2', have no"):
        read_resort(recorded, Run(tmp_path / "few"), costs)
    mixed = [{**row, "model": "ab"[row["sample"] % 2]} for row in cheap_rows]
    import_samples(write(tmp_path / "mixed.parquet", mixed), tmp_path / "mixed")
    with pytest.raises(DataError, match="a, b"):
        read_resort(recorded, Run(tmp_path / "mixed"), costs)
    unnamed = [{**row, "model": None} for row in cheap_rows]
    import_samples(write(tmp_path / "unnamed.parquet", unnamed), tmp_path / "unnamed")
    assert read_resort(recorded, Run(tmp_path / "unnamed"), costs).level.model == NAME


def test_policy_with_a_resort_is_trained_calibrated_and_scored(
    runs: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    cheap, strong, prices = runs
    options: dict[str, Any] = {"unit": "money", "token_prices": prices, "levels": (1, 2, 4)}
    policy = tmp_path / "bundle"
    made = train_run(cheap, policy="sequential", out=policy, resort=strong, **options)
    assert made["levels"] == [1, 2, 3, 4, "big"]
    kept = load_bundle(policy).policy
    assert isinstance(kept, SequentialPolicy)
    assert kept.resort_cost == pytest.approx(10.0)
    assert made["on_training_questions"][-1]["accuracy"] == pytest.approx(1.0)
    each = (100 + 2 * 50) / 1e6
    with pytest.raises(BundleError, match="another last resort"):
        calibrate_run(cheap, bundle=policy, budget=5 * each)
    found = calibrate_run(cheap, bundle=policy, budget=8 * each, resort=strong)
    assert found["verdict"] == "gain"
    budgets = (2 * each, 8 * each)
    scored = {
        resort: evaluate_run(
            cheap, **options, policies=("mixture", "sequential"), budgets=budgets, resort=resort
        )
        for resort in (None, strong)
    }
    last = {resort: result["rows"][-1] for resort, result in scored.items()}
    assert last[strong]["policy"] == "sequential"
    assert last[strong]["cost"] == pytest.approx(8 * each)
    assert last[strong]["accuracy"] > last[None]["accuracy"] + 0.1
