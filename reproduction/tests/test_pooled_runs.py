"""What the paper makes of several runs together, and the figures that it makes of one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from adacompute.core.allocation.cutoff import choose
from adacompute.core.allocation.oracle import solve
from adacompute.evaluation.pool import Pool
from adacompute.policies.learners import CLASSIFIERS
from adacompute.report.plot_style import to_svg
from reproduction.ablations import compare_level_sets
from reproduction.archetypes import compose_runs
from reproduction.classifier_ablation import BY_QUESTION, BY_ROW, Ablation, ablate
from reproduction.feature_importance import measure_gains, measure_importance
from reproduction.figures_learned import draw_ablation
from reproduction.oracle_data import trace_cost, trace_price_effect
from reproduction.run_data import BUDGETS, MAIN_BUDGET, RunData
from reproduction.shared_exhibits import SHARED_EXHIBITS, ByRun, CompleteRun
from test_support.populations import make_population

N_QUESTIONS = 60


def make_run(name: str, n_samples: int, seed: int = 3, *, signal: float = 0.0) -> RunData:
    """Return a run of the same questions as every other, with samples of its own."""
    population, _ = make_population(N_QUESTIONS, feature_signal=signal, seed=4)
    answers = population.sample(n_samples, seed=seed)
    key = np.arange(N_QUESTIONS, dtype=np.uint64)
    pool = Pool(answers, key, key, population.features, np.ones(len(answers.answer)))
    return RunData.from_pool(name, pool)


@pytest.fixture(scope="module")
def runs() -> list[RunData]:
    return [make_run("long", 32), make_run("short", 8, seed=5)]


@pytest.fixture(scope="module")
def pooled(runs: list[RunData]) -> Ablation:
    return ablate(*runs, n_splits=2)


def test_ablation_pools_runs_over_their_common_levels(
    runs: list[RunData], pooled: Ablation
) -> None:
    assert pooled.runs == ("long", "short")
    assert pooled.levels == runs[1].levels
    assert runs[0].levels[-1] > pooled.levels[-1]
    assert len(pooled.trials) == 2 * 2 * len(CLASSIFIERS)
    label = np.concatenate([solve(runs[1].window_table, budget).choice for budget in BUDGETS])
    own = ablate(runs[1], n_splits=1)
    assert own.constant_imitation == np.bincount(label).max() / len(label)
    oracle = [solve(runs[1].window_table, budget).utility for budget in BUDGETS]
    assert pooled.oracle_accuracy[1] == own.oracle_accuracy[0] == pytest.approx(np.mean(oracle))


def test_splits_by_question_keep_the_copies_of_other_runs_together(runs: list[RunData]) -> None:
    twins = ablate(runs[0], replace(runs[0], name="twin"), n_splits=2)
    by_row, by_question = (twins.mean("forest", s, "imitation") for s in (BY_ROW, BY_QUESTION))
    assert by_row > twins.constant_imitation + 0.05
    assert by_question < by_row - 0.1


def test_ablation_has_the_accuracy_of_each_run(pooled: Ablation) -> None:
    for row in pooled.rows:
        assert {"accuracy on long", "accuracy on short"} <= set(row)
    for classifier in CLASSIFIERS:
        for split_by in (BY_ROW, BY_QUESTION):
            accuracy = pooled.run_accuracy(classifier, split_by)
            assert (accuracy <= pooled.oracle_accuracy + 0.05).all()
            own = pooled.select(classifier, split_by)
            gaps = np.nanmean([trial.run_gap for trial in own], axis=0)
            assert accuracy == pytest.approx(pooled.oracle_accuracy - gaps)


def test_no_regret_is_above_the_lines_of_the_figure(pooled: Ablation) -> None:
    for trial in pooled.trials:
        error = 1 - trial.imitation
        assert trial.regret <= trial.regret_bound + 1e-12
        assert trial.regret_bound <= pooled.max_loss * error + 1e-12
    assert 0 < pooled.mean_loss < pooled.max_loss
    image = to_svg(draw_ablation(pooled))
    for text in ("long", "short", "share of mistakes", "largest M"):
        assert text in image


def test_shared_exhibits_have_the_rows_of_every_run(runs: list[RunData]) -> None:
    complete = [CompleteRun(run, {"staircase": trace_cost(run)}, []) for run in runs]
    exhibit = next(one for one in SHARED_EXHIBITS if one.name == "staircase")
    data = exhibit.compute(complete)
    assert isinstance(data, ByRun)
    assert [row["run"] for row in data.rows] == ["long"] * 241 + ["short"] * 241
    image = to_svg(exhibit.draw(data))
    assert "long" in image
    assert "short" in image


def test_centres_of_pooled_archetypes_are_written(runs: list[RunData]) -> None:
    found = compose_runs(runs)
    rows = found.centre_rows
    assert [row["archetype"] for row in rows] == list(found.names)
    assert sum(int(row["questions"] or 0) for row in rows) == 2 * N_QUESTIONS
    for c, row in enumerate(rows):
        levels = [row[f"level {n}"] for n in found.levels]
        assert levels == pytest.approx(found.centre[c].tolist())


def test_router_of_each_level_set_has_a_point_per_budget(runs: list[RunData]) -> None:
    data = compare_level_sets(runs[1])
    for one in data.level_sets.values():
        assert one.router.shape == (len(one.budgets), 2)
        assert len(one.budgets) > len(BUDGETS)
    default = data.level_sets["default"]
    at_main = default.router[default.budgets.index(MAIN_BUDGET)]
    choice, table = runs[1].route_as_paper(MAIN_BUDGET), runs[1].window_table
    expected = table.cost_of(choice).mean(), table.utility_of(choice).mean()
    assert at_main.tolist() == pytest.approx(expected)


def test_steps_go_from_few_levels_to_many(runs: list[RunData]) -> None:
    steps = compare_level_sets(runs[0]).steps
    assert set(steps) == {"in-sample (paper)", "cross-fitted"}
    for own in steps.values():
        assert list(own) == ["coarse", "default", "fine"]
        assert [n_levels for n_levels, _ in own.values()] == [3, 5, 8]


def test_transitions_are_where_the_question_in_detail_changes_level(runs: list[RunData]) -> None:
    effect, table = trace_price_effect(runs[0]), runs[0].window_table
    assert len(effect.transitions) > 0
    for p in effect.transitions.tolist():
        before, after = (choose(table, float(effect.price[i])) for i in (p - 1, p))
        assert after[effect.question] < before[effect.question]
    column = [row[f"level of {effect.question_id}"] for row in effect.rows]
    assert (np.flatnonzero(np.diff(column)) + 1).tolist() == effect.transitions.tolist()  # type: ignore[arg-type]


def test_gains_are_those_that_xgboost_reports() -> None:
    import xgboost

    rng = np.random.default_rng(0)
    features = rng.normal(size=(200, 4)).astype(np.float32)
    label = (features[:, 2] > 0).astype(np.int64) + (features[:, 1] > 1)
    model = xgboost.XGBClassifier(n_estimators=100, max_depth=5, learning_rate=0.1, n_jobs=1)
    expected = model.fit(features, label).feature_importances_
    gains = measure_gains(features, label)
    assert gains.sum() == pytest.approx(1)
    assert gains == pytest.approx(expected, abs=1e-3)
    assert measure_gains(features, np.zeros(200, dtype=np.int64)).tolist() == [0.0] * 4


def test_features_have_the_gain_of_the_trees_beside_the_loss_by_shuffling() -> None:
    data = measure_importance(make_run("informative", 16, signal=1.0))
    assert data.gain.sum() == pytest.approx(1)
    ranked = [row["normalised gain"] for row in data.rows]
    assert ranked == sorted(ranked, reverse=True)  # type: ignore[type-var]
    assert set(data.rows[0]) >= {"lost by shuffling (training)", "lost by shuffling (held out)"}
