"""The README says what is so: its tree is the modules' own. Its blocks are run in test_docs.py."""

from __future__ import annotations

import importlib.util
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
