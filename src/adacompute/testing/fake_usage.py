"""Fake usage: the ways in which the fake upstream reports its tokens wrongly, or not at all.

Each is a function of the right ``usage`` object, in the names of any API. What the fake really
generated is counted elsewhere. This module does no networking.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["BROKEN_USAGE", "MIDDLE", "break_usage"]

Usage = dict[str, Any]

MIDDLE = "middle"
"""A stream that reports its usage after the first token and never again."""

_OTHER_NAMES = {
    "prompt_tokens": "input_tokens",
    "completion_tokens": "output_tokens",
    "input_tokens": "prompt_tokens",
    "output_tokens": "completion_tokens",
}


def _change(usage: Usage, change: Callable[[int], Any]) -> Usage:
    return {name: change(n) for name, n in usage.items() if isinstance(n, int)}


def _add_zeros(usage: Usage) -> Usage:
    return usage | {_OTHER_NAMES[name]: 0 for name in usage if name in _OTHER_NAMES}


BROKEN_USAGE: Mapping[str, Callable[[Usage], object]] = {
    "spellings": _add_zeros,
    "zeros": lambda usage: _change(usage, lambda _: 0),
    "no_completion": lambda usage: {
        name: n
        for name, n in usage.items()
        if name not in {"completion_tokens", "output_tokens", "total_tokens"}
    },
    "null": lambda _: None,
    "text": lambda usage: _change(usage, str),
    "negative": lambda usage: _change(usage, lambda n: -n),
    "nan": lambda usage: _change(usage, lambda _: float("nan")),
    "huge": lambda usage: _change(usage, lambda n: n * 10**15),
    MIDDLE: lambda usage: usage,
}
"""Kinds of broken usage: both spellings with zeros in one, zeros, and what is no count."""


def break_usage(usage: Usage, kind: str) -> Any:  # noqa: ANN401 - any JSON
    """Return a usage object as a broken server reports it; "all" and "one" are not broken.

    >>> break_usage({"prompt_tokens": 20, "completion_tokens": 9}, "spellings")
    {'prompt_tokens': 20, 'completion_tokens': 9, 'input_tokens': 0, 'output_tokens': 0}
    """
    broken = BROKEN_USAGE.get(kind)
    return usage if broken is None else broken(usage)
