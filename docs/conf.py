"""Sphinx: configuration of the documentation; generate.py makes some pages from the code."""

from __future__ import annotations

import sys
from pathlib import Path

from adacompute import __version__

sys.path.insert(0, str(Path(__file__).parent))

from generate import copy_design_notes, write_pages

project = "AdaCompute"
author = "The AdaCompute authors"
copyright = "2026, the AdaCompute authors"
release = version = __version__
extensions = ["myst_parser", "sphinx_design", "sphinx.ext.autodoc", "sphinx.ext.doctest"]
myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "AdaCompute"
html_static_path = ["_static"]
html_css_files = ["wide.css"]
exclude_patterns = ["_build"]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
doctest_test_doctest_blocks = ""  # pytest runs those in docstrings


DOCS = Path(__file__).parent
write_pages(DOCS / "reference")
copy_design_notes(DOCS.parent / "design", DOCS / "research" / "design")
