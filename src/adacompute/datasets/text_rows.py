"""Text rows: read typed columns from JSONL and CSV files.

Types are given, not guessed: an answer ``007`` or ``1.0`` is kept as written, and so is a number in
a text column. A value that does not fit its column's type is a problem that names the line or row,
and is read as null. In CSV an empty cell is null; a quoted empty cell is an empty text, or null in
other columns.
This module does not interpret the columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from adacompute.core.errors import DataError
from adacompute.datasets.columns import advise
from adacompute.datasets.layout import split_chat
from adacompute.datasets.records import (
    JsonNumber,
    Problems,
    as_text,
    first_line,
    parse_list,
    read_records,
)

if TYPE_CHECKING:
    from pathlib import Path

BATCH_ROWS = 65_536
MAX_ROW_BYTES = 1 << 26
"""Maximum length of a row of a CSV file."""

NULL_TEXTS = frozenset({"", "NA", "NaN", "nan", "null", "NULL", "None"})
"""Values that mean null in numeric and Boolean columns of CSV files."""

BOOLEANS = {
    text: value
    for value, texts in {
        True: ("true", "yes", "1", "1.0"),
        False: ("false", "no", "0", "0.0"),
    }.items()
    for text in texts
}
"""Values of Boolean columns, in small letters."""


class ReadColumns(NamedTuple):
    """The requested columns that a file has, the names of all its columns, and its rows."""

    table: pa.Table
    names: list[str]
    n_rows: int


Convert = Callable[[Any], Any]
"""Converts a value of a text file; it raises ValueError."""

FindTypes = Callable[[Iterable[str]], Mapping[str, pa.DataType]]
"""Returns the types of the columns to read, from the names of those that a file has."""


def read_json(path: Path, find_types: FindTypes, problems: Problems) -> ReadColumns:
    """Read JSON lines or a list of JSON; a key that a record lacks is null."""
    tables: list[pa.Table] = []
    names: dict[str, None] = {}
    types: dict[str, pa.DataType] = {}
    columns: dict[str, list[Any]] = {}
    writers: list[tuple[str, Convert, Callable[[Any], None]]] = []

    def begin(found: Mapping[str, pa.DataType], n_rows: int) -> None:
        for name in [name for name in found if name not in types]:
            types[name], columns[name] = found[name], [None] * n_rows
            writers.append((name, _converter(found[name]), columns[name].append))

    def flush() -> None:
        arrays = [_array(name, columns[name], type_, problems) for name, type_ in types.items()]
        tables.append(pa.table(arrays, names=list(types)))
        for column in columns.values():
            column.clear()

    count = 0
    begin(find_types(()), 0)
    for count, (where, record) in enumerate(read_records(path, exact=True), 1):
        n_names = len(names)
        names.update(dict.fromkeys(record))
        if len(names) > n_names:
            begin(find_types([*types, *record]), (count - 1) % BATCH_ROWS)
        for name, convert, append in writers:
            value = record.get(name)
            try:
                append(None if value is None else convert(value))
            except ValueError as error:
                append(None)
                problems.add(f"{where}: {name!r} {error}{advise(name)}", name)
        if count % BATCH_ROWS == 0:
            flush()
    if count == 0:
        raise DataError(f"{path} holds no rows")
    flush()
    table = pa.concat_tables(tables, promote_options="default")
    found = table.select([name for name in types if name in names])
    return ReadColumns(found, list(names), count)


def _array(name: str, values: list[Any], type_: pa.DataType, problems: Problems) -> pa.Array:
    try:
        return pa.array(values, type_)
    except (pa.ArrowException, OverflowError) as error:
        problems.add(f"column {name!r} cannot be {type_}: {first_line(error)}", name)
        return pa.nulls(len(values), type_)


def _convert_text(value: Any) -> str | None:  # noqa: ANN401 - any JSON
    if isinstance(value, str):
        return str(value) if value.isascii() else as_text(value)
    raise ValueError(f"is {value!r}, not a text")


def _convert_boolean(value: Any) -> bool:  # noqa: ANN401 - any JSON
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in BOOLEANS:
        return BOOLEANS[value.strip().lower()]
    raise ValueError(f"is {str(value)[:50]!r}, neither true nor false")


def _convert_number(value: Any) -> float:  # noqa: ANN401 - any JSON
    if isinstance(value, JsonNumber):
        return _parse_number(value)
    raise ValueError(f"is {value!r}, not a number")


def _convert_integer(value: Any) -> int:  # noqa: ANN401 - any JSON
    return _to_integer(_convert_number(value), value)


def _converter(type_: pa.DataType) -> Convert:
    """Return the function that converts JSON values to a type; it raises ValueError."""
    if pa.types.is_struct(type_):
        return split_chat
    if pa.types.is_list(type_):
        return partial(_convert_list, _converter(type_.value_type))
    if pa.types.is_string(type_):
        return _convert_text
    if pa.types.is_boolean(type_):
        return _convert_boolean
    return _convert_integer if pa.types.is_integer(type_) else _convert_number


def _convert_list(convert: Convert, value: Any) -> list[Any]:  # noqa: ANN401 - any JSON
    found = parse_list(value) if isinstance(value, str) else value
    if isinstance(found, list):
        return [None if one is None else convert(one) for one in found]
    raise ValueError(f"is {str(value)[:50]!r}, not a list")


def _parse_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"is {text!r}, not a number") from None


def _to_integer(number: float, text: str) -> int:
    if number.is_integer():
        return int(number)
    raise ValueError(f"is {text}, not an integer")


def csv_options(columns: Sequence[str] = ()) -> dict[str, Any]:
    """Return how CSV files are read: these columns as texts, and cells without a text as null."""
    return {
        "read_options": pa.csv.ReadOptions(block_size=MAX_ROW_BYTES, use_threads=False),
        "parse_options": pa.csv.ParseOptions(newlines_in_values=True),
        "convert_options": pa.csv.ConvertOptions(
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            include_columns=list(columns),
            column_types=dict.fromkeys(columns, pa.string()),
            include_missing_columns=True,
        ),
    }


def read_csv(path: Path, find_types: FindTypes, problems: Problems) -> ReadColumns:
    """Read a CSV file with a header; quoted fields may contain line breaks."""
    try:
        with pa.csv.open_csv(path, **csv_options()) as file:
            names: list[str] = file.schema.names
        types = find_types(names)
        present = [name for name in types if names.count(name) == 1]
        table = pa.csv.read_csv(path, **csv_options(present))
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as CSV: {first_line(error)}") from None
    columns = [convert_texts(name, table[name], types[name], problems) for name in present]
    return ReadColumns(pa.table(columns, names=present), names, table.num_rows)


def convert_texts(
    name: str, column: pa.ChunkedArray, type_: pa.DataType, problems: Problems
) -> pa.ChunkedArray:
    """Convert a column of texts to a type; every distinct text is converted once."""
    if pa.types.is_string(type_):
        return column
    encoded = column.combine_chunks().dictionary_encode()
    texts = encoded.dictionary
    found = convert_values(
        *(name, texts, type_, partial(_convert_cell, type_=type_), problems),
        row_of=lambda i: int(pc.index(column, texts[i]).as_py()),
    )
    return pa.chunked_array([found.take(encoded.indices)])


def convert_values(
    name: str,
    column: pa.Array,
    type_: pa.DataType,
    convert: Convert,
    problems: Problems,
    row_of: Callable[[int], int] = int,
) -> pa.Array:
    """Convert the values of a column; a value that cannot be converted is a problem, and null."""
    values: list[Any] = []
    for i, value in enumerate(column.to_pylist()):
        try:
            values.append(None if value is None else convert(value))
        except ValueError as error:
            values.append(None)
            problems.add(f"row {row_of(i) + 1}: {name!r} {error}{advise(name)}", name)
    return _array(name, values, type_, problems)


def _convert_cell(text: str, type_: pa.DataType) -> Any:  # noqa: ANN401 - of the type
    stripped = text.strip()
    if stripped in NULL_TEXTS:
        return None
    if pa.types.is_integer(type_) or pa.types.is_floating(type_):
        number = _parse_number(stripped)
        return _to_integer(number, stripped) if pa.types.is_integer(type_) else number
    return _converter(type_)(text)
