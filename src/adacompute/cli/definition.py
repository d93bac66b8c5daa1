"""Definition: the command line of a class of options, which says what a command takes.

Each field becomes an option of the same name; fields that hold a group of options become all
options of the group. It does not know what they mean.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any

import click

from adacompute.cli.options import (
    NAMES,
    NUMBERS,
    RUN,
    WHOLE_NUMBERS,
    ArmOption,
    Limit,
    NamedPair,
    common,
    is_given,
    refuse_repeated,
)
from adacompute.options.definition import ABOUT, NEEDS, About

LISTS: dict[Any, click.ParamType] = {int: WHOLE_NUMBERS, float: NUMBERS, str: NAMES}  # type: ignore[type-arg]
SCALARS: dict[Any, Any] = {int: int, float: float, str: str, Path: RUN}

DIRECTORY = click.argument("run", metavar="DIR", type=RUN)
"""The run directory that a command is about."""


def command(
    name: str, kind: type[Any], *arguments: Callable[..., Any]
) -> Callable[[Callable[..., None]], click.Command]:
    """Make a command of a function, which gets the arguments, the options and ``as_json``."""

    def wrap(function: Callable[..., None]) -> click.Command:
        @click.pass_context
        def call(ctx: click.Context, /, *, as_json: bool, **given: Any) -> None:  # noqa: ANN401
            own = {option.name: given.pop(option.name) for option in declared}
            function(**given, options=_build(ctx, kind, own), as_json=as_json)

        declared = _declare(kind)
        made = click.command(name, help=kind.__doc__)(call)
        for argument in arguments:
            argument(made)
        made.params += declared
        return common(made)

    return wrap


def _declare(kind: type[Any], *, is_group: bool = False) -> list[click.Option]:
    """Return the options of a class, those of its groups among them."""
    types, found = typing.get_type_hints(kind), []
    own_first = sorted(fields(kind), key=lambda one: one.name not in kind.__annotations__)
    for one in own_first:
        type_ = _plain(types[one.name])
        if _is_group(type_):
            found += _declare(type_, is_group=True)
        else:
            is_required = one.default is MISSING and not is_group
            found.append(_make_option(one, type_, is_required=is_required))
    return found


def _build(ctx: click.Context, kind: type[Any], given: Mapping[str, Any]) -> Any:  # noqa: ANN401
    """Return the options of a class."""
    types, values = typing.get_type_hints(kind), {}
    for one in fields(kind):
        type_ = _plain(types[one.name])
        is_group = _is_group(type_)
        values[one.name] = _build_group(ctx, one, type_, given) if is_group else given[one.name]
    return kind(**values)


def _build_group(
    ctx: click.Context, one: Field[Any], kind: type[Any], given: Mapping[str, Any]
) -> Any:  # noqa: ANN401 - of the class
    """Return a group of options; None if nothing of it is given."""
    words = [own.opts[0] for own in _declare(kind) if is_given(ctx, own.name or "")]
    if not words:
        return None
    needs = [(own.name, _help(own)) for own in fields(kind) if own.default is MISSING]
    needs += [one.metadata[NEEDS]] if NEEDS in one.metadata else []
    for name, meaning in needs:
        if given[name.replace("-", "_")] is None:
            verb = "needs" if len(words) == 1 else "need"
            raise click.UsageError(f"{', '.join(words)} {verb} --{name}, {meaning}")
    return _build(ctx, kind, given)


def _is_group(type_: Any) -> bool:  # noqa: ANN401 - a type
    """Whether a field of a type holds a group of options."""
    return isinstance(type_, type) and is_dataclass(type_)


def _help(one: Field[Any]) -> str:
    """Return what an option means, as part of a sentence."""
    text: str = one.metadata[ABOUT].help
    return text[0].lower() + text[1:].partition(":")[0].rstrip(".")


def _plain(type_: Any) -> Any:  # noqa: ANN401 - a type
    """Return a type without None; of several, text, which is what a command line has."""
    if typing.get_origin(type_) not in (UnionType, typing.Union):
        return type_
    kinds = [one for one in typing.get_args(type_) if one is not type(None)]
    return str if str in kinds else kinds[0]


def _make_option(
    one: Field[Any],
    type_: Any,  # noqa: ANN401 - a type
    *,
    is_required: bool,
) -> click.Option:
    """Return one option."""
    about: About = one.metadata[ABOUT]
    name = f"--{(about.name or one.name).replace('_', '-')}"
    known: dict[str, Any] = {"help": about.help, "metavar": about.metavar, "envvar": about.env}
    known["required"] = is_required
    origin, inner = typing.get_origin(type_), typing.get_args(type_)
    if type_ is bool:
        known |= {"is_flag": True, "flag_value": one.default is not True}
    elif about.choices:
        known["type"] = click.Choice(about.choices)
    elif origin is Mapping:
        pair = Limit() if inner[1] is float else NamedPair(about.metavar or "", about.example or "")
        known |= {"type": pair, "multiple": True, "callback": refuse_repeated}
    elif origin is Sequence and (about.is_repeated or inner[0] not in LISTS):
        known |= {"type": SCALARS.get(inner[0], ArmOption()), "multiple": True}
    else:
        known["type"] = LISTS[inner[0]] if origin is Sequence else SCALARS[type_]
    if one.default is True:
        known["default"] = True
    elif not any(one.default is nothing for nothing in (MISSING, None, False, ())):
        default = one.default
        shown = ",".join(map(str, default)) if isinstance(default, tuple) else default
        known |= {"default": shown, "show_default": True}
    return click.Option([name, one.name], **known)
