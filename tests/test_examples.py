"""The scripts in examples/ do what they say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from adacompute.datasets.example import SEED
from adacompute.stages.pipeline import estimate_run
from adacompute.testing.arithmetic import generate
from adacompute.testing.llama import Llama, missing

MAKE_SAMPLES = Path(__file__).parents[1] / "examples" / "make_samples.py"


@pytest.mark.slow
def test_a_fresh_sample_is_drawn_from_the_real_model(tmp_path: Path) -> None:
    if reason := missing():
        pytest.skip(reason)
    command = [sys.executable, str(MAKE_SAMPLES), str(tmp_path), "4", "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = pq.read_table(tmp_path / "run" / "samples.parquet").to_pylist()
    asked = {one.id: one for one in generate(4, seed=SEED)}
    drawn = {(row["question_id"], row["sample"]) for row in rows}
    assert drawn == {(name, number) for name in asked for number in range(3)}
    for row in rows:
        assert row["question"] == asked[row["question_id"]].question
        assert row["correct"] == (row["answer"] == row["gold"])
        assert row["mean_logprob"] < 0 < row["completion_tokens"] <= 20
        assert row["temperature"] == pytest.approx(0.7)
        assert row["model"] == Llama.model
    assert sum(row["answer"] is not None for row in rows) > 6
    levels = estimate_run(tmp_path / "run", levels=(1, 2))["levels"]
    assert levels[0]["utility"] == pytest.approx(sum(row["correct"] for row in rows) / len(rows))


def test_without_a_place_the_script_says_what_it_takes() -> None:
    done = subprocess.run(
        [sys.executable, str(MAKE_SAMPLES)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "OUT" in done.stderr
