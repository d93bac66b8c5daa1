"""Output: how commands print results, progress and failures; the only module that imports rich.

Results go to standard output, as tables for people or as one JSON document. Progress goes to
standard error, and only to a terminal. Rich is imported when something is printed with it, so that
the command line starts quickly. It knows nothing of what is printed.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NoReturn

import click

from adacompute.core.progress import StepProgress

if TYPE_CHECKING:
    from rich.console import JustifyMethod

NOTHING = "–"
DIGITS = 4
SMALLEST = 1e-9
"""Numbers above it are written without an exponent."""

Cell = str | tuple[str, str]
"""A text, or a text and its rich style."""


@contextmanager
def progress(what: str) -> Iterator[Callable[[str], None]]:
    """Show on standard error what is under way and how long it still takes, on a terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(24))
    bars = Progress(
        *columns,
        TimeRemainingColumn(compact=True),
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=False,
    )
    with bars:
        bars.add_task(what, total=None)
        (task,) = bars.tasks

        def report(now: str) -> None:
            if not isinstance(now, StepProgress):
                bars.reset(task.id, description=f"{what}: {printable(now)}")
                task.total = None  # not known yet
                return
            if now.done < task.completed:
                bars.reset(task.id)
            bars.update(task.id, completed=now.done, total=now.total)

        yield report


EXIT_CODES = {
    0: "done",
    1: "failed; one sentence says what failed, the value, the bound and what to do",
    2: "an option or a configuration file cannot be used; one sentence says which and why",
    130: "stopped by Ctrl-C",
}
"""Meaning of the exit codes of every command."""


def show(
    result: dict[str, Any], describe: Callable[[dict[str, Any]], None], *, as_json: bool
) -> None:
    """Print a result as one JSON document, or let ``describe`` print it for people."""
    if as_json:
        click.echo(json.dumps(result, indent=2))
    else:
        describe(result)


def fail(sentence: str, code: int) -> NoReturn:
    """Exit with one sentence on standard error and an exit code."""
    click.echo(f"adacompute: {printable(sentence)}", err=True)
    sys.exit(code)


def warn(sentence: str | None) -> None:
    """Print one sentence on standard error, if there is one."""
    if sentence is not None:
        click.echo(f"adacompute: {printable(sentence)}", err=True)


class _Guesses(logging.Handler):
    """Prints on standard error how files are read."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one line."""
        warn(record.getMessage())


def show_guesses() -> None:
    """Print in one line per file what is guessed of its columns."""
    logger = logging.getLogger("adacompute.datasets.layout")
    logger.setLevel(logging.INFO)
    logger.handlers = [_Guesses()]


def print_text(text: str, style: str = "", *, wrap: bool = True) -> None:
    """Print a sentence; without ``wrap``, such as for a command to copy, on one line."""
    from rich.console import Console
    from rich.text import Text

    Console().print(Text(printable(text), style=style), soft_wrap=not wrap)


def print_values(title: str, values: Mapping[str, object]) -> None:
    """Print a table of labels and values."""
    _print_table(title, [], [[label, format_value(value)] for label, value in values.items()])


def print_rows(title: str, rows: Sequence[Mapping[str, object]]) -> None:
    """Print one line per row, with the keys of the first row as column titles."""
    _print_table(title, list(rows[0]), [[format_value(v) for v in row.values()] for row in rows])


def print_columns(title: str, rows: Sequence[Mapping[str, object]]) -> None:
    """Print one column per row, for rows with more values than fit a line."""
    lines = [[label, *(format_value(row[label]) for row in rows)] for label in rows[0]]
    _print_table(title, [], lines)


def print_cells(title: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    """Print a table whose cells may have styles and several lines."""
    _print_table(title, columns, rows)


def _print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    """Print cells as they are; without ``columns`` there is no header."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=bool(columns))
    for i, column in enumerate(columns or [""] * len(rows[0])):
        justify: JustifyMethod = "right" if columns and i else "left"
        table.add_column(
            Text(column), justify=justify, overflow="fold", no_wrap=bool(columns) and not i
        )
    for row in rows:
        table.add_row(*(Text(cell) if isinstance(cell, str) else Text(*cell) for cell in row))
    console = Console()
    if title:
        console.print(Text(printable(title), style="italic"))
    console.print(table)


def printable(text: str) -> str:
    """Escape characters that would control a terminal, line ends included."""
    return text if text.isprintable() else repr(text)[1:-1]


def format_value(value: Any, digits: int = DIGITS) -> str:  # noqa: ANN401 - any JSON value
    """Format a JSON value for people.

    >>> format_value(12.3456), format_value(None), format_value([1, 2]), format_value({"a": 0.5})
    ('12.35', '–', '1, 2', 'a: 0.5')
    """
    if value is None:
        return NOTHING
    if isinstance(value, float):
        whole = f"{value:.0f}"
        text = whole if len(whole.lstrip("-")) > digits else f"{value:.{digits}g}"
        return f"{Decimal(text):f}" if SMALLEST < abs(value) < 1 else text
    if isinstance(value, dict):
        pairs = (f"{format_value(key)}: {format_value(item)}" for key, item in value.items())
        return ", ".join(pairs) or NOTHING
    if isinstance(value, list | tuple):
        return ", ".join(format_value(item) for item in value) or NOTHING
    return printable(str(value))  # texts from data must not control the terminal


def format_percent(fraction: float | None, places: int = 1) -> str:
    """Format a fraction in per cent.

    >>> format_percent(0.3361), format_percent(None)
    ('33.6 %', '–')
    """
    return NOTHING if fraction is None else f"{100 * fraction:z.{places}f} %"


def format_points(fraction: float) -> str:
    """Format a difference of fractions in points, with its sign.

    >>> format_points(0.0419), format_points(-0.02), format_points(-0.0001)
    ('+4.2', '-2.0', '0.0')
    """
    text = f"{100 * fraction:+z.1f}"
    return "0.0" if float(text) == 0 else text


def format_share(count: int, total: int) -> str:
    """Format a count with its share of a total.

    >>> format_share(170, 14400)
    '170 (1.2 %)'
    """
    return f"{count} ({format_percent(count / total)})" if total else str(count)


def format_cost(cost: float, unit: str) -> str:
    """Format a mean cost per question, or of 1,000 questions if it is in money.

    >>> format_cost(2.5, "tokens"), format_cost(0.00004199, "money")
    ('2.5 tokens per question', '0.04199 currency units per 1,000 questions')
    """
    from adacompute.evaluation.scoring.saving_text import cost_scale

    scale, name = cost_scale(unit)
    if scale != 1:
        return f"{format_value(float(cost * scale))} {name}"
    return f"{format_amount(cost, unit)} per question"


def format_amount(number: float, unit: str) -> str:
    """Format a number of things, or an amount of a unit; money has no plural.

    >>> format_amount(1, "sample"), format_amount(2.5, "tokens"), format_amount(0.02, "money")
    ('1 sample', '2.5 tokens', '0.02 in money')
    """
    text = format_value(float(number))
    if unit == "money":
        return f"{text} in money"
    return f"{text} {unit.removesuffix('s')}{'' if text == '1' else 's'}"
