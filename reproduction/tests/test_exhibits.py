"""Every table and figure of the paper, on synthetic questions with known utilities."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from adacompute.core.allocation.oracle import frontier
from adacompute.core.answers import Answers
from adacompute.core.types import UtilityTable
from adacompute.evaluation.pool import Pool
from adacompute.policies.learners import CLASSIFIERS
from adacompute.report.plot_style import to_svg
from reproduction.ablations import LEVEL_SETS
from reproduction.claims import CLAIMS, judge_claims
from reproduction.classifier_ablation import BY_QUESTION, BY_ROW
from reproduction.comparison import FIGURE_13, GapTable, compare_policies, find_row
from reproduction.exhibits import EXHIBITS, Exhibit
from reproduction.run_data import BUDGETS, MAIN_BUDGET, RunData
from reproduction.table_files import to_csv, to_markdown
from reproduction.verdicts import (
    FAILS,
    HOLDS,
    INCONCLUSIVE,
    NOT_MEASURABLE,
    judge_equal_spending,
    judge_imitation,
    judge_level_two,
    judge_monotonicity,
    judge_predictability,
    judge_router_gain,
)
from test_support.populations import Population, make_population

N_QUESTIONS, N_SAMPLES = 150, 40
INFORMATIVE, UNINFORMATIVE = "informative", "uninformative"

ByRun = dict[str, dict[str, Any]]
"""Data of exhibits, by run and by name."""

pytestmark = pytest.mark.slow


def archetypes(telling: float) -> Population:
    return make_population(N_QUESTIONS, feature_signal=telling, seed=2)[0]


def make_run(telling: float) -> RunData:
    population = archetypes(telling)
    answers = population.sample(N_SAMPLES, seed=3)
    key = np.arange(N_QUESTIONS, dtype=np.uint64)
    pool = Pool(answers, key, key, population.features, np.ones(len(answers.answer)))
    return RunData.from_pool("synthetic", pool)


@pytest.fixture(scope="module")
def runs() -> dict[str, RunData]:
    """Return a run whose features reveal each archetype, and one whose features say nothing."""
    return {INFORMATIVE: make_run(1.0), UNINFORMATIVE: make_run(0.0)}


@pytest.fixture(scope="module")
def exhibits(runs: dict[str, RunData]) -> ByRun:
    """Return the data of every exhibit, for both runs."""
    return {
        name: {exhibit.name: exhibit.compute(run) for exhibit in EXHIBITS}
        for name, run in runs.items()
    }


def test_every_table_and_figure_of_the_paper_has_an_exhibit() -> None:
    sources = " ".join(exhibit.source for exhibit in EXHIBITS)
    named = set(re.findall(r"\d+", re.sub(r"Figure \d+", "", sources)))
    assert named == {str(i) for i in range(1, 8)}
    assert set(re.findall(r"Figure (\d+)", sources)) == {str(i) for i in range(1, 14) if i != 3}
    assert len({exhibit.name for exhibit in EXHIBITS}) == len(EXHIBITS)
    for exhibit in EXHIBITS:
        assert exhibit.draw is not None or exhibit.is_table


@pytest.mark.parametrize("exhibit", EXHIBITS, ids=lambda exhibit: exhibit.name)
def test_every_exhibit_has_a_table_and_a_figure(exhibits: ByRun, exhibit: Exhibit) -> None:
    data = exhibits[INFORMATIVE][exhibit.name]
    rows = data.rows
    assert rows
    for row in rows:
        for value in row.values():
            assert value is None or isinstance(value, str | int | float)
            assert not isinstance(value, float) or math.isfinite(value)
    assert to_csv(rows).count("\n") == len(rows) + 1
    assert to_markdown(rows).count("\n") == len(rows) + 2
    if exhibit.draw is not None:
        assert "<svg" in to_svg(exhibit.draw(data))


@pytest.fixture(scope="module")
def bare() -> RunData:
    """Return a run of few questions and few samples, none of them correct."""
    answer = np.random.default_rng(0).integers(1, 4, 12 * 4)
    answers = Answers(np.arange(13) * 4, answer, np.zeros(48, dtype=np.bool_))
    key = np.arange(12, dtype=np.uint64)
    return RunData.from_pool(
        "bare", Pool(answers, key, key, np.eye(12, 3, dtype="f4"), np.ones(48))
    )


def test_exhibits_of_a_run_without_correct_samples(bare: RunData) -> None:
    data: dict[str, Any] = {exhibit.name: exhibit.compute(bare) for exhibit in EXHIBITS}
    for exhibit in EXHIBITS:
        table = to_markdown(data[exhibit.name].rows)
        assert table.count("\n") > 2
        assert "nan" not in table
        if exhibit.draw is not None:
            assert "<svg" in to_svg(exhibit.draw(data[exhibit.name]))
    assert list(data["granularity"].level_sets) == [
        "default",
        "fine",
        "odd",
    ]  # coarse has one level


def test_informative_features_gain_held_out(exhibits: ByRun) -> None:
    main, column = exhibits[INFORMATIVE]["main"], "accuracy (held out)"
    assert main.cell("router", 3.0, "gain low") > 0
    assert main.cell("oracle", 3.0, column) > main.cell("mixture", 3.0, column)


def test_uninformative_features_gain_only_by_the_papers_protocol(
    exhibits: ByRun,
) -> None:
    main, column = exhibits[UNINFORMATIVE]["main"], "accuracy (paper)"
    for budget in BUDGETS:
        gain = main.cell("router", budget, column) - main.cell("fixed", budget, column)
        assert gain > 0.01
        assert main.cell("router", budget, "gain low") < 0.005
        assert main.cell("oracle-in-sample", budget, column) >= main.cell("router", budget, column)
        assert main.cell("oracle-in-sample", budget, "cost (paper)") <= budget
        leaking = main.cell("router", budget, f"accuracy ({FIGURE_13})")
        assert leaking > main.cell("router", budget, column)


def test_frontiers_against_true_utilities(runs: dict[str, RunData], exhibits: ByRun) -> None:
    levels = runs[INFORMATIVE].levels
    truth = archetypes(1.0).true_utility(levels)
    best = frontier(UtilityTable(truth, np.asarray(levels, dtype=np.float64)))
    data = exhibits[INFORMATIVE]["pareto"]
    cross_fitted, in_sample = data.held_out["oracle"], data.paper["oracle-in-sample"]
    assert (cross_fitted.cost <= cross_fitted.budget + 1e-9).all()
    for budget, value in zip(
        cross_fitted.budget.tolist(), cross_fitted.accuracy.tolist(), strict=True
    ):
        assert value < best.utility_at(budget) + 0.02
        assert value > best.utility_at(budget) - 0.05
    main = in_sample.budget.tolist().index(MAIN_BUDGET)
    assert in_sample.accuracy[main] > best.utility_at(MAIN_BUDGET)
    assert (in_sample.cost <= in_sample.budget + 1e-9).all()
    assert set(data.held_out) >= {"mixture", "router", "adaptive-consistency", "sequential"}


def test_uninformative_features_imitate_only_training_questions(exhibits: ByRun) -> None:
    for row in exhibits[UNINFORMATIVE]["gap"].rows:
        assert row["imitation (paper)"] > row["share of the most common level"]
        assert row["imitation (held out)"] <= row["share of the most common level"]
        assert row["regret (held out)"] <= row["regret bound"] + 1e-12
        assert row[f"imitation ({FIGURE_13})"] > row["imitation (paper)"]
        assert row[f"unseen imitation ({FIGURE_13})"] > row["imitation (held out)"]
    for row in exhibits[INFORMATIVE]["gap"].rows:
        assert row["imitation (held out)"] > row["share of the most common level"] - 0.1
        assert row["regret (held out)"] <= row["regret bound"] + 1e-12


def test_heat_map_shares_sum_to_one(exhibits: ByRun) -> None:
    data = exhibits[INFORMATIVE]["heat-map"]
    for shares in (data.oracle, data.router, data.router_held_out):
        assert shares.shape == (3, len(data.bands), len(data.levels))
        assert shares.sum(axis=2) == pytest.approx(1)


def test_regret_is_below_the_valid_bound_for_every_classifier(
    exhibits: ByRun,
) -> None:
    for data in (exhibits[INFORMATIVE]["ablation"], exhibits[UNINFORMATIVE]["ablation"]):
        assert {trial.classifier for trial in data.trials} == set(CLASSIFIERS)
        for trial in data.trials:
            assert -1e-12 <= trial.regret <= trial.regret_bound + 1e-12
            assert trial.regret_bound <= trial.max_bound + 1e-12
        for confusion in data.confusion.values():
            assert set(np.round(confusion.sum(axis=1), 9).tolist()) <= {0.0, 1.0}


def test_splits_by_row_leak_the_question(exhibits: ByRun) -> None:
    data = exhibits[UNINFORMATIVE]["ablation"]
    for classifier in ("gbm", "forest"):
        by_row, by_question = (
            data.mean(classifier, split, "imitation") for split in (BY_ROW, BY_QUESTION)
        )
        assert by_row > data.constant_imitation > by_question


def test_more_training_questions_help_with_informative_features(
    exhibits: ByRun,
) -> None:
    data = exhibits[INFORMATIVE]["efficiency"]
    full = data.held_out[-1, -1] - data.fixed_held_out[-1]
    assert full.mean() > 0
    assert (data.paper[:, -1].mean(axis=1) <= data.oracle + 1e-9).all()
    other = exhibits[UNINFORMATIVE]["efficiency"]
    paper = other.paper[:, -1].mean(axis=1) - other.fixed
    held_out = (other.held_out[:, -1] - other.fixed_held_out).mean(axis=1)
    assert (paper > held_out).all()


def test_larger_level_sets_are_no_worse_in_sample(exhibits: ByRun) -> None:
    data = exhibits[INFORMATIVE]["granularity"]
    assert set(data.level_sets) == set(LEVEL_SETS)
    coarse, default, fine = (
        data.level_sets[name].in_sample_at_main for name in ("coarse", "default", "fine")
    )
    assert coarse <= default + 1e-9 <= fine + 2e-9
    for one in data.level_sets.values():
        assert one.shares.sum() == pytest.approx(1)
        assert one.cross_fitted_at_main < one.in_sample_at_main
    assert all(n % 2 for n in data.level_sets["odd"].levels)


def test_only_the_informative_feature_is_important(exhibits: ByRun) -> None:
    data = exhibits[INFORMATIVE]["features"]
    assert int(data.training.argmax()) == int(data.held_out.argmax()) == 1
    assert data.held_out[1] > 0.05
    other = exhibits[UNINFORMATIVE]["features"]
    assert other.training.sum() > 3 * abs(other.held_out.sum())
    means = np.nanmean(data.level_means, axis=1)
    assert np.abs(means).max() < 1e-6


def judge(data: dict[str, Any]) -> dict[Any, Any]:
    """Verdicts by the function that judges the claim."""
    rows = judge_claims(data)
    return {claim.judge: row["verdict"] for claim, row in zip(CLAIMS, rows, strict=True)}


def test_every_claim_has_a_verdict(exhibits: ByRun) -> None:
    for data in exhibits.values():
        verdicts = judge(data)
        assert set(verdicts.values()) <= {HOLDS, FAILS, INCONCLUSIVE, NOT_MEASURABLE}
        assert verdicts[judge_monotonicity] == HOLDS
        assert verdicts[judge_level_two] == FAILS
        assert verdicts[judge_equal_spending] == FAILS
    uninformative = judge(exhibits[UNINFORMATIVE])
    assert uninformative[judge_predictability] == FAILS
    assert uninformative[judge_imitation] == FAILS
    assert uninformative[judge_router_gain] != HOLDS


@pytest.mark.parametrize(("held_out", "verdict"), [(0.95, HOLDS), (0.9, FAILS)])
def test_verdict_depends_on_the_held_out_number(held_out: float, verdict: str) -> None:
    cells = {"paper": 0.99, "held out": held_out, FIGURE_13: 0.95}
    gap = GapTable([{f"imitation ({name})": value for name, value in cells.items()}])
    found = judge_imitation({"gap": gap})
    assert (found.verdict, found.figure_13) == (verdict, "95.0 %")


def test_comparison_has_one_row_per_run(runs: dict[str, RunData]) -> None:
    run = runs[UNINFORMATIVE]
    row = compare_policies(run)
    assert row["static oracle (paper)"] > row["static oracle (cross-fitted)"] > row["mixture"]  # type: ignore[operator]
    assert row["router (paper)"] > row["router (held out)"]  # type: ignore[operator]
    assert row["mixture"] == find_row(run.held_out_rows, "mixture", MAIN_BUDGET)["accuracy"]


def test_dropped_questions_keep_ids_aligned() -> None:
    run = make_run(1.0)
    pool = run.pool.keep((run.pool.answers.question != 0) | (run.pool.answers.position < 3))
    names = [f"q{i}" for i in range(N_QUESTIONS)]
    smaller = RunData.from_pool("smaller", replace(pool), ids=names, difficulty=names)
    assert (len(smaller), smaller.ids[0], smaller.difficulty[-1]) == (
        N_QUESTIONS - 1,
        "q1",
        names[-1],
    )
