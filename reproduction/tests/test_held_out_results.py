"""Results of held-out questions agree between exhibits, and use nothing that was not paid for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from adacompute.core.allocation.cutoff import choose
from adacompute.core.allocation.oracle import solve
from adacompute.evaluation.pool import Pool
from adacompute.features.text import FEATURES
from reproduction.ablations import compare_level_sets, measure_efficiency
from reproduction.classifier_ablation import BY_QUESTION, BY_ROW, ablate
from reproduction.comparison import measure_gap, tabulate_main
from reproduction.drafts import Drafts
from reproduction.feature_importance import measure_importance
from reproduction.protocol import evaluate_paper
from reproduction.run_data import BUDGETS, RunData
from test_support.populations import make_population

N_QUESTIONS, N_SAMPLES = 60, 8


@pytest.fixture(scope="module")
def run() -> RunData:
    """Return a run of few samples, so that many utilities tie."""
    population, _ = make_population(N_QUESTIONS, feature_signal=0.0, seed=4)
    answers = population.sample(N_SAMPLES, seed=3)
    key = np.arange(N_QUESTIONS, dtype=np.uint64)
    pool = Pool(answers, key, key, population.features, np.ones(len(answers.answer)))
    return RunData.from_pool("small", pool)


def test_gap_is_the_oracle_minus_the_router_of_the_main_table(run: RunData) -> None:
    main, column = tabulate_main(run), "accuracy (paper)"
    for row in measure_gap(run).rows:
        budget = float(row["B"] or 0)
        oracle, router = (main.cell(p, budget, column) for p in ("oracle-in-sample", "router"))
        assert row["oracle gap (paper)"] == pytest.approx(oracle - router)


def test_ablation_labels_are_the_levels_that_the_oracle_is_scored_at(run: RunData) -> None:
    oracles = [solve(run.window_table, budget) for budget in BUDGETS]
    label = np.concatenate([oracle.choice for oracle in oracles])
    at_price = np.concatenate([choose(run.window_table, oracle.price) for oracle in oracles])
    assert np.bincount(label).max() != np.bincount(at_price).max()
    found = ablate(run, n_splits=1)
    assert found.constant_imitation == np.bincount(label).max() / len(label)


def test_mistakes_skip_levels_that_no_label_uses(run: RunData) -> None:
    # The oracle uses levels 1 and 4, and never 2: every mistake is one level off.
    few = RunData.from_pool("few", run.pool.keep(run.pool.answers.position < 4))
    found = ablate(few, n_splits=1)
    confusion = found.confusion[BY_ROW]
    assert few.levels == (1, 2, 4)
    assert confusion[0, 2] + confusion[2, 0] > 0
    assert found.adjacent_share[BY_ROW] == 1.0


def router_scores(run: RunData) -> tuple[Any, Any]:
    (row,) = (
        r
        for r in evaluate_paper(run.pool, budgets=(1.5,), drafts=run.drafts)
        if r["policy"] == "router"
    )
    names = ("accuracy", "cost", "imitation")
    return [row[name] for name in names], [row[f"held_out_{name}"] for name in names]


def tree_accuracies(run: RunData) -> tuple[Any, Any]:
    found = ablate(run, n_splits=1)
    return tuple(found.mean("gbm", split, "accuracy") for split in (BY_ROW, BY_QUESTION))  # type: ignore[return-value]


def importances(run: RunData) -> tuple[Any, Any]:
    found = measure_importance(run)
    return found.training, found.held_out


def accuracies_by_share(run: RunData) -> tuple[Any, Any]:
    found = measure_efficiency(run)
    return found.paper, found.held_out


def level_set_accuracies(run: RunData) -> tuple[Any, Any]:
    found = compare_level_sets(run).level_sets["default"]
    return found.router, found.router_held_out


@pytest.mark.parametrize(
    "measure",
    [
        router_scores,
        lambda run: (run.route_as_paper(3.0), run.route_held_out(3.0)),
        tree_accuracies,
        importances,
        pytest.param(accuracies_by_share, marks=pytest.mark.slow),
        pytest.param(level_set_accuracies, marks=pytest.mark.slow),
    ],
)
def test_unpaid_draft_does_not_leak_into_held_out_results(
    run: RunData, measure: Callable[[RunData], tuple[Any, Any]]
) -> None:
    features = np.zeros((N_QUESTIONS, len(FEATURES)), dtype=np.float32)
    features[:, : run.pool.features.shape[1]] = run.pool.features
    best = run.window_table.utility.argmax(axis=1)  # a draft that tells the level
    pool = replace(run.pool, features=features)
    leaky = Drafts(pool.key, best.astype(np.float64), "leaky")
    (with_draft, held_out), (without, plain) = (
        measure(replace(run, pool=pool, drafts=one)) for one in (leaky, None)
    )
    assert not np.array_equal(with_draft, without)
    assert np.array_equal(held_out, plain)
