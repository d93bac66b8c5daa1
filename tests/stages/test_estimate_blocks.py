"""Estimates in blocks: those of the whole run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from adacompute.core.errors import ConfigError, DataError
from adacompute.datasets.example import find_example
from adacompute.stages import inputs
from adacompute.stages.evaluate import evaluate_run
from adacompute.stages.research import estimate_blocks
from adacompute.stages.research.estimate import estimate_run
from adacompute.stages.research.grade import grade_run
from adacompute.stages.research.import_samples import import_samples
from adacompute.stages.research.train import train_run
from adacompute.storage import sample_blocks
from adacompute.storage.sample_blocks import read_sample_blocks, read_subsample
from adacompute.storage.store import Run, encode_samples


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    import_samples(find_example(), path, grader="numeric")
    return path


@pytest.fixture
def in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate_blocks, "MAX_SAMPLES_IN_MEMORY", 100)
    defaults = {"block_rows": 331, "need_grades": True}
    monkeypatch.setattr(sample_blocks.read_sample_blocks, "__kwdefaults__", defaults)
    monkeypatch.setattr(estimate_blocks, "BLOCK_SAMPLES", 331)


@pytest.mark.parametrize("grader", [None, "exact"])
def test_blocks_give_the_utilities_of_the_whole_run(
    run: Path, grader: str | None, request: pytest.FixtureRequest
) -> None:
    if grader is not None:
        grade_run(run, grader=grader)
    whole = estimate_run(run, levels=(1, 3, 8))
    expected = pq.read_table(run / "utility.parquet")
    (run / "estimate.manifest.json").unlink()
    request.getfixturevalue("in_blocks")
    found = estimate_run(run, levels=(1, 3, 8))
    assert pq.read_table(run / "utility.parquet").equals(expected)
    assert found["questions"] == whole["questions"]
    for one, other in zip(found["levels"], whole["levels"], strict=True):
        assert one["level"] == other["level"]
        assert one["cost"] == other["cost"]
        assert one["utility"] == pytest.approx(other["utility"])
        assert one["standard_error"] == pytest.approx(other["standard_error"], rel=0.2)
    assert estimate_run(run, levels=(1, 3, 8)) == found


@pytest.mark.usefixtures("in_blocks")
def test_options_that_need_the_whole_run_are_refused(run: Path) -> None:
    every: list[dict[str, Any]] = [{"method": "windows"}, {"vote": "best-of"}, {"unit": "tokens"}]
    for options in every:
        with pytest.raises(ConfigError, match="blocks"):
            estimate_run(run, levels=(1, 2), **options)


@pytest.mark.parametrize("block_rows", [1, 47, 48, 49, 10_000, 100_000])
def test_blocks_hold_whole_questions(run: Path, block_rows: int) -> None:
    store = Run(run)
    blocks = list(read_sample_blocks(store, ("question_id", "sample"), block_rows=block_rows))
    assert pa.concat_tables(blocks).equals(store.samples().select(["question_id", "sample"]))
    ids = [set(block["question_id"].to_pylist()) for block in blocks]
    assert len(set().union(*ids)) == sum(map(len, ids)) == 300


def test_a_question_in_two_places_is_refused(run: Path) -> None:
    store = Run(run)
    path = run / "samples.parquet"
    table = pq.read_table(path)
    manifest = run / "import.manifest.json"
    old = store.hashes(["samples.parquet"])["samples.parquet"]
    pq.write_table(pa.concat_tables([table, table.slice(0, 3)]), path)
    new = store.hashes(["samples.parquet"])["samples.parquet"]
    manifest.write_text(manifest.read_text().replace(old, new))
    with pytest.raises(DataError, match="several places"):
        list(read_sample_blocks(store))


def test_subsamples_hold_all_samples_of_some_questions(run: Path) -> None:
    store = Run(run)
    table, n_questions = read_subsample(store, 60)
    assert n_questions == 300
    ids = table["question_id"].to_pylist()
    names, counts = np.unique(ids, return_counts=True)
    assert set(counts) == {48}
    assert 35 < len(names) < 90
    assert table.column_names == store.samples().column_names
    assert encode_samples(table).n_groups == len(names)
    everything, _ = read_subsample(store, 300)
    assert everything.num_rows == 300 * 48
    fewer, _ = read_subsample(store, 30)
    assert set(fewer["question_id"].to_pylist()) < set(ids)


@pytest.mark.usefixtures("in_blocks")
def test_several_arms_are_refused(run: Path) -> None:
    store, path = Run(run), run / "samples.parquet"
    table = pq.read_table(path)
    manifest = run / "import.manifest.json"
    old = store.hashes(["samples.parquet"])["samples.parquet"]
    index = table.column_names.index("arm")
    arms = pa.array([str(i % 2) for i in range(len(table))])
    pq.write_table(table.set_column(index, "arm", arms), path)
    new = store.hashes(["samples.parquet"])["samples.parquet"]
    manifest.write_text(manifest.read_text().replace(old, new))
    with pytest.raises(DataError, match="several arms"):
        estimate_run(run, levels=(1, 2))


def test_policies_are_trained_and_scored_on_a_subsample(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "MAX_SAMPLES_IN_MEMORY", 100)
    monkeypatch.setattr(inputs, "MAX_SUBSAMPLE", 60)
    trained = train_run(run, policy="adaptive-consistency", out=tmp_path / "bundle")
    assert trained["subsample_of"] == 300
    assert 35 < trained["questions"] < 90
    scored = evaluate_run(run, budgets=[2.0], policies=["mixture"])
    assert scored["subsample_of"] == 300
    assert scored["questions"] == trained["questions"]


def test_a_damaged_file_of_samples_is_named(run: Path) -> None:
    path = run / "samples.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"samples\.parquet was altered"):
        estimate_run(run, levels=(1, 3, 8))
