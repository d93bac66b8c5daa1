"""The notebook is that of the page, runs, and prints what it printed before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("nbclient")

import nbformat

from scripts import make_notebook as script

if TYPE_CHECKING:
    from nbformat import NotebookNode

MAX_BYTES = 300_000


@pytest.fixture(scope="module")
def kept() -> NotebookNode:
    return nbformat.read(script.NOTEBOOK, as_version=4)


def test_the_notebook_is_that_of_the_page(kept: NotebookNode) -> None:
    made = script.make_notebook(script.PAGE.read_text())
    assert [cell.source for cell in kept.cells] == [cell.source for cell in made.cells]
    assert script.NOTEBOOK.stat().st_size < MAX_BYTES


def test_the_page_shows_what_the_notebook_printed(kept: NotebookNode) -> None:
    page = script.PAGE.read_text()
    assert all(f"```text\n{text}```" in page for text in script.texts(kept))
    static = script.DOCS / "_static"
    shown = [path.read_bytes() for path in sorted(static.glob("notebook-*.png"))]
    assert shown == script.pictures(kept)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # those of the kernel's client
def test_it_prints_the_same_when_it_is_run_again(kept: NotebookNode) -> None:
    made = script.make_notebook(script.PAGE.read_text())
    script.run(made)
    assert script.texts(made) == script.texts(kept)
    assert len(script.pictures(made)) == len(script.pictures(kept)) == 2
