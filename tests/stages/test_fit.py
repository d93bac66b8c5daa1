"""One command from samples to a calibrated bundle, a report and a verdict."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from adacompute.cli.main import cli
from adacompute.core import errors
from adacompute.core.errors import ConfigError, DataError, InfeasibleBudget
from adacompute.policies.bundles.bundle import load_bundle
from adacompute.policies.bundles.bundle_files import find_digest
from adacompute.stages.calibrate import calibrate_run
from adacompute.stages.fit import fit_run
from adacompute.stages.import_samples import import_samples
from adacompute.stages.train import train_run
from adacompute.storage.store import Run

Rows = list[dict[str, Any]]
STEPS = ["import", "train", "calibrate", "report"]
QUICK: dict[str, Any] = {"budget": 2.0, "policy": "adaptive-consistency", "levels": (1, 2, 4)}


@pytest.fixture
def many(tmp_path: Path, rows: Rows, write: Callable[[Path, Rows], Path]) -> Path:
    """Return 48 questions with 8 samples each: enough to calibrate on."""
    copies = [
        {
            **row,
            "question_id": f"{i}/{row['question_id']}",
            "question": f"Part {i}: {row['question']}",
        }
        for i in range(2)
        for row in rows
    ]
    return write(tmp_path / "many.parquet", copies)


def test_samples_become_a_calibrated_bundle_and_a_report(many: Path, tmp_path: Path) -> None:
    out = tmp_path / "bundle"
    progress: list[str] = []
    result = fit_run(str(many), out=out, **QUICK, progress=progress.append)
    bundle = load_bundle(out)
    assert (result["steps"], result["steps_skipped"], result["notes"]) == (STEPS, [], [])
    assert (result["bundle"], result["run"]) == (str(out), str(tmp_path / "bundle" / "run"))
    assert bundle.price_for(2.0) == pytest.approx(result["price"], rel=0.5)
    assert bundle.notes["calibration"]["verdict"] == result["verdict"]
    assert Path(result["report"]).read_text(encoding="utf-8").startswith("<!")
    assert result["gain_low"] <= result["gain"] <= result["gain_high"]
    assert {"import", "train adaptive-consistency", "calibrate", "report"} <= set(progress)


def test_result_equals_that_of_the_single_commands(many: Path, tmp_path: Path) -> None:
    found = fit_run(str(many), out=tmp_path / "bundle", **QUICK)
    run, out = tmp_path / "by-hand", tmp_path / "other"
    import_samples(many, run)
    train_run(run, policy="adaptive-consistency", out=out, levels=(1, 2, 4))
    alone = calibrate_run(run, bundle=out, budget=2.0)
    assert {**alone, "bundle": None} == {
        **{name: found[name] for name in alone},
        "bundle": None,
    }
    files = sorted(path.name for path in out.iterdir())
    assert [*files, "run"] == sorted(path.name for path in (tmp_path / "bundle").iterdir())
    for name in files:
        assert (out / name).read_bytes() == (tmp_path / "bundle" / name).read_bytes()


def test_too_few_questions_are_refused_before_anything_is_trained(
    tmp_path: Path, rows: Rows, write: Callable[[Path, Rows], Path]
) -> None:
    name = rows[0]["question_id"]
    one = write(tmp_path / "one.parquet", [row for row in rows if row["question_id"] == name])
    with pytest.raises(DataError, match="1 independent questions are too few"):
        fit_run(str(one), out=tmp_path / "bundle", **QUICK)
    assert not (tmp_path / "bundle" / "bundle.json").exists()


def test_every_arm_has_a_file(many: Path, tmp_path: Path) -> None:
    words = ["fit", "--arm", f"low={many}", "--arm", f"high={many}", "--budget", "2"]
    words += ["--out", str(tmp_path / "bundle"), "--config", "policy=mixture", "--json"]
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["steps"][:3] == STEPS[:3]
    samples = Run(tmp_path / "bundle" / "run").samples()
    assert set(samples["arm"].to_pylist()) == {"low", "high"}
    assert samples.num_rows == 2 * pq.read_table(many).num_rows


@pytest.mark.parametrize(
    ("arms", "why"),
    [
        ((), "give SOURCE"),
    ],
)
def test_other_arms_are_refused(tmp_path: Path, arms: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        fit_run(None, out=tmp_path / "bundle", arms=arms, **QUICK)


def test_second_call_skips_finished_steps(many: Path, tmp_path: Path) -> None:
    out = tmp_path / "bundle"
    first = fit_run(str(many), out=out, **QUICK)
    again = fit_run(str(many), out=out, **QUICK)
    assert (again["steps"], again["steps_skipped"]) == ([], STEPS)
    assert {**again, "steps": [], "steps_skipped": []} == {
        **first,
        "steps": [],
        "steps_skipped": [],
    }


def test_only_steps_with_changed_inputs_run_again(many: Path, tmp_path: Path) -> None:
    out = tmp_path / "bundle"
    fit_run(str(many), out=out, **QUICK)
    other_budget = fit_run(str(many), out=out, **{**QUICK, "budget": 3.0})
    assert (other_budget["steps"], other_budget["budget"]) == (["calibrate", "report"], 3.0)
    other_levels = fit_run(str(many), out=out, **{**QUICK, "levels": (1, 2)})
    assert other_levels["steps"] == ["train", "calibrate", "report"]
    (out / "bundle.json").write_text("{}")
    damaged = fit_run(str(many), out=out, **{**QUICK, "levels": (1, 2)})
    assert damaged["steps"] == ["train", "calibrate"]
    assert load_bundle(out).notes["policy"] == "adaptive-consistency"


def test_base_install_fits_the_same_policy(
    many: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(errors, "find_spec", lambda _: None)
    result = fit_run(str(many), out=tmp_path / "bundle", budget=2.0)
    assert result["policy"] == "sequential"
    assert result["report"] is None
    assert result["steps"] == ["import", "train", "calibrate"]
    assert len(result["notes"]) == 1
    assert "adacompute[report]" in result["notes"][0]


@pytest.mark.parametrize(
    ("options", "kind", "keyword"),
    [
        ({"budget": 0.0}, ConfigError, "0"),
        ({"budget": 0.9}, InfeasibleBudget, "0.9"),
        ({"policy": "psychic"}, ConfigError, "psychic"),
        ({"levels": (2, 1)}, ConfigError, "levels"),
        ({"confidence": 2.0}, ConfigError, "confidence"),
        ({"seed": -1}, ConfigError, "seed"),
    ],
)
def test_invalid_options_are_refused_before_anything_is_written(
    many: Path, tmp_path: Path, options: dict[str, Any], kind: type[Exception], keyword: str
) -> None:
    with pytest.raises(kind, match=keyword):
        fit_run(str(many), out=tmp_path / "bundle", **{**QUICK, **options})
    assert not (tmp_path / "bundle").exists()
    assert not (tmp_path / "bundle" / "run").exists()


def test_infeasible_budgets_are_refused_before_training(many: Path, tmp_path: Path) -> None:
    options = {**QUICK, "budget": 0.1, "unit": "tokens"}
    with pytest.raises(InfeasibleBudget, match=r"0\.1"):
        fit_run(str(many), out=tmp_path / "bundle", **options)
    assert not (tmp_path / "bundle" / "bundle.json").exists()


def test_command_line_prints_the_verdict_and_the_next_command(many: Path, tmp_path: Path) -> None:
    words = [
        "fit",
        str(many),
        "--out",
        str(tmp_path / "b"),
        "--budget",
        "2",
        "--config",
        "levels=1,2,4",
    ]
    words += ["--config", "policy=adaptive-consistency", "--config", f"run={tmp_path / 'run'}"]
    shown = CliRunner().invoke(cli, words)
    assert shown.exit_code == 0, shown.output
    assert "Verdict: " in shown.output
    assert "95 % interval" in shown.output
    document = json.loads(CliRunner().invoke(cli, [*words, "--json"]).stdout)
    assert document["next"] in shown.output
    assert document["steps_skipped"] == STEPS


def test_fit_prints_the_digest_and_warns_of_a_budget_that_cannot_be_spent(
    many: Path, tmp_path: Path
) -> None:
    bundle = tmp_path / "b"
    rule = [
        "--config",
        "policy=adaptive-consistency",
        "--config",
        "levels=1,2,4",
        "--out",
        str(bundle),
    ]
    for budget, n_lines in ((2, 0), (500, 1)):
        shown = CliRunner().invoke(cli, ["fit", str(many), *rule, "--budget", str(budget)])
        assert shown.exit_code == 0, shown.output
        assert f"Digest: {find_digest(bundle)}" in shown.stdout.splitlines()
        assert len([line for line in shown.stderr.splitlines() if "spend" in line]) == n_lines


def test_next_command_serves_a_gain_and_evaluates_without_one(
    many: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def judged(verdict: str) -> Callable[..., dict[str, Any]]:
        def judge(run: Path, **options: Any) -> dict[str, Any]:
            return {**calibrate_run(run, **options), "verdict": verdict}

        return judge

    for verdict, words in {
        "gain": ["serve", "--bundle", "--base-url", "--budget 2", "--grader GRADER"],
        "no gain": ["evaluate", str(tmp_path / "no gain" / "run")],
    }.items():
        monkeypatch.setattr("adacompute.stages.fit.calibrate_run", judged(verdict))
        result = fit_run(str(many), out=tmp_path / verdict, **QUICK)
        assert all(word in result["next"] for word in words)


@pytest.mark.slow
@pytest.mark.usefixtures("shared_results")
def test_example_has_a_gain(tmp_path: Path) -> None:
    result = fit_run("example", budget=2.0, out=tmp_path / "bundle")
    assert (result["policy"], result["verdict"]) == ("sequential", "gain")
    assert result["gain_low"] > 0.01
    assert result["gain_by_votes_low"] > 0.03
    assert result["next"].startswith("adacompute serve --bundle ")
