"""Readme: the annotated tree of the README, made from the modules' own docstrings.

Run it with ``python docs/readme.py``.
"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- tree: begin -->\n", "<!-- tree: end -->"
ORDER = (
    "cli.py",
    "operating.py",
    "options.py",
    "console.py",
    "tables.py",
    "runs",
    "report",
    "gateway",
    "evaluation",
    "policies",
    "models",
    "spending",
    "storage",
    "graders",
    "features",
    "datasets",
    "core",
    "testing",
)


def first_line(path: Path) -> str:
    """What a module says it is for, its name left out."""
    line = (ast.get_docstring(ast.parse(path.read_text())) or "").splitlines()[0]
    _, _, rest = line.partition(": ")
    return (rest or line).rstrip(".")


def tree() -> str:
    """The tree, one line a module, top layer first."""
    source = ROOT / "src" / "adacompute"
    others = sorted(
        path.name
        for path in source.iterdir()
        if path.name not in ORDER
        and (path / "__init__.py").exists() | (path.suffix == ".py")
        and not path.name.startswith("__")
    )
    lines = ["```text"]
    for name in (*ORDER[:5], *others, *ORDER[5:]):
        path = source / name
        if path.is_file():
            lines.append(f"{name:24} {first_line(path)}")
            continue
        lines.append(f"{name + '/':24} {first_line(path / '__init__.py')}")
        lines += [
            f"  {module.name:22} {first_line(module)}"
            for module in sorted(path.glob("*.py"))
            if module.name != "__init__.py"
        ]
    return "\n".join([*lines, "```", ""])


def main() -> None:
    """Rewrite the README between its marks."""
    readme = ROOT / "README.md"
    before, rest = readme.read_text().split(BEGIN)
    after = rest.split(END)[1]
    readme.write_text(before + BEGIN + tree() + END + after)


if __name__ == "__main__":
    main()
