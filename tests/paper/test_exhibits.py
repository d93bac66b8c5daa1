"""Every table and figure of the paper: computed, told, drawn, and right where truth is known."""

from __future__ import annotations

import ast
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adacompute.core.answers import Answers
from adacompute.core.oracle import frontier
from adacompute.core.types import UtilityTable
from adacompute.evaluation.pool import Pool
from adacompute.paper.ablations import BY_QUESTION, BY_ROW, LADDERS
from adacompute.paper.claims import CLAIMS, judge_claims
from adacompute.paper.comparison import Gap, compare_policies, pick
from adacompute.paper.exhibits import EXHIBITS, Exhibit
from adacompute.paper.subject import BUDGETS, MIDDLE, Subject
from adacompute.paper.verdicts import FAILS, HOLDS, OPEN, judge_imitation
from adacompute.policies.learners import CLASSIFIERS
from adacompute.report.plot_style import to_svg
from adacompute.report.table_files import to_csv, to_latex, to_markdown
from adacompute.testing.populations import Population, mix_archetypes

ROOT = Path(__file__).parents[2]
QUESTIONS, SAMPLES = 150, 40
TELLING, BLIND = "telling", "blind"

pytestmark = pytest.mark.slow


def populate(telling: float) -> Population:
    return mix_archetypes(QUESTIONS, telling=telling, seed=2)[0]


def study(telling: float) -> Subject:
    population = populate(telling)
    answers = population.draw(SAMPLES, seed=3)
    key = np.arange(QUESTIONS, dtype=np.uint64)
    pool = Pool(answers, key, key, population.features, np.ones(len(answers.answer)))
    return Subject.of("synthetic", pool)


@pytest.fixture(scope="module")
def subjects() -> dict[str, Subject]:
    """Return runs whose features give everything away, or nothing."""
    return {TELLING: study(1.0), BLIND: study(0.0)}


@pytest.fixture(scope="module")
def found(subjects: dict[str, Subject]) -> dict[str, dict[str, Any]]:
    """Return the data behind every exhibit, for both runs."""
    return {
        name: {exhibit.name: exhibit.compute(subject) for exhibit in EXHIBITS}
        for name, subject in subjects.items()
    }


def test_every_table_and_figure_of_the_paper_is_registered() -> None:
    sources = " ".join(exhibit.source for exhibit in EXHIBITS)
    named = set(re.findall(r"\d+", re.sub(r"Figure \d+", "", sources)))
    assert named == {str(i) for i in range(1, 8)}
    assert set(re.findall(r"Figure (\d+)", sources)) == {str(i) for i in range(1, 14)}
    assert len({exhibit.name for exhibit in EXHIBITS}) == len(EXHIBITS)
    for exhibit in EXHIBITS:
        assert exhibit.draw is not None or exhibit.table


@pytest.mark.parametrize("exhibit", EXHIBITS, ids=lambda exhibit: exhibit.name)
def test_every_exhibit_can_be_told_and_drawn(
    found: dict[str, dict[str, Any]], exhibit: Exhibit
) -> None:
    data = found[TELLING][exhibit.name]
    rows = data.rows
    assert rows
    for row in rows:
        for value in row.values():
            assert value is None or isinstance(value, str | int | float)
            assert not isinstance(value, float) or math.isfinite(value)
    assert to_csv(rows).count("\n") == len(rows) + 1
    assert to_markdown(rows).count("\n") == len(rows) + 2
    assert to_latex(rows, caption="x", label="x").count(r"\\") == len(rows) + 1
    if exhibit.draw is not None:
        assert "<svg" in to_svg(exhibit.draw(data))


@pytest.fixture(scope="module")
def bare() -> Subject:
    """Return a run of few questions and few samples, none of which is right."""
    answer = np.random.default_rng(0).integers(1, 4, 12 * 4)
    answers = Answers(np.arange(13) * 4, answer, np.zeros(48, dtype=np.bool_))
    key = np.arange(12, dtype=np.uint64)
    return Subject.of("bare", Pool(answers, key, key, np.eye(12, 3, dtype="f4"), np.ones(48)))


def test_where_nothing_is_right_every_exhibit_is_still_told_and_drawn(bare: Subject) -> None:
    made: dict[str, Any] = {exhibit.name: exhibit.compute(bare) for exhibit in EXHIBITS}
    for exhibit in EXHIBITS:
        told = to_markdown(made[exhibit.name].rows)
        assert told.count("\n") > 2
        assert "nan" not in told
        if exhibit.draw is not None:
            assert "<svg" in to_svg(exhibit.draw(made[exhibit.name]))
    assert list(made["granularity"].ladders) == ["default", "fine", "odd"]  # coarse has one level
    claims = {row["claim"]: row for row in judge_claims(made)}
    assert claims["Its relative gain over B ≤ 3 is large"]["verdict"] == OPEN


def test_the_pipeline_has_the_numbers_of_the_run(found: dict[str, dict[str, Any]]) -> None:
    data = found[TELLING]["pipeline"]
    assert (data["questions"], data["samples a question"]) == (QUESTIONS, SAMPLES)
    assert data["imitation held out"] <= 1


def test_features_that_tell_are_worth_something_held_out(found: dict[str, dict[str, Any]]) -> None:
    main = found[TELLING]["main"]
    assert main.cell("router", 3.0, "gain low") > 0
    assert main.cell("oracle", 3.0, "held out") > main.cell("mixture", 3.0, "held out")


def test_features_that_tell_nothing_gain_only_by_the_papers_protocol(
    found: dict[str, dict[str, Any]],
) -> None:
    main, column = found[BLIND]["main"], "paper's accuracy"
    for budget in BUDGETS:
        seen = main.cell("router", budget, column) - main.cell("fixed", budget, column)
        assert seen > 0.01
        assert main.cell("router", budget, "gain low") < 0.005
        assert main.cell("oracle-in-sample", budget, column) >= main.cell("router", budget, column)
        assert main.cell("oracle-in-sample", budget, "paper's cost") <= budget


def test_frontiers_stay_between_the_truth_and_its_noise(
    subjects: dict[str, Subject], found: dict[str, dict[str, Any]]
) -> None:
    levels = subjects[TELLING].levels
    truth = populate(1.0).true_utility(levels)
    best = frontier(UtilityTable(truth, np.asarray(levels, dtype=np.float64)))
    data = found[TELLING]["pareto"]
    fair, lucky = data.held_out["oracle"], data.paper["oracle-in-sample"]
    assert (fair.cost <= fair.budget + 1e-9).all()
    for budget, value in zip(fair.budget.tolist(), fair.accuracy.tolist(), strict=True):
        assert value < best.utility_at(budget) + 0.02
        assert value > best.utility_at(budget) - 0.05
    middle = lucky.budget.tolist().index(MIDDLE)
    assert lucky.accuracy[middle] > best.utility_at(MIDDLE)
    assert (lucky.cost <= lucky.budget + 1e-9).all()
    assert set(data.held_out) >= {"mixture", "router", "adaptive-consistency", "sequential"}


def test_imitation_of_what_cannot_be_known_is_memory(found: dict[str, dict[str, Any]]) -> None:
    for row in found[BLIND]["gap"].rows:
        assert row["imitation"] > row["commonest label"]
        assert row["imitation held out"] <= row["commonest label"]
        assert row["regret held out"] <= row["regret bound"] + 1e-12
    for row in found[TELLING]["gap"].rows:
        assert row["imitation held out"] > row["commonest label"] - 0.1
        assert row["regret held out"] <= row["regret bound"] + 1e-12


def test_shares_of_the_heat_map_sum_to_one(found: dict[str, dict[str, Any]]) -> None:
    data = found[TELLING]["heat-map"]
    for shares in (data.oracle, data.learned, data.held_out):
        assert shares.shape == (3, len(data.bands), len(data.levels))
        assert shares.sum(axis=2) == pytest.approx(1)


def test_regret_is_below_the_valid_bound_for_every_classifier(
    found: dict[str, dict[str, Any]],
) -> None:
    for data in (found[TELLING]["ablation"], found[BLIND]["ablation"]):
        assert {trial.classifier for trial in data.trials} == set(CLASSIFIERS)
        for trial in data.trials:
            assert -1e-12 <= trial.regret <= trial.bound + 1e-12
            assert trial.bound <= trial.largest_bound + 1e-12
        for confusion in data.confusion.values():
            assert set(np.round(confusion.sum(axis=1), 9).tolist()) <= {0.0, 1.0}


def test_splits_by_row_remember_the_question(found: dict[str, dict[str, Any]]) -> None:
    data = found[BLIND]["ablation"]
    for kind in ("gbm", "forest"):
        leaky, fair = (data.mean(kind, split, "imitation") for split in (BY_ROW, BY_QUESTION))
        assert leaky > data.commonest > fair


def test_more_training_questions_help_where_there_is_something_to_learn(
    found: dict[str, dict[str, Any]],
) -> None:
    data = found[TELLING]["efficiency"]
    full = data.held_out[-1, -1] - data.fixed_held_out[-1]
    assert full.mean() > 0
    assert (data.paper[:, -1].mean(axis=1) <= data.oracle + 1e-9).all()
    nothing = found[BLIND]["efficiency"]
    kept = nothing.paper[:, -1].mean(axis=1) - nothing.fixed
    unseen = (nothing.held_out[:, -1] - nothing.fixed_held_out).mean(axis=1)
    assert (kept > unseen).all()


def test_ladders_that_hold_another_are_no_worse_in_sample(found: dict[str, dict[str, Any]]) -> None:
    data = found[TELLING]["granularity"]
    assert set(data.ladders) == set(LADDERS)
    coarse, default, fine = (
        data.at_middle(name, "in_sample") for name in ("coarse", "default", "fine")
    )
    assert coarse <= default + 1e-9 <= fine + 2e-9
    for name, ladder in data.ladders.items():
        assert ladder.shares.sum() == pytest.approx(1)
        assert data.at_middle(name, "cross_fitted") < data.at_middle(name, "in_sample")
    assert all(n % 2 for n in data.ladders["odd"].levels)


def test_the_hint_counts_and_noise_does_not(found: dict[str, dict[str, Any]]) -> None:
    data = found[TELLING]["features"]
    assert int(data.importance.argmax()) == int(data.cross_validate.argmax()) == 1
    assert data.held_out[1] > 0.05
    blind = found[BLIND]["features"]
    assert blind.importance.sum() > 3 * abs(blind.cross_validate.sum())
    means = np.nanmean(data.signature, axis=1)
    assert np.abs(means).max() < 1e-6


def test_every_claim_is_judged_by_what_was_found(found: dict[str, dict[str, Any]]) -> None:
    verdicts = {
        name: {row["claim"]: row["verdict"] for row in judge_claims(data)}
        for name, data in found.items()
    }
    for judged in verdicts.values():
        assert len(judged) == len(CLAIMS)
        assert set(judged.values()) <= {HOLDS, FAILS, OPEN}
        assert judged["The oracle's cost never rises with the price (Theorem 1)"] == HOLDS
        assert judged["At a price of 0 every question gets the largest level"] == FAILS
        assert judged["Level 2 is worth having"] == FAILS
        assert judged["Budgets are matched"] == FAILS
    assert verdicts[BLIND]["Sixteen text statistics tell the oracle's level"] == FAILS
    assert verdicts[BLIND]["The router imitates the oracle (worst budget)"] == FAILS
    assert verdicts[BLIND]["The learned router beats uniform allocation at B = 2"] != HOLDS


def test_what_was_not_computed_is_not_shown() -> None:
    assert {row["verdict"] for row in judge_claims({})} == {OPEN}


@pytest.mark.parametrize(("held_out", "verdict"), [(0.95, HOLDS), (0.9, FAILS)])
def test_a_verdict_turns_with_its_number(held_out: float, verdict: str) -> None:
    gap = Gap([{"imitation": 0.99, "imitation held out": held_out}])
    assert judge_imitation({"gap": gap}).verdict == verdict


def test_a_run_is_compared_in_one_row(subjects: dict[str, Subject]) -> None:
    subject = subjects[BLIND]
    row = compare_policies(subject)
    assert row["oracle (paper)"] > row["oracle (cross-fitted)"] > row["mixture"]  # type: ignore[operator]
    assert row["router (paper)"] > row["router (held out)"]  # type: ignore[operator]
    assert row["mixture"] == pick(subject.held_out_rows, "mixture", MIDDLE)["accuracy"]


def test_questions_with_too_few_samples_keep_the_others_in_step() -> None:
    subject = study(1.0)
    pool = subject.pool.keep(
        (subject.pool.answers.question != 0) | (subject.pool.answers.position < 3)
    )
    names = [f"q{i}" for i in range(QUESTIONS)]
    less = Subject.of("less", replace(pool), ids=names, difficulty=names)
    assert (len(less), less.ids[0], less.difficulty[-1]) == (QUESTIONS - 1, "q1", names[-1])


def functions(path: Path) -> set[str]:
    return {
        node.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }


def test_the_paper_map_names_every_exhibit_and_only_what_exists() -> None:
    text = (ROOT / "docs" / "paper-map.md").read_text()
    for exhibit in EXHIBITS:
        assert f"`{exhibit.name}`" in text, exhibit.name
        module = exhibit.compute.__module__.rpartition(".")[2]
        assert f"`paper/{module}.{exhibit.compute.__name__}`" in text, exhibit.name
        assert exhibit.source in text
    for folder, module, name in re.findall(r"`(\w+)/(\w+)\.(\w+)`", text):
        path = ROOT / "src" / "adacompute" / folder / f"{module}.py"
        defined = functions(path) | set(re.findall(r"^(\w+)\b.*=", path.read_text(), re.MULTILINE))
        assert name in defined, (folder, module, name)
    tests = set().union(*(functions(path) for path in (ROOT / "tests").rglob("test_*.py")))
    named = re.findall(r"`(test_\w+)`", text)
    assert len(named) > len(EXHIBITS)
    assert [name for name in named if name not in tests] == []
