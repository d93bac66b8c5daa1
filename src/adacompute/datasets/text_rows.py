"""Text rows: columns of JSONL and CSV files, of the types that are asked for.

Nothing is guessed from what values look like: an answer ``007`` or ``1.0`` stays as it is spelled,
a number where a text belongs too, and what cannot be of its column's type ends in one sentence that
names the line or row. In CSV an empty cell is null; a quoted empty one is a text without letters,
and null where no text belongs. It knows nothing of what the columns mean.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from adacompute.core.errors import DataError
from adacompute.datasets.records import Spelled, read_records, reason_of, text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

BATCH_ROWS = 65_536
BLOCK_BYTES = 1 << 26
"""No row of a CSV file may be longer."""

MISSING = frozenset({"", "NA", "NaN", "nan", "null", "NULL", "None"})
"""How CSV files spell a missing number or truth."""

TRUTHS = {
    spelling: truth
    for truth, spellings in {
        True: ("true", "True", "TRUE", "1", "1.0"),
        False: ("false", "False", "FALSE", "0", "0.0"),
    }.items()
    for spelling in spellings
}


class Found(NamedTuple):
    """The columns that were found of those asked for, and the names of all there are."""

    table: pa.Table
    names: list[str]


def read_jsonl(path: Path, types: Mapping[str, pa.DataType]) -> Found:
    """Read JSON lines; a column that is not in every line is null where it is not."""
    batches: list[pa.RecordBatch] = []
    names: dict[str, None] = {}
    columns: dict[str, list[Any]] = {name: [] for name in types}

    writers = [(name, _converter(kind), columns[name].append) for name, kind in types.items()]

    def flush() -> None:
        arrays = [_array(path, name, columns[name], kind) for name, kind in types.items()]
        batches.append(pa.RecordBatch.from_arrays(arrays, names=list(types)))
        for column in columns.values():
            column.clear()

    count = 0
    for count, (line, record) in enumerate(read_records(path, exact=True), 1):
        names.update(dict.fromkeys(record))
        for name, convert, append in writers:
            value = record.get(name)
            try:
                append(None if value is None else convert(value))
            except ValueError as error:
                raise DataError(f"line {line} of {path}: {name!r} {error}") from None
        if count % BATCH_ROWS == 0:
            flush()
    if count == 0:
        raise DataError(f"{path} holds no rows")
    flush()
    table = pa.Table.from_batches(batches)
    return Found(table.select([name for name in types if name in names]), list(names))


def _array(path: Path, name: str, values: list[Any], kind: pa.DataType) -> pa.Array:
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, OverflowError) as error:
        raise DataError(f"column {name!r} of {path} cannot be {kind}: {reason_of(error)}") from None


def _convert_text(value: Any) -> str | None:  # noqa: ANN401 - any JSON
    if isinstance(value, str):
        return str(value) if value.isascii() else text_of(value)
    raise ValueError(f"is {value!r}, which is no text")


def _convert_truth(value: Any) -> bool:  # noqa: ANN401 - any JSON
    if isinstance(value, bool):
        return value
    if isinstance(value, Spelled) and value in TRUTHS:
        return TRUTHS[value]
    raise ValueError(f"is {value!r}, which is neither true nor false")


def _convert_number(value: Any) -> float:  # noqa: ANN401 - any JSON
    if isinstance(value, Spelled):
        return _number(value)
    raise ValueError(f"is {value!r}, which is no number")


def _convert_whole(value: Any) -> int:  # noqa: ANN401 - any JSON
    return _whole(_convert_number(value), value)


def _converter(kind: pa.DataType) -> Callable[[Any], str | bool | float | None]:
    """Return what turns a JSON value into one of a kind, or says that it is none."""
    if pa.types.is_string(kind):
        return _convert_text
    if pa.types.is_boolean(kind):
        return _convert_truth
    return _convert_whole if pa.types.is_integer(kind) else _convert_number


def _number(spelled: str) -> float:
    try:
        return float(spelled)
    except ValueError:
        raise ValueError(f"is {spelled!r}, which is no number") from None


def _whole(number: float, spelled: str) -> int:
    if number.is_integer():
        return int(number)
    raise ValueError(f"is {spelled}, which is no whole number")


def read_csv(path: Path, types: Mapping[str, pa.DataType]) -> Found:
    """Read a CSV file with a header; fields may be quoted, and hold line breaks if they are."""
    reading = pa.csv.ReadOptions(block_size=BLOCK_BYTES, use_threads=False)
    parsing = pa.csv.ParseOptions(newlines_in_values=True)
    converting = pa.csv.ConvertOptions(
        null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
    )
    try:
        with pa.csv.open_csv(path, reading, parsing) as file:
            names: list[str] = file.schema.names
        wanted = [name for name in types if names.count(name) == 1]
        converting.include_columns = wanted
        converting.column_types = dict.fromkeys(wanted, pa.string())
        found = pa.csv.read_csv(path, reading, parsing, converting)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as CSV: {reason_of(error)}") from None
    columns = [_typed(path, name, found[name], types[name]) for name in wanted]
    return Found(pa.table(columns, names=wanted), names)


def _typed(path: Path, name: str, column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Turn a column of texts into one of a kind, each spelling once."""
    if pa.types.is_string(kind):
        return column
    coded = column.combine_chunks().dictionary_encode()
    values: list[bool | float | None] = []
    for spelled in coded.dictionary.to_pylist():
        try:
            values.append(_cell(spelled, kind))
        except ValueError as error:
            row = pc.index(column, spelled).as_py() + 1
            raise DataError(f"row {row} of {path}: {name!r} {error}") from None
    return pa.chunked_array([_array(path, name, values, kind).take(coded.indices)])


def _cell(spelled: str, kind: pa.DataType) -> bool | float | None:
    bare = spelled.strip()
    if bare in MISSING:
        return None
    if not pa.types.is_boolean(kind):
        return _whole(_number(bare), bare) if pa.types.is_integer(kind) else _number(bare)
    if bare not in TRUTHS:
        raise ValueError(f"is {spelled!r}, which is neither true nor false")
    return TRUTHS[bare]
