"""Samples are read from paths and from tables of every library with the Arrow C stream."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import adacompute as ada
from adacompute import research

Rows = list[dict[str, Any]]


class YesOrNo:
    """A grader of the user's own."""

    name = "yes-or-no"

    def extract(self, text: str) -> str | None:
        found = [word for word in ("yes", "no") if word in text.lower()]
        return found[0] if len(found) == 1 else None

    def equal(self, left: str, right: str) -> bool:
        return left == right


def test_example_has_its_questions_and_samples(example: ada.Samples) -> None:
    assert (len(example), example.n_samples) == (300, 14_400)
    assert example.unit == "samples"
    assert example.grader is not None
    assert example.grader.name == "numeric"
    assert len(example.question_ids) == len(example.questions) == len(example.keys) == 300


def test_shown_in_a_terminal_and_in_a_notebook(example: ada.Samples) -> None:
    assert "300 questions" in repr(example)
    assert "\n" not in repr(example)
    page = example._repr_html_()
    assert page.count("<tr>") == 21
    assert "14380 more rows" in page


def test_html_is_escaped(rows: Rows) -> None:
    marked = [{**row, "question": "<script>"} for row in rows]
    assert "<script>" not in ada.read_samples(pa.Table.from_pylist(marked))._repr_html_()


def test_take_keeps_questions_with_all_their_samples(example: ada.Samples) -> None:
    part = example.take([5, 7, 200])
    assert part.question_ids == [example.question_ids[i] for i in (5, 7, 200)]
    assert part.n_samples == 3 * 48
    assert part.grader is example.grader
    assert part.data_hash != example.data_hash
    assert part.data_hash == example.take([5, 7, 200]).data_hash
    assert example.positions(part.keys).tolist() == [5, 7, 200]


def test_drop_unparsed(small: ada.Samples) -> None:
    parsed = small.drop_unparsed()
    assert parsed.to_arrow()["answer"].null_count == 0 < small.to_arrow()["answer"].null_count
    assert len(parsed) == len(small)


def test_run_directory_is_read_with_its_hash(run: Path, small: ada.Samples) -> None:
    samples = ada.read_samples(run)
    assert samples.to_arrow().equals(small.to_arrow())
    assert samples.data_hash == small.data_hash


def test_utility_table_feeds_the_solver(example: ada.Samples) -> None:
    table = example.utility_table((1, 2, 4))
    assert table.utility.shape == (300, 3)
    assert ada.solve(table, budget=2.0).cost <= 2.0


def as_polars(table: Any) -> Any:
    return pytest.importorskip("polars").from_arrow(table)


def as_pandas(table: Any) -> Any:
    pytest.importorskip("pandas")
    return table.to_pandas()


def as_duckdb(table: Any) -> Any:
    return pytest.importorskip("duckdb").connect().from_arrow(table)


def as_dataset(table: Any) -> Any:
    return pytest.importorskip("datasets").Dataset(table)


def as_streamed_dataset(table: Any) -> Any:
    return as_dataset(table).to_iterable_dataset()


LIBRARIES = [pa.table, as_pandas, as_polars, as_duckdb, as_dataset, as_streamed_dataset]


@pytest.mark.parametrize("convert", LIBRARIES, ids=lambda convert: convert.__name__)
def test_tables_of_every_library_give_the_same_samples(
    convert: Any, source: Path, small: ada.Samples
) -> None:
    samples = ada.read_samples(convert(pq.read_table(source)), grader="numeric")
    assert samples.to_arrow().equals(small.to_arrow())
    assert samples.data_hash == small.data_hash


@pytest.mark.parametrize("convert", LIBRARIES, ids=lambda convert: convert.__name__)
def test_columns_map_their_names_to_ours(convert: Any, rows: Rows) -> None:
    named = [{"id": row["question_id"], "n": row["sample"], **row} for row in rows]
    for row in named:
        del row["sample"]
        row["question_id"] = "another id"  # replaced by the mapped column
    samples = ada.read_samples(
        convert(pa.Table.from_pylist(named)), columns={"question_id": "id", "sample": "n"}
    )
    assert len(samples) == 24


def test_columns_of_a_file_are_mapped(rows: Rows, tmp_path: Path) -> None:
    table = pa.Table.from_pylist(rows).rename_columns({"question_id": "theirs"})
    path = tmp_path / "theirs.parquet"
    pq.write_table(table, path)
    named = ada.read_samples(path, columns={"question_id": "theirs"})
    assert set(named.question_ids) == {row["question_id"] for row in rows}
    with pytest.raises(ada.DataError, match="no column 'other'"):
        ada.read_samples(path, columns={"question_id": "other"})


def test_selected_rows_of_a_dataset_are_respected(source: Path) -> None:
    dataset = as_dataset(pq.read_table(source))
    chosen = dataset.select(range(8, 24)).shuffle(seed=1)
    samples = ada.read_samples(chosen)
    assert (len(samples), samples.n_samples) == (2, 16)
    even = dataset.filter(lambda row: row["sample"] % 2 == 0)
    assert ada.read_samples(even).n_samples == 24 * 4


def test_filtered_frames_are_respected(source: Path) -> None:
    polars = pytest.importorskip("polars")
    frame = polars.read_parquet(source).filter(polars.col("sample") < 4)
    assert ada.read_samples(frame).n_samples == 24 * 4


def test_a_dictionary_of_splits_is_refused_with_their_names(source: Path) -> None:
    datasets = pytest.importorskip("datasets")
    splits = datasets.DatasetDict({"train": as_dataset(pq.read_table(source))})
    with pytest.raises(ada.ConfigError, match="train"):
        ada.read_samples(splits)


def test_samples_without_grades_are_graded_by_their_gold(rows: Rows, small: ada.Samples) -> None:
    ungraded = [
        {name: row[name] for name in ("question_id", "question", "gold", "sample", "completion")}
        for row in rows
    ]
    samples = ada.read_samples(pa.Table.from_pylist(ungraded), grader="numeric")
    assert np.array_equal(samples.answers.correct, small.answers.correct)
    assert samples.to_arrow()["answer"].to_pylist() == small.to_arrow()["answer"].to_pylist()
    with pytest.raises(ada.DataError, match="correct"):
        ada.read_samples(pa.Table.from_pylist(ungraded))


def test_a_grader_of_the_users_own_grades() -> None:
    texts = ["Yes.", "no", "yes and no", "YES"]
    table = pa.table(
        {
            "question_id": ["q"] * 4,
            "sample": range(4),
            "gold": ["yes"] * 4,
            "completion": texts,
        }
    )
    samples = ada.read_samples(table, grader=YesOrNo())
    assert samples.to_arrow()["answer"].to_pylist() == ["yes", "no", None, "yes"]
    assert samples.answers.correct.tolist() == [True, False, False, True]


def test_gold_from_a_question_set(rows: Rows, tmp_path: Path) -> None:
    names = ("question_id", "sample", "completion")
    table = pa.Table.from_pylist([{name: row[name] for name in names} for row in rows])
    gold = tmp_path / "gold.jsonl"
    ids = sorted({row["question_id"] for row in rows})
    gold.write_text("".join(f'{{"question_id": "{name}", "gold": "7"}}\n' for name in ids))
    samples = ada.read_samples(table, grader="numeric", gold=gold)
    assert samples.answers.correct.sum() == sum(row["correct"] for row in rows)
    with pytest.raises(ada.ConfigError, match="grader"):
        ada.read_samples(table, gold=gold)


def test_costs_in_tokens_and_money(source: Path, tmp_path: Path) -> None:
    tokens = ada.read_samples(source, unit="tokens")
    assert tokens.unit == "tokens"
    assert tokens.utility_table((1, 2)).cost.mean() > 2
    with pytest.raises(ada.ConfigError, match="money"):
        ada.read_samples(source, token_prices={"m": research.TokenPrices(input=1, output=2)})
    money = ada.read_samples(
        source, unit="money", token_prices={"m": research.TokenPrices(input=0, output=2)}
    )
    prices = tmp_path / "prices.toml"
    prices.write_text('[models."m"]\ninput = 0\noutput = 2\n')
    same = ada.read_samples(source, unit="money", token_prices=prices)
    assert money.costs == same.costs
    assert 0 < money.utility_table((1, 2)).cost.min() < 1


@pytest.mark.parametrize("source", [3, [1, 2], {"a": 1}])
def test_other_objects_are_refused(source: Any) -> None:
    with pytest.raises(ada.ConfigError, match=type(source).__name__):
        ada.read_samples(source)


def test_a_missing_file_is_refused() -> None:
    with pytest.raises(ada.DataError, match="nowhere"):
        ada.read_samples("nowhere.parquet")


def test_unknown_target_of_a_column_is_refused(source: Path) -> None:
    with pytest.raises(ada.ConfigError, match="nonsense"):
        ada.read_samples(source, columns={"nonsense": "sample"})


def test_to_pandas_and_back(small: ada.Samples) -> None:
    pytest.importorskip("pandas")
    frame = small.to_pandas()
    assert len(frame) == small.n_samples
    assert ada.read_samples(frame).data_hash == small.data_hash


def test_samples_are_an_arrow_stream_themselves(small: ada.Samples) -> None:
    polars = pytest.importorskip("polars")
    assert polars.DataFrame(small).height == small.n_samples
    assert ada.read_samples(small).data_hash == small.data_hash


@pytest.mark.parametrize("name", ["exmaple", "Example", "examples"])
def test_a_misspelt_example_gets_a_hint(name: str) -> None:
    with pytest.raises(ada.DataError, match="'example'"):
        ada.read_samples(name)


def test_other_missing_files_get_no_hint() -> None:
    with pytest.raises(ada.DataError) as caught:
        ada.read_samples("answers.parquet")
    assert "example" not in str(caught.value)
