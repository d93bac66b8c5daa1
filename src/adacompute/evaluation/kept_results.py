"""Kept results: what was computed on an experiment, under a hash of all that it depends on.

A result is a few arrays. Where they are kept is not known here: stages give a place, such as the
run directory. Without one, everything is computed again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from types import FunctionType
from typing import Any, Protocol, TypeVar

import numpy as np

PACKAGE = __name__.partition(".")[0]
Arrays = Mapping[str, np.ndarray]
T = TypeVar("T")


class KeptResults(Protocol):
    """A place where arrays are kept under keys."""

    def read(self, key: str) -> Arrays | None:
        """Return the arrays of a key; None if there are none."""

    def write(self, key: str, arrays: Arrays) -> None:
        """Keep arrays under a key; they may be lost."""


class Memory:
    """Values that are computed once in a process, by keys."""

    def __init__(self) -> None:
        self._values: dict[Hashable, Any] = {}

    def remember(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Return the value of a key; it is computed if there is none."""
        if key not in self._values:
            self._values[key] = compute()
        found: T = self._values[key]
        return found


def remember(
    kept: KeptResults | None, key: str, compute: Callable[[], dict[str, np.ndarray]]
) -> Arrays:
    """Return the arrays that are kept under a key, or compute them and keep them."""
    if kept is None:
        return compute()
    found = kept.read(key)
    if found is None:
        found = compute()
        kept.write(key, found)
    return found


def hash_value(value: object) -> str:
    """Hash a value: data classes by their public fields, arrays by their content.

    >>> hash_value((1, "a")) == hash_value((1, "a")), hash_value(1) == hash_value("1")
    (True, False)
    """
    digest = hashlib.blake2b(digest_size=16)
    for part in _parts(value):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


def _parts(value: object) -> Iterator[bytes]:
    """Yield the bytes that tell a value from others."""
    yield type(value).__name__.encode()
    if is_dataclass(value) and not isinstance(value, type):
        for one in fields(value):
            if one.compare and not one.name.startswith("_"):
                yield one.name.encode()
                yield from _parts(getattr(value, one.name))
    elif isinstance(value, np.ndarray):
        yield f"{value.dtype.str} {value.shape}".encode()
        yield np.ascontiguousarray(value).tobytes()
    elif isinstance(value, tuple | list):
        yield str(len(value)).encode()
        for one in value:
            yield from _parts(one)
    else:
        yield repr(value).encode("utf-8", "surrogatepass")


def name_function(function: Any) -> str | None:  # noqa: ANN401 - any callable
    """Return the name of a function of this package, or of an instance of one of its data classes.

    None of others: what they depend on is not known.
    """
    is_function = isinstance(function, FunctionType)
    kind = function if is_function else type(function)
    module, name = str(kind.__module__), str(kind.__qualname__)
    if not module.startswith(f"{PACKAGE}.") or "<" in name:
        return None
    if is_function:
        return f"{module}.{name}"
    return f"{module}.{function!r}" if is_dataclass(function) else None
