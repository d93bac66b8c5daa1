"""Definition: how the options of a command are written down, and how a stage takes them.

A command has one frozen class, whose fields are its options and whose docstring is its help. From
the class come the options of the command line, the keys of its table in a TOML file, and the
keyword arguments of the function that does the work. It does not know what the options mean, and
imports no other module of the package, so that ``--help`` stays fast.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

ABOUT = "option"
"""Key of the metadata of a field."""

PAIR = re.compile(r"[A-Za-z][\w.-]*=.*", re.DOTALL)
"""One setting, such as ``seed=1``."""

Kind = TypeVar("Kind")
Result = TypeVar("Result")


@dataclass(frozen=True)
class About:
    """How an option is written on the command line, and what it means.

    ``name`` is its name there, if it is another one than that of the field. ``is_repeated`` means
    that a list of texts is given by repeating the option instead of by commas, and ``is_joined``
    that pairs are given in one value, separated by commas.
    """

    help: str
    name: str | None = None
    metavar: str | None = None
    example: str | None = None
    choices: tuple[str, ...] = ()
    env: str | None = None
    is_repeated: bool = False
    is_joined: bool = False


def option(
    help: str,  # noqa: A002 - what it is called everywhere
    default: Any = MISSING,  # noqa: ANN401 - of any type
    **about: Any,  # noqa: ANN401 - fields of About
) -> Any:  # noqa: ANN401 - as dataclasses.field
    """Return a field that is an option; without a default it must be given."""
    return field(default=default, metadata={ABOUT: About(help, **about)})


def takes(kind: type[Any]) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Let a function that takes options after its inputs take them as keyword arguments, too.

    >>> @dataclass(frozen=True, kw_only=True)
    ... class SumOptions:
    ...     start: int = option("Where to begin.", 0)
    >>> @takes(SumOptions)
    ... def add(number: int, options: SumOptions) -> int:
    ...     return options.start + number
    >>> add(2), add(2, start=1), add(2, options=SumOptions(start=5))
    (2, 3, 7)
    """
    names = {one.name for one in fields(kind)}

    def wrap(function: Callable[..., Result]) -> Callable[..., Result]:
        @functools.wraps(function)
        def call(*inputs: Any, options: Any = None, **given: Any) -> Result:  # noqa: ANN401
            own = {name: given.pop(name) for name in names & given.keys()}
            options = kind(**own) if options is None else replace(options, **own)
            return function(*inputs, options, **given)

        return call

    return wrap


def select(kind: type[Kind], options: object, **others: Any) -> Kind:  # noqa: ANN401 - fields
    """Return the options of another command, with the fields that both have, and ``others``."""
    known = vars(options)
    shared = {one.name: known[one.name] for one in fields(kind) if one.name in known}  # type: ignore[arg-type]
    return kind(**shared | others)


def list_words(options: object, names: Collection[str]) -> list[str]:
    """Return some options as words of the command line; those with their default are left out.

    >>> @dataclass(frozen=True, kw_only=True)
    ... class FitOptions:
    ...     OPTIONS = ("columns",)
    ...     columns: Mapping[str, str] | None = option("Columns.", None, is_joined=True)
    ...     seed: int = option("Seed.", 0)
    >>> list_words(FitOptions(columns={"gold": "key"}, seed=3), ["columns", "seed"])
    ['--columns', 'gold=key', '--config', 'seed=3']
    """
    words: list[str] = []
    shown = getattr(options, "OPTIONS", ())
    for one in (own for own in fields(options) if own.name in names):  # type: ignore[arg-type]
        value, about = getattr(options, one.name), one.metadata[ABOUT]
        name = (about.name or one.name).replace("_", "-")
        if value == one.default or value is None:
            continue
        if isinstance(value, Mapping):
            pairs = [f"{key}={own}" for key, own in value.items()]
            texts = [",".join(pairs)] if about.is_joined else pairs
        else:
            is_list = isinstance(value, Sequence) and not isinstance(value, str)
            texts = [",".join(map(str, value)) if is_list else str(value)]
        is_option = one.name in shown
        words += [
            word
            for text in texts
            for word in ((f"--{name}", text) if is_option else ("--config", f"{name}={text}"))
        ]
    return words


def is_pair(source: str) -> bool:
    """Whether a value of ``--config`` is NAME=VALUE, and not the name of a file."""
    return PAIR.fullmatch(source) is not None and not Path(source).exists()
