"""Samples without grades become a bundle that answers as today's samples do."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import adacompute as ada
from adacompute.cli.main import cli
from adacompute.core.errors import ConfigError, DataError
from adacompute.core.votes import winner
from adacompute.options.shared import TodayOptions
from adacompute.policies.bundles.bundle import load_bundle
from adacompute.policies.bundles.bundle_checks import check_verdict
from adacompute.policies.bundles.bundle_files import find_digest
from adacompute.policies.stopping import VoteLeadRule
from adacompute.sampling.session import ParsedAnswer, Session
from adacompute.stages.calibrate import calibrate_run
from adacompute.stages.evaluate import evaluate_run
from adacompute.stages.fit import fit_run
from adacompute.stages.import_samples import import_samples
from adacompute.stages.report import report_run
from adacompute.stages.same_answer import describe_same_answer
from adacompute.stages.solve import solve_source
from adacompute.stages.train import train_run
from adacompute.storage.store import SAMPLES, Run

QUESTIONS, RECORDED = 120, 6


def make_rows(*, texts: bool = False) -> list[dict[str, Any]]:
    """Return ungraded samples; in texts, equal numbers are written in several ways."""
    rng = np.random.default_rng(0)
    rows: list[dict[str, Any]] = []
    for question in range(QUESTIONS):
        share = rng.beta(4, 1)
        for sample in range(RECORDED):
            number = int(rng.choice([7, 8, 9], p=[share, (1 - share) / 2, (1 - share) / 2]))
            text = [f"It is {number}.0", f"The answer is {number}", f"= {number}"][sample % 3]
            said = {"completion": text} if texts else {"answer": str(number)}
            rows.append({"question_id": f"q{question}", "sample": sample, **said})
    return rows


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.parquet"
    pq.write_table(pa.Table.from_pylist(make_rows()), path)
    return path


@pytest.fixture
def fitted(log: Path, tmp_path: Path) -> dict[str, Any]:
    return fit_run(str(log), today=TodayOptions("5"), out=tmp_path / "bundle")


def test_a_log_without_grades_says_what_is_saved(fitted: dict[str, Any], tmp_path: Path) -> None:
    today = fitted["today"]
    assert fitted["verdict"] == today["verdict"] == "same answer"
    assert (today["samples"], today["votes"], today["cost"], today["lead"]) == (5, "equal", 5.0, 2)
    assert 0.98 <= today["same_answer_low"] < today["same_answer"] < 1
    assert today["difference_bound"] == pytest.approx(1 - today["same_answer_low"])
    assert today["delivered_saving"] == pytest.approx(1 - today["delivered_cost"] / 5)
    assert 0 < today["repeat_agreement"] < 1
    assert (fitted["report"], fitted["notes"]) == (None, [])
    assert today["sentence"].startswith(f"5 samples → {today['delivered_cost']:.1f} per question")
    bundle = load_bundle(tmp_path / "bundle")
    assert bundle.notes["calibration"]["today"] == json.loads(json.dumps(today))
    assert [level.n_samples for level in bundle.policy.levels] == [1, 2, 3, 4, 5]
    assert bundle.policy.rules == (VoteLeadRule(2, 5),)  # type: ignore[attr-defined]
    (point,) = bundle.frontier
    assert (point.accuracy, point.cost) == (None, today["delivered_cost"])
    command = f"serve --bundle {tmp_path / 'bundle'} --base-url URL --budget {fitted['budget']:g}"
    assert command in fitted["next"]


def test_the_bundle_is_accepted_at_any_budget(fitted: dict[str, Any], tmp_path: Path) -> None:
    bundle = load_bundle(tmp_path / "bundle")
    for budget in (fitted["budget"], 4.0):
        check_verdict(bundle, budget, path="bundle", is_accepted=False)
        assert bundle.verdict(budget) == "same answer"
        assert bundle.price_for(budget) == fitted["price"]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6])
def test_a_decided_vote_answers_as_all_samples_in_a_session(
    log: Path, tmp_path: Path, size: int
) -> None:
    found = fit_run(str(log), today=TodayOptions(size), same_answer=1.0, out=tmp_path / "bundle")
    assert found["today"]["same_answer_low"] == found["today"]["same_answer"] == 1.0
    assert "always the same answer" in found["today"]["sentence"]
    policy = ada.load_policy(tmp_path / "bundle")
    answers = np.random.default_rng(size).integers(-1, 3, (300, size))
    for row in answers:
        session: Session = policy.start("question", budget=found["budget"])
        drawn = 0
        while (request := session.ask()) is not None:
            more = row[drawn : drawn + request.n]
            session.tell([ParsedAnswer(None if one < 0 else str(one)) for one in more])
            drawn += request.n
        chosen = int(winner(row[None, :])[0])
        assert session.answer == (None if chosen < 0 else str(row[chosen]))


def test_a_grader_compares_answers_without_reference_answers(tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in make_rows(texts=True)))
    with pytest.raises(DataError, match="there are completions and no answers"):
        fit_run(str(path), today=TodayOptions("5"), out=tmp_path / "bundle")
    found = fit_run(str(path), today=TodayOptions("5"), grader="numeric", out=tmp_path / "bundle")
    bundle = load_bundle(tmp_path / "bundle")
    assert (bundle.grader, found["today"]["lead"]) == ("numeric", 2)
    assert set(Run(Path(found["run"])).recorded_samples()["answer"].unique().to_pylist()) == {
        *("7", "8", "9")
    }


def test_a_run_without_grades_is_refused_where_grades_are_needed(
    fitted: dict[str, Any], tmp_path: Path
) -> None:
    run, bundle = Path(fitted["run"]), tmp_path / "bundle"
    assert not Run(run).is_graded
    assert pq.read_table(run / SAMPLES)["correct"].null_count == QUESTIONS * RECORDED
    stages: list[Callable[[], object]] = [
        lambda: solve_source(run, budget=2.0),
        lambda: train_run(run, policy="mixture", out=tmp_path / "other"),
        lambda: calibrate_run(run, bundle=bundle, budget=3.0),
        lambda: evaluate_run(run),
        lambda: report_run(run, out=tmp_path / "page.html"),
        lambda: ada.read_samples(run),
    ]
    for stage in stages:
        with pytest.raises(DataError, match=r"have no grades, which this needs: .*fit SOURCE"):
            stage()


def test_without_today_samples_without_grades_are_refused_before_a_run_is_made(
    log: Path, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=r"no column 'correct'.*fit SOURCE --today N"):
        fit_run(str(log), budget=2.0, out=tmp_path / "bundle")
    with pytest.raises(DataError, match="no column 'correct'"):
        import_samples(log, tmp_path / "bundle" / "run")
    assert not (tmp_path / "bundle" / "run").exists()


@pytest.mark.parametrize(("name", "suffix"), [("is_correct", ".csv"), ("Correct", ".jsonl")])
def test_grades_under_another_name_are_used(tmp_path: Path, name: str, suffix: str) -> None:
    path, rows = tmp_path / f"samples{suffix}", [{**row, name: True} for row in make_rows()]
    if suffix == ".csv":
        pa_csv.write_csv(pa.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    import_samples(path, tmp_path / "run")
    assert Run(tmp_path / "run").is_graded


def test_more_samples_than_are_recorded_are_said_and_do_not_fail(log: Path, tmp_path: Path) -> None:
    found = fit_run(str(log), today=TodayOptions("9"), out=tmp_path / "bundle")["today"]
    assert (found["samples"], found["wanted_samples"]) == (6, 9)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"today": TodayOptions("5:weighted")}, "--today 5:weighted needs grades"),
        ({"today": TodayOptions("high:5")}, "--today high:5 needs grades"),
        ({"today": TodayOptions("0")}, "from 1, .*'0'"),
        ({"today": TodayOptions("5"), "budget": 2.0}, "budget needs grades"),
        ({"today": TodayOptions("5"), "policy": "decided-votes"}, "policy needs grades"),
        ({"today": TodayOptions("5"), "same_answer": 0.0}, "above 0 and at most 1, got 0"),
        ({}, "give --budget, .*or --today"),
    ],
)
def test_options_that_need_grades_are_refused(
    log: Path, tmp_path: Path, options: dict[str, Any], why: str
) -> None:
    with pytest.raises((ConfigError, DataError), match=why):
        fit_run(str(log), out=tmp_path / "bundle", **options)
    assert not (tmp_path / "bundle" / "bundle.json").exists()


def test_samples_with_grades_can_be_fitted_to_the_same_answer(tmp_path: Path) -> None:
    found = fit_run("example", today=TodayOptions("5"), same_answer=1.0, out=tmp_path / "bundle")
    assert (found["verdict"], found["today"]["lead"]) == ("same answer", 5)
    assert 0 < found["today"]["delivered_saving"] < 0.4


def test_the_command_prints_the_sentence_and_the_next_command(log: Path, tmp_path: Path) -> None:
    words = ["fit", str(log), "--today", "5", "--out", str(tmp_path / "bundle")]
    printed = CliRunner().invoke(cli, words)
    assert printed.exit_code == 0, printed.output
    text = " ".join(printed.output.split())
    assert "Same answer. 5 samples → " in text
    assert "whatever the right answers are. Two runs of 5 agree in " in text
    assert "adacompute serve --bundle" in text
    document = json.loads(CliRunner().invoke(cli, [*words, "--json"]).output)
    assert document["steps_skipped"] == ["import"]


def test_costs_in_tokens_are_said_in_tokens() -> None:
    today = {"samples": 5, "cost": 1000.0, "delivered_cost": 600.0, "delivered_saving": 0.4}
    today |= {"same_answer": 0.991, "same_answer_low": 0.9874}
    assert describe_same_answer(today, "tokens") == (
        "5 samples: 1000 → 600 tokens per question: 40 % less; same answer as 5 in 99.1 % (at "
        "least 98.7 %), so accuracy changes by at most 1.3 points, whatever the right answers are."
    )


def write_log(path: Path, *, grades: str | None = "correct", answer: str = "answer") -> Path:
    """Write five samples of each question, with or without grades, as CSV."""
    rows = []
    for row in make_rows():
        if row["sample"] < 5:
            known = {"question": row["question_id"], "sample": row["sample"], "gold": "7"}
            graded = {} if grades is None else {grades: row["answer"] == "7"}
            rows.append({**known, answer: row["answer"], **graded})
    pa_csv.write_csv(pa.Table.from_pylist(rows), path)
    return path


def test_grades_never_make_the_first_line_say_less(tmp_path: Path) -> None:
    fitted = {
        grades: fit_run(
            str(write_log(tmp_path / f"{grades}.csv", grades=grades)),
            today=TodayOptions("5"),
            out=tmp_path / f"{grades}",
        )
        for grades in ("correct", None)
    }
    graded, ungraded = fitted["correct"], fitted[None]
    assert graded["today"]["verdict"] in ("inconclusive", "no saving")
    assert graded["same_answer"]["sentence"] == ungraded["today"]["sentence"]
    assert graded["same_answer"]["delivered_saving"] > 0.3
    words = ["fit", str(tmp_path / "correct.csv"), "--today", "5", "--out"]
    printed = CliRunner().invoke(cli, [*words, str(tmp_path / "correct")]).stdout
    lines = [line for line in printed.splitlines() if not line.startswith("Skipped")]
    assert lines[0].startswith("Same answer. 5 samples → ")
    assert "With grades:" in lines


def test_an_arm_by_name_is_not_compared_without_grades(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.csv")
    found = fit_run(str(log), today=TodayOptions("default:5"), out=tmp_path / "bundle")
    assert (found["today"]["verdict"], found["same_answer"]) == ("inconclusive", None)


def test_where_all_samples_are_used_up_more_of_them_are_the_remedy(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.csv")
    today = fit_run(str(log), today=TodayOptions("5"), out=tmp_path / "bundle")["today"]
    assert today["verdict"] == "inconclusive"
    assert today["samples_needed"] == 8


@pytest.mark.parametrize(
    ("grades", "options"),
    [
        ("is right", ["--columns", "correct=is right,answer=the answer", "--today", "5"]),
        (None, ["--columns", "answer=the answer", "--today", "5"]),
        ("is right", ["--columns", "correct=is right,answer=the answer", "--budget", "2"]),
    ],
)
def test_the_next_command_runs_as_printed(
    tmp_path: Path, grades: str | None, options: list[str]
) -> None:
    log = write_log(tmp_path / "my log.csv", grades=grades, answer="the answer")
    words = ["fit", str(log), *options, "--out", str(tmp_path / "my bundle")]
    commands: list[str] = []
    while words[0] == "fit":
        assert len(commands) < 3
        digest = find_digest(tmp_path / "my bundle") if commands else None
        shown = CliRunner().invoke(cli, [*words, "--json"])
        assert shown.exit_code == 0, shown.output
        assert digest in (None, find_digest(tmp_path / "my bundle"))
        commands.append(json.loads(shown.stdout)["next"])
        words = shlex.split(commands[-1])[1:]
    known = {"URL": "http://127.0.0.1:9/v1", "MODEL": "m", "GRADER": "numeric"}  # ours to fill in
    words = [known.get(word, word) for word in words]
    words += {"serve": ["--check"], "evaluate": ["--policies", "mixture"]}[words[0]]
    shown = CliRunner().invoke(cli, words)
    assert shown.exit_code == 0, shown.output
