"""What the package exports: complete, sorted, documented, and imported when it is used."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import adacompute
from adacompute import research

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "adacompute" / "__init__.py"
NAMES = sorted(set(adacompute.__all__) - {"__version__"})
EVERYWHERE = [(adacompute, name) for name in NAMES] + [(research, n) for n in research.__all__]
MAX_NAMES = 45
HEAVY = {"pyarrow", "rich", "click", "xgboost", "sklearn", "math_verify"}
HEAVY |= {"aiohttp", "starlette", "pandas", "polars", "datasets", "scipy", "matplotlib"}


def seen_by_type_checkers() -> set[str]:
    """Return the names that `if TYPE_CHECKING` imports."""
    (block,) = (
        node
        for node in ast.parse(SOURCE.read_text()).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    return {
        alias.name
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_all_is_complete_and_sorted() -> None:
    listed = {name for names in adacompute._MODULES.values() for name in names.split()}
    assert adacompute.__all__ == sorted({*listed, "__version__"})
    assert seen_by_type_checkers() == listed
    assert adacompute.__all__ == dir(adacompute)
    assert len(adacompute.__all__) <= MAX_NAMES
    assert not set(adacompute.__all__) & set(research.__all__)


def test_unknown_names_raise_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        getattr(adacompute, "nonsense")  # noqa: B009 - mypy would see the other form


def test_every_public_name_has_a_docstring_of_its_own() -> None:
    for module, name in EVERYWHERE:
        text = inspect.cleandoc(getattr(module, name).__doc__ or "")
        assert text.partition("\n")[0].endswith("."), name
        assert not text.startswith(f"{name}("), name  # what a dataclass would say for itself


def test_every_public_name_is_in_the_documentation() -> None:
    page = (ROOT / "docs" / "reference" / "python-api.md").read_text()
    names = [f"{module.__name__}.{name}" for module, name in EVERYWHERE]
    assert [name for name in names if f"\n   {name}\n" not in page] == []


def test_every_public_error_is_an_adacompute_error() -> None:
    values = [getattr(adacompute, name) for name in NAMES]
    errors = [value for value in values if isinstance(value, type) and issubclass(value, Exception)]
    assert len(errors) >= 6
    assert all(issubclass(error, adacompute.AdaComputeError) for error in errors)


def run(code: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_import_loads_no_dependency() -> None:
    loaded = run("import sys, adacompute; print(*{name.split('.')[0] for name in sys.modules})")
    assert not HEAVY & set(loaded.split())


def test_import_takes_little_more_time_than_numpy() -> None:
    def measure(module: str) -> float:
        code = (
            f"import time; a = time.perf_counter(); import {module}; print(time.perf_counter() - a)"
        )
        return min(float(run(code)) for _ in range(5))

    assert measure("adacompute") <= 1.2 * measure("numpy")
