"""Text rows: read typed columns from JSONL and CSV files.

Types are given, not guessed: an answer ``007`` or ``1.0`` is kept as written, and so is a number in
a text column. A value that does not fit its column's type raises a DataError that names the line or
row. In CSV an empty cell is null; a quoted empty cell is an empty text, or null in other columns.
This module does not interpret the columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from adacompute.core.errors import DataError
from adacompute.datasets.columns import advise
from adacompute.datasets.records import JsonNumber, as_text, first_line, read_records

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
        True: ("true", "True", "TRUE", "1", "1.0"),
        False: ("false", "False", "FALSE", "0", "0.0"),
    }.items()
    for text in texts
}


class ReadColumns(NamedTuple):
    """The requested columns that a file has, and the names of all its columns."""

    table: pa.Table
    names: list[str]


FindTypes = Callable[[Iterable[str]], Mapping[str, pa.DataType]]
"""Returns the types of the columns to read, from the names of those that a file has."""


def read_jsonl(path: Path, find_types: FindTypes) -> ReadColumns:
    """Read JSON lines; a key that a line lacks is null."""
    tables: list[pa.Table] = []
    names: dict[str, None] = {}
    types: dict[str, pa.DataType] = {}
    columns: dict[str, list[Any]] = {}
    writers: list[tuple[str, Callable[[Any], Any], Callable[[Any], None]]] = []

    def begin(found: Mapping[str, pa.DataType], n_rows: int) -> None:
        for name in [name for name in found if name not in types]:
            types[name], columns[name] = found[name], [None] * n_rows
            writers.append((name, _converter(found[name]), columns[name].append))

    def flush() -> None:
        arrays = [_array(path, name, columns[name], type_) for name, type_ in types.items()]
        tables.append(pa.table(arrays, names=list(types)))
        for column in columns.values():
            column.clear()

    count = 0
    begin(find_types(()), 0)
    for count, (line, record) in enumerate(read_records(path, exact=True), 1):
        n_names = len(names)
        names.update(dict.fromkeys(record))
        if len(names) > n_names:
            begin(find_types([*types, *record]), (count - 1) % BATCH_ROWS)
        for name, convert, append in writers:
            value = record.get(name)
            try:
                append(None if value is None else convert(value))
            except ValueError as error:
                raise DataError(f"line {line} of {path}: {name!r} {error}{advise(name)}") from None
        if count % BATCH_ROWS == 0:
            flush()
    if count == 0:
        raise DataError(f"{path} holds no rows")
    flush()
    table = pa.concat_tables(tables, promote_options="default")
    return ReadColumns(table.select([name for name in types if name in names]), list(names))


def _array(path: Path, name: str, values: list[Any], type_: pa.DataType) -> pa.Array:
    try:
        return pa.array(values, type_)
    except (pa.ArrowException, OverflowError) as error:
        raise DataError(
            f"column {name!r} of {path} cannot be {type_}: {first_line(error)}"
        ) from None


def _convert_text(value: Any) -> str | None:  # noqa: ANN401 - any JSON
    if isinstance(value, str):
        return str(value) if value.isascii() else as_text(value)
    raise ValueError(f"is {value!r}, not a text")


def _convert_boolean(value: Any) -> bool:  # noqa: ANN401 - any JSON
    if isinstance(value, bool):
        return value
    if isinstance(value, JsonNumber) and value in BOOLEANS:
        return BOOLEANS[value]
    raise ValueError(f"is {value!r}, neither true nor false")


def _convert_number(value: Any) -> float:  # noqa: ANN401 - any JSON
    if isinstance(value, JsonNumber):
        return _parse_number(value)
    raise ValueError(f"is {value!r}, not a number")


def _convert_integer(value: Any) -> int:  # noqa: ANN401 - any JSON
    return _to_integer(_convert_number(value), value)


def _converter(type_: pa.DataType) -> Callable[[Any], str | bool | float | None]:
    """Return the function that converts JSON values to a type; it raises ValueError."""
    if pa.types.is_string(type_):
        return _convert_text
    if pa.types.is_boolean(type_):
        return _convert_boolean
    return _convert_integer if pa.types.is_integer(type_) else _convert_number


def _parse_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"is {text!r}, not a number") from None


def _to_integer(number: float, text: str) -> int:
    if number.is_integer():
        return int(number)
    raise ValueError(f"is {text}, not an integer")


def read_csv(path: Path, find_types: FindTypes) -> ReadColumns:
    """Read a CSV file with a header; quoted fields may contain line breaks."""
    read_options = pa.csv.ReadOptions(block_size=MAX_ROW_BYTES, use_threads=False)
    parse_options = pa.csv.ParseOptions(newlines_in_values=True)
    convert_options = pa.csv.ConvertOptions(
        null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
    )
    try:
        with pa.csv.open_csv(path, read_options, parse_options) as file:
            names: list[str] = file.schema.names
        types = find_types(names)
        present = [name for name in types if names.count(name) == 1]
        convert_options.include_columns = present
        convert_options.column_types = dict.fromkeys(present, pa.string())
        table = pa.csv.read_csv(path, read_options, parse_options, convert_options)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as CSV: {first_line(error)}") from None
    columns = [_convert_column(path, name, table[name], types[name]) for name in present]
    return ReadColumns(pa.table(columns, names=present), names)


def _convert_column(
    path: Path, name: str, column: pa.ChunkedArray, type_: pa.DataType
) -> pa.ChunkedArray:
    """Convert a column of texts to a type; every distinct text is converted once."""
    if pa.types.is_string(type_):
        return column
    encoded = column.combine_chunks().dictionary_encode()
    values: list[bool | float | None] = []
    for text in encoded.dictionary.to_pylist():
        try:
            values.append(_convert_cell(text, type_))
        except ValueError as error:
            row = pc.index(column, text).as_py() + 1
            raise DataError(f"row {row} of {path}: {name!r} {error}{advise(name)}") from None
    return pa.chunked_array([_array(path, name, values, type_).take(encoded.indices)])


def _convert_cell(text: str, type_: pa.DataType) -> bool | float | None:
    stripped = text.strip()
    if stripped in NULL_TEXTS:
        return None
    if pa.types.is_boolean(type_):
        if stripped not in BOOLEANS:
            raise ValueError(f"is {text!r}, neither true nor false")
        return BOOLEANS[stripped]
    number = _parse_number(stripped)
    return _to_integer(number, stripped) if pa.types.is_integer(type_) else number
