"""The paper map: every row names functions and tests that exist, and the tests run the functions.

Tests are run under coverage. Only those that read the fixture of all exhibits are not, because it
takes minutes: what they read of it is found in their source. A row without code says so.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import coverage
import pytest

import adacompute
from reproduction.claims import CLAIMS, judge_claims
from reproduction.claims_shared import SHARED_CLAIMS
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
        if not line.startswith("| ") or cells[-3] == "here":
            continue
        *_, paper, here, tests, found = cells
        functions = re.findall(r"`(\w+/\w+\.\w+)`", here)
        rows.append(MapRow(paper, here, tuple(functions), tuple(find_tests(tests + found))))
    return rows


def find_tests(cell: str) -> list[str]:
    return re.findall(r"`(test_\w+)`", cell)


ROWS = read_rows()


def find_test_files() -> dict[str, list[Path]]:
    """Return the files that define each test."""
    files: dict[str, list[Path]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for name in re.findall(r"^(?:async )?def (test_\w+)\(", path.read_text(), re.MULTILINE):
            files.setdefault(name, []).append(path)
    return files


def read_of_fixture(test: str) -> set[str] | None:
    """Return what a test reads of the fixture of all exhibits; None if it does not take it.

    These are the functions of the exhibits that it names, and the functions that it calls.
    """
    tree = ast.parse(find_test_files()[test][0].read_text())
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    function = functions[test]
    if not any(argument.arg == "exhibits" for argument in function.args.args):
        return None
    texts = {node.value for node in ast.walk(function) if isinstance(node, ast.Constant)}
    names = find_names(function)
    for helper in names & set(functions):
        names = names | find_names(functions[helper])
    if judge_claims.__name__ in names:  # it calls every judge
        names |= {one.judge.__name__ for one in CLAIMS}
    return names | {one.compute.__name__ for one in EXHIBITS if one.name in texts}


def find_names(function: ast.FunctionDef) -> set[str]:
    return {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}


def body_lines(function: str) -> tuple[Path, set[int]]:
    """Return the lines of a function, or of the functions of a class, without signatures."""
    module, _, name = function.partition(".")
    path = PACKAGE / f"{module}.py"
    tree = ast.parse(path.read_text())
    found = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and node.name == name
    ]
    assert len(found) == 1, f"{function} is no function or class of {path}"
    lines = set()
    for node in ast.walk(found[0]):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines |= {line for part in node.body for line in range(part.lineno, last_line(part))}
    return path, lines


def last_line(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) + 1


def run_tests(names: set[str], folder: Path) -> tuple[dict[str, set[str]], coverage.CoverageData]:
    """Run tests under coverage; return the contexts of each, and the lines of each context."""
    files = find_test_files()
    nodes = [f"{path}::{name}" for name in sorted(names) for path in files[name]]
    own = {
        "COVERAGE_FILE": str(folder / "lines"),
        "CONTEXTS_FILE": str(folder / "contexts.json"),
        "PYTHONPATH": os.pathsep.join([str(PACKAGE.parent), str(Path(__file__).parent)]),
    }
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("COV_", "COVERAGE_", "PYTEST_"))
    }
    command = [sys.executable, "-m", "coverage", "run", "--rcfile=", f"--source={PACKAGE}"]
    command += ["-m", "pytest", "-q", "-p", "record_calls", "-p", "no:cacheprovider", *nodes]
    done = subprocess.run(
        command, cwd=ROOT, env=inherited | own, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-5000:]
    lines = coverage.CoverageData(own["COVERAGE_FILE"])
    lines.read()
    contexts = json.loads(Path(own["CONTEXTS_FILE"]).read_text())
    return {test: set(found) for test, found in contexts.items()}, lines


def test_every_exhibit_is_named() -> None:
    for exhibit in EXHIBITS:
        module = exhibit.compute.__module__.rpartition(".")[2]
        assert f"`{exhibit.name}`" in TEXT, exhibit.name
        assert f"`paper/{module}.{exhibit.compute.__name__}`" in TEXT, exhibit.name
        assert exhibit.source in TEXT


def test_every_claim_has_a_row() -> None:
    judges = {row.paper: row.functions for row in ROWS}
    for one in (*CLAIMS, *SHARED_CLAIMS):
        module = one.judge.__module__.rpartition(".")[2]
        assert judges[one.claim] == (f"paper/{module}.{one.judge.__name__}",)


def test_every_row_names_functions_and_tests_or_says_that_there_is_no_code() -> None:
    assert len(ROWS) > len(EXHIBITS)
    files = find_test_files()
    wrong = [
        row.paper
        for row in ROWS
        if not (row.functions and row.tests) and not row.here.startswith(NO_CODE)
    ]
    assert wrong == []
    assert [test for row in ROWS for test in row.tests if test not in files] == []
    for row in ROWS:
        for function in row.functions:
            assert body_lines(function)[1], function


def test_every_named_test_of_exhibits_reads_the_one_of_its_row() -> None:
    wrong = []
    for row in ROWS:
        names = {function.rpartition(".")[2] for function in row.functions}
        reads = {test: read_of_fixture(test) for test in row.tests}
        wrong += [test for test, read in reads.items() if read is not None and not names & read]
    assert wrong == []


@pytest.mark.slow
def test_every_other_named_test_runs_a_function_of_its_row(tmp_path: Path) -> None:
    named = {test for row in ROWS for test in row.tests}
    executed = {test for test in named if read_of_fixture(test) is None}
    contexts, lines = run_tests(executed, tmp_path)

    def runs(test: str, function: str) -> bool:
        path, body = body_lines(function)
        found = lines.contexts_by_lineno(str(path))
        return any(contexts[test] & set(found.get(line, [])) for line in body)

    wrong = []
    for row in ROWS:
        tests = [test for test in row.tests if test in executed]
        run = {(test, name) for test in tests for name in row.functions if runs(test, name)}
        wrong += [test for test in tests if all(test != found for found, _ in run)]
        if len(tests) == len(row.tests):
            wrong += [name for name in row.functions if all(name != found for _, found in run)]
    assert wrong == []
