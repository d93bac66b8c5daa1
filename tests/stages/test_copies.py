"""Copies of questions: they share folds, and they do not make a gain look larger or surer."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from adacompute.datasets.example import find_example
from adacompute.datasets.rows import read_samples
from adacompute.evaluation.costs import CostModel
from adacompute.evaluation.experiment import Experiment
from adacompute.evaluation.pool import N_FOLDS, assign_folds
from adacompute.evaluation.scoring.policy_score import PolicyScore, score_policy
from adacompute.stages.inputs import make_pool
from adacompute.storage.store import SampleSet, encode_samples

DATA = Path(__file__).parents[2] / os.environ.get("ADACOMPUTE_DATA", "../shared/data")
SAMPLES = DATA / "samples"
EXAMS = SAMPLES / "mcqa10x100__gpt-3.5-turbo.parquet"
BUDGET = 3.0
needs_data = pytest.mark.skipif(
    not EXAMS.is_file(), reason="recorded samples are not there: ADACOMPUTE_DATA"
)


def read_exams() -> pa.Table:
    """Read 150 exam questions, 16 samples of each."""
    table = read_samples(EXAMS)
    ids = table["question_id"].unique()
    chosen = ids.take(pa.array(np.arange(0, 900, 6)))
    kept = pc.and_(pc.is_in(table["question_id"], chosen), pc.less(table["sample"], 16))
    return table.filter(kept)


def double(table: pa.Table) -> pa.Table:
    """Return questions and their copies, which end in a space and have other ids."""
    copy = table
    for name in ("question_id", "question"):
        index = table.column_names.index(name)
        text = pc.binary_join_element_wise(table[name], "", " ")
        copy = copy.set_column(index, table.schema.field(name), text)
    return pa.concat_tables([table, copy])


def score(recorded: SampleSet) -> PolicyScore:
    pool = make_pool(recorded, costs=CostModel("samples")).equalise()
    return score_policy(Experiment(pool, (1, 2, 4, 8, 16), (BUDGET,), 4), "sequential")


@needs_data
@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("arith110__smollm2-135m", 110, 110),
        ("game24__gpt-4-cot", 100, 100),
        ("game24__gpt-4-io", 100, 100),
        ("gpqa-diamond__claude-2.0", 198, 198),
        ("mcqa10x100__gpt-3.5-turbo", 992, 1000),
    ],
)
def test_recorded_sets_hold_no_copies(name: str, least: int, most: int) -> None:
    columns = ["question_id", "question", "sample", "answer", "correct", "level"]
    table = pq.read_table(SAMPLES / f"{name}.parquet", columns=columns)
    first = table.filter(pc.equal(table["sample"], 0)).rename_columns([*columns[:-1], "difficulty"])
    assert least <= encode_samples(first).n_groups <= most


def test_the_example_has_300_independent_questions() -> None:
    assert encode_samples(read_samples(find_example())).n_groups == 300


@needs_data
def test_copies_of_exam_questions_share_folds() -> None:
    table = read_exams()
    once, twice = encode_samples(table), encode_samples(double(table))
    assert (len(twice.id), twice.n_groups) == (300, once.n_groups)
    fold = assign_folds(twice.group, N_FOLDS)
    assert (fold[:150] == fold[150:]).all()


@needs_data
@pytest.mark.slow
def test_copies_of_exam_questions_do_not_make_a_gain_larger_or_surer() -> None:
    table = read_exams()
    once, twice = encode_samples(table), encode_samples(double(table))
    alone, copied = score(once), score(twice)
    assert copied.n_groups == alone.n_groups
    points = alone.curve.read(BUDGET), copied.curve.read(BUDGET)
    one, other = alone.gain(points[0]), copied.gain(points[1])
    assert other.value <= one.value + 0.005
    assert other.high - other.low == pytest.approx(one.high - one.low, rel=0.2)
    # As independent questions they would show a gain that is not there.
    apart = score(replace(twice, known_group=twice.key))
    assert apart.gain(apart.curve.read(BUDGET)).low > other.high
