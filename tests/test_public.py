"""What the package promises: complete, sorted, documented."""

from __future__ import annotations

import inspect
import types
from pathlib import Path

import pytest

import adacompute

API = Path(__file__).parents[1] / "docs" / "api.md"


def test_all_is_complete_and_sorted() -> None:
    public = {
        name
        for name, value in vars(adacompute).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert adacompute.__all__ == sorted({*public, "__version__"})


@pytest.mark.parametrize("name", sorted(set(adacompute.__all__) - {"__version__"}))
def test_every_public_name_has_a_docstring_of_its_own(name: str) -> None:
    value = getattr(adacompute, name)
    assert value.__doc__
    assert inspect.cleandoc(value.__doc__).splitlines()[0].endswith(".")
    assert not value.__doc__.startswith(f"{name}(")  # what a dataclass would say for itself


@pytest.mark.skipif(not API.is_file(), reason="docs/api.md is not written yet")
@pytest.mark.parametrize("name", sorted(set(adacompute.__all__) - {"__version__"}))
def test_every_public_name_is_in_the_documentation(name: str) -> None:
    assert name in API.read_text()


def test_every_public_error_is_of_one_kind() -> None:
    errors = [
        value
        for value in vars(adacompute).values()
        if isinstance(value, type) and issubclass(value, Exception)
    ]
    assert len(errors) >= 6
    assert all(issubclass(error, adacompute.AdaComputeError) for error in errors)
