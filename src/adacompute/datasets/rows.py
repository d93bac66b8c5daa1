"""Rows: Parquet, JSONL and CSV files of questions and of recorded samples.

One row per sample, or one per question. The format follows from the suffix (``.jsonl``,
``.ndjson``, ``.csv``, else Parquet). Columns of samples that are named ``signal_…`` are read as
numbers, other unknown columns are ignored, and absent columns that may be
null are null. The characters of a completion are counted if they are not given. Public data files
call the difficulty of a question ``level``, and the arm ``operating_level``; both names are
accepted. An invalid file raises a DataError of one sentence. This module knows nothing of runs or
of grading.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from adacompute.core.errors import ConfigError, DataError
from adacompute.core.signals import MAX_VALUE, is_given
from adacompute.datasets.columns import (
    QUESTION_COLUMNS,
    SAMPLE_COLUMNS,
    add_signals,
    advise,
    make_schema,
)
from adacompute.datasets.records import first_line, open_parquet, read_parquet
from adacompute.datasets.text_rows import FindTypes, ReadColumns, read_csv, read_jsonl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

SAMPLE_SCHEMA = make_schema(SAMPLE_COLUMNS)
"""Columns of recorded samples. ``difficulty`` and ``arm`` have aliases: see ``SOURCE_NAMES``."""

QUESTION_SCHEMA = make_schema(QUESTION_COLUMNS)
"""Columns of question sets."""

SOURCE_NAMES = {"difficulty": "level", "arm": "operating_level"}
"""Columns that public data files name differently."""

OLD_COLUMNS = frozenset({"operating_level", "shared"})
"""Columns that only sample files of older versions of this package have together."""

_REMEDIES = {
    "correct": ": pass a grader (grader= or --grader) for ungraded samples, with gold answers in a "
    "column 'gold' or, as for the log of a gateway, in a file (gold= or --gold); or run "
    "'adacompute fit SOURCE --today N', which needs no grades"
}
"""What to do about a missing column that must not be null."""

TEXT_READERS: dict[str, Callable[[Path, FindTypes], ReadColumns]] = {
    ".jsonl": read_jsonl,
    ".ndjson": read_jsonl,
    ".csv": read_csv,
}
"""Readers by the suffix of the file; all other files are Parquet."""


def read_samples(path: Path) -> pa.Table:
    """Read recorded samples, one row per sample, in the order of the file."""
    return finish_samples(read_columns(path, SAMPLE_SCHEMA), path)


def finish_samples(table: pa.Table, source: object) -> pa.Table:
    """Return samples with blank answers as null and characters counted; DataError if invalid."""
    return check_samples(_blanks_to_null(table), source)


def make_samples(rows: Sequence[Mapping[str, Any]], source: Path) -> pa.Table:
    """Make a table of samples from rows."""
    try:
        table = pa.Table.from_pylist(list(rows), schema=SAMPLE_SCHEMA)
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise DataError(f"{source} cannot be converted to samples: {first_line(error)}") from None
    return check_samples(table, source)


def check_samples(table: pa.Table, source: object) -> pa.Table:
    """Return samples with their characters counted; DataError if they are inconsistent.

    A sample number must not occur twice in an arm of a question, and an unparsed sample cannot be
    correct. Samples without an arm belong to the arm of their model.
    """
    if table.num_rows == 0:
        raise DataError(f"{source} holds no samples")
    arm = pc.coalesce(table["arm"], table["model"], pa.scalar("", pa.string()))
    keys = pa.table({"question_id": table["question_id"], "arm": arm, "sample": table["sample"]})
    duplicates = keys.group_by(keys.column_names).aggregate([([], "count_all")])
    duplicates = duplicates.filter(pc.greater(duplicates["count_all"], 1))
    if duplicates.num_rows:
        row = duplicates.slice(0, 1).to_pylist()[0]
        raise DataError(
            f"{source} holds sample {row['sample']} of question {row['question_id']!r} "
            f"{row['count_all']} times: number the samples of each question and arm from 0"
        )
    inconsistent = pc.and_(pc.is_null(table["answer"]), table["correct"])
    if pc.any(inconsistent).as_py():
        row = table.filter(inconsistent).slice(0, 1).to_pylist()[0]
        raise DataError(
            f"{source}: sample {row['sample']} of question {row['question_id']!r} is correct but "
            "has no answer: an unparsed sample cannot be correct"
        )
    for name in filter(is_given, table.column_names):
        large = pc.greater(pc.abs(table[name]), MAX_VALUE)
        if pc.any(large).as_py():
            value = table[name].filter(large)[0].as_py()
            raise DataError(
                f"column {name!r} of {source} holds {value}, which cannot be a signal: write "
                f"numbers up to {MAX_VALUE:g}, and null where there is none"
            )
    n_chars = pc.coalesce(table["completion_chars"], pc.utf8_length(table["completion"]))
    index = SAMPLE_SCHEMA.get_field_index("completion_chars")
    return table.set_column(index, SAMPLE_SCHEMA.field(index), n_chars)


def _blanks_to_null(table: pa.Table) -> pa.Table:
    """Replace blank answers by null: they are unparsed. A blank group is none."""
    for name in ("answer", "group"):
        is_blank = pc.equal(pc.utf8_trim_whitespace(table[name]), "")
        values = pc.if_else(is_blank, pa.scalar(None, pa.string()), table[name])
        index = SAMPLE_SCHEMA.get_field_index(name)
        table = table.set_column(index, SAMPLE_SCHEMA.field(index), values)
    return table


def read_questions(path: Path) -> pa.Table:
    """Read a question set, one row per question, in the order of the file."""
    return check_questions(read_columns(path, QUESTION_SCHEMA), path)


def make_questions(rows: Sequence[Mapping[str, Any]], source: Path) -> pa.Table:
    """Make a question set from rows."""
    return check_questions(pa.Table.from_pylist(list(rows), schema=QUESTION_SCHEMA), source)


def check_questions(table: pa.Table, source: Path) -> pa.Table:
    """Return the questions; DataError if two have the same id."""
    if pc.count_distinct(table["question_id"]).as_py() != table.num_rows:
        raise DataError(f"{source} has duplicate values of question_id: ids must be unique")
    return table


def read_columns(
    path: Path, schema: pa.Schema, renames: Mapping[str, str] | None = None
) -> pa.Table:
    """Read the columns of a schema from a file; directory names add no columns.

    ``renames`` maps column names of the file to those of the schema.
    """
    if not path.is_file():
        raise DataError(f"there is no file {path}")
    renames = _check_renames(renames, schema)

    def find_types(names: Iterable[str]) -> Mapping[str, pa.DataType]:
        own = add_signals(schema, (renames.get(name, name) for name in names), path)
        types = {field.name: field.type for field in own}
        types |= {SOURCE_NAMES[name]: types[name] for name in SOURCE_NAMES if name in types}
        return types | {name: types[ours] for name, ours in renames.items() if ours in types}

    read = TEXT_READERS.get(path.suffix.lower(), _read_parquet)
    return _select(*read(path, find_types), schema, path, renames)


def select_columns(
    found: pa.Table, schema: pa.Schema, source: object, renames: Mapping[str, str] | None = None
) -> pa.Table:
    """Select the columns of a schema from a table in memory; ``source`` is its name in errors."""
    renames = _check_renames(renames, schema)
    return _select(found, found.column_names, schema, source, renames)


def _check_renames(renames: Mapping[str, str] | None, schema: pa.Schema) -> Mapping[str, str]:
    known = add_signals(schema, (renames or {}).values(), "columns=").names
    unknown = [ours for ours in (renames or {}).values() if ours not in known]
    if unknown:
        raise ConfigError(
            f"there is no column {unknown[0]!r} to map to; there are {', '.join(schema.names)}"
        )
    return renames or {}


def _select(
    found: pa.Table,
    names: list[str],
    schema: pa.Schema,
    source: object,
    renames: Mapping[str, str],
) -> pa.Table:
    """Rename and cast columns; a renamed column replaces one that already has its new name."""
    if OLD_COLUMNS.issubset(names):
        raise DataError(
            f"{source} was written by an older version of adacompute: rename its column "
            "'operating_level' to 'arm' and 'shared' to 'samples_per_call'"
        )
    if missing := [name for name in renames if name not in names]:
        raise DataError(f"{source} has no column {missing[0]!r}; it has {names}")
    replaced = set(renames.values()) - set(renames)
    kept = [i for i, name in enumerate(found.column_names) if name not in replaced]
    found = found.select(kept)
    found = found.rename_columns([renames.get(name, name) for name in found.column_names])
    names = [renames.get(name, name) for name in names if name not in replaced]
    schema = add_signals(schema, names, source)
    return pa.table([_column(source, found, field, names) for field in schema], schema=schema)


def _read_parquet(path: Path, find_types: FindTypes) -> ReadColumns:
    with open_parquet(path) as file:
        names: list[str] = file.schema_arrow.names
        found = read_parquet(file, find_types(names), path)
        found.validate(full=True)
    return ReadColumns(found, names)


def _column(source: object, found: pa.Table, field: pa.Field, names: list[str]) -> pa.ChunkedArray:
    name = field.name
    present = name if name in names else SOURCE_NAMES.get(name, name)
    count = names.count(present)
    if count == 0:
        if not field.nullable:
            remedy = _REMEDIES.get(name, ": rename one of them, or map it with columns= in Python")
            raise DataError(f"{source} has no column {name!r}; it has {names}{remedy}")
        return pa.chunked_array([pa.nulls(found.num_rows, field.type)])
    if count > 1:
        raise DataError(f"{source} has {count} columns named {present!r}")
    column = found[present]
    try:
        cast = _cast(column, field.type)
    except (pa.ArrowException, ValueError) as error:
        raise DataError(
            f"column {present!r} of {source} is {column.type} and cannot be {field.type}: "
            f"{first_line(error)}{advise(name)}"
        ) from None
    if not field.nullable and cast.null_count:
        raise DataError(
            f"column {present!r} of {source} is null in {cast.null_count} rows"
            + _REMEDIES.get(name, "")
        )
    return cast


def _cast(column: pa.ChunkedArray, to_type: pa.DataType) -> pa.ChunkedArray:
    """Cast without loss: Arrow would cast a grade of 0.5 to true."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    cast = column.cast(to_type)
    is_number = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
    if pa.types.is_boolean(to_type) and is_number:
        number = pa.float64()
        if pc.any(pc.not_equal(cast.cast(number), column.cast(number))).as_py():
            raise DataError("a grade must be 0 or 1, true or false")
    return cast
