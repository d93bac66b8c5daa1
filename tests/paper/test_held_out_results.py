"""Results of held-out questions agree between exhibits, and use nothing that was not paid for."""

from __future__ import annotations

import numpy as np
import pytest

from adacompute.core.oracle import solve
from adacompute.core.upgrades import choose
from adacompute.evaluation.pool import Pool
from adacompute.paper.ablations import ablate
from adacompute.paper.comparison import describe_pipeline, measure_gap, tabulate_main
from adacompute.paper.run_data import BUDGETS, MAIN_BUDGET, RunData
from adacompute.testing.populations import make_population

N_QUESTIONS, N_SAMPLES = 60, 8


@pytest.fixture(scope="module")
def run() -> RunData:
    """Return a run of few samples, so that many utilities tie."""
    population, _ = make_population(N_QUESTIONS, feature_signal=0.0, seed=4)
    answers = population.sample(N_SAMPLES, seed=3)
    key = np.arange(N_QUESTIONS, dtype=np.uint64)
    pool = Pool(answers, key, key, population.features, np.ones(len(answers.answer)))
    return RunData.from_pool("small", pool)


def test_pipeline_and_gap_have_one_held_out_imitation(run: RunData) -> None:
    (row,) = (row for row in measure_gap(run).rows if row["B"] == MAIN_BUDGET)
    assert describe_pipeline(run)["imitation (held out)"] == row["imitation (held out)"]


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
