"""Unfolding: the columns of a file as ours, with one row per sample.

A wide file has one row per question: its samples are unfolded from lists or from numbered columns.
Ids and numbers of samples that a file lacks are made: an id from the text of the question, or else
from the row, and numbers from the order of the rows. This module reads no files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from adacompute.core.types import IntArray, text_id
from adacompute.datasets.layout import Layout

if TYPE_CHECKING:
    from collections.abc import Mapping

    from adacompute.datasets.records import Problems

Columns = dict[str, Any]
"""Arrow arrays by our names."""


def unfold(
    found: Mapping[str, Any], n_rows: int, layout: Layout, problems: Problems
) -> tuple[Columns, IntArray]:
    """Return columns by our names, one row per sample, and the row of the file of each.

    ``found`` are the columns of the file by its own names. The columns of a wide file end with the
    last sample of their row that is not null.
    """
    held = {
        ours: [found[name] for name in names if name in found]
        for ours, names in layout.columns.items()
    }
    held = {ours: [_combine(one) for one in own] for ours, own in held.items() if own}
    several = {
        ours: _Series(own, is_list=ours in layout.lists)
        for ours, own in held.items()
        if ours in layout.lists or len(layout.columns[ours]) > 1
    }
    counts = np.max([one.counts for one in several.values()], axis=0) if several else None
    rows = np.arange(n_rows) if counts is None else np.repeat(np.arange(n_rows), counts)
    if counts is not None:
        _check_lengths(several, problems)
        place = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    columns: Columns = {}
    for ours, own in held.items():
        if ours in several:
            columns[ours] = several[ours].take(rows, place)
        else:
            columns[ours] = own[0] if counts is None else own[0].take(pa.array(rows))
    if layout.chat is not None and layout.chat in found:
        chat = _combine(found[layout.chat]).take(pa.array(rows))
        for name in ("question", "completion"):
            columns.setdefault(name, pc.struct_field(chat, name))
    return columns, rows


class _Series:
    """Several values per row, from one list per row or from several columns."""

    def __init__(self, arrays: list[Any], *, is_list: bool) -> None:
        n_rows = len(arrays[0])
        if is_list:
            self.flat = arrays[0].flatten()
            self.counts = pc.fill_null(pc.list_value_length(arrays[0]), 0).to_numpy()
            self.starts, self.step = np.cumsum(self.counts) - self.counts, 1
        else:
            self.flat = pa.concat_arrays(arrays)
            given = np.array([pc.is_valid(one).to_numpy(zero_copy_only=False) for one in arrays])
            numbers = np.arange(1, len(arrays) + 1)[:, None]
            self.counts = (given * numbers).max(axis=0)
            self.starts, self.step = np.arange(n_rows), n_rows

    def take(self, rows: IntArray, place: IntArray) -> Any:  # noqa: ANN401 - pyarrow's
        """Return the value at a place of each row, null where there is none."""
        is_missing = place >= self.counts[rows]
        at = np.where(is_missing, 0, self.starts[rows] + place * self.step)
        return self.flat.take(pa.array(at, mask=is_missing))


def _check_lengths(several: Mapping[str, _Series], problems: Problems) -> None:
    """Note a row in which lists have different lengths."""
    lists = {ours: one for ours, one in several.items() if one.step == 1}
    first = next(iter(lists), None)
    for ours, one in lists.items():
        differ = np.flatnonzero((one.counts != lists[str(first)].counts) & (one.counts > 0))
        if len(differ):
            row = int(differ[0])
            problems.add(
                f"row {row + 1} has {int(lists[str(first)].counts[row])} values of {first!r} and "
                f"{int(one.counts[row])} of {ours!r}",
                ours,
            )


def _combine(column: Any) -> Any:  # noqa: ANN401 - pyarrow's
    """Return a column as one array."""
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def add_ids(columns: Columns, rows: IntArray, layout: Layout, problems: Problems) -> str | None:
    """Add the ids that a file lacks, or replace those of rows; return in words what they are."""
    ids, texts = columns.get("question_id"), columns.get("question", pa.nulls(len(rows)))
    has_texts = texts.null_count == 0
    if ids is not None:
        is_guessed = "question_id" in layout.guessed and not layout.is_wide and has_texts
        if not is_guessed or not len(texts.unique()) < len(ids) == len(ids.unique()):
            return None
    if has_texts:
        encoded = texts.dictionary_encode()
        names = pa.array([text_id(text) for text in encoded.dictionary.to_pylist()], pa.string())
        columns["question_id"] = names.take(encoded.indices)
        return "equal texts are one question"
    if layout.is_wide:
        columns["question_id"] = pa.array(rows).cast(pa.string())
        return "every row is one question"
    problems.add("no column of questions (question, or question_id)", "question_id")
    columns["question_id"] = pa.array([""] * len(rows), pa.string())
    return None


def count_samples(columns: Columns) -> None:
    """Number the samples of each question and arm in the order of their rows."""
    n_rows = len(columns["question_id"])
    codes = columns["question_id"].dictionary_encode().indices.fill_null(0).to_numpy()
    for name in ("arm", "model"):
        if name in columns:
            own = columns[name].dictionary_encode().indices.fill_null(-1).to_numpy()
            codes = codes * (int(own.max(initial=0)) + 2) + own
    order = np.argsort(codes, kind="stable")
    is_first = np.diff(codes[order], prepend=codes[order][:1] - 1) != 0
    starts = np.maximum.accumulate(np.where(is_first, np.arange(n_rows), 0))
    number = np.empty(n_rows, dtype=np.int32)
    number[order] = np.arange(n_rows) - starts
    columns["sample"] = pa.array(number, pa.int32())
