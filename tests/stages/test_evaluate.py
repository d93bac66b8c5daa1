"""Policies are scored on a run whose truth is known."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from adacompute.core import errors
from adacompute.core.errors import ConfigError, DataError, InfeasibleBudget
from adacompute.evaluation.factories import POLICY_FACTORIES, ROUTER
from adacompute.evaluation.recorded_data import RecordedData
from adacompute.evaluation.registry import list_policies
from adacompute.policies.bundles.bundle import load_bundle
from adacompute.stages import evaluate
from adacompute.stages.evaluate import evaluate_run
from adacompute.stages.import_samples import import_samples
from adacompute.stages.train import train_run

Rows = list[dict[str, Any]]


QUICK: dict[str, Any] = {"budgets": (1.5, 2.0), "levels": (1, 2, 4), "policies": ("mixture",)}


def artifacts(run: Path) -> dict[str, bytes]:
    """Return the files of a run, without hidden ones and kept results."""
    found = sorted(path for path in run.glob("[!.]*") if path.is_file())
    return {path.name: path.read_bytes() for path in found}


@pytest.fixture(scope="module")
def all_scores(
    tmp_path_factory: pytest.TempPathFactory, rows: Rows, write: Callable[[Path, Rows], Path]
) -> dict[str, Any]:
    """Return the scores of every policy."""
    place = tmp_path_factory.mktemp("all")
    import_samples(write(place / "source.parquet", rows), place / "run")
    return evaluate_run(place / "run", **{**QUICK, "policies": None})


@pytest.mark.slow
def test_all_policies_are_scored_by_default(
    all_scores: dict[str, Any],
) -> None:
    found = [(row["policy"], row["budget"]) for row in all_scores["rows"]]
    assert found == [(name, budget) for name in list_policies() for budget in (1.5, 2.0)]
    assert all_scores["skipped"] == {}
    assert set(POLICY_FACTORIES) <= set(list_policies())


@pytest.mark.slow
def test_scores_match_the_known_truth(all_scores: dict[str, Any]) -> None:
    cells = {(row["policy"], row["budget"]): row for row in all_scores["rows"]}
    fixed = cells["fixed", 1.5]
    assert (fixed["cost"], fixed["accuracy"]) == (1.0, pytest.approx(0.5))
    for budget in (1.5, 2.0):
        mixture, oracle = cells["mixture", budget], cells["oracle", budget]
        assert mixture["difference"] == 0.0
        assert oracle["headroom"] is None or oracle["headroom"] == pytest.approx(1.0)
        plain = cells["mixture-votes", budget]  # counts every sample once, as these two do
        assert cells["oracle-in-sample", budget]["accuracy"] > plain["accuracy"]
        assert cells["retry", budget]["accuracy"] > plain["accuracy"]
    summary = {name: all_scores[name] for name in ("questions", "excluded", "samples", "levels")}
    assert summary == {"questions": 24, "excluded": 0, "samples": 8, "levels": [1, 2, 4]}
    assert all_scores["levels_excluded"] == []
    assert all_scores["unparsed_share"] == 18 / 192


def test_finished_evaluation_is_skipped(run: Path) -> None:
    first = evaluate_run(run, **QUICK)
    before = {path.name: path.stat().st_mtime_ns for path in run.iterdir()}
    assert evaluate_run(run, **QUICK) == first
    assert {path.name: path.stat().st_mtime_ns for path in run.iterdir()} == before
    assert json.loads((run / "evaluation.json").read_text()) == first


@pytest.mark.parametrize("change", [{"budgets": (3.0,)}, {"levels": (1, 2)}, {"seed": 1}])
def test_evaluation_runs_again_when_an_argument_changes(run: Path, change: dict[str, Any]) -> None:
    first = evaluate_run(run, **QUICK)
    assert evaluate_run(run, **{**QUICK, **change}) != first


def test_policies_of_a_missing_extra_are_skipped(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = evaluate._Recorded(True, (), RecordedData(has_logprobs=True, has_lengths=True))
    with monkeypatch.context() as patch:
        patch.setattr(errors, "find_spec", lambda _: None)
        names, skipped = evaluate._select_policies(None, recorded)
    assert set(skipped) == {ROUTER}
    assert all("adacompute[router]" in sentence for sentence in skipped.values())
    assert set(names) == set(list_policies()) - set(skipped)
    found = evaluate._select_policies(None, recorded)
    assert found == (list(list_policies()), {})
    with pytest.raises(ConfigError, match="psychic"):
        evaluate_run(run, **{**QUICK, "policies": ("psychic",)})


@pytest.mark.parametrize(
    ("options", "kind", "sentence"),
    [
        ({"policies": ("mixture", "psychic")}, ConfigError, "'psychic'"),
        ({"unit": "bananas"}, ConfigError, "'bananas'"),
        ({"unit": "latency"}, ConfigError, "'latency'"),
        ({"unit": "money"}, ConfigError, "token prices"),
        ({"budgets": ()}, ConfigError, "budget"),
        ({"budgets": (math.nan,)}, ConfigError, "nan"),
        ({"budgets": (2.0, math.inf)}, ConfigError, "inf"),
        ({"budgets": (0.0,)}, ConfigError, "finite.* 0"),
        ({"budgets": (-1.0,)}, ConfigError, "-1"),
        ({"budgets": (0.5,)}, InfeasibleBudget, "below 1"),
        ({"levels": (2, 1)}, ConfigError, "levels"),
        ({"levels": ()}, ConfigError, "levels"),
        ({"levels": (9, 12)}, DataError, "0 of the levels 9, 12,"),
        ({"levels": (1,)}, DataError, "1 of the levels 1,"),
        ({"levels": (8, 9, 16)}, DataError, "1 of the levels 8, 9, 16,"),
        ({"seed": -1}, ConfigError, "seed"),
        ({"seed": 2**32}, ConfigError, "seed"),
    ],
)
def test_invalid_options_are_refused(
    run: Path, options: dict[str, Any], kind: type[Exception], sentence: str
) -> None:
    before = artifacts(run)
    with pytest.raises(kind, match=sentence):
        evaluate_run(run, **{**QUICK, **options})
    assert artifacts(run) == before


@pytest.mark.parametrize("count", [1, 2, 9])
def test_too_few_questions_are_refused(
    rows: Rows, make_run: Callable[[Rows], Path], count: int
) -> None:
    names = list(dict.fromkeys(row["question_id"] for row in rows))[:count]
    run = make_run([row for row in rows if row["question_id"] in names])
    with pytest.raises(DataError, match=f"{count} independent questions are too few"):
        evaluate_run(run, **QUICK)


@pytest.mark.parametrize("answer", ["7", "8", None])
def test_identical_samples_are_scored(
    rows: Rows, make_run: Callable[[Rows], Path], answer: str | None
) -> None:
    alike = [{**row, "answer": answer, "correct": answer == "7"} for row in rows]
    policies = ("mixture", "adaptive-consistency", "oracle", "oracle-in-sample")
    found = evaluate_run(make_run(alike), **{**QUICK, "policies": policies})["rows"]
    assert {row["accuracy"] for row in found} == {float(answer == "7")}
    assert {row["headroom"] for row in found} == {None}
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_costs_are_in_the_given_unit(run: Path) -> None:
    options = {**QUICK, "policies": ("mixture", "oracle"), "budgets": (11.0,)}
    result = evaluate_run(run, unit="tokens", **options)
    assert result["unit"] == "tokens"
    assert result["rows"][0]["cost"] == pytest.approx(11.0)


@pytest.mark.parametrize("unit", ["samples", "tokens"])
def test_default_budgets_are_multiples_of_the_sample_cost(
    run: Path, rows: Rows, tmp_path: Path, unit: str
) -> None:
    tokens = sum(row["completion_tokens"] for row in rows) / len(rows)
    each = {"samples": 1.0, "tokens": tokens}[unit]
    whole = [float(f"{n * each:.3g}") for n in (1.5, 2, 3, 4, 6)]
    options: dict[str, Any] = {"levels": (1, 2, 4), "unit": unit}
    found = evaluate_run(run, **options, policies=("mixture",))["rows"]
    assert [row["budget"] for row in found] == pytest.approx(whole)
    train_run(run, **options, policy="mixture", out=tmp_path / "bundle")
    trained = load_bundle(tmp_path / "bundle").notes["experiment"]["budgets"]
    assert list(trained) == pytest.approx(whole)


def test_free_samples_are_refused(
    rows: Rows, make_run: Callable[[Rows], Path], tmp_path: Path
) -> None:
    free = make_run([{**row, "completion_tokens": 0} for row in rows])
    with pytest.raises(DataError, match="cost nothing"):
        evaluate_run(free, budgets=(2.0,), policies=None, unit="tokens")
    with pytest.raises(DataError, match="cost nothing"):
        train_run(free, policy="mixture", out=tmp_path / "bundle", unit="tokens")
    assert not (tmp_path / "bundle").exists()
    once = [{**row, "completion_tokens": int(i == 0)} for i, row in enumerate(rows)]
    with pytest.raises(DataError, match="cost nothing"):
        evaluate_run(make_run(once), **{**QUICK, "levels": (1, 2)}, unit="tokens")


@pytest.mark.slow
@pytest.mark.usefixtures("all_assignments")
def test_killed_evaluation_runs_again_to_equal_bytes(tmp_path: Path, source: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for run in (whole, killed):
        import_samples(source, run)
    names = ["mixture", "adaptive-consistency", "oracle"]
    command = [sys.executable, "-m", "adacompute", "evaluate", str(killed), "--json"]
    command += ["--budgets", "1.5,2", "--levels", "1,2,4", "--policies", ",".join(names)]
    _kill_when_it_says(command, b"Evaluating")
    assert artifacts(killed).keys() == {"samples.parquet", "import.manifest.json"}
    again = subprocess.run(command, check=True, capture_output=True, timeout=60)
    undisturbed = evaluate_run(whole, budgets=(1.5, 2.0), levels=(1, 2, 4), policies=names)
    assert json.loads(again.stdout) == undisturbed
    assert artifacts(killed) == artifacts(whole)


def _kill_when_it_says(command: list[str], words: bytes) -> None:
    """Kill a command, whose standard error is a terminal, once its progress says some words."""
    ours, its = os.openpty()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=its)
    os.close(its)
    said = b""
    with process:
        while words not in said:
            said += os.read(ours, 1 << 12)
        process.send_signal(signal.SIGKILL)
        printed, _ = process.communicate(timeout=30)
    os.close(ours)
    assert process.returncode == -signal.SIGKILL
    assert printed == b""


def test_rounds_are_limited(run: Path) -> None:
    options: dict[str, Any] = {**QUICK, "policies": ("mixture", "early-stopping")}
    options |= {"evidence": "votes"}
    free = evaluate_run(run, **options)
    once = evaluate_run(run, **options, max_rounds=1)

    def accuracy(result: dict[str, Any]) -> dict[tuple[str, float], float]:
        return {(row["policy"], row["budget"]): row["accuracy"] for row in result["rows"]}

    for budget in (1.5, 2.0):
        same = pytest.approx(accuracy(free)["mixture", budget])
        assert accuracy(once)["mixture", budget] == same
    assert accuracy(once)["early-stopping", 2.0] <= accuracy(free)["early-stopping", 2.0]
    for result in (free, once):
        rounds = {(row["policy"], row["budget"]): row["rounds"] for row in result["rows"]}
        assert rounds["mixture", result["rows"][0]["budget"]] == pytest.approx(1.0)
        if result is free:
            assert rounds["early-stopping", 2.0] > 1
        if result is once:
            assert rounds["early-stopping", 2.0] == pytest.approx(1.0)
    with pytest.raises(ConfigError, match="round"):
        evaluate_run(run, **{**options, "policies": None, "max_rounds": 0})


def test_policies_that_need_texts_are_named_if_the_run_has_none(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    answer = rng.integers(0, 3, (30, 4))
    rows = {
        "question_id": [f"q{i}" for i in range(30) for _ in range(4)],
        "question": pa.nulls(120, pa.string()),
        "sample": list(range(4)) * 30,
        "answer": [str(one) for one in answer.ravel()],
        "correct": (answer == 0).ravel().tolist(),
    }
    pq.write_table(pa.table(rows), tmp_path / "samples.parquet")
    import_samples(tmp_path / "samples.parquet", tmp_path / "run")
    options: dict[str, Any] = {"budgets": [1.5], "levels": [1, 2]}
    result = evaluate_run(tmp_path / "run", **options)
    scored = {row["policy"] for row in result["rows"]}
    for name in ("router", "longest-first"):
        assert "texts" in result["skipped"][name]
        assert name not in scored
    with pytest.raises(ConfigError, match="texts"):
        evaluate_run(tmp_path / "run", policies=["router"], **options)
