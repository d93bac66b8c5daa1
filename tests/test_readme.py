"""The README says what is so: its tree is the modules' own, and its example prints what it says."""

from __future__ import annotations

import contextlib
import importlib.util
import io
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


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
