"""Sphinx: the documentation, in Markdown; the command line's page is made from its own help."""

from __future__ import annotations

from pathlib import Path

import click

from adacompute import __version__
from adacompute.cli.main import cli

project = "AdaCompute"
author = "The AdaCompute authors"
copyright = "2026, the AdaCompute authors"
release = version = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.doctest"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "AdaCompute"
html_static_path = ["_static"]
html_css_files = ["wide.css"]
exclude_patterns = ["_build"]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
doctest_test_doctest_blocks = ""  # those in docstrings are run by pytest


def write_commands(place: Path) -> None:
    """Write the help of every command as a page."""
    lines = ["# Command line", "", COMMANDS, ""]
    for name, command in sorted(cli.commands.items()):
        context = click.Context(command, info_name=f"adacompute {name}", max_content_width=96)
        lines += [f"## {name}", "", "```text", command.get_help(context), "```", ""]
    place.write_text("\n".join(lines))


COMMANDS = """Every command prints a table for people, or with `--json` one JSON document on
standard output and nothing else there. Progress goes to standard error, and only to a terminal.
Exit codes: 0 done, 2 wrong use, 1 failed, with one sentence that says what, which value, which
bound, what to do.

Every command takes its options from a TOML file as well (`--config FILE`), from the table named
after the command; what is given on the command line goes before it. A key that the command does not
take is refused with a list of those it does:

```toml
[evaluate]
budgets = [1.5, 2, 3]
ladder = [1, 2, 3, 4, 6, 8]
no-nulls = true
```

This page is made from the commands' own help."""

write_commands(Path(__file__).parent / "cli.md")
