"""How the site is shown: formulas without scripts, a sidebar that folds, names that stay whole."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sphinx", reason="the group 'docs' is not installed")

from adacompute.cli.main import list_commands

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "docs"))  # as docs/conf.py does
display: Any = importlib.import_module("display")
commands: Any = importlib.import_module("generate_commands")
FORMULA = re.compile(r"^\$\$\n(.*?)\n\$\$$", re.MULTILINE | re.DOTALL)


def caption(title: str, pages: str) -> str:
    shown = f'<span class="caption-text">{title}</span>'
    return f'<p class="caption" role="heading">{shown}</p>\n<ul{pages}><li>page</li></ul>\n'


def test_all_formulas_can_be_drawn_without_a_script() -> None:
    text = (ROOT / "docs" / "research" / "formulas.md").read_text()
    found = [display.tex2mathml(one, as_block=True) for one in FORMULA.findall(text)]
    assert len(found) > 5
    assert all(one.startswith("<math") for one in found)
    assert "mathjax" not in (ROOT / "docs" / "conf.py").read_text()


def test_the_section_of_the_page_is_open_and_the_others_are_closed() -> None:
    tree = caption("Tutorials", "") + caption("Reference", ' class="current"')
    context = {"furo_navigation_tree": tree}
    display.fold_sidebar(None, "", "", context, None)
    folded = context["furo_navigation_tree"]
    assert folded.count("<details") == folded.count("</details>") == 2
    assert re.findall(r"<details open><summary[^>]*>(\w+)", folded) == ["Reference"]


def test_long_names_break_at_separators_and_drawn_tables_do_not() -> None:
    body = '<span class="pre">core/price.find_it</span><pre>a <b>b</b></pre><pre>│ <b>c</b></pre>'
    context = {"body": body}
    display.let_lines_break(None, "", "", context, None)
    assert "core/<wbr>price.<wbr>find_<wbr>it" in context["body"]
    assert re.sub("<wbr>", "", context["body"]) == body.replace("<pre>│", '<pre class="drawn">│')


def test_short_values_and_options_are_not_broken() -> None:
    value = '<span class="pre">&quot;127.0.0.1&quot;</span>'
    context = {"body": f"{value}<pre><b>fit</b> --today 5 a--b</pre>"}
    display.let_lines_break(None, "", "", context, None)
    shown = '<pre><b>fit</b> <span class="pre">--today</span> 5 a--b</pre>'
    assert context["body"] == value + shown


def test_each_command_has_one_sentence_in_the_list_and_an_example_that_is_a_block() -> None:
    found, text = list_commands(), commands.command_line()
    entries = re.findall(r"\[`adacompute ([\w ]+)`\]\(\S+\)\n: .*\n\n(?=\[`|```)", text)
    assert entries == list(found)
    pages = [commands.command_page(name, command) for name, command in found.items()]
    assert not any("\n    adacompute" in page for page in pages)
    assert sum("$ adacompute" in page for page in pages) > 10
