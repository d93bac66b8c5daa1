"""Sphinx: configuration of the documentation; the page of commands is made from their help."""

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
doctest_test_doctest_blocks = ""  # pytest runs those in docstrings


def write_commands(path: Path) -> None:
    """Write a page with the help of every command."""
    lines = ["# Command line", "", COMMANDS, ""]
    for name, command in sorted(cli.commands.items()):
        context = click.Context(command, info_name=f"adacompute {name}", max_content_width=96)
        lines += [f"## {name}", "", "```text", command.get_help(context), "```", ""]
    path.write_text("\n".join(lines))


COMMANDS = """Every command prints a table. With `--json` it prints one JSON document on standard
output, and nothing else there. Progress goes to standard error, and only if that is a terminal.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | failed; one sentence says what failed, the value, the bound and what to do |
| 2 | wrong usage |

Every command also takes its options from a TOML file (`--config FILE`), from the table named after
the command. Options on the command line win. An unknown key is rejected, with a list of the known
ones:

```toml
[evaluate]
budgets = [1.5, 2, 3]
levels = [1, 2, 3, 4, 6, 8]
drop-unparsed = true
```

This page is made from the help of the commands."""

write_commands(Path(__file__).parent / "reference" / "command-line.md")
