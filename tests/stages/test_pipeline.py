"""Every stage from a file to an allocation, on samples whose truth is known."""

from __future__ import annotations

import itertools
import math
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from adacompute.core.errors import ConfigError, DataError, GraderError, InfeasibleBudget
from adacompute.stages.estimate import estimate_run
from adacompute.stages.grade import grade_run
from adacompute.stages.import_samples import import_samples
from adacompute.stages.solve import solve_run
from adacompute.storage import store

Rows = list[dict[str, Any]]


def artifacts(run: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(run.iterdir())}


def times(run: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in sorted(run.iterdir())}


def by_question(rows: Rows) -> dict[str, Rows]:
    questions: dict[str, Rows] = {}
    for row in rows:
        questions.setdefault(row["question_id"], []).append(row)
    return questions


def majority(samples: tuple[dict[str, Any], ...]) -> float:
    """Chance that the vote of some samples is right, in plain words."""
    votes = Counter(row["answer"] for row in samples if row["answer"] is not None)
    leaders = [answer for answer, count in votes.items() if count == max(votes.values())]
    return leaders.count("7") / len(leaders) if leaders else 0.0


def weighted(samples: tuple[dict[str, Any], ...]) -> float:
    weight: dict[str, float] = {}
    for row in samples:
        if row["answer"] is not None:
            own = math.exp(np.float32(row["mean_logprob"]))
            weight[row["answer"]] = weight.get(row["answer"], 0.0) + own
    return float(max(weight, key=lambda answer: weight[answer]) == "7") if weight else 0.0


def best(samples: tuple[dict[str, Any], ...]) -> float:
    read = [row for row in samples if row["answer"] is not None]
    return float(max(read, key=lambda row: row["mean_logprob"])["correct"]) if read else 0.0


def some(samples: tuple[dict[str, Any], ...]) -> float:
    return float(any(row["correct"] for row in samples))


Vote = Callable[[tuple[dict[str, Any], ...]], float]


def expected_utility(rows: Rows, size: int, vote: Vote) -> float:
    """Average a vote over every subset of each question's samples."""
    means = [
        np.mean([vote(subset) for subset in itertools.combinations(own, size)])
        for own in by_question(rows).values()
    ]
    return float(np.mean(means))


def test_importing_counts_what_was_imported(source: Path, tmp_path: Path) -> None:
    result = import_samples(source, tmp_path / "run", model="m", grader="numeric")
    assert result == {
        "questions": 24,
        "samples": 192,
        "unparsed": 18,
        "correct": 96,
        "model": "m",
        "grader": "numeric",
    }


STAGES: Mapping[str, Callable[[Path], dict[str, Any]]] = {
    "import": lambda run: import_samples(run.with_name("source.parquet"), run),
    "grade": lambda run: grade_run(run, grader="numeric"),
    "estimate": lambda run: estimate_run(run, levels=(1, 2, 4)),
    "solve": lambda run: solve_run(run, budget=2.0),
}


def test_a_finished_stage_is_skipped_and_returns_what_it_returned(run: Path) -> None:
    results = {name: stage(run) for name, stage in STAGES.items()}
    before = times(run)
    assert len(before) == 8
    for name, stage in STAGES.items():
        assert stage(run) == results[name]
    assert times(run) == before


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_that_was_stopped_before_its_manifest_runs_again_to_equal_bytes(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    assert source.is_file()
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    for run in (whole, stopped):
        for name, do in STAGES.items():
            if run == stopped and name == stage:
                with monkeypatch.context() as patch:
                    patch.setattr(store, "write_manifest", _crash)
                    with pytest.raises(KeyboardInterrupt):
                        do(run)
                assert f"{stage}.manifest.json" not in artifacts(run)
            do(run)
    assert artifacts(stopped) == artifacts(whole)


def _crash(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_run_takes_no_samples_of_another_source(
    run: Path, rows: Rows, write: Callable[[Path, Rows], Path], tmp_path: Path
) -> None:
    before = artifacts(run)
    other = write(tmp_path / "other.parquet", rows[:-1])
    with pytest.raises(DataError, match="already holds samples of another source"):
        import_samples(other, run)
    assert artifacts(run) == before


def test_the_same_samples_can_be_imported_again_under_a_model_s_name(
    run: Path, source: Path
) -> None:
    before = artifacts(run)["samples.parquet"]
    assert import_samples(source, run, model="m")["model"] == "m"
    assert artifacts(run)["samples.parquet"] == before


def test_a_file_cannot_become_a_run(source: Path) -> None:
    with pytest.raises(DataError, match="is no directory"):
        import_samples(source, source)


@pytest.mark.parametrize(
    ("grader", "unparsed", "correct"), [("numeric", 18, 96), ("exact", 0, 0), ("choice", 18, 96)]
)
def test_completions_are_graded_again(run: Path, grader: str, unparsed: int, correct: int) -> None:
    result = grade_run(run, grader=grader)
    assert result["from"] == "completion"
    assert (result["samples"], result["correct"]) == (192, correct)
    assert (result["unparsed"], result["changed"]) == (unparsed, 96 - correct)
    assert result["unparsed_share"] == unparsed / 192


def test_recorded_answers_are_graded_where_a_completion_is_missing(
    rows: Rows, make_run: Callable[[Rows], Path]
) -> None:
    without = [{**row, "completion": None} if i == 5 else row for i, row in enumerate(rows)]
    result = grade_run(make_run(without), grader="exact")
    assert (result["from"], result["correct"], result["unparsed"]) == ("answer", 96, 18)


def test_grades_go_to_their_samples_whatever_the_order_of_the_file(
    rows: Rows, make_run: Callable[[Rows], Path]
) -> None:
    mixed = sorted(rows, key=lambda row: (row["sample"] * 5 % 8, row["question_id"]))
    run = make_run([{**row, "answer": None, "correct": False} for row in mixed])
    assert grade_run(run, grader="numeric")["correct"] == 96
    graded = store.Run(run).samples().to_pylist()
    assert [row["answer"] for row in graded] == [row["answer"] for row in mixed]
    assert [row["correct"] for row in graded] == [row["correct"] for row in mixed]


SCRIPT = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if asked["op"] == "extract":
        last = asked["text"].rstrip(".").split()[-1]
        answer = {"answer": last if last.isdigit() else None}
    else:
        answer = {"equal": int(asked["left"]) % 2 == int(asked["right"]) % 2}
    print(json.dumps(answer), flush=True)
"""


def test_a_program_of_the_user_s_own_grades_and_is_asked_every_time(
    run: Path, tmp_path: Path
) -> None:
    script = tmp_path / "grader.py"
    script.write_text(SCRIPT)
    command = f"cmd:{sys.executable} {script}"
    result = grade_run(run, grader=command)
    assert (result["unparsed"], result["correct"]) == (18, 96 + 2 * 6 + 6)  # 9 is odd as 7 is
    script.write_text(SCRIPT.replace("% 2", "% 8"))
    assert grade_run(run, grader=command)["correct"] == 96


def test_a_program_that_fails_is_reported_and_leaves_the_run_as_it_was(
    run: Path, tmp_path: Path
) -> None:
    script = tmp_path / "grader.py"
    script.write_text("import sys; sys.exit('no licence')")
    before = artifacts(run)
    with pytest.raises(GraderError, match=r"ended with code 1; it printed 'no licence'"):
        grade_run(run, grader=f"cmd:{sys.executable} {script}")
    assert artifacts(run) == before


def test_a_question_that_cannot_be_graded_is_named(
    rows: Rows, make_run: Callable[[Rows], Path]
) -> None:
    without = [{**row, "gold": None} for row in rows]
    with pytest.raises(DataError, match=r"question 'easy/0': .* no reference answer"):
        grade_run(make_run(without), grader="numeric")
    unparsed = [{**row, "gold": "seven" if "fair/3" in row["question_id"] else "7"} for row in rows]
    with pytest.raises(DataError, match=r"question 'fair/3': the numeric grader cannot read .*sev"):
        grade_run(make_run(unparsed), grader="numeric")


def test_estimate_uses_the_grades_of_the_last_grading(run: Path) -> None:
    before = estimate_run(run, levels=(1,))["levels"][0]["utility"]
    assert before == 96 / 192
    grade_run(run, grader="exact")
    assert estimate_run(run, levels=(1,))["levels"][0]["utility"] == 0.0
    grade_run(run, grader="numeric")
    assert estimate_run(run, levels=(1,))["levels"][0]["utility"] == before


def test_solve_refuses_utilities_from_before_the_last_grading(run: Path) -> None:
    estimate_run(run, levels=(1, 2))
    solve_run(run, budget=1.5)
    grade_run(run, grader="exact")
    with pytest.raises(DataError, match=r"made from other samples or grades: run 'adacompute est"):
        solve_run(run, budget=1.5)
    estimate_run(run, levels=(1, 2))
    assert solve_run(run, budget=1.5)["utility"] == 0.0


@pytest.mark.parametrize("change", [{"levels": (1, 4)}, {"method": "windows"}, {"vote": "any"}])
def test_estimate_runs_again_when_an_argument_changes(run: Path, change: dict[str, Any]) -> None:
    first = estimate_run(run, levels=(1, 2))
    before = artifacts(run)
    again = estimate_run(run, **{"levels": (1, 2), **change})
    assert again != first
    assert artifacts(run)["utility.parquet"] != before["utility.parquet"]


@pytest.mark.parametrize(
    ("vote", "rule", "tolerance"),
    [
        ("majority", majority, 1e-12),
        ("best-of", best, 1e-12),
        ("any", some, 1e-12),
        ("weighted", weighted, 0.02),  # by 400 random subsets a question
    ],
)
def test_utilities_are_means_over_all_subsets(
    run: Path, rows: Rows, vote: str, rule: Vote, tolerance: float
) -> None:
    result = estimate_run(run, levels=(1, 2, 5, 8), vote=vote)
    assert [row["level"] for row in result["levels"]] == [1, 2, 5, 8]
    found = [row["utility"] for row in result["levels"]]
    truth = [expected_utility(rows, size, rule) for size in (1, 2, 5, 8)]
    np.testing.assert_allclose(found, truth, atol=tolerance, rtol=0)


def test_windows_and_single_trials_are_those_of_the_samples_in_order(run: Path, rows: Rows) -> None:
    windows = estimate_run(run, levels=(4,), method="windows")["levels"][0]["utility"]
    own = by_question(rows).values()
    truth = [majority(tuple(q[at : at + 4])) for q in own for at in (0, 4)]
    assert windows == pytest.approx(np.mean(truth))
    single = estimate_run(run, levels=(1,), method="single")["levels"][0]["utility"]
    assert single == pytest.approx(np.mean([q[0]["correct"] for q in own]))


def test_the_standard_error_is_that_of_questions_and_there_is_none_of_one_question(
    run: Path, rows: Rows, make_run: Callable[[Rows], Path]
) -> None:
    means = [np.mean([row["correct"] for row in own]) for own in by_question(rows).values()]
    found = estimate_run(run, levels=(1,))["levels"][0]["standard_error"]
    assert found == pytest.approx(np.std(means, ddof=1) / math.sqrt(24))
    alone = make_run([row for row in rows if row["question_id"] == "fair/0"])
    assert estimate_run(alone, levels=(1,))["levels"][0]["standard_error"] is None


def test_copies_of_a_question_do_not_make_the_standard_error_smaller(
    rows: Rows, make_run: Callable[[Rows], Path]
) -> None:
    copies = [{**row, "question_id": f"copy of {row['question_id']}"} for row in rows]
    found = [
        estimate_run(make_run(own), levels=(1,))["levels"][0]["standard_error"]
        for own in (rows, rows + copies)
    ]
    assert found[1] == pytest.approx(found[0])


def test_scores_are_needed_of_readable_samples_only(
    rows: Rows, make_run: Callable[[Rows], Path]
) -> None:
    unread = [{**row, "mean_logprob": None if row["answer"] is None else -0.5} for row in rows]
    assert estimate_run(make_run(unread), levels=(1,), vote="best-of")["questions"] == 24
    unscored = [{**row, "mean_logprob": None} for row in rows]
    with pytest.raises(DataError, match=r"'weighted' needs mean_logprob .* 174 have none"):
        estimate_run(make_run(unscored), levels=(1,), vote="weighted")
    absurd = [{**row, "mean_logprob": 1e30} for row in rows]
    with pytest.raises(DataError, match="finite score"):
        estimate_run(make_run(absurd), levels=(1,), vote="weighted")


@pytest.mark.parametrize("levels", [(), (2, 1), (1, 1), (0, 1), (-1,), (1, 2**31)])
def test_levels_that_do_not_rise_from_one_are_refused(run: Path, levels: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="levels are rising whole numbers from 1"):
        estimate_run(run, levels=levels)


def test_levels_above_the_recorded_samples_are_refused(run: Path) -> None:
    with pytest.raises(DataError, match=r"need 9 samples of every question, one has 8"):
        estimate_run(run, levels=(1, 9))


def test_the_allocation_is_the_best_there_is(run: Path) -> None:
    estimate_run(run, levels=(1, 4))
    found = solve_run(run, budget=1.75)
    table = pq.read_table(run / "allocation.parquet").to_pylist()
    bought = {row["question_id"].partition("/")[0] for row in table if row["level"] == 4}
    assert found["cost"] == 1.75
    assert bought == {"slow"}
    assert found["shares"] == {"1": 0.75, "4": 0.25}
    assert found["split"] == []
    assert found["gap"] == pytest.approx(0.0, abs=1e-12)


def test_what_a_level_too_many_would_cost_is_split(run: Path) -> None:
    estimate_run(run, levels=(1, 4))
    found = solve_run(run, budget=1.8)
    assert found["cost"] == 1.75
    (split,) = found["split"]
    assert split["level"] == 4
    assert found["mixed_cost"] == pytest.approx(1.8)
    assert found["utility"] < found["mixed_utility"] <= found["bound"] + 1e-12
    assert found["gap"] == pytest.approx(found["bound"] - found["utility"])


def test_the_paper_s_bisection_agrees(run: Path) -> None:
    estimate_run(run, levels=(1, 2, 4, 8))
    exact = solve_run(run, budget=2.0)
    bisected = solve_run(run, budget=2.0, method="bisect")
    assert bisected["cost"] <= 2.0
    assert bisected["mixed_utility"] == pytest.approx(exact["mixed_utility"])


def question_means(rows: Rows, column: str) -> list[float]:
    return [float(np.mean([row[column] for row in own])) for own in by_question(rows).values()]


@pytest.mark.parametrize(
    ("unit", "column"),
    [
        ("tokens", "completion_tokens"),
        ("characters", "completion_chars"),
        ("seconds", "latency_s"),
    ],
)
def test_costs_in_a_unit_are_the_recorded_ones(
    run: Path, rows: Rows, unit: str, column: str
) -> None:
    estimate_run(run, levels=(1, 2))
    each = float(np.mean(question_means(rows, column)))
    whole = solve_run(run, budget=2.1 * each, unit=unit)
    assert whole["unit"] == unit
    bought = {
        row["question_id"]: row["level"]
        for row in pq.read_table(run / "allocation.parquet").to_pylist()
    }
    means = dict(zip(by_question(rows), question_means(rows, column), strict=True))
    spent = np.mean([means[name] * level for name, level in bought.items()])
    assert whole["cost"] == pytest.approx(spent, abs=1e-6)
    with pytest.raises(InfeasibleBudget, match="below"):
        solve_run(run, budget=0.9 * each, unit=unit)


def test_a_limit_on_characters_holds(run: Path, rows: Rows) -> None:
    estimate_run(run, levels=(1, 4))
    each = float(np.mean(question_means(rows, "completion_chars")))
    free = solve_run(run, budget=2.5)
    held = solve_run(run, budget=2.5, limits={"characters": 1.5 * each})
    report = held["limits"]["characters"]
    assert report["cost"] <= report["limit"] == 1.5 * each
    assert report["price"] > 0
    assert held["utility"] < free["utility"]
    assert held["mixed_cost"] <= 2.5 + 1e-9


def test_latency_is_the_expected_slowest_of_samples_drawn_at_once(run: Path, rows: Rows) -> None:
    levels = (1, 3, 8)
    estimate_run(run, levels=levels)
    found = solve_run(run, budget=8.0, limits={"latency": 100.0})
    chosen = {
        row["question_id"]: row["level"]
        for row in pq.read_table(run / "allocation.parquet").to_pylist()
    }
    assert len(set(chosen.values())) > 1
    slowest = [
        np.mean([max(s) for s in itertools.combinations([r["latency_s"] for r in own], chosen[q])])
        for q, own in by_question(rows).items()
    ]
    assert found["limits"]["latency"]["cost"] == pytest.approx(np.mean(slowest), abs=1e-6)


@pytest.mark.parametrize(
    ("options", "kind", "sentence"),
    [
        ({"budget": 0.5}, InfeasibleBudget, r"budget of 0.5 is below 1"),
        ({"budget": 0.0}, InfeasibleBudget, r"below 1"),
        ({"budget": -3.0}, InfeasibleBudget, r"below 1"),
        ({"budget": math.nan}, ConfigError, r"finite number, got nan"),
        ({"budget": math.inf}, ConfigError, r"finite number, got inf"),
        ({"budget": 2.0, "method": "guess"}, ConfigError, r"method must be"),
        ({"budget": 2.0, "unit": "bananas"}, ConfigError, r"a unit is one of .* not 'bananas'"),
        ({"budget": 2.0, "unit": "money"}, ConfigError, r"needs prices of tokens"),
        ({"budget": 2.0, "limits": {"bananas": 1.0}}, ConfigError, r"not 'bananas'"),
        ({"budget": 2.0, "limits": {"latency": 0.1}}, InfeasibleBudget, r"on latency is below"),
        ({"budget": 2.0, "limits": {"latency": math.nan}}, ConfigError, r"finite numbers"),
        (
            {"budget": 2.0, "limits": {"latency": 9.0}, "method": "bisect"},
            ConfigError,
            r"limits are solved by the method 'exact' only",
        ),
    ],
)
def test_what_cannot_be_solved_is_refused_in_a_sentence(
    run: Path, options: dict[str, Any], kind: type[Exception], sentence: str
) -> None:
    estimate_run(run, levels=(1, 2))
    with pytest.raises(kind, match=sentence):
        solve_run(run, **options)
    assert not (run / "allocation.parquet").exists()


def test_an_absurdly_large_budget_buys_everything_worth_having(run: Path) -> None:
    estimate_run(run, levels=(1, 2, 4))
    found = solve_run(run, budget=1e300)
    assert found["price"] == 0.0
    assert found["cost"] <= 4.0
    assert found["utility"] == pytest.approx(found["bound"])


@pytest.mark.parametrize("value", [-1.0, math.inf, -math.inf, math.nan, None])
def test_costs_that_cannot_be_spent_are_refused(
    rows: Rows, make_run: Callable[[Rows], Path], value: float | None
) -> None:
    run = make_run([{**row, "latency_s": value if i == 7 else 1.0} for i, row in enumerate(rows)])
    estimate_run(run, levels=(1, 2))
    for options in ({"unit": "seconds"}, {"limits": {"latency": 5.0}}):
        with pytest.raises(DataError, match=r"latency_s"):
            solve_run(run, budget=5.0, **options)


@pytest.mark.parametrize(
    "stage",
    [
        lambda run: grade_run(run, grader="numeric"),
        estimate_run,
        lambda run: solve_run(run, budget=2.0),
    ],
)
def test_a_stage_without_the_one_before_it_says_which_command_is_missing(
    tmp_path: Path, stage: Callable[[Path], Any]
) -> None:
    with pytest.raises(DataError, match=r"has no .*: first run 'adacompute (import|estimate) "):
        stage(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="is a file, not a run"):
        stage(tmp_path / "file")
