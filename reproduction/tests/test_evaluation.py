"""`python -m reproduction evaluate` scores the paper's policies, and says what it cannot score."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adacompute.core.errors import ConfigError, DataError
from adacompute.datasets.rows import SAMPLE_SCHEMA
from adacompute.stages.inputs import make_pool, read_recorded
from adacompute.storage.store import Run
from reproduction.drafts import add_free_draft, read_drafts
from reproduction.evaluation import evaluate_run
from reproduction.protocol import POLICIES

Rows = list[dict[str, Any]]
MakeRun = Callable[[Rows], Path]


@pytest.mark.slow
def test_paper_protocol_scores_the_paper_policies(run: Path) -> None:
    result = evaluate_run(run, budgets=(1.5, 2.0))
    found = [(row["policy"], row["budget"]) for row in result["rows"]]
    assert found == [(name, budget) for budget in (1.5, 2.0) for name in POLICIES]
    cells = {(row["policy"], row["budget"]): row for row in result["rows"]}
    assert cells["oracle-in-sample", 2.0]["cost"] <= 2.0
    assert cells["oracle-in-sample", 2.0]["accuracy"] >= cells["fixed", 2.0]["accuracy"]
    assert {"held_out_accuracy", "imitation", "accuracy_low", "accuracy_high"} <= cells[
        "router", 1.5
    ].keys()
    few = evaluate_run(run, budgets=(1.5,), policies=("fixed",), drop_unparsed=True)
    assert [row["policy"] for row in few["rows"]] == ["fixed"]
    assert few["rows"][0]["accuracy"] == pytest.approx(96 / (192 - 18), abs=0.05)
    assert few["rows"][0]["accuracy"] > cells["fixed", 1.5]["accuracy"]
    with pytest.raises(ConfigError, match=r"'mixture'.*fixed"):
        evaluate_run(run, budgets=(1.5,), policies=("mixture",))


def test_free_samples_are_refused(rows: Rows, make_run: MakeRun) -> None:
    free = make_run([{**row, "completion_tokens": 0} for row in rows])
    with pytest.raises(DataError, match="cost nothing"):
        evaluate_run(free, budgets=(2.0,), unit="tokens")


def test_a_run_with_several_arms_is_refused(rows: Rows, make_run: MakeRun) -> None:
    several = make_run([{**row, "arm": "ab"[row["sample"] % 2]} for row in rows])
    with pytest.raises(ConfigError, match="several arms"):
        evaluate_run(several, budgets=(2.0,))


def test_policies_that_need_texts_are_skipped_without_texts(rows: Rows, make_run: MakeRun) -> None:
    bare = make_run([{**row, "question": None} for row in rows])
    found = evaluate_run(bare, budgets=(2.0,), policies=("fixed",))
    assert [row["policy"] for row in found["rows"]] == ["fixed"]
    with pytest.raises(ConfigError, match="router cannot be scored: the run has no question texts"):
        evaluate_run(bare, budgets=(2.0,), policies=("router",))


@pytest.mark.parametrize(
    ("recorded", "value"),
    [
        ({"entropy": 0.25, "top_logprobs": 5}, 0.25),
        ({"mean_logprob": -0.5}, 1 - math.exp(-0.5)),
        ({"mean_logprob": None}, None),
    ],
)
def test_draft_is_a_feature_that_is_not_paid_for(
    rows: Rows, make_run: MakeRun, recorded: dict[str, Any], value: float | None
) -> None:
    assert {"entropy", "top_logprobs"} <= set(SAMPLE_SCHEMA.names)
    run = make_run([{**row, **recorded} for row in rows])
    samples = read_recorded(Run(run))
    pool = make_pool(samples)
    drafts = read_drafts(samples, pool)
    assert not pool.features[:, -1].any()
    found = add_free_draft(pool, drafts).features[:, -1]
    np.testing.assert_allclose(found, value or 0.0, rtol=1e-6)
    result = evaluate_run(run, budgets=(1.5,), policies=("fixed",))
    assert result["entropy_estimate"] == (drafts and drafts.description)
    assert (drafts is None) == (value is None)
