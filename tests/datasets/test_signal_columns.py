"""Columns of signals are read from every format, and no odd one ends in anything but a sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import adacompute as ada
from adacompute.core.errors import ConfigError, DataError
from adacompute.core.signals import MAX_GIVEN
from adacompute.datasets import text_rows
from adacompute.datasets.rows import SAMPLE_SCHEMA, read_samples
from adacompute.stages.import_samples import import_samples
from adacompute.stages.inputs import read_pool
from adacompute.storage.store import Run

ROWS: list[dict[str, Any]] = [
    {"question_id": "a", "sample": 0, "answer": "7", "correct": True, "signal_v": 0.5},
    {"question_id": "a", "sample": 1, "answer": "8", "correct": False, "signal_v": None},
    {"question_id": "b", "sample": 0, "answer": "9", "correct": False, "signal_v": 2},
]
FORMATS = ("parquet", "csv", "jsonl", "table")


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write rows in the format of the suffix."""
    table = pa.Table.from_pylist(rows)
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    elif path.suffix == ".csv":
        pa.csv.write_csv(table, path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(path: Path, kind: str, rows: list[dict[str, Any]], **options: Any) -> pa.Table:
    """Return the samples that are read from rows in a format."""
    if kind == "table":
        return ada.read_samples(pa.Table.from_pylist(rows), **options).to_arrow()
    return ada.read_samples(write(path / f"x.{kind}", rows), **options).to_arrow()


@pytest.mark.parametrize("kind", FORMATS)
def test_signals_are_read_as_numbers_after_all_other_columns(tmp_path: Path, kind: str) -> None:
    found = read(tmp_path, kind, [{**row, "other": 1.5} for row in ROWS])
    assert found.column_names == [*SAMPLE_SCHEMA.names, "signal_v"]
    assert found["signal_v"].type == pa.float64()
    assert found["signal_v"].to_pylist() == [0.5, None, 2.0]


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("ours", ["signal_v", "score"])
def test_a_column_can_be_mapped_to_a_signal(tmp_path: Path, kind: str, ours: str) -> None:
    rows = [{**row, "signal_v": ..., "judge": row["signal_v"]} for row in ROWS]
    rows = [{name: one for name, one in row.items() if one is not ...} for row in rows]
    found = read(tmp_path, kind, rows, columns={ours: "judge"})
    assert found[ours].to_pylist() == [0.5, None, 2.0]


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("signal_v", "high", "signal_v.*write numbers, or rename the column"),
        ("signal_v", 1e31, "'signal_v' holds 1e.31, which cannot be a signal: write numbers"),
        ("score", -1e31, "'score' holds -1e.31, which cannot be a signal"),
        ("signal_two words", 1.0, "'signal_two words', which cannot be a signal: name it"),
        ("signal_" + "x" * 41, 1.0, "which cannot be a signal: name it"),
        ("signal_é", 1.0, "which cannot be a signal: name it"),
    ],
)
def test_odd_signals_are_refused_in_one_sentence(
    tmp_path: Path, kind: str, name: str, value: object, told: str
) -> None:
    with pytest.raises(DataError, match=told) as caught:
        read(tmp_path, kind, [{**row, name: value} for row in ROWS])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", FORMATS)
def test_too_many_signals_are_refused(tmp_path: Path, kind: str) -> None:
    more = {f"signal_{i}": 1.0 for i in range(MAX_GIVEN - 1)}
    assert len(read(tmp_path, kind, [{**row, **more} for row in ROWS]).column_names) > MAX_GIVEN
    with pytest.raises(DataError, match=f"{MAX_GIVEN + 1} columns named 'signal_…'"):
        read(tmp_path, kind, [{**row, **more, "signal_one_more": 1.0} for row in ROWS])


@pytest.mark.parametrize("value", [np.inf, -np.inf])
def test_infinite_signals_are_refused_and_unknown_ones_are_not(value: float) -> None:
    table = pa.table({name: [row[name] for row in ROWS] for name in ROWS[0]})
    last = table.column_names.index("signal_v")
    with pytest.raises(DataError, match=f"holds {value}, which cannot be a signal"):
        ada.read_samples(table.set_column(last, "signal_v", pa.array([0.0, value, 1.0])))
    found = ada.read_samples(table.set_column(last, "signal_v", pa.array([0.0, np.nan, 1.0])))
    pool = found.pool()
    assert pool.signals is not None
    np.testing.assert_array_equal(pool.signals[:, -1], [0.0, np.nan, 1.0])


def test_a_signal_may_begin_on_any_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_rows, "BATCH_ROWS", 2)
    numbers = [None, None, None, 1.0, None, 2.0, 3.0]
    rows = [
        {"question_id": "a", "sample": i, "correct": False}
        | ({} if number is None else {"signal_v": number})
        for i, number in enumerate(numbers)
    ]
    assert read_samples(write(tmp_path / "x.jsonl", rows))["signal_v"].to_pylist() == numbers


def test_signals_of_arms_and_ungraded_files_are_kept_in_the_run(tmp_path: Path) -> None:
    graded = [{**row, "completion": row["answer"], "gold": "7"} for row in ROWS]
    ungraded = [
        {**{k: v for k, v in row.items() if k not in ("correct", "signal_v")}, "signal_w": 1.0}
        for row in graded
    ]
    arms = {"a": write(tmp_path / "a.csv", graded), "b": write(tmp_path / "b.jsonl", ungraded)}
    import_samples(None, tmp_path / "run", arms=arms, grader="exact")
    pool = read_pool(Run(tmp_path / "run"))
    assert pool.signal_names[-2:] == ("signal_v", "signal_w")
    assert pool.signals is not None
    nan = np.nan
    found = pool.signals[:, -2:]
    expected = [[0.5, nan], [nan, nan], [nan, 1], [nan, 1], [2, nan], [nan, 1]]
    np.testing.assert_array_equal(found, expected)


def test_signals_can_only_be_mapped_to_names_that_may_be_signals() -> None:
    table = pa.Table.from_pylist([{**row, "judge": 1.0} for row in ROWS])
    with pytest.raises(DataError, match="cannot be a signal"):
        ada.read_samples(table, columns={"signal_a b": "judge"})
    with pytest.raises(ConfigError, match="there is no column 'judged'"):
        ada.read_samples(table, columns={"judged": "judge"})
