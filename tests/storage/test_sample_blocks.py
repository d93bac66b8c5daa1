"""Runs that are larger than memory are read in blocks, or in part."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from adacompute.core.errors import DataError
from adacompute.datasets.example import find_example
from adacompute.policies.bundles.bundle import load_bundle
from adacompute.stages import inputs
from adacompute.stages.evaluate import evaluate_run
from adacompute.stages.import_samples import import_samples
from adacompute.stages.train import train_run
from adacompute.storage.sample_blocks import read_sample_blocks, read_subsample
from adacompute.storage.store import Run, encode_samples


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    import_samples(find_example(), path, grader="numeric")
    return path


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
        list(read_sample_blocks(store, ("question_id", "sample")))


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


def test_policies_are_trained_and_scored_on_a_subsample(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "MAX_SAMPLES_IN_MEMORY", 100)
    monkeypatch.setattr(inputs, "MAX_SUBSAMPLE", 60)
    train_run(run, policy="adaptive-consistency", out=tmp_path / "bundle")
    trained = load_bundle(tmp_path / "bundle").notes
    assert trained["subsample_of"] == 300
    assert 35 < trained["questions"] < 90
    scored = evaluate_run(run, budgets=[2.0], policies=["mixture"])
    assert scored["subsample_of"] == 300
    assert scored["questions"] == trained["questions"]


def test_a_damaged_file_of_samples_is_named(run: Path) -> None:
    path = run / "samples.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"samples\.parquet was altered"):
        evaluate_run(run, budgets=[2.0], policies=["mixture"])
