"""Rows: tidy Parquet, JSONL and CSV files of questions and of recorded samples.

One row a sample, or one a question; the ending of its name tells what a file is (``.jsonl``,
``.ndjson``, ``.csv``, else Parquet). Columns that are not known are left out, an absent column that
may be null is taken as null, the characters of a completion are counted where they are not given,
and every way in which a file can be wrong ends in one sentence. The source's own ``level`` is its
difficulty or subject, not an operating level: it is loaded as ``difficulty``. It knows nothing of
runs or of grading.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from adacompute.core.errors import ConfigError, DataError
from adacompute.datasets.records import open_parquet, reason_of
from adacompute.datasets.text_rows import Found, read_csv, read_jsonl

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

SAMPLES = pa.schema(
    [
        pa.field("question_id", pa.string(), nullable=False),
        pa.field("question", pa.string()),
        pa.field("gold", pa.string()),
        pa.field("difficulty", pa.string()),
        pa.field("sample", pa.int32(), nullable=False),
        pa.field("answer", pa.string()),
        pa.field("correct", pa.bool_(), nullable=False),
        pa.field("completion", pa.string()),
        pa.field("completion_chars", pa.int32()),
        pa.field("completion_tokens", pa.int32()),
        pa.field("mean_logprob", pa.float32()),
        pa.field("temperature", pa.float32()),
        pa.field("latency_s", pa.float32()),
        pa.field("model", pa.string()),
        pa.field("arm", pa.string()),
        pa.field("prompt_tokens", pa.int32()),
        pa.field("cached_tokens", pa.int32()),
        pa.field("reasoning_tokens", pa.int32()),
        pa.field("samples_per_call", pa.int32()),
        pa.field("finish_reason", pa.string()),
        pa.field("cost", pa.float64()),
        pa.field("score", pa.float64()),
    ]
)
"""Columns of recorded samples."""

QUESTIONS = pa.schema(
    [
        pa.field("question_id", pa.string(), nullable=False),
        pa.field("question", pa.string()),
        pa.field("gold", pa.string()),
        pa.field("difficulty", pa.string()),
        pa.field("subject", pa.string()),
    ]
)
"""Columns of question sets."""

SOURCE_NAMES = {"difficulty": "level", "arm": "operating_level"}
"""Columns that public data files name differently."""

OLD_COLUMNS = frozenset({"operating_level", "shared"})
"""Columns that only sample files of older versions of this package have together."""

_REMEDIES = {
    "correct": ": samples that nobody has graded need --grader, and the right answers in a column "
    "'gold' or, as for those of a gateway, from --gold FILE"
}
"""What to do about columns that must not be null."""

TEXT_READERS: dict[str, Callable[[Path, Mapping[str, pa.DataType]], Found]] = {
    ".jsonl": read_jsonl,
    ".ndjson": read_jsonl,
    ".csv": read_csv,
}
"""How to read the files that are not Parquet, by the ending of their names."""


def read_samples(path: Path) -> pa.Table:
    """Read recorded samples, one row a sample, in the order of the file."""
    return finish_samples(read_columns(path, SAMPLES), path)


def finish_samples(table: pa.Table, source: object) -> pa.Table:
    """Return tidy samples with blank answers as nulls and characters counted, or refuse them."""
    return check_samples(_unread_blanks(table), source)


def make_samples(rows: Sequence[Mapping[str, Any]], source: Path) -> pa.Table:
    """Make a table of samples from rows that a reader of logs found."""
    try:
        table = pa.Table.from_pylist(list(rows), schema=SAMPLES)
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise DataError(f"{source} cannot be made tidy samples: {reason_of(error)}") from None
    return check_samples(table, source)


def check_samples(table: pa.Table, source: object) -> pa.Table:
    """Return samples with their characters counted, or say what no sample can be."""
    if table.num_rows == 0:
        raise DataError(f"{source} holds no samples")
    twins = table.group_by(["question_id", "sample"]).aggregate([([], "count_all")])
    twins = twins.filter(pc.greater(twins["count_all"], 1))
    if twins.num_rows:
        row = twins.slice(0, 1).to_pylist()[0]
        raise DataError(
            f"{source} holds sample {row['sample']} of question {row['question_id']!r} "
            f"{row['count_all']} times: number the samples of a question from 0 on"
        )
    unread = pc.and_(pc.is_null(table["answer"]), table["correct"])
    if pc.any(unread).as_py():
        row = table.filter(unread).slice(0, 1).to_pylist()[0]
        raise DataError(
            f"{source}: sample {row['sample']} of question {row['question_id']!r} is correct and "
            "has no answer: a sample that could not be read cannot be right"
        )
    counted = pc.coalesce(table["completion_chars"], pc.utf8_length(table["completion"]))
    at = SAMPLES.get_field_index("completion_chars")
    return table.set_column(at, SAMPLES.field(at), counted)


def _unread_blanks(table: pa.Table) -> pa.Table:
    """Take an answer without letters as none: it could not be read."""
    blank = pc.equal(pc.utf8_trim_whitespace(table["answer"]), "")
    read = pc.if_else(blank, pa.scalar(None, pa.string()), table["answer"])
    at = SAMPLES.get_field_index("answer")
    return table.set_column(at, SAMPLES.field(at), read)


def read_questions(path: Path) -> pa.Table:
    """Read a question set, one row a question, in the order of the file."""
    return check_questions(read_columns(path, QUESTIONS), path)


def make_questions(rows: Sequence[Mapping[str, Any]], source: Path) -> pa.Table:
    """Make a question set from rows that a reader of another form found."""
    return check_questions(pa.Table.from_pylist(list(rows), schema=QUESTIONS), source)


def check_questions(table: pa.Table, source: Path) -> pa.Table:
    """Return questions as they are, or say that two share an id."""
    if pc.count_distinct(table["question_id"]).as_py() != table.num_rows:
        raise DataError(f"{source} holds a question_id twice: give every question an id of its own")
    return table


def read_columns(
    path: Path, schema: pa.Schema, renames: Mapping[str, str] | None = None
) -> pa.Table:
    """Read the known columns as they should be; the names of the directories add none.

    ``renames`` maps names of the file to names of the schema.
    """
    if not path.is_file():
        raise DataError(f"there is no file {path}")
    renames = _check_renames(renames, schema)
    types = {field.name: field.type for field in schema}
    types |= {SOURCE_NAMES[name]: types[name] for name in SOURCE_NAMES if name in types}
    types |= {name: types[ours] for name, ours in renames.items()}
    read = TEXT_READERS.get(path.suffix.lower(), _read_parquet)
    return _select(*read(path, types), schema, path, renames)


def select_columns(
    found: pa.Table, schema: pa.Schema, source: object, renames: Mapping[str, str] | None = None
) -> pa.Table:
    """Select the known columns of a table in memory; ``source`` names it in messages."""
    renames = _check_renames(renames, schema)
    return _select(found, found.column_names, schema, source, renames)


def _check_renames(renames: Mapping[str, str] | None, schema: pa.Schema) -> Mapping[str, str]:
    unknown = [ours for ours in (renames or {}).values() if ours not in schema.names]
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
    """Rename columns and make each of the schema; a renamed one replaces one of its new name."""
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
    return pa.table([_column(source, found, field, names) for field in schema], schema=schema)


def _read_parquet(path: Path, types: Mapping[str, pa.DataType]) -> Found:
    with open_parquet(path) as file:
        names: list[str] = file.schema_arrow.names
        found = file.read(columns=[name for name in names if name in types])
        found.validate(full=True)
    return Found(found, names)


def _column(source: object, found: pa.Table, field: pa.Field, names: list[str]) -> pa.ChunkedArray:
    name = field.name
    present = name if name in names else SOURCE_NAMES.get(name, name)
    count = names.count(present)
    if count == 0:
        if not field.nullable:
            remedy = _REMEDIES.get(name, "")
            raise DataError(f"{source} has no column {name!r}; it has {names}{remedy}")
        return pa.chunked_array([pa.nulls(found.num_rows, field.type)])
    if count > 1:
        raise DataError(f"{source} has {count} columns named {present!r}")
    column = found[present]
    try:
        made = _cast(column, field.type)
    except (pa.ArrowException, ValueError) as error:
        raise DataError(
            f"column {present!r} of {source} is {column.type} and cannot be {field.type}: "
            f"{reason_of(error)}"
        ) from None
    if not field.nullable and made.null_count:
        raise DataError(
            f"column {present!r} of {source} is null in {made.null_count} rows"
            + _REMEDIES.get(name, "")
        )
    return made


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Cast without loss: half a point is no grade, and Arrow would take it for right."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    made = column.cast(kind)
    types = pa.types
    if types.is_boolean(kind) and (types.is_integer(column.type) or types.is_floating(column.type)):
        number = pa.float64()
        if pc.any(pc.not_equal(made.cast(number), column.cast(number))).as_py():
            raise DataError("a number other than 0 and 1 is neither right nor wrong")
    return made
