"""What a stage of a run has computed is read by later ones, in whatever process they run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from adacompute.evaluation.experiment import Experiment, PolicyFactory
from adacompute.evaluation.factories import find_factory
from adacompute.evaluation.run_results import RunResults
from adacompute.evaluation.scoring import held_out, oracles
from adacompute.stages import report
from adacompute.stages.calibrate import calibrate_run
from adacompute.stages.evaluate import evaluate_run
from adacompute.stages.fit import fit_run
from adacompute.stages.import_samples import import_samples
from adacompute.stages.report import report_run
from adacompute.stages.train import train_run
from adacompute.storage.result_files import DIRECTORY

Rows = list[dict[str, Any]]
LEVELS = (1, 2, 4)
OPTIONS: dict[str, Any] = {"budget": 2.0, "policy": "adaptive-consistency", "levels": LEVELS}


def double(rows: Rows) -> Rows:
    """Return two questions for each one: enough to calibrate on."""
    texts = [{**row, "question": f"Part {i}: {row['question']}"} for i in range(2) for row in rows]
    return [{**row, "question_id": row["question"]} for row in texts]


@pytest.fixture(scope="module")
def original(
    tmp_path_factory: pytest.TempPathFactory, rows: Rows, write: Callable[[Path, Rows], Path]
) -> Path:
    """Return the directory of a bundle and its run, fitted to 48 questions."""
    directory = tmp_path_factory.mktemp("fitted")
    source = write(directory / "samples.parquet", double(rows))
    fit_run(str(source), out=directory / "bundle", **OPTIONS)
    return directory


@pytest.fixture
def fitted(original: Path, tmp_path: Path) -> Path:
    """Return a copy of the directory of the bundle and its run."""
    return Path(shutil.copytree(original, tmp_path / "copy"))


@pytest.fixture
def run(fitted: Path) -> Path:
    return fitted / "bundle" / "run"


@pytest.fixture
def forbid(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function after whose call nothing can be fitted, scored or drawn."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise AssertionError

    def forbid_all() -> None:
        for name in ("cross_fitted_oracle", "evidence_oracle"):
            monkeypatch.setattr(oracles, name, refuse)
        monkeypatch.setattr(held_out, "replay_splits", refuse)
        monkeypatch.setattr(Experiment, "fit_final", refuse)
        monkeypatch.setattr(report, "render", refuse)

    return forbid_all


def test_report_reads_what_fit_computed(
    original: Path, tmp_path: Path, forbid: Callable[[], None]
) -> None:
    forbid()
    run, out = original / "bundle" / "run", tmp_path / "again.html"
    report_run(run, out=out)
    assert out.read_bytes() == (run / "report.html").read_bytes()


def test_calibrate_reads_what_fit_computed(fitted: Path, forbid: Callable[[], None]) -> None:
    forbid()
    result = calibrate_run(fitted / "bundle" / "run", bundle=fitted / "bundle", budget=3.0)
    assert result["budget"] == 3.0


@pytest.fixture
def scored(monkeypatch: pytest.MonkeyPatch) -> list[PolicyFactory]:
    """Return a list to which every policy is added that is fitted in folds."""
    factories, replay_splits = [], held_out.replay_splits

    def replay(experiment: Experiment, factory: PolicyFactory, splits: Any) -> Any:
        factories.append(factory)
        return replay_splits(experiment, factory, splits)

    monkeypatch.setattr(held_out, "replay_splits", replay)
    return factories


def test_evaluate_reads_what_fit_computed(run: Path, scored: list[PolicyFactory]) -> None:
    names = ["adaptive-consistency", "router"]
    evaluate_run(run, levels=LEVELS, policies=names, budgets=[1.5, 2.5])
    assert find_factory("router") in scored
    assert find_factory("adaptive-consistency") not in scored


def test_evaluate_reads_folds_that_calibrate_computed(
    fitted: Path, tmp_path: Path, scored: list[PolicyFactory]
) -> None:
    run, out = fitted / "bundle" / "run", tmp_path / "other"
    shutil.rmtree(run / DIRECTORY)
    train_run(run, policy="adaptive-consistency", out=out, levels=LEVELS)
    calibrate_run(run, bundle=out, budget=2.0)
    scored.clear()
    evaluate_run(run, levels=LEVELS, policies=["adaptive-consistency", "retry", "fixed"])
    assert find_factory("fixed") in scored
    assert find_factory("adaptive-consistency") not in scored


@pytest.mark.parametrize("damage", ["missing", "truncated", "altered", "empty"])
def test_damaged_results_are_computed_again(run: Path, damage: str) -> None:
    names = ["mixture", "adaptive-consistency", "sequential", "oracle"]
    expected = evaluate_run(run, levels=LEVELS, policies=names)
    (run / "evaluate.manifest.json").unlink()
    for path in (run / DIRECTORY).iterdir():
        content = path.read_bytes()
        if damage == "missing":
            path.unlink()
        else:
            half = len(content) // 2
            altered = content[:half] + bytes([content[half] ^ 255]) + content[half + 1 :]
            left = {"truncated": content[:half], "altered": altered, "empty": b""}
            path.write_bytes(left[damage])
    assert evaluate_run(run, levels=LEVELS, policies=names) == expected


@pytest.mark.parametrize(
    "options", [{"seed": 1}, {"levels": (1, 2)}, {"budgets": (2.5,)}, {"unit": "tokens"}]
)
def test_other_options_are_not_answered_by_kept_results(
    run: Path, forbid: Callable[[], None], options: dict[str, Any]
) -> None:
    forbid()
    with pytest.raises(AssertionError):
        evaluate_run(run, **{"levels": LEVELS, "policies": ["mixture"], **options})


def test_other_code_is_not_answered_by_kept_results(
    run: Path, forbid: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adacompute.evaluation.run_results.code_version", lambda: "other")
    forbid()
    with pytest.raises(AssertionError):
        evaluate_run(run, levels=LEVELS, policies=["mixture"])


def test_other_samples_are_not_answered_by_kept_results(
    run: Path,
    rows: Rows,
    write: Callable[[Path, Rows], Path],
    tmp_path: Path,
    forbid: Callable[[], None],
) -> None:
    changed = [{**row, "correct": row["answer"] == "8"} for row in double(rows)]
    other = tmp_path / "other.run"
    import_samples(write(tmp_path / "other.parquet", changed), other)
    shutil.copytree(run / DIRECTORY, other / DIRECTORY)
    forbid()
    with pytest.raises(AssertionError):
        evaluate_run(other, levels=LEVELS, policies=["mixture"])


def test_report_is_about_the_policy_that_was_fitted_last(run: Path, tmp_path: Path) -> None:
    result = report_run(run, out=tmp_path / "page.html")
    assert result["policy"] == "adaptive-consistency"
    document = json.loads((run / "report.json").read_text())
    assert (document["levels"], document["budget"]) == (list(LEVELS), 2.0)
    assert "adaptive-consistency" in (tmp_path / "page.html").read_text()
    other = report_run(run, out=tmp_path / "page.html", policy="adaptive-consistency", budget=3.0)
    assert (other["policy"], other["budget"]) == ("adaptive-consistency", 3.0)


def test_report_takes_all_that_fit_was_given(
    rows: Rows,
    write: Callable[[Path, Rows], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    priced = [{**row, "prompt_tokens": 20, "model": "own"} for row in double(rows)]
    source = write(tmp_path / "priced.parquet", priced)
    (tmp_path / "prices.toml").write_text("[models.listed]\ninput = 1.0\noutput = 4.0\n")
    monkeypatch.chdir(tmp_path)
    options: dict[str, Any] = {"policy": "decided-votes", "levels": LEVELS, "budget": 0.0001}
    options |= {"unit": "money", "token_prices": Path("prices.toml"), "price_as": {"own": "listed"}}
    fit_run(str(source), out=tmp_path / "bundle", seed=3, **options)
    expected = json.loads((tmp_path / "bundle" / "run" / "report.json").read_text())
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    none: dict[str, Any] = {"price_as": {}, "unit": None}
    result = report_run(tmp_path / "bundle" / "run", out=tmp_path / "page.html", **none)
    assert (result["policy"], result["unit"], result["budget"]) == (
        "decided-votes",
        "money",
        0.0001,
    )
    assert json.loads((tmp_path / "bundle" / "run" / "report.json").read_text()) == expected


def test_report_in_another_unit_does_not_take_the_fitted_budget(run: Path, tmp_path: Path) -> None:
    result = report_run(run, out=tmp_path / "page.html", unit="tokens")
    assert (result["policy"], result["unit"]) == ("adaptive-consistency", "tokens")
    assert result["budget"] > 4.0


def test_report_has_no_other_options(run: Path, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="colour"):
        report_run(run, out=tmp_path / "page.html", colour="red")
    with pytest.raises(TypeError, match="evidence"):
        report_run(run, out=tmp_path / "page.html", evidence="votes")


def test_stages_of_one_process_share_experiments(run: Path) -> None:
    results = RunResults.of(run)
    evaluate_run(run, levels=LEVELS, policies=["mixture"], results=results)
    evaluate_run(run, levels=LEVELS, policies=["retry"], results=results)
    assert len(results._experiments) == 1
