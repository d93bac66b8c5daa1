"""Sphinx: configuration of the documentation; generate.py makes some pages from the code."""

from __future__ import annotations

import sys
from pathlib import Path

from adacompute import __version__

sys.path.insert(0, str(Path(__file__).parent))

from generate import questions, write_pages

project = "AdaCompute"
author = "The AdaCompute authors"
copyright = "2026, the AdaCompute authors"
release = version = __version__
extensions = [
    "display",
    "myst_parser",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.doctest",
]
myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
html_theme = "furo"
html_math_renderer = "mathml"
html_title = "AdaCompute"
html_static_path = ["_static"]
html_css_files = ["site.css"]
exclude_patterns = ["_build"]
default_role = "py:obj"
smartquotes_action = "qe"  # not of dashes: options begin with two
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autosummary_generate = False
copybutton_prompt_text = "$ "
copybutton_exclude = ".linenos, .gp, .go"
doctest_test_doctest_blocks = ""  # pytest runs those in docstrings


DOCS = Path(__file__).parent
write_pages(DOCS / "reference")
(DOCS / "questions.md").write_text(questions(DOCS / "questions.toml"), encoding="utf-8")
