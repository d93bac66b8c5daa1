"""Notebook: makes docs/tutorials/notebook.ipynb from the page beside it, and runs it.

Run it with ``python -m scripts.make_notebook`` after the page has changed. Blocks of Python become
cells of code, prose becomes cells of Markdown, and the outputs and pictures of the page are left
out: the notebook has its own. The pictures are written to docs/_static for the page.
"""

from __future__ import annotations

import base64
import re
from pathlib import Path

import nbclient
import nbformat
from nbformat import NotebookNode, v4

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE = DOCS / "tutorials" / "notebook.md"
NOTEBOOK = PAGE.with_suffix(".ipynb")
TIMEOUT_S = 300
SHOWN = re.compile(r"^(```text\n.*?^```|!\[[^\n]*)\n", re.MULTILINE | re.DOTALL)
DOWNLOAD = re.compile(r": \{download\}`[^`]*`")
CODE = re.compile(r"^```python\n(.*?)^```\n", re.MULTILINE | re.DOTALL)


def make_notebook(page: str) -> NotebookNode:
    """Return the notebook of a page, without outputs."""
    cells: list[NotebookNode] = []
    for i, part in enumerate(CODE.split(DOWNLOAD.sub("", SHOWN.sub("", page)))):
        if part.strip():
            make = v4.new_code_cell if i % 2 else v4.new_markdown_cell
            cells.append(make(part.strip(), id=f"cell-{len(cells)}"))
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})


def run(notebook: NotebookNode) -> None:
    """Run every cell in a new process; an error in one is an exception."""
    nbclient.NotebookClient(notebook, timeout=TIMEOUT_S, record_timing=False).execute()
    notebook.metadata.pop("language_info", None)


def texts(notebook: NotebookNode) -> list[str]:
    """Return what each cell of code printed."""
    return [
        "".join(output.text for output in cell.outputs if output.output_type == "stream")
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


def pictures(notebook: NotebookNode) -> list[bytes]:
    """Return the figures of a notebook as PNG files."""
    return [
        base64.b64decode(output.data["image/png"])
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if "image/png" in output.get("data", {})
    ]


def main() -> None:
    """Make the notebook, run it, and write it and its pictures."""
    notebook = make_notebook(PAGE.read_text())
    run(notebook)
    nbformat.write(notebook, NOTEBOOK)
    for number, picture in enumerate(pictures(notebook), start=1):
        (DOCS / "_static" / f"notebook-{number}.png").write_bytes(picture)


if __name__ == "__main__":
    main()
