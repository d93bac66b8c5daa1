"""The README says what is so: its tree is the modules' own, and its example prints what it says."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
import shlex
from pathlib import Path

import pytest

from adacompute.cli import cli

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def commands(page: Path) -> list[list[str]]:
    """Return the words of every command in the code blocks of a page."""
    blocks = re.findall(r"^```(?:text)?\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True) for line in lines if line.startswith("adacompute ")]


def test_the_tree_is_made_of_the_modules_docstrings() -> None:
    spec = importlib.util.spec_from_file_location("readme", ROOT / "docs" / "readme.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    shown = README.split(module.BEGIN)[1].split(module.END)[0]
    assert shown == module.tree(), "run 'python docs/readme.py'"


def test_the_library_example_prints_what_the_readme_says() -> None:
    code = README.split("```python\n")[1].split("```")[0]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, {})  # noqa: S102 - our own README
    assert printed.getvalue().startswith("[0 2 0] 0.00333")
    assert "It prints `[0 2 0] 0.003333… 0.0`" in README


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_that_is_shown_can_be_typed(page: Path) -> None:
    for _, name, *words in commands(page):
        cli.commands[name].make_context(name, words)


def test_the_commands_of_the_readme_are_found() -> None:
    found = [words[1] for words in commands(ROOT / "README.md")]
    assert {"demo", "import", "estimate", "solve", "evaluate", "train", "collect"} <= set(found)
