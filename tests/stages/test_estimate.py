"""Utilities agree with means over all subsets of samples."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adacompute.core.errors import ConfigError, DataError
from adacompute.stages.research.estimate import estimate_run
from adacompute.stages.research.grade import grade_run

Rows = list[dict[str, Any]]


def artifacts(run: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(run.iterdir())}


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


def test_estimate_uses_the_latest_grades(run: Path) -> None:
    before = estimate_run(run, levels=(1,))["levels"][0]["utility"]
    assert before == 96 / 192
    grade_run(run, grader="exact")
    assert estimate_run(run, levels=(1,))["levels"][0]["utility"] == 0.0
    grade_run(run, grader="numeric")
    assert estimate_run(run, levels=(1,))["levels"][0]["utility"] == before


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


def test_windows_use_samples_in_order(run: Path, rows: Rows) -> None:
    windows = estimate_run(run, levels=(4,), method="windows")["levels"][0]["utility"]
    own = by_question(rows).values()
    truth = [majority(tuple(q[at : at + 4])) for q in own for at in (0, 4)]
    assert windows == pytest.approx(np.mean(truth))


def test_standard_error_is_over_questions(
    run: Path, rows: Rows, make_run: Callable[[Rows], Path]
) -> None:
    means = [np.mean([row["correct"] for row in own]) for own in by_question(rows).values()]
    found = estimate_run(run, levels=(1,))["levels"][0]["standard_error"]
    assert found == pytest.approx(np.std(means, ddof=1) / math.sqrt(24))
    alone = make_run([row for row in rows if row["question_id"] == "fair/0"])
    assert estimate_run(alone, levels=(1,))["levels"][0]["standard_error"] is None


def test_copies_of_a_question_do_not_lower_the_standard_error(
    rows: Rows, make_run: Callable[[Rows], Path]
) -> None:
    copies = [{**row, "question_id": f"copy of {row['question_id']}"} for row in rows]
    found = [
        estimate_run(make_run(own), levels=(1,))["levels"][0]["standard_error"]
        for own in (rows, rows + copies)
    ]
    assert found[1] == pytest.approx(found[0])


def test_only_parsed_samples_need_scores(rows: Rows, make_run: Callable[[Rows], Path]) -> None:
    unread = [{**row, "mean_logprob": None if row["answer"] is None else -0.5} for row in rows]
    assert estimate_run(make_run(unread), levels=(1,), vote="best-of")["questions"] == 24
    unscored = [{**row, "mean_logprob": None} for row in rows]
    with pytest.raises(DataError, match=r"'best-of' .*mean_logprob .* 174 "):
        estimate_run(make_run(unscored), levels=(1,), vote="best-of")


@pytest.mark.parametrize("levels", [(), (2, 1), (1, 1), (0, 1), (-1,), (1, 2**31)])
def test_levels_must_increase_from_one(run: Path, levels: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="levels"):
        estimate_run(run, levels=levels)


def test_levels_above_the_recorded_samples_are_refused(run: Path) -> None:
    with pytest.raises(DataError, match="need 9 samples"):
        estimate_run(run, levels=(1, 9))
