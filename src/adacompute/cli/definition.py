"""Definition: the command line of a class of options, which says what a command takes.

Each field becomes an option of the same name; fields that hold a group of options become all
options of the group. It does not know what they mean.
"""

from __future__ import annotations

import inspect
import textwrap
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any

import click

from adacompute.cli.options import (
    AS_JSON,
    CONFIG,
    NAMES,
    NUMBERS,
    RUN,
    WHOLE_NUMBERS,
    ArmOption,
    NamedAmount,
    NamedPair,
    Pairs,
    Setting,
    is_given,
    option_key,
    refuse_repeated,
)
from adacompute.cli.output import show_guesses
from adacompute.options.definition import ABOUT, About

LISTS: dict[Any, click.ParamType] = {int: WHOLE_NUMBERS, float: NUMBERS, str: NAMES}  # type: ignore[type-arg]
SCALARS: dict[Any, Any] = {int: int, float: float, str: str, Path: RUN}


def find_run(_: click.Context, __: click.Parameter, path: Path) -> Path:
    """Return the run in the directory of a bundle, or the run itself."""
    inside = path / "run"
    return inside if (path / "bundle.json").is_file() and inside.is_dir() else path


DIRECTORY = click.argument("run", metavar="DIR", type=RUN, callback=find_run)
"""The run directory that a command is about, or that of the bundle that was fitted to it."""


def command(
    name: str, kind: type[Any], *arguments: Callable[..., Any]
) -> Callable[[Callable[..., None]], click.Command]:
    """Make a command of a function, which gets the arguments, the options and ``as_json``."""

    def wrap(function: Callable[..., None]) -> click.Command:
        @click.pass_context
        def call(ctx: click.Context, /, *, as_json: bool, **given: Any) -> None:  # noqa: ANN401
            show_guesses()
            own = {option.name: given.pop(option.name) for option in declared}
            function(**given, options=_build(ctx, kind, own), as_json=as_json)

        declared = _declare(kind)
        made = click.command(name, cls=Command, help=format_help(kind.__doc__ or ""))(call)
        for argument in arguments:
            argument(made)
        made.params += declared
        has_settings = any(isinstance(one, Setting) for one in declared)
        return AS_JSON(CONFIG(made) if has_settings else made)

    return wrap


class Command(click.Command):
    """A command whose help ends with its settings, which are no options of the command line."""

    def format_epilog(self, _: click.Context, formatter: click.HelpFormatter) -> None:
        """Name the settings."""
        names = [option_key(one) for one in self.params if isinstance(one, Setting)]
        if names:
            formatter.write_paragraph()
            formatter.write_text(f"Settings for --config: {', '.join(sorted(names))}.")

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse arguments; say how a setting is given."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            name = error.option_name.removeprefix("--")
            if not any(isinstance(one, Setting) and option_key(one) == name for one in self.params):
                raise
            raise click.UsageError(f"{name} is a setting: give --config {name}=VALUE") from None


def format_help(text: str) -> str:
    """Return the help of a command; click keeps the lines of its examples."""
    sentence, *more = inspect.cleandoc(text).split("\n\n")
    shown = [
        f"\b\n{textwrap.indent(one, '  ')}" if one.startswith("adacompute ") else one
        for one in more
    ]
    return "\n\n".join([sentence, *shown])


def _declare(kind: type[Any]) -> list[click.Option]:
    """Return the options of a class in the order of its list, and then the settings."""
    found = _list_options(kind, getattr(kind, "OPTIONS", None))
    order = {name: place for place, name in enumerate(getattr(kind, "OPTIONS", ()))}
    return sorted(found, key=lambda one: order.get(one.name or "", len(order)))


def _list_options(
    kind: type[Any], shown: Sequence[str] | None, *, is_group: bool = False
) -> list[click.Option]:
    """Return the options of a class, those of its groups among them."""
    types, found = typing.get_type_hints(kind), []
    for one in fields(kind):
        type_ = _plain(types[one.name])
        if _is_group(type_):
            found += _list_options(type_, shown, is_group=True)
        else:
            is_required = one.default is MISSING and not is_group
            made = Setting if shown is not None and one.name not in shown else click.Option
            found.append(_make_option(one, type_, made, is_required=is_required))
    return found


def _build(ctx: click.Context, kind: type[Any], given: Mapping[str, Any]) -> Any:  # noqa: ANN401
    """Return the options of a class."""
    types, values = typing.get_type_hints(kind), {}
    for one in fields(kind):
        type_ = _plain(types[one.name])
        is_group = _is_group(type_)
        values[one.name] = _build_group(ctx, type_, given) if is_group else given[one.name]
    return kind(**values)


def _build_group(ctx: click.Context, kind: type[Any], given: Mapping[str, Any]) -> Any:  # noqa: ANN401 - of the class
    """Return a group of options; None if nothing of it is given."""
    names = {own.name for own in _list_options(kind, ())}
    words = [_word(own) for own in ctx.command.params if own.name in names and is_given(ctx, own)]
    if not words:
        return None
    needs = [(own.name, _help(own)) for own in fields(kind) if own.default is MISSING]
    for name, meaning in needs:
        if given[name.replace("-", "_")] is None:
            verb = "needs" if len(words) == 1 else "need"
            raise click.UsageError(f"{', '.join(words)} {verb} --{name}, {meaning}")
    return _build(ctx, kind, given)


def _word(option: click.Parameter) -> str:
    """Return how errors call an option, or a setting."""
    return option_key(option) if isinstance(option, Setting) else option.opts[0]


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
    made: type[click.Option],
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
        known["is_flag"] = True
    elif about.choices:
        known["type"] = click.Choice(about.choices)
    elif about.is_joined:
        known["type"] = Pairs(about.metavar or "", about.example or "")
    elif origin is Mapping:
        pair = (
            NamedAmount()
            if inner[1] is float
            else NamedPair(about.metavar or "", about.example or "")
        )
        known |= {"type": pair, "multiple": True, "callback": refuse_repeated}
    elif origin is Sequence and (about.is_repeated or inner[0] not in LISTS):
        known |= {"type": SCALARS.get(inner[0], ArmOption()), "multiple": True}
    else:
        known["type"] = LISTS[inner[0]] if origin is Sequence else SCALARS[type_]
    if not any(one.default is nothing for nothing in (MISSING, None, False, ())):
        default = one.default
        shown = ",".join(map(str, default)) if isinstance(default, tuple) else default
        known |= {"default": shown, "show_default": True}
    return made([name, one.name], **known)
