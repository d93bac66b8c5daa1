"""Table files: rows of plain values as CSV and Markdown.

CSV keeps ten digits. Markdown is for reading: all numbers of a column have the same format, three
decimal places, or three digits for columns of any size such as prices and duality gaps.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

Value: TypeAlias = str | int | float | bool | None
Row: TypeAlias = dict[str, Value]

PLACES = 3
NOISE = 1e-9
"""Numbers up to this size are rounding errors of a sum."""

ANY_SIZE = ("price", "duality")
"""Words in the names of columns whose numbers can have any size."""

DIGITS = 10


def format_value(value: Value, *, any_size: bool = False) -> str:
    """Write a value with three decimal places or three digits, and None as a dash.

    >>> [format_value(value) for value in (0.12345, 2, None, 0.00082, 2.0)]
    ['0.123', '2', '–', '0.001', '2.000']
    >>> [format_value(value, any_size=True) for value in (0.00082, 1.5e-7, 0.25)]
    ['0.00082', '1.5e-07', '0.25']
    """
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        digits = any_size and abs(value) > NOISE
        return f"{value:.{PLACES}g}" if digits else f"{value:z.{PLACES}f}"
    return str(value)


def format_rows(rows: Sequence[Row]) -> list[list[str]]:
    """Write rows, with the same format for all numbers of a column.

    A column whose numbers are all too small for three decimal places gets three digits.

    >>> format_rows([{"gain": 0.00082, "price": 0.00082}, {"gain": 0.0071, "price": 0.12}])
    [['0.001', '0.00082'], ['0.007', '0.12']]
    """
    columns = []
    for name in column_names(rows):
        values = [row.get(name) for row in rows]
        sizes = [abs(value) for value in values if isinstance(value, float)]
        small = NOISE < max(sizes, default=0.0) < 10**-PLACES
        any_size = small or any(word in name for word in ANY_SIZE)
        columns.append([format_value(value, any_size=any_size) for value in values])
    return [list(row) for row in zip(*columns, strict=True)]


def column_names(rows: Sequence[Row]) -> list[str]:
    """Return the columns of all rows, in the order in which they first appear."""
    return list(dict.fromkeys(name for row in rows for name in row))


def to_csv(rows: Sequence[Row]) -> str:
    r"""Return rows as CSV; missing values are empty.

    >>> to_csv([{"a": 1, "b": 0.5}, {"a": None}])
    'a,b\n1,0.5\n,\n'
    """
    buffer = io.StringIO()
    columns = column_names(rows)
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_format_exact(row.get(name)) for name in columns])
    return buffer.getvalue()


def _format_exact(value: Value) -> str:
    if isinstance(value, float):
        return f"{value:.{DIGITS}g}"
    return "" if value is None else str(value)


def to_markdown(rows: Sequence[Row]) -> str:
    r"""Return rows as a Markdown table.

    >>> print(to_markdown([{"set": "a|b", "share": 0.25}]), end="")
    | set | share |
    |---|---:|
    | a\|b | 0.250 |
    """
    columns = column_names(rows)
    lines = [
        _line(escape_markdown(name) for name in columns),
        "|" + "|".join("---:" if _is_number(rows, name) else "---" for name in columns) + "|",
        *(_line(escape_markdown(cell) for cell in row) for row in format_rows(rows)),
    ]
    return "\n".join(lines) + "\n"


def _line(cells: object) -> str:
    return "| " + " | ".join(cells) + " |"  # type: ignore[arg-type]  # any iterable of strings


def _is_number(rows: Sequence[Row], name: str) -> bool:
    values = [row.get(name) for row in rows]
    known = [value for value in values if value is not None]
    return bool(known) and all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in known
    )


def escape_markdown(text: str) -> str:
    r"""Escape the characters of a text that are Markdown markup.

    >>> escape_markdown("a*b <i> [x](y)")
    'a\\*b \\<i\\> \\[x\\](y)'
    """
    return re.sub(r"([\\`*_\[\]<>|])", r"\\\1", " ".join(text.split()))


def save_table(rows: Sequence[Row], path: Path) -> list[Path]:
    """Save rows as CSV and as Markdown, and return the paths."""
    saved = []
    for extension, text in (("csv", to_csv(rows)), ("md", to_markdown(rows))):
        file = path.with_name(f"{path.name}.{extension}")
        file.write_text(text, encoding="utf-8")
        saved.append(file)
    return saved
