"""Spec: a policy as plain data, and readers that check the types of JSON values.

Readers raise TypeError, ValueError or KeyError; ``bundle`` turns those into one sentence about the
file. This module does not know any policy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import UnionType
from typing import Any

from adacompute.core.types import Level


@dataclass(frozen=True)
class PolicySpec:
    """A policy as plain data: its levels, further JSON values, and binary files by name."""

    levels: tuple[Level, ...]
    content: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def max_samples(self) -> int:
        """Number of samples of the largest level."""
        return max(level.n_samples for level in self.levels)


def read_entry(content: Mapping[str, Any], name: str, kind: type | UnionType) -> Any:  # noqa: ANN401
    """Return an entry of a JSON object that must have this type; booleans are not numbers."""
    value = content[name]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(f"{name} cannot be a {type(value).__name__}")
    return value


def read_number(value: object) -> float:
    """Return a finite number."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"a number cannot be a {type(value).__name__}")
    if not math.isfinite(value):
        raise ValueError(f"a number cannot be {value}")
    return float(value)


def read_numbers(values: list[Any]) -> tuple[float, ...]:
    """Return finite numbers."""
    return tuple(read_number(value) for value in values)


def read_choice(choices: tuple[str, ...], value: object) -> str:
    """Return a string that is one of the choices."""
    if value not in choices:
        raise ValueError(f"{value!r} is none of {', '.join(choices)}")
    return str(value)
