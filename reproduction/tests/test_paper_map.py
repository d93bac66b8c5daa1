"""The paper map: every row names functions and tests that exist; one without code says so."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import adacompute
from reproduction.exhibits import EXHIBITS

ROOT = Path(__file__).parents[2]
PACKAGE = Path(adacompute.__file__).parent
TEXT = (ROOT / "docs" / "research" / "paper-map.md").read_text()
NO_CODE = "no code"


class MapRow(NamedTuple):
    """A row of a table: what the paper has, where it is here, and its tests."""

    paper: str
    here: str
    functions: tuple[str, ...]
    tests: tuple[str, ...]


def read_rows() -> list[MapRow]:
    rows = []
    for line in TEXT.splitlines():
        cells = [cell.strip("| ") for cell in line.split(" | ")]
        if not line.startswith("| ") or len(cells) < 4 or cells[-3] == "here":
            continue
        *_, paper, here, tests, found = cells
        functions = re.findall(r"`((?:\w+/)+\w+\.\w+)`", here)
        rows.append(MapRow(paper, here, tuple(functions), tuple(find_tests(tests + found))))
    return rows


def find_tests(cell: str) -> list[str]:
    """Return the tests of a cell."""
    return re.findall(r"`(test_\w+)`", cell)


ROWS = read_rows()


@cache
def find_test_files() -> dict[str, list[Path]]:
    """Return the files that define each test."""
    files: dict[str, list[Path]] = {}
    for folder in (ROOT / "tests", ROOT / "reproduction" / "tests"):
        for path in sorted(folder.rglob("test_*.py")):
            for name in re.findall(r"^(?:async )?def (test_\w+)\(", path.read_text(), re.MULTILINE):
                files.setdefault(name, []).append(path)
    return files


def defines(function: str) -> bool:
    """Whether a function or class, such as ``core/allocation/oracle.solve``, exists."""
    module, _, name = function.partition(".")
    folder = ROOT if module.startswith("reproduction/") else PACKAGE
    tree = ast.parse((folder / f"{module}.py").read_text())
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    return any(isinstance(node, kinds) and node.name == name for node in tree.body)


def test_every_exhibit_is_named() -> None:
    for exhibit in EXHIBITS:
        module = exhibit.compute.__module__.rpartition(".")[2]
        assert f"`{exhibit.name}`" in TEXT, exhibit.name
        assert f"`reproduction/{module}.{exhibit.compute.__name__}`" in TEXT, exhibit.name
        assert exhibit.source in TEXT


def test_every_row_names_functions_and_tests_or_says_that_there_is_no_code() -> None:
    assert len(ROWS) > len(EXHIBITS)
    wrong = [
        row.paper
        for row in ROWS
        if not (row.functions and row.tests) and not row.here.startswith(NO_CODE)
    ]
    assert wrong == []
    assert [test for row in ROWS for test in row.tests if test not in find_test_files()] == []
    assert [name for row in ROWS for name in row.functions if not defines(name)] == []
