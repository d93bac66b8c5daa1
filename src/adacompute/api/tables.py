"""Tables: results as Arrow and pandas tables, plain text, and cards in notebooks.

A result that has rows derives from `Tabular` and says what its table and its title are. It knows
nothing of what the rows mean.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from adacompute.core.errors import MissingExtra

MAX_ROWS = 20
"""Rows that are shown; the table itself has all of them."""

GOOD, BAD, OPEN = "#4f772d", "#d1495b", "#8a8f98"
"""Colours of the edge of a card: of a gain or a saving, of a loss, and of everything else."""

SMALL = 1e-3
"""Below this, four decimals would hide too much."""


class Tabular:
    """A result with rows, shown as a table in a terminal and in a notebook."""

    def to_arrow(self) -> Any:  # noqa: ANN401 - pyarrow has no types
        """Return the rows as a pyarrow Table."""
        raise NotImplementedError

    def to_pandas(self) -> Any:  # noqa: ANN401 - pandas is no dependency
        """Return the rows as a pandas DataFrame. It needs pandas, which is not a dependency."""
        try:
            return self.to_arrow().to_pandas()
        except ImportError:
            raise MissingExtra("to_pandas needs pandas, which is not installed") from None

    def _title(self) -> str:
        """Return one line that sums up the result."""
        raise NotImplementedError

    def _columns(self) -> tuple[str, ...]:
        """Return the columns that are shown."""
        return tuple(self.to_arrow().column_names)

    def _cells(self) -> list[list[str]]:
        rows = self.to_arrow().slice(0, MAX_ROWS).to_pylist()
        return [[format_value(row[name]) for name in self._columns()] for row in rows]

    def _more(self) -> str:
        hidden = self.to_arrow().num_rows - MAX_ROWS
        return f"… {hidden} more rows" if hidden > 0 else ""

    def __repr__(self) -> str:
        lines = [list(self._columns()), *self._cells()]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        texts = [
            "  ".join(
                cell.ljust(width) if i == 0 else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        ]
        return "\n".join([self._title(), *texts, *filter(None, [self._more()])])

    def _repr_html_(self) -> str:
        table = write_table(self._cells(), self._columns())
        return f"<p>{html.escape(self._title())}</p>{table}<p>{self._more()}</p>"


def write_table(rows: Sequence[Sequence[str]], columns: Sequence[str] = ()) -> str:
    """Return cells as an HTML table; without ``columns`` the first cell of a row is its name."""

    def write(cells: Sequence[str], tag: str) -> str:
        return "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells)

    if not columns:
        named = "".join(f"<tr>{write(row[:1], 'th')}{write(row[1:], 'td')}</tr>" for row in rows)
        return f"<table><tbody>{named}</tbody></table>"
    body = "".join(f"<tr>{write(row, 'td')}</tr>" for row in rows)
    head = f"<thead><tr>{write(columns, 'th')}</tr></thead>"
    return f"<table>{head}<tbody>{body}</tbody></table>"


def write_card(title: str, table: str, *, lead: str = "", colour: str = OPEN) -> str:
    """Return a card for a notebook: a title, a sentence and a table, with a coloured edge.

    ``table`` is HTML; the others are texts. Colours are readable on light and on dark paper.
    """
    words = f'<div style="margin-top:.25em">{html.escape(lead)}</div>' if lead else ""
    return (
        f'<div style="border:1px solid #8886;border-left:.3em solid {colour};border-radius:.4em;'
        f'padding:.6em 1em;margin:.25em 0;max-width:48em;overflow-x:auto">'
        f"<b>{html.escape(title)}</b>{words}{table}</div>"
    )


def format_value(value: object) -> str:
    """Return a value as a cell shows it: floats with four decimals, small ones with three digits.

    >>> [format_value(value) for value in (0.123456, 2.0, 0.00001234, 12, None, "a")]
    ['0.1235', '2', '1.23e-05', '12', '–', 'a']
    """
    if value is None:
        return "–"
    if not isinstance(value, float):
        return str(value)
    return f"{value:.3g}" if 0 < abs(value) < SMALL else f"{value:.4f}".rstrip("0").rstrip(".")
