"""Settings: dataclasses made from the plain values of a file, with names and types checked.

``${NAME}`` in a value stands for an environment variable. It knows nothing of what settings mean.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from adacompute.core.errors import ConfigError

T = TypeVar("T")

MB = 1_000_000
"""Bytes in the unit of settings that end in _mb."""

_SECRET = ("api_key", "admin_key", "_tokens")
"""Ends of the names of settings whose values are not shown."""

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def variables_in(path: Path) -> set[str]:
    """Return the names of the environment variables that a file refers to."""
    return set(_VARIABLE.findall(path.read_text(encoding="utf-8")))


def as_table(value: object, name: str) -> Mapping[str, Any]:
    """Return a table, or raise ConfigError if the value is none."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name} must be a table, not {value!r}")
    return value


def build_settings(kind: type[T], values: Mapping[str, Any], where: str) -> T:
    """Make a dataclass after checking the names and types of its values."""
    values = {name.replace("-", "_"): value for name, value in values.items()}
    types = get_type_hints(kind)
    known = {item.name for item in fields(kind)}  # type: ignore[arg-type]  # a dataclass
    if unknown := sorted(set(values) - known):
        raise ConfigError(f"{where} has no {unknown[0]!r}; it has {', '.join(sorted(known))}")
    for name, value in values.items():
        values = {**values, name: _check(value, types[name], f"{where}.{name}")}
    try:
        return kind(**values)
    except TypeError as error:
        missing = str(error).partition("argument")[2].strip(" s:")
        raise ConfigError(f"{where} lacks {missing}") from None
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _check(value: Any, kind: Any, name: str) -> Any:  # noqa: ANN401 - any value of any type
    allowed = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    types = tuple(one for one in allowed if isinstance(one, type))
    if get_origin(kind) is Sequence and get_args(kind) == (str,):
        if isinstance(value, list | tuple) and all(isinstance(one, str) for one in value):
            return tuple(value)
        shown = "something else" if name.endswith(_SECRET) else repr(value)
        raise ConfigError(f"{name} must be a list of strings, not {shown}")
    if not types:
        return value  # tables and lists of them, which were made before
    if float in types and type(value) is int:
        return float(value)
    if isinstance(value, types) and not (isinstance(value, bool) and bool not in types):
        return value
    expected = " or ".join(one.__name__ for one in types if one is not type(None))
    shown = type(value).__name__ if name.endswith(_SECRET) else repr(value)
    raise ConfigError(f"{name} must be {expected}, not {shown}")


def expand_variables(value: Any) -> Any:  # noqa: ANN401 - whatever TOML holds
    """Replace ``${NAME}`` in every string."""
    if isinstance(value, dict):
        return {name: expand_variables(item) for name, item in value.items()}
    if isinstance(value, list):
        return [expand_variables(item) for item in value]
    return _VARIABLE.sub(_variable, value) if isinstance(value, str) else value


def _variable(match: re.Match[str]) -> str:
    name = match.group(1)
    if name not in os.environ:
        raise ConfigError(f"the environment variable {name} is not set")
    return os.environ[name]


def check_positive(value: float, name: str) -> None:
    """Raise ConfigError if a number is not above 0, or is infinite."""
    if not 0 < value < math.inf:
        raise ConfigError(f"{name} must be a number above 0, not {value}")
