"""The paper map names every exhibit, and only functions and tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from adacompute.paper.exhibits import EXHIBITS

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "paper-map.md").read_text()


def definitions(path: Path) -> set[str]:
    """Names of the functions and classes of a module."""
    return {
        node.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }


def test_every_exhibit_is_named() -> None:
    for exhibit in EXHIBITS:
        assert f"`{exhibit.name}`" in TEXT, exhibit.name
        module = exhibit.compute.__module__.rpartition(".")[2]
        assert f"`paper/{module}.{exhibit.compute.__name__}`" in TEXT, exhibit.name
        assert exhibit.source in TEXT


def test_every_named_function_exists() -> None:
    missing = []
    for folder, module, name in re.findall(r"`(\w+)/(\w+)\.(\w+)`", TEXT):
        path = ROOT / "src" / "adacompute" / folder / f"{module}.py"
        constants = set(re.findall(r"^(\w+)\b.*=", path.read_text(), re.MULTILINE))
        if name not in definitions(path) | constants:
            missing.append(f"{folder}/{module}.{name}")
    assert missing == []


def test_every_named_test_exists() -> None:
    tests = set().union(*(definitions(path) for path in (ROOT / "tests").rglob("test_*.py")))
    named = re.findall(r"`(test_\w+)`", TEXT)
    assert len(named) > len(EXHIBITS)
    assert [name for name in named if name not in tests] == []
