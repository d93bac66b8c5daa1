"""Display: what the theme lacks, as an extension of Sphinx.

Formulas become MathML, which browsers draw by themselves: a page loads no script and nothing from
elsewhere. The sidebar shows the pages of the section that is read, and the names of the others.
Long names may break after a dot, a slash or an underscore, and nowhere else; short ones and options
never. Lines of code continue on the next line where the screen is narrow, except those of tables
that are drawn.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.writers.html5 import HTML5Translator

AFTER_THE_THEME = 900
SECTION = re.compile(
    r'<p class="caption" role="heading"><span class="caption-text">(?P<title>[^<]*)</span></p>'
    r"\s*(?P<pages><ul.*?)(?=<p class=\"caption\"|\Z)",
    re.DOTALL,
)
DRAWN = re.compile(r"<pre>(?=[^<]*(?:<(?!/pre>)[^<]*)*[│┃])")
NAME = re.compile(r'<span class="pre">(?:[^<&]|&#?\w+;){13,}</span>')
BLOCK = re.compile(r"<pre>.*?</pre>", re.DOTALL)
OPTION = re.compile(r"(?<![\w&-])--[a-z][\w-]*(?![^<]*>)")


def setup(app: Sphinx) -> dict[str, Any]:
    """Add all of it to Sphinx."""
    app.add_html_math_renderer("mathml", (write_inline, None), (write_block, None))
    app.connect("html-page-context", fold_sidebar, priority=AFTER_THE_THEME)
    app.connect("html-page-context", let_lines_break)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def write_inline(writer: HTML5Translator, node: nodes.math) -> None:
    """Write a formula within a sentence."""
    writer.body.append(tex2mathml(node.astext()))
    raise nodes.SkipNode


def write_block(writer: HTML5Translator, node: nodes.math_block) -> None:
    """Write a formula on lines of its own."""
    formula = tex2mathml(node.astext(), as_block=True)
    writer.body.append(f'<div class="formula">{formula}</div>')
    raise nodes.SkipNode


def fold_sidebar(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: object
) -> None:
    """Make each section of the sidebar one that opens, and open that of the page."""
    del app, pagename, templatename, doctree
    context["furo_navigation_tree"] = SECTION.sub(_fold, context.get("furo_navigation_tree", ""))


def _fold(found: re.Match[str]) -> str:
    is_open = " open" if 'class="current"' in found["pages"] or " current" in found["pages"] else ""
    summary = f'<summary class="caption">{found["title"]}</summary>'
    return f"<details{is_open}>{summary}{found['pages']}</details>"


def let_lines_break(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: object
) -> None:
    """Say where names may break, and which blocks are drawn."""
    del app, pagename, templatename, doctree
    body = NAME.sub(
        lambda name: re.sub(r"(?<=\w[._/])(?=\w)", "<wbr>", name[0]), context.get("body", "")
    )
    body = BLOCK.sub(lambda block: OPTION.sub(r'<span class="pre">\g<0></span>', block[0]), body)
    context["body"] = DRAWN.sub('<pre class="drawn">', body)
