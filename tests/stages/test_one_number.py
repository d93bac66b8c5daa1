"""Evaluate, calibrate and report once gave three gains for one policy at one budget."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from adacompute.cli.main import cli
from adacompute.datasets.example import find_example
from adacompute.evaluation.costs import CostModel, read_token_prices
from adacompute.stages.import_samples import import_samples
from adacompute.stages.inputs import read_pool
from adacompute.storage.store import Run

pytestmark = pytest.mark.filterwarnings("ignore")

PRICES = """[models."{model}"]
input = 0.1
output = 0.4
"""
DATA = Path(__file__).parents[2] / os.environ.get("ADACOMPUTE_DATA", "../shared/data")
EXAMS = DATA / "samples" / "mcqa10x100__gpt-3.5-turbo.parquet"
FIELDS = ("cost", "accuracy", "accuracy_low", "accuracy_high", "gain", "gain_low", "gain_high")


def run_command(*arguments: object) -> dict[str, Any]:
    result = CliRunner().invoke(cli, [*map(str, arguments), "--json"])
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with the shipped run and token prices of its model."""
    root = tmp_path_factory.mktemp("one")
    import_samples(find_example(), root / "run", grader="numeric")
    import pyarrow.parquet as pq

    model = pq.read_table(find_example(), columns=["model"])["model"][0].as_py()
    (root / "prices.toml").write_text(PRICES.format(model=model), encoding="utf-8")
    return root


CASES = [
    pytest.param("adaptive-consistency", "tokens"),
    pytest.param("sequential", "samples", marks=pytest.mark.slow),
    pytest.param("sequential", "money", marks=pytest.mark.nightly),
]


@pytest.mark.usefixtures("all_assignments")
@pytest.mark.parametrize(("policy", "unit"), CASES)
def test_evaluate_calibrate_and_report_give_the_same_accuracy_gain_and_interval(
    place: Path, tmp_path: Path, policy: str, unit: str
) -> None:
    costs: tuple[object, ...] = ("--unit", unit)
    if unit == "money":
        costs = (*costs, "--token-prices", place / "prices.toml")
    compare_commands(place / "run", tmp_path, policy, costs)


@pytest.mark.nightly
@pytest.mark.skipif(not EXAMS.exists(), reason="recorded samples are not there: ADACOMPUTE_DATA")
def test_the_commands_agree_on_a_thousand_exam_questions(tmp_path: Path) -> None:
    import_samples(EXAMS, tmp_path / "run")
    compare_commands(tmp_path / "run", tmp_path, "sequential", ())


def compare_commands(run: Path, place: Path, policy: str, costs: tuple[object, ...]) -> None:
    """Compare what evaluate, calibrate and report say of a policy at one budget."""
    bundle = place / "bundle"
    budget = sample_cost(run, costs) * 2.3
    scores = run_command(
        "evaluate", run, "--policies", policy, "--budgets", budget, "--levels", "1,2,4,8,16", *costs
    )
    fit = ("--config", f"policy={policy}", "--budget", budget, "--out", bundle)
    calibrated = run_command("fit", run, *fit, *costs)
    page = ("--policy", policy, "--config", "policies=retry", "--out", place / "page.html")
    reported = run_command("report", run, "--budget", budget, *page, *costs)
    document = json.loads((run / "report.json").read_text(encoding="utf-8"))
    point = document["operating_points"][document["selected"]]
    (row,) = scores["rows"]
    named = {name.replace("difference", "gain"): value for name, value in row.items()}
    for found in (named, point):
        for field in FIELDS:
            assert found[field] == pytest.approx(calibrated[field], rel=1e-12, abs=1e-15), field
    assert row["verdict"] == calibrated["verdict"] == reported["verdict"]
    assert reported["price"] == calibrated["price"]
    assert calibrated["cost"] == pytest.approx(budget, rel=1e-9)
    assert calibrated["gain_low"] < calibrated["gain"] < calibrated["gain_high"]


def sample_cost(run: Path, costs: tuple[Any, ...]) -> float:
    """Return the mean cost of one sample."""
    known = dict(zip(costs[::2], costs[1::2], strict=True))
    unit, prices = known.get("--unit", "samples"), known.get("--token-prices")
    model = CostModel(unit, prices and read_token_prices(prices, [unit], None, run=run))
    return float(read_pool(Run(run), costs=model).equalise().mean_sample_cost().mean())
