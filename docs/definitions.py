"""Definitions: lists of words with an anchor each, and tables, in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def define(word: str, anchor: str, note: str, meaning: str) -> list[str]:
    """Return the lines of a definition: a word with an anchor, a note on it, and its meaning."""
    name = anchor.replace("_", "-").strip("-").lower()
    return [f"[`{word}`]{{#{name}}} {note}".strip(), f": {plain(meaning)}", ""]


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table in Markdown, with backticks of docstrings made single."""
    lines = [titles, ["---"] * len(titles), *rows]
    return [
        f"| {' | '.join(plain(one).replace('|', '&#124;') for one in line)} |" for line in lines
    ]


def plain(text: str) -> str:
    """Return text of a docstring as Markdown: its double backticks are single ones there."""
    return text.replace("``", "`")
