"""Utilities: tables of the utility and the cost of every level on every question.

A table is a Parquet or CSV file with one row per question and level, in the columns question,
level, utility and cost. Every question has the same levels, in any order. A long Parquet file is
read in blocks; then the rows of a question must be next to each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from adacompute.core.errors import DataError
from adacompute.core.types import UtilityTable, cost_units

COLUMNS = ("question", "level", "utility", "cost")
SCHEMA = pa.schema(
    [
        ("question", pa.string()),
        ("level", pa.string()),
        ("utility", pa.float64()),
        ("cost", pa.float64()),
    ]
)

MAX_ROWS_IN_MEMORY = 1_000_000
"""Rows of a table that is read as a whole, so that the rows of a question may be anywhere."""

BLOCK_ROWS = 1 << 18
"""Rows that are read at once of a longer table."""

BUFFER_BYTES = 1 << 20

Block = tuple[pa.Array, UtilityTable]
"""The names of questions, and their utilities."""

Batches = Callable[[], Iterable[pa.Table]]


def is_utility_table(path: Path, columns: Mapping[str, str] | None = None) -> bool:
    """Whether a file is a table of utilities, by the names of its columns."""
    wanted = {(columns or {}).get(name, name) for name in COLUMNS}
    if not path.is_file():
        return False
    try:
        if path.suffix == ".parquet":
            return wanted <= set(pq.read_schema(path).names)
        if path.suffix == ".csv":
            with pa.csv.open_csv(path) as reader:
                return wanted <= set(reader.schema.names)
    except (pa.ArrowException, OSError):
        return False  # whoever reads it as samples says what is wrong
    return False


def read_utilities(
    path: Path, columns: Mapping[str, str] | None = None
) -> tuple[tuple[str, ...], int, Callable[[], Iterator[Block]]]:
    """Return the levels of a table, the number of its questions, and how it is read in blocks."""
    names = [(columns or {}).get(name, name) for name in COLUMNS]
    is_long = path.suffix == ".parquet" and pq.read_metadata(path).num_rows > MAX_ROWS_IN_MEMORY
    batches: Batches = partial(_stream, path, names)
    if not is_long:
        table = _group(pa.concat_tables(_read(path, names)))
        batches = partial(iter, [table])
    n_rows, max_cost, levels = 0, 0.0, None
    for batch in batches():
        if n_rows == 0 and len(batch):
            levels = _find_levels(batch)
        n_rows += len(batch)
        max_cost = max(max_cost, pc.max(batch["cost"]).as_py() or 0.0)
    if levels is None:
        raise DataError(f"there are no questions in {path}")
    read = partial(_read_blocks, batches, levels, cost_units(max_cost))
    return tuple(levels.to_pylist()), n_rows // len(levels), read


def _read(path: Path, names: list[str]) -> Iterator[pa.Table]:
    """Yield the only table of a file."""
    if path.suffix == ".parquet":
        yield _cast(pq.read_table(path, columns=names), names)
        return
    kinds = dict(zip(names, SCHEMA.types, strict=True))
    options = pa.csv.ConvertOptions(column_types=kinds, include_columns=names)
    try:
        yield _cast(pa.csv.read_csv(path, convert_options=options), names)
    except pa.ArrowInvalid as error:
        raise DataError(f"{path} is no table of utilities: {error}") from None


def _stream(path: Path, names: list[str]) -> Iterator[pa.Table]:
    """Yield the rows of a Parquet file, some at a time."""
    with pq.ParquetFile(path, buffer_size=BUFFER_BYTES, pre_buffer=False) as document:
        for batch in document.iter_batches(BLOCK_ROWS, columns=names):
            yield _cast(pa.table(batch), names)


def _cast(table: pa.Table, names: list[str]) -> pa.Table:
    """Return a table with our names and types."""
    try:
        found = table.select(names).rename_columns(COLUMNS).cast(SCHEMA)
    except pa.ArrowInvalid as error:
        raise DataError(f"a column of the table of utilities cannot be read: {error}") from None
    if missing := [name for name in COLUMNS if found[name].null_count]:
        raise DataError(
            f"the table of utilities has rows without {missing[0]}: remove or fill them"
        )
    return found


def _group(table: pa.Table) -> pa.Table:
    """Return a table in which the rows of a question are next to each other."""
    question = table["question"].combine_chunks().dictionary_encode()
    order = np.argsort(question.indices.to_numpy(), kind="stable")
    return table.take(pa.array(order))


def _find_levels(batch: pa.Table) -> pa.Array:
    """Return the levels of the first question."""
    own = batch.filter(pc.equal(batch["question"], batch["question"][0]))
    return own["level"].unique()


def _read_blocks(batches: Batches, levels: pa.Array, units: float) -> Iterator[Block]:
    """Yield the questions in blocks; keys are numbers of questions."""
    rest, first, size = SCHEMA.empty_table(), 0, len(levels)
    for batch in batches():
        rows = pa.concat_tables([rest, batch])
        whole = len(rows) // size
        if whole:
            yield _make_block(rows.slice(0, whole * size), levels, units, first)
        first, rest = first + whole, rows.slice(whole * size)
    if len(rest):
        raise _not_grouped(rest["question"][0].as_py(), levels)


def _make_block(table: pa.Table, levels: pa.Array, units: float, first: int) -> Block:
    """Return the questions of rows; costs are rounded up to the same units in all blocks."""
    shape = (-1, len(levels))
    ids = table["question"].combine_chunks()
    code = ids.dictionary_encode().indices.to_numpy().reshape(shape)
    place = pc.index_in(table["level"], value_set=levels).fill_null(-1).to_numpy().reshape(shape)
    order = np.argsort(place, axis=1, kind="stable")
    is_whole = (code == code[:, :1]).all(axis=1) & (np.sort(place) == np.arange(shape[1])).all(1)
    is_whole[1:] &= code[1:, 0] != code[:-1, 0]
    if not is_whole.all():
        row = int(np.argmin(is_whole)) * shape[1]
        raise _not_grouped(ids[row].as_py(), levels)

    def column(name: str) -> Any:  # noqa: ANN401 - an array
        values = table[name].to_numpy().reshape(shape)
        return np.take_along_axis(values, order, axis=1)

    cost = column("cost")
    with np.errstate(over="ignore", invalid="ignore"):  # what is no cost is refused below
        rounded = cost if (cost == np.rint(cost)).all() else np.ceil(cost * units) / units
    is_shared = bool((rounded == rounded[:1]).all())
    key = np.arange(first, first + len(code), dtype=np.uint64)
    found = UtilityTable(column("utility"), rounded[0] if is_shared else rounded, key)
    return ids.take(pa.array(np.arange(0, len(ids), shape[1]))), found


def _not_grouped(question: str, levels: pa.Array) -> DataError:
    named = ", ".join(levels.to_pylist())
    return DataError(
        f"the question {question!r} must have one row for each of the levels {named}, and in a "
        f"table of more than {MAX_ROWS_IN_MEMORY:,} rows they must be next to each other"
    )
