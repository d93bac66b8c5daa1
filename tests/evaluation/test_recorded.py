"""Reference accuracies on recorded samples of a real model, confirmed by independent code."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from adacompute.core.types import FloatArray
from adacompute.datasets.rows import read_samples
from adacompute.evaluation.pool import Pool
from adacompute.evaluation.scoring.scores import HeldOutScores
from adacompute.features.text import extract_features
from adacompute.storage.store import encode_samples
from test_support.pools import score_pool

DATA = Path(__file__).parents[2] / os.environ.get("ADACOMPUTE_DATA", "../shared/data")
EXAMS = DATA / "samples" / "mcqa10x100__gpt-3.5-turbo.parquet"
BUDGETS = (1.5, 2.0, 3.0, 4.0, 6.0)
LEVELS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
AS_RECORDED = {
    "mixture": ((0.585, 0.598, 0.622, 0.632, 0.644), 0.004),
    "retry": ((0.609, 0.615, 0.627, 0.635, 0.645), 0.004),
    "adaptive-consistency": ((0.611, 0.620, 0.638, 0.650, 0.654), 0.006),
    "early-stopping": ((0.588, 0.605, 0.636, 0.647, 0.653), 0.006),
    # At 6 an oracle over about 100 random subsets underspends, and had 0.669.
    "oracle": ((0.609, 0.628, 0.647, 0.659, 0.674), 0.004),
    "oracle-in-sample": ((0.618, 0.641, 0.669, 0.686, 0.695), 0.004),
}
WITHOUT_NULLS = {
    "mixture": (0.627, 0.633, 0.645, 0.652, 0.659),
    "oracle": (0.643, 0.654, 0.668, 0.678, 0.686),
}
HEADROOM = {
    "adaptive-consistency": (0.20, 0.31, 0.52, 0.43, 0.37),
    "early-stopping": (0.21, 0.32, 0.51, 0.40, 0.33),
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not EXAMS.is_file(), reason=f"{EXAMS} is not there: set ADACOMPUTE_DATA"),
]


@pytest.fixture(scope="module")
def exams() -> Pool:
    recorded = encode_samples(read_samples(EXAMS))
    return Pool(
        answers=recorded.answers,
        key=recorded.key,
        group=recorded.group,
        features=extract_features(pa.array(recorded.text, pa.string())),
        sample_cost=np.ones(len(recorded.answers.answer)),
    )


def column(scores: HeldOutScores, policy: str, name: str) -> FloatArray:
    return np.array([row[name] for row in scores.rows if row["policy"] == policy])


def test_accuracies_match_the_reference(exams: Pool) -> None:
    scores = score_pool(exams, budgets=BUDGETS, levels=LEVELS, policies=list(AS_RECORDED))
    assert (scores.n_questions, scores.n_samples, scores.n_excluded) == (1000, 50, 0)
    assert scores.levels == LEVELS
    for policy, (expected, within) in AS_RECORDED.items():
        found = column(scores, policy, "accuracy")
        assert found == pytest.approx(expected, abs=within), policy
    claimed = column(scores, "oracle-in-sample", "difference")
    honest = column(scores, "oracle", "accuracy") - column(scores, "mixture", "accuracy")
    noise = 1 - honest / claimed  # about a quarter to a half of what is claimed in sample
    assert (noise > 0.15).all()
    assert (noise < 0.6).all()


def test_accuracy_and_headroom_without_unparsed_samples_match_the_reference(exams: Pool) -> None:
    names = [*WITHOUT_NULLS, *HEADROOM]
    scores = score_pool(exams, budgets=BUDGETS, levels=LEVELS, policies=names, drop_unparsed=True)
    assert (scores.n_questions, scores.n_samples, scores.n_excluded) == (900, 41, 100)
    for policy, expected in WITHOUT_NULLS.items():
        assert column(scores, policy, "accuracy") == pytest.approx(expected, abs=0.005), policy
    for policy, expected in HEADROOM.items():
        assert column(scores, policy, "headroom") == pytest.approx(expected, abs=0.10), policy
