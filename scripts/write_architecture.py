"""The annotated tree in docs/contribute/architecture.md, made from the modules' docstrings.

Run it with ``python -m scripts.write_architecture`` after adding, moving or redescribing a module.
A test fails while the page is out of date.
"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "contribute" / "architecture.md"
BEGIN, END = "<!-- tree: begin -->\n", "<!-- tree: end -->"
ORDER = (
    "cli",
    "api",
    "stages",
    "collection",
    "report",
    "gateway",
    "batch",
    "evaluation",
    "sampling",
    "policies",
    "models",
    "spending",
    "storage",
    "graders",
    "features",
    "datasets",
    "options",
    "core",
    "testing",
)
"""Folders from the top layer to the bottom one; those that do not exist are skipped."""

OUTSIDE = ("reproduction", "test_support")
"""Folders of the repository that are not installed."""


def first_line(path: Path) -> str:
    """Return the first line of a module's docstring without the leading name."""
    line = (ast.get_docstring(ast.parse(path.read_text())) or "").splitlines()[0]
    _, _, rest = line.partition(": ")
    return (rest or line).rstrip(".")


def _folder_lines(folder: Path, indent: str) -> list[str]:
    """Return a line for a folder, one for each module in it, and the same for its subfolders."""
    lines = [f"{indent + folder.name + '/':26} {first_line(folder / '__init__.py')}"]
    indent += "  "
    lines += [
        f"{indent + module.name:26} {first_line(module)}"
        for module in sorted(folder.glob("*.py"))
        if module.name != "__init__.py"
    ]
    for subfolder in sorted(path.parent for path in folder.glob("*/__init__.py")):
        lines += _folder_lines(subfolder, indent)
    return lines


def tree() -> str:
    """Return the tree with one line per module, top layer first."""
    source = ROOT / "src" / "adacompute"
    found = {path.parent.name for path in source.glob("*/__init__.py")}
    folders = [name for name in ORDER if name in found] + sorted(found - set(ORDER))
    lines = ["```text"]
    for folder in [*(source / name for name in folders), *(ROOT / name for name in OUTSIDE)]:
        lines += _folder_lines(folder, "")
    return "\n".join([*lines, "```", ""])


def main() -> None:
    """Rewrite the page between its markers."""
    before, rest = PAGE.read_text().split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text(before + BEGIN + tree() + END + after)


if __name__ == "__main__":
    main()
