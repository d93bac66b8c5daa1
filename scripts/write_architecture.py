"""The layers in the documentation, from the import contract and docstrings.

Run it with ``python -m scripts.write_architecture`` after adding or redescribing a layer: a test
fails while a page is out of date.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "adacompute"
PAGES = ("docs/contribute/architecture.md", "CONTRIBUTING.md")
"""Pages with the layers, between two comments."""


def read_layers() -> list[list[str]]:
    """Return the folders of each row of the import contract, from the top."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = project["tool"]["importlinter"]["contracts"]
    (rows,) = (one["layers"] for one in contracts if one["type"] == "layers")
    return [[name.strip().removeprefix("adacompute.") for name in row.split("|")] for row in rows]


def layers() -> str:
    """Return a table with one line per row of the import contract."""
    lines = ["| layer, from the top | what it does |", "|---|---|"]
    for row in read_layers():
        paths = [SOURCE / name for name in row]
        found = [
            path / "__init__.py" if path.is_dir() else path.with_suffix(".py") for path in paths
        ]
        names = ", ".join(f"`{name}`" for name in row)
        lines.append(f"| {names} | {'; '.join(map(first_line, found))} |")
    return "\n".join([*lines, ""])


def first_line(path: Path) -> str:
    """Return the first line of a module's docstring without the leading name."""
    line = (ast.get_docstring(ast.parse(path.read_text())) or "").splitlines()[0]
    _, _, rest = line.partition(": ")
    return (rest or line).rstrip(".")


def rewritten_pages() -> Iterator[tuple[Path, str]]:
    """Yield each page with what it should say."""
    begin, end = "<!-- layers: begin -->\n", "<!-- layers: end -->"
    for name in PAGES:
        path = ROOT / name
        before, rest = path.read_text().split(begin)
        yield path, before + begin + layers() + end + rest.split(end)[1]


def main() -> None:
    """Rewrite the pages between their comments."""
    for path, text in rewritten_pages():
        path.write_text(text)


if __name__ == "__main__":
    main()
