"""The code keeps its shape: short files and functions, documented modules, no hidden state."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = sorted(
    [*(ROOT / "src" / "adacompute").rglob("*.py"), *(ROOT / "reproduction").glob("*.py")]
)
FILE_LINES, FUNCTION_LINES = 400, 50
NO_NOUNS = {"utils", "util", "helpers", "helper", "common", "base", "manager"}

every_module = pytest.mark.parametrize(
    "path", MODULES, ids=lambda path: str(path.relative_to(ROOT))
)


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@every_module
def test_files_and_functions_are_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) < FILE_LINES
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or 0) - node.lineno + 1
            assert lines <= FUNCTION_LINES, f"{node.name} has {lines} lines"


@every_module
def test_modules_are_nouns_whose_docstring_begins_with_a_sentence(path: Path) -> None:
    first = (ast.get_docstring(parse(path)) or "").partition("\n")[0]
    assert first.endswith(".")
    assert path.stem not in NO_NOUNS


@every_module
def test_there_is_no_global_state(path: Path) -> None:
    found = [node.lineno for node in ast.walk(parse(path)) if isinstance(node, ast.Global)]
    assert found == []


@every_module
def test_no_exception_is_caught_blindly_unless_it_is_raised_again(path: Path) -> None:
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.ExceptHandler):
            kind = ast.unparse(node.type) if node.type else ""
            last = node.body[-1]
            again = isinstance(last, ast.Raise) and last.exc is None
            blind = kind == "" or bool(re.search(r"\bException\b", kind))
            assert not blind, f"line {node.lineno}"
            assert again or "BaseException" not in kind, f"line {node.lineno}"


def test_the_checks_see_every_module() -> None:
    assert len(MODULES) > 100
