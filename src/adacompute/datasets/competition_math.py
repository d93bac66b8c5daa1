r"""MATH: competition problems, as a directory tree of JSON files, JSON lines or Parquet.

A record has a ``problem``, a ``solution``, a ``level`` and a ``type`` or ``subject``; MATH-500 adds
the ``answer`` and a ``unique_id``. The gold answer is the ``answer``, else the content of the last
``\boxed`` in the solution. ``Level 3`` becomes the difficulty ``3``, and ``Level ?`` none. The id
of a question in a tree is its path, such as ``test/algebra/7.json``, else its file and row.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from adacompute.core.errors import DataError
from adacompute.datasets.records import (
    as_text,
    find_split,
    parse_json,
    read_bytes,
    read_located,
)
from adacompute.datasets.rows import make_questions

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa

COLUMNS = frozenset({"problem", "solution", "answer", "level", "subject", "type", "unique_id"})
SPLITS = ("test", "train")

_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*")
_BARE = re.compile(r"[^\s$]+")
_LEVEL = re.compile(r"(?:Level\s*)?([0-9]+(?:\.[0-9]+)?)", re.IGNORECASE)
_DIGITS = re.compile(r"(\d+)")


def read_math(path: Path) -> pa.Table:
    """Read a MATH directory or file as a question set."""
    problems = _read_tree(path) if path.is_dir() else _read_file(path)
    rows = [_row(name, location, record) for name, location, record in problems]
    return make_questions(rows, path)


def _read_file(path: Path) -> Iterator[tuple[str, str, dict[str, Any]]]:
    prefix = "math" + find_split(path)
    for number, (location, record) in enumerate(read_located(path, COLUMNS)):
        name = as_text(record.get("unique_id")) or f"{prefix}/{number}"
        yield name, location, record


def _read_tree(root: Path) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Read the problems below a directory in natural order: 2.json before 10.json."""
    files = sorted(root.rglob("*.json"), key=lambda file: _natural_key(file.relative_to(root)))
    for file in files:
        name = file.relative_to(root).as_posix()
        record = parse_json(read_bytes(file), str(file))
        if not isinstance(record, dict):
            raise DataError(f"{file} is not a MATH problem but {str(record)[:50]!r}")
        yield f"{root.name}/{name}" if root.name in SPLITS else name, str(file), record


def _natural_key(path: Path) -> list[tuple[int, str]]:
    parts = _DIGITS.split(path.as_posix())
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def _row(name: str, location: str, record: dict[str, Any]) -> dict[str, str | None]:
    problem, solution = as_text(record.get("problem")), as_text(record.get("solution"))
    gold = as_text(record.get("answer"))
    if gold is None and solution is not None:
        gold = last_boxed(solution)
    if problem is None or gold is None:
        raise DataError(
            f"{location} is not a MATH problem: it needs a 'problem', and an 'answer' or a "
            r"'solution' with its answer in \boxed{}"
        )
    return {
        "question_id": name,
        "question": problem,
        "gold": gold,
        "difficulty": parse_difficulty(record.get("level")),
        "subject": as_text(record.get("subject")) or as_text(record.get("type")),
    }


def last_boxed(solution: str) -> str | None:
    r"""Return the content of the last ``\boxed`` in a solution; None if there is no closed one.

    >>> last_boxed(r"so $x = \boxed{\frac{1}{2}}$, not $\frac{1}{3}$.")
    '\\frac{1}{2}'
    """
    last = next(reversed(list(_BOX.finditer(solution))), None)
    if last is None:
        return None
    if not solution.startswith("{", last.end()):
        bare = _BARE.match(solution, last.end())
        return bare[0] if bare else None
    depth, at = 0, last.end()
    while at < len(solution):
        character = solution[at]
        if character == "\\":
            at += 1
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return solution[last.end() + 1 : at].strip()
        at += 1
    return None


def parse_difficulty(level: Any) -> str | None:  # noqa: ANN401 - any JSON
    """Return the difficulty of a ``level``; other words than ``Level N`` are kept.

    >>> [parse_difficulty(level) for level in ("Level 3", 3, "Level ?", "hard")]
    ['3', '3', None, 'hard']
    """
    text = (as_text(level) or "").strip()
    if found := _LEVEL.fullmatch(text):
        return found[1]
    return None if not text or "?" in text else text
