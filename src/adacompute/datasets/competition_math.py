r"""MATH: competition problems, as a tree of JSON files, as JSON lines or as Parquet.

A record has a ``problem``, a ``solution``, a ``level`` and a ``type`` or ``subject``; MATH-500 adds
the ``answer`` and a ``unique_id``. The gold answer is the ``answer``, else the content of the last
``\boxed`` of the solution; ``Level 3`` becomes the difficulty ``3``, and ``Level ?`` none. In a
tree a question is named by its path, such as ``test/algebra/7.json``, else by its file and row.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from adacompute.core.errors import DataError
from adacompute.datasets.records import (
    find_split,
    parse_json,
    read_bytes,
    read_places,
    text_of,
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
    """Read a directory or file of MATH as a question set."""
    found = _read_tree(path) if path.is_dir() else _read_file(path)
    return make_questions([_row(name, place, record) for name, place, record in found], path)


def _read_file(path: Path) -> Iterator[tuple[str, str, dict[str, Any]]]:
    kind = "math" + find_split(path)
    for number, (place, record) in enumerate(read_places(path, COLUMNS)):
        name = text_of(record.get("unique_id")) or f"{kind}/{number}"
        yield name, place, record


def _read_tree(root: Path) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Read the problems below a directory, 2.json before 10.json."""
    files = sorted(root.rglob("*.json"), key=lambda file: _natural(file.relative_to(root)))
    for file in files:
        name = file.relative_to(root).as_posix()
        record = parse_json(read_bytes(file), str(file))
        if not isinstance(record, dict):
            raise DataError(f"{file} is no problem of MATH but {str(record)[:50]!r}")
        yield f"{root.name}/{name}" if root.name in SPLITS else name, str(file), record


def _natural(path: Path) -> list[tuple[int, str]]:
    parts = _DIGITS.split(path.as_posix())
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def _row(name: str, place: str, record: dict[str, Any]) -> dict[str, str | None]:
    problem, solution = text_of(record.get("problem")), text_of(record.get("solution"))
    gold = text_of(record.get("answer"))
    if gold is None and solution is not None:
        gold = boxed(solution)
    if problem is None or gold is None:
        raise DataError(
            f"{place} is no problem of MATH: it needs a 'problem', and an 'answer' or a 'solution' "
            r"with its answer in \boxed{}"
        )
    return {
        "question_id": name,
        "question": problem,
        "gold": gold,
        "difficulty": level_of(record.get("level")),
        "subject": text_of(record.get("subject")) or text_of(record.get("type")),
    }


def boxed(solution: str) -> str | None:
    r"""Return what the last box of a solution holds; None where there is none that is closed.

    >>> boxed(r"so $x = \boxed{\frac{1}{2}}$, not $\frac{1}{3}$.")
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


def level_of(level: Any) -> str | None:  # noqa: ANN401 - any JSON
    """Return a level as a difficulty; another word than a number stays as it is.

    >>> [level_of("Level 3"), level_of(3), level_of("Level ?"), level_of("hard")]
    ['3', '3', None, 'hard']
    """
    text = (text_of(level) or "").strip()
    if found := _LEVEL.fullmatch(text):
        return found[1]
    return None if not text or "?" in text else text
