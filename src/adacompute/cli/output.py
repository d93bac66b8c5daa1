"""Console: what every command says, and where: results, progress and failures.

Results go to standard output, as a table for people or as one JSON document. Progress goes to
standard error, and only to a terminal. It knows nothing of what is said.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import click


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
    from adacompute.cli.tables import show_result  # noqa: PLC0415

    show_result(result, title, rows=rows, most=most)


def printable(text: str) -> str:
    """Escape what would steer a terminal, line ends included."""
    return text if text.isprintable() else repr(text)[1:-1]


def fail(sentence: str, code: int) -> NoReturn:
    """End with one sentence and an exit code."""
    click.echo(f"adacompute: {printable(sentence)}", err=True)
    sys.exit(code)
