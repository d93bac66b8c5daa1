"""The figures and the ablation of one run, on synthetic questions."""

from __future__ import annotations

import numpy as np
import pytest

from adacompute.core.allocation.cutoff import choose
from adacompute.evaluation.pool import Pool
from adacompute.report.plot_style import to_svg
from reproduction.ablations import compare_level_sets
from reproduction.classifier_ablation import ablate
from reproduction.feature_importance import measure_gains, measure_importance
from reproduction.figures_learned import draw_ablation
from reproduction.oracle_data import trace_price_effect
from reproduction.run_data import BUDGETS, MAIN_BUDGET, RunData
from test_support.populations import make_population

N_QUESTIONS = 60


def make_run(n_samples: int, signal: float = 0.0) -> RunData:
    population, _ = make_population(N_QUESTIONS, feature_signal=signal, seed=4)
    answers = population.sample(n_samples, seed=3)
    key = np.arange(N_QUESTIONS, dtype=np.uint64)
    pool = Pool(answers, key, key, population.features, np.ones(len(answers.answer)))
    return RunData.from_pool("small", pool)


@pytest.fixture(scope="module")
def run() -> RunData:
    return make_run(32)


def test_no_regret_is_above_the_lines_of_the_figure(run: RunData) -> None:
    data = ablate(run, n_splits=2)
    for trial in data.trials:
        error = 1 - trial.imitation
        assert trial.regret <= trial.regret_bound + 1e-12
        assert trial.regret_bound <= data.max_loss * error + 1e-12
    assert 0 < data.mean_loss < data.max_loss
    image = to_svg(draw_ablation(data))
    for text in ("static oracle", "share of mistakes", "largest M"):
        assert text in image


def test_router_of_each_level_set_has_a_point_per_budget(run: RunData) -> None:
    data = compare_level_sets(run)
    for one in data.level_sets.values():
        assert one.router.shape == (len(one.budgets), 2)
        assert len(one.budgets) > len(BUDGETS)
    default = data.level_sets["default"]
    at_main = default.router[default.budgets.index(MAIN_BUDGET)]
    choice, table = run.route_as_paper(MAIN_BUDGET), run.window_table
    expected = table.cost_of(choice).mean(), table.utility_of(choice).mean()
    assert at_main.tolist() == pytest.approx(expected)


def test_steps_go_from_few_levels_to_many(run: RunData) -> None:
    steps = compare_level_sets(run).steps
    assert set(steps) == {"in-sample (paper)", "cross-fitted"}
    for own in steps.values():
        assert list(own) == ["coarse", "default", "fine"]
        assert [n_levels for n_levels, _ in own.values()] == [3, 5, 8]


def test_transitions_are_where_the_question_in_detail_changes_level(run: RunData) -> None:
    effect, table = trace_price_effect(run), run.window_table
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
    data = measure_importance(make_run(16, signal=1.0))
    assert data.gain.sum() == pytest.approx(1)
    ranked = [row["normalised gain"] for row in data.rows]
    assert ranked == sorted(ranked, reverse=True)  # type: ignore[type-var]
    assert set(data.rows[0]) >= {"lost by shuffling (training)", "lost by shuffling (held out)"}
