"""Rows: read files of questions and of recorded samples, of any common layout.

Parquet, JSON lines, a JSON list or CSV, by the suffix; text files may be compressed (``.gz``). The
layout of a file says which of its columns hold what; here they are read with their types, and a
wide file becomes one row per sample. Where a file has no ids, equal texts are the same question,
and where it does not number its samples, the order of its rows does. All that is wrong with a file
is said in one DataError. This module knows nothing of runs or of grading.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from adacompute.core.errors import DataError
from adacompute.core.signals import MAX_VALUE, is_given
from adacompute.datasets.columns import (
    QUESTION_COLUMNS,
    SAMPLE_COLUMNS,
    add_signals,
    advise,
    make_schema,
)
from adacompute.datasets.layout import (
    CHAT,
    CONTENT,
    Layout,
    find_layout,
    report,
    split_chat,
)
from adacompute.datasets.records import (
    Problems,
    example_types,
    first_line,
    format_of,
    open_parquet,
    read_examples,
    read_parquet,
)
from adacompute.datasets.text_rows import (
    FindTypes,
    ReadColumns,
    convert_texts,
    convert_values,
    read_csv,
    read_json,
)
from adacompute.datasets.unfolding import Columns, add_ids, count_samples, unfold

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from adacompute.core.types import IntArray

SAMPLE_SCHEMA = make_schema(SAMPLE_COLUMNS)
"""Columns of recorded samples."""

UNGRADED = SAMPLE_SCHEMA.set(
    SAMPLE_SCHEMA.get_field_index("correct"), pa.field("correct", pa.bool_(), nullable=True)
).append(pa.field("decision_id", pa.string()))
"""Columns of samples that may have no grade."""

WITHOUT_GRADES = UNGRADED.remove(UNGRADED.get_field_index("decision_id"))
"""Columns of samples in a run that has no grades; all of them are null."""

QUESTION_SCHEMA = make_schema(QUESTION_COLUMNS)
"""Columns of question sets."""

OLD_COLUMNS = frozenset({"operating_level", "shared"})
"""Columns that only sample files of older versions of this package have together."""

EXAMPLE_ROWS = 1000
"""Rows in which the columns of a text file are looked for."""

NO_GRADES = (
    "pass a grader (grader= or --grader) for ungraded samples, with gold answers in a column "
    "'gold' or, as for the log of a gateway, in a file (gold= or --gold); or run 'adacompute fit "
    "SOURCE --today N', which needs no grades"
)
"""What to do about missing grades."""

TEXT_READERS: dict[str, Callable[[Path, FindTypes, Problems], ReadColumns]] = {
    ".jsonl": read_json,
    ".ndjson": read_json,
    ".json": read_json,
    ".csv": read_csv,
}
"""Readers by the suffix of the file; all other files are Parquet."""


class RecordedRows(NamedTuple):
    """Rows of a source with our columns, what is wrong with them so far, and their layout."""

    table: pa.Table
    problems: Problems
    layout: Layout


def read_samples(path: Path, columns: Mapping[str, str] | None = None) -> pa.Table:
    """Read recorded and graded samples, one row per sample, in the order of the file."""
    return finish_samples(read_rows(path, UNGRADED, columns))


def read_questions(path: Path, columns: Mapping[str, str] | None = None) -> pa.Table:
    """Read a question set, one row per question, in the order of the file.

    Of a file of samples, and of one without ids, equal questions are read once.
    """
    table, problems, layout = read_rows(path, QUESTION_SCHEMA, columns)
    problems.check()
    if layout.holds_samples or "question_id" not in layout.columns:
        encoded = table["question_id"].combine_chunks().dictionary_encode()
        first = np.unique(encoded.indices.to_numpy(), return_index=True)[1]
        table = table.take(pa.array(np.sort(first)))
    return check_questions(table, path)


def read_rows(
    source: Path | pa.Table, schema: pa.Schema, columns: Mapping[str, str] | None = None
) -> RecordedRows:
    """Read the columns of a schema from a file or a table; directory names add no columns.

    ``columns`` maps our names to those of the source.
    """
    examples, read = _open(source)
    problems = Problems(source if isinstance(source, Path) else "the table")
    layout = find_layout(examples, columns)
    wanted = layout if "sample" in schema.names else layout.of_questions()

    def find_types(names: Iterable[str]) -> Mapping[str, pa.DataType]:
        whole = wanted.add_names(names)
        return whole.find_types(add_signals(schema, whole.columns, problems.source))

    found, problems.names, n_rows = read(find_types, problems)
    wanted = wanted.add_names(problems.names)
    _check_names(wanted, schema, problems)
    cast = {
        name: _cast_column(name, found[name], type_, problems)
        for name, type_ in find_types(problems.names).items()
        if problems.names.count(name) == 1
    }
    own, rows = unfold(cast, n_rows, wanted, problems)
    guesses = _complete(own, rows, schema, wanted, problems)
    if names := wanted.describe(schema.names):
        guesses = [", ".join(names), *guesses]
    report(problems.source, guesses, layout.list_unused(problems.names))
    schema = add_signals(schema, own, problems.source)
    return RecordedRows(_select(own, len(rows), schema, wanted, problems), problems, layout)


def _open(
    source: Path | pa.Table,
) -> tuple[dict[str, Any], Callable[[FindTypes, Problems], ReadColumns]]:
    """Return the columns of a source with an example of each, and how the source is read."""
    if not isinstance(source, Path):
        names = source.column_names
        return example_types(source.schema), lambda *_: ReadColumns(source, names, len(source))
    if not source.is_file():
        raise DataError(f"there is no file {source}")
    read = TEXT_READERS.get(format_of(source), _read_parquet)
    return read_examples(source, EXAMPLE_ROWS), partial(read, source)


def _check_names(layout: Layout, schema: pa.Schema, problems: Problems) -> None:
    """Note columns of a schema that are not there, or there twice."""
    names = problems.names
    if OLD_COLUMNS.issubset(names):
        raise DataError(
            f"{problems.source} was written by an older version of adacompute: rename its column "
            "'operating_level' to 'arm' and 'shared' to 'samples_per_call'"
        )
    for ours, theirs in layout.columns.items():
        for name in theirs if ours in schema.names or is_given(ours) else ():
            if name not in names:
                problems.add(f"no column {name!r} to read {ours!r} from", ours)
            elif names.count(name) > 1:
                problems.add(f"{names.count(name)} columns are named {name!r}", ours)


def _complete(
    own: Columns, rows: IntArray, schema: pa.Schema, layout: Layout, problems: Problems
) -> list[str]:
    """Add the ids and numbers that a file lacks; return in words what was added."""
    guesses = []
    if "question_id" in schema.names:
        ids = add_ids(own, rows, layout, problems)
        guesses += [] if ids is None else [ids]
    if "sample" in schema.names:
        if not CONTENT & own.keys():
            problems.add("no column of samples (answer, completion or correct)", "answer")
        if "sample" not in own:
            count_samples(own)
            guesses += ["samples in the order of the rows"]
    return guesses


def _select(
    own: Columns, n_rows: int, schema: pa.Schema, layout: Layout, problems: Problems
) -> pa.Table:
    """Return the columns of a schema, null where there is none; note those that must not be."""
    arrays = []
    for field in schema:
        array = own[field.name] if field.name in own else pa.nulls(n_rows, field.type)
        if not field.nullable and array.null_count:
            name = layout.columns.get(field.name, (field.name,))[0]
            problems.add(f"column {name!r} is null in {array.null_count} rows", name)
        arrays.append(array)
    return pa.table(arrays, schema=schema)


def _read_parquet(path: Path, find_types: FindTypes, _: Problems) -> ReadColumns:
    with open_parquet(path) as file:
        names: list[str] = file.schema_arrow.names
        found = read_parquet(file, find_types(names), path)
        found.validate(full=True)
    return ReadColumns(found, names, file.metadata.num_rows)


def _cast_column(
    name: str, column: pa.ChunkedArray, to_type: pa.DataType, problems: Problems
) -> pa.ChunkedArray:
    """Cast a column; note a problem, and return null in all rows, if that is impossible."""
    try:
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if to_type == CHAT and column.type != CHAT:
            chats = convert_values(name, column, to_type, split_chat, problems)
            return pa.chunked_array([chats])
        is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
        if is_text and (pa.types.is_boolean(to_type) or pa.types.is_list(to_type)):
            return convert_texts(name, column.cast(pa.string()), to_type, problems)
        return _cast(column, to_type)
    except (pa.ArrowException, ValueError) as error:
        problems.add(
            f"column {name!r} is {column.type} and cannot be {to_type}: "
            f"{first_line(error)}{advise(name)}",
            name,
        )
        return pa.chunked_array([pa.nulls(len(column), to_type)])


def _cast(column: pa.ChunkedArray, to_type: pa.DataType) -> pa.ChunkedArray:
    """Cast without loss: Arrow would cast a grade of 0.5 to true."""
    cast = column.cast(to_type)
    is_number = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
    if pa.types.is_boolean(to_type) and is_number:
        number = pa.float64()
        if pc.any(pc.not_equal(cast.cast(number), column.cast(number))).as_py():
            raise DataError("a grade must be 0 or 1, true or false, yes or no")
    return cast


def finish_samples(rows: RecordedRows, *, may_lack_grades: bool = False) -> pa.Table:
    """Return samples with blank answers as null and characters counted.

    DataError, naming all that is wrong, if they are invalid, or have no grades but need them.
    """
    table, problems = rows.table, rows.problems
    n_missing = table["correct"].null_count
    if n_missing and not (may_lack_grades and n_missing == len(table)):
        is_absent = "correct" not in rows.layout.columns
        what = "no column 'correct'" if is_absent else f"'correct' is null in {n_missing} rows"
        problems.add(f"{what}: {NO_GRADES}", "correct")
    for name in ("answer", "group"):
        is_blank = pc.equal(pc.utf8_trim_whitespace(table[name]), "")
        values = pc.if_else(is_blank, pa.scalar(None, pa.string()), table[name])
        table = table.set_column(table.schema.get_field_index(name), name, values)
    kept = WITHOUT_GRADES if may_lack_grades and n_missing else SAMPLE_SCHEMA
    schema = add_signals(kept, table.column_names, problems.source)
    table = pa.table([table[name] for name in schema.names], schema=schema)
    return check_samples(table, problems.source, problems)


def make_samples(rows: Sequence[Mapping[str, Any]], source: Path) -> pa.Table:
    """Make a table of samples from rows."""
    try:
        table = pa.Table.from_pylist(list(rows), schema=SAMPLE_SCHEMA)
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise DataError(f"{source} cannot be converted to samples: {first_line(error)}") from None
    return check_samples(table, source)


def check_samples(table: pa.Table, source: object, problems: Problems | None = None) -> pa.Table:
    """Return samples with their characters counted; DataError if they are inconsistent.

    A sample number must not occur twice in an arm of a question, and an unparsed sample cannot be
    correct. Samples without an arm belong to the arm of their model.
    """
    problems = problems or Problems(source)
    if table.num_rows == 0:
        problems.add("it holds no samples", "rows")
    _note_duplicates(table, problems)
    inconsistent = pc.and_(pc.is_null(table["answer"]), table["correct"])
    if pc.any(inconsistent).as_py():
        row = table.filter(inconsistent).slice(0, 1).to_pylist()[0]
        problems.add(
            f"sample {row['sample']} of question {row['question_id']!r} is correct but has no "
            "answer: an unparsed sample cannot be correct",
            "answer",
        )
    for name in filter(is_given, table.column_names):
        large = pc.greater(pc.abs(table[name]), MAX_VALUE)
        if pc.any(large).as_py():
            value = table[name].filter(large)[0].as_py()
            problems.add(
                f"column {name!r} holds {value}, which cannot be a signal: write numbers up to "
                f"{MAX_VALUE:g}, and null where there is none",
                name,
            )
    problems.check()
    n_chars = pc.coalesce(table["completion_chars"], pc.utf8_length(table["completion"]))
    index = SAMPLE_SCHEMA.get_field_index("completion_chars")
    return table.set_column(index, SAMPLE_SCHEMA.field(index), n_chars)


def _note_duplicates(table: pa.Table, problems: Problems) -> None:
    """Note a number that two samples of an arm of a question have."""
    arm = pc.coalesce(table["arm"], table["model"], pa.scalar("", pa.string()))
    keys = pa.table({"question_id": table["question_id"], "arm": arm, "sample": table["sample"]})
    duplicates = keys.group_by(keys.column_names).aggregate([([], "count_all")])
    duplicates = duplicates.filter(pc.greater(duplicates["count_all"], 1))
    if duplicates.num_rows:
        row = duplicates.slice(0, 1).to_pylist()[0]
        problems.add(
            f"sample {row['sample']} of question {row['question_id']!r} is there "
            f"{row['count_all']} times: number the samples of each question and arm from 0, or "
            "leave out the column 'sample'",
            "sample",
        )


def check_questions(table: pa.Table, source: Path) -> pa.Table:
    """Return the questions; DataError if two have the same id."""
    if pc.count_distinct(table["question_id"]).as_py() != table.num_rows:
        raise DataError(f"{source} has duplicate values of question_id: ids must be unique")
    return table
