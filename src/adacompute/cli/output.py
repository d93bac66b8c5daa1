"""Output: how commands print results, progress and failures; the only module that imports rich.

Results go to standard output, as a table for people or as one JSON document. Progress goes to
standard error, and only to a terminal. It knows the JSON documents that the stages return, not how
they were computed. Rich is imported when something is printed with it, so that the command line
starts quickly.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import click

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

NOTHING = "–"
PLACES = 4
WIDE = 6
"""Names that fit a line of a usual terminal."""

SPENT = 0.95
"""Share of a budget below which a cell says what was spent."""

ROUNDS = 1.05
"""Rounds a question below which there is one, to the digit that is shown."""


@contextmanager
def progress(what: str) -> Iterator[Callable[[str], None]]:
    """Say on a terminal's standard error what is under way."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    with Console(stderr=True).status(what) as status:
        yield lambda now: status.update(Text(f"{what}: {printable(now)}"))


def show(
    result: dict[str, Any],
    title: str,
    *,
    as_json: bool,
    rows: str | None = None,
    most: int | None = None,
) -> None:
    """Print a result, for people or for programs; people see at most so many of its rows."""
    if as_json:
        click.echo(json.dumps(result, indent=2))
        return
    from adacompute.cli.output import show_result  # noqa: PLC0415

    show_result(result, title, rows=rows, most=most)


def printable(text: str) -> str:
    """Escape what would steer a terminal, line ends included."""
    return text if text.isprintable() else repr(text)[1:-1]


def fail(sentence: str, code: int) -> NoReturn:
    """End with one sentence and an exit code."""
    click.echo(f"adacompute: {printable(sentence)}", err=True)
    sys.exit(code)


def show_result(
    result: dict[str, Any], title: str, *, rows: str | None = None, most: int | None = None
) -> None:
    """Print a result's values, and the list of rows among them as a table of its own.

    Of more than ``most`` rows so many are shown, spread evenly from the first to the last.
    """
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    console = Console()
    plain = Table(title=title, show_header=False, title_justify="left")
    for name, value in result.items():
        if name != rows:
            plain.add_row(Text(_words(name)), Text(_say(value)))
    console.print(plain)
    if rows and result.get(rows):
        found = result[rows]
        shown = found if most is None else _spread(found, most)
        part = f", {len(shown)} of {len(found)} rows" if len(shown) < len(found) else ""
        console.print(_table(shown, _words(rows) + part))


def _spread(rows: list[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    if len(rows) <= most:
        return rows
    return [rows[round(i * (len(rows) - 1) / (most - 1))] for i in range(most)]


def _table(rows: list[dict[str, Any]], title: str) -> Table:
    """One line a row, or one column a row where there are too many names for a line."""
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    if len(rows[0]) > WIDE:
        table = Table(title=title, title_justify="left", show_header=False)
        for name in rows[0]:
            table.add_row(Text(_words(name)), *(Text(_say(row[name])) for row in rows))
        return table
    table = Table(title=title, title_justify="left")
    for name in rows[0]:
        table.add_column(_words(name), justify="right")
    for row in rows:
        table.add_row(*(Text(_say(value)) for value in row.values()))
    return table


def show_scores(result: dict[str, Any]) -> None:
    """Print accuracies by policy and budget, best policy of each budget marked."""
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    console = Console()
    rows = result["rows"]
    budgets = sorted({row["budget"] for row in rows})
    names = list(dict.fromkeys(row["policy"] for row in rows))
    cells = {(row["policy"], row["budget"]): row for row in rows}
    honest = result["protocol"] == "held-out"
    table = Table(title=_headline(result), title_justify="left")
    table.add_column("policy", no_wrap=True)
    for budget in budgets:
        table.add_column(f"{budget:g}", justify="right", overflow="fold")
    for name in names:
        row = [_cell(cells.get((name, budget)), honest=honest) for budget in budgets]
        table.add_row(Text(name), *row)
    console.print(table)
    console.print(Text(_legend(result)))
    for name, why in result["skipped"].items():
        console.print(Text(f"{name} was left out: {why}"))


def show_demo(result: dict[str, Any]) -> None:
    """Print what each step found, below the command that takes it."""
    from rich.console import Console  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    console = Console()
    for name, command in result["commands"].items():
        console.print(Text(f"$ {_say(command)}", style="bold"), soft_wrap=True)
        if "protocol" in result[name]:
            show_scores(result[name])
        else:
            show_result(result[name], "", rows="levels")
        console.print()
    for name, why in result["skipped"].items():
        console.print(Text(f"There is no {name}: {_say(why)}"), soft_wrap=True)
    console.print(Text(f"The run is in {_say(result['run'])}"), soft_wrap=True)


def _headline(result: dict[str, Any]) -> str:
    what = "held-out questions" if result["protocol"] == "held-out" else "the paper's protocol"
    shown = ", unparsed samples removed" if result["drop_unparsed"] else ""
    return f"Accuracy on {what}, by mean budget in {result['unit']}{shown}"


def _cell(row: dict[str, Any] | None, *, honest: bool) -> Text:
    from rich.text import Text  # noqa: PLC0415

    if row is None:
        return Text("")
    if not honest:
        return Text(f"{row['accuracy']:.3f}\n@ {_say(float(row['cost']))}")
    above, below = row["difference_low"] > 0, row["difference_high"] < 0
    text = f"{row['accuracy']:.3f}" + ("*" if above else "*-" if below else "")
    if row["cost"] < SPENT * row["budget"]:
        text += f" @{_say(float(row['cost']), 3)}"
    headroom = row["headroom"]
    if row["policy"] not in ("fixed", "mixture", "oracle"):
        text += f"\n{NOTHING}" if headroom is None else f"\n{100 * headroom:z.0f}%"
        if row["rounds"] >= ROUNDS:
            text += f" {row['rounds']:.1f}r"
    return Text(text, style="green" if above else "red" if below else "")


def _legend(result: dict[str, Any]) -> str:
    unread = f"{100 * result['unparsed_share']:.1f}% of the samples could not be read."
    if result["protocol"] != "held-out":
        return f"{count(result['questions'], 'question')}; accuracy @ realised cost. {unread}"
    left = f" ({result['excluded']} left out)" if result["excluded"] else ""
    dropped = result["levels_excluded"]
    without = f" (without {_say(dropped)}: more than half of the samples)" if dropped else ""
    return (
        f"{count(result['questions'], 'question')}{left} × {count(result['samples'], 'sample')}, "
        f"levels {_say(result['levels'])}{without}. Per cent: share of what the cross-fitted "
        f"oracle gains over the best mixture of uniform levels; {NOTHING} where it may gain "
        "nothing. * and green, *- and red: the difference to that mixture at equal cost is above, "
        f"or below, zero with 95% confidence. @: what was spent, where it is less than {SPENT:.0%} "
        "of the budget. r: mean rounds of draws a question, where there is more than one. "
        f"{unread}"
    )


def count(number: float, noun: str) -> str:
    """Say how many there are of a thing, or how much of a unit; money has no plural.

    >>> count(1, "sample"), count(2.5, "tokens"), count(0.02, "money")
    ('1 sample', '2.5 tokens', '0.02 of money')
    """
    said = f"{number:g}" if isinstance(number, float) else str(number)
    if noun == "money":
        return f"{said} of money"
    return f"{said} {noun.removesuffix('s')}{'' if said == '1' else 's'}"


def _words(name: str) -> str:
    return name.replace("_", " ")


def _say(value: Any, digits: int = PLACES) -> str:  # noqa: ANN401 - any JSON value
    if value is None:
        return NOTHING
    if isinstance(value, float):
        whole = f"{value:.0f}"
        return whole if len(whole.lstrip("-")) > digits else f"{value:.{digits}g}"
    if isinstance(value, dict):
        return "  ".join(f"{_say(key)}: {_say(item)}" for key, item in value.items()) or NOTHING
    if isinstance(value, list):
        return ", ".join(_say(item) for item in value) or NOTHING
    text = str(value)  # what comes from data must not steer the terminal
    return text if text.isprintable() else repr(text)[1:-1]
