"""Options: what the commands take, on the command line or from a TOML file.

A TOML file has one table per command, and in it one key per option or setting. A setting is an
option that few people need: it is given in such a file, or by ``--config NAME=VALUE``. The command
line wins over ``NAME=VALUE``, and that over a file. An unknown key is refused with the list of
known ones. It does not know what the options mean.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import click

from adacompute.options.definition import is_pair


class CommaSeparated(click.ParamType):  # type: ignore[type-arg]  # generic in the newest click only
    """Values separated by commas."""

    def __init__(self, kind: type[int | float | str], name: str) -> None:
        self.kind, self.name = kind, name

    def convert(
        self,
        value: str,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> tuple[Any, ...]:
        """Parse ``1,2,4``."""
        try:
            return tuple(self.kind(item.strip()) for item in value.split(","))
        except ValueError:
            kind = "whole numbers" if self.kind is int else "numbers"
            self.fail(f"{value!r} is not a list of {kind} such as 1,2,4", param, ctx)


NUMBERS, WHOLE_NUMBERS = CommaSeparated(float, "N,N,…"), CommaSeparated(int, "N,N,…")
NAMES = CommaSeparated(str, "NAME,NAME,…")


class NamedAmount(click.ParamType):  # type: ignore[type-arg]  # as above
    """A named amount, NAME=VALUE."""

    name = "NAME=VALUE"

    def convert(
        self,
        value: str,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> tuple[str, float]:
        """Parse ``total/samples/all=3``."""
        name, _, amount = value.rpartition("=")
        try:
            return name, float(amount)
        except ValueError:
            self.fail(f"{value!r} is not an amount such as NAME=3", param, ctx)


class NamedPair(click.ParamType):  # type: ignore[type-arg]  # as above
    """A pair of texts, such as NAME=FILE."""

    def __init__(self, name: str, example: str) -> None:
        self.name, self.example = name, example

    def convert(
        self,
        value: str,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> tuple[str, str]:
        """Parse ``low=low.parquet``."""
        name, _, text = value.partition("=")
        if not name.strip() or not text.strip():
            self.fail(f"{value!r} is not a pair such as {self.example}", param, ctx)
        return name.strip(), text.strip()


class Pairs(NamedPair):
    """Pairs of texts, separated by commas."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:  # noqa: ANN401 - as above
        """Parse ``question=prompt,correct=is_right``."""
        pairs = [super(Pairs, self).convert(one, param, ctx) for one in value.split(",")]
        if len(dict(pairs)) < len(pairs):
            self.fail(f"{value!r} gives one name twice: give every name once", param, ctx)
        return dict(pairs)


def refuse_repeated(
    _: click.Context, param: click.Parameter, pairs: tuple[tuple[str, str], ...]
) -> dict[str, str]:
    """Return pairs as a dictionary; refuse a name that is given twice."""
    if len(dict(pairs)) < len(pairs):
        raise click.UsageError(f"{param.opts[0]} gives one name twice: give every name once")
    return dict(pairs)


class ArmOption(click.ParamType):  # type: ignore[type-arg]  # as above
    """An arm to collect: KEY=VALUE,KEY=VALUE, or a table of a TOML file."""

    name = "name=NAME,KEY=VALUE,…"

    def convert(
        self,
        value: Any,  # noqa: ANN401 - as above
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> dict[str, Any]:
        """Parse ``name=big,model=gpt-4o,effort=high``."""
        if isinstance(value, dict):
            return value
        pairs = [item.partition("=") for item in value.split(",")]
        if not all(sign for _, sign, _ in pairs):
            self.fail(f"{value!r} is not an arm such as name=big,model=gpt-4o", param, ctx)
        return {key.strip(): text.strip() for key, _, text in pairs}


class Setting(click.Option):
    """An option that is given in a file, or by ``--config NAME=VALUE``."""

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:  # noqa: ANN401 - click's own
        """Add nothing: the command line has no such option."""

    def get_help_record(self, ctx: click.Context) -> None:
        """Return nothing: the help names settings in one sentence."""

    def get_error_hint(self, _: click.Context | None) -> str:
        """Return the name by which errors call it."""
        return repr(option_key(self))


def option_key(option: click.Parameter) -> str:
    """Return the name of an option in a file."""
    return option.opts[0].removeprefix("--")


def read_config(ctx: click.Context, _: click.Parameter, sources: tuple[str, ...]) -> None:
    """Take options from tables of TOML files, and from pairs NAME=VALUE, which win over them."""
    pairs = [source.partition("=") for source in sources if is_pair(source)]
    given: dict[str, Any] = {}
    for source in sources:
        if not is_pair(source):
            given |= _read_file(ctx, Path(source))
    own: dict[str, Any] = {}
    for key, _sign, text in pairs:
        option = _find_option(ctx, key, "--config")
        value: Any = text
        if option.is_flag:
            if text not in ("true", "false"):
                raise click.UsageError(f"--config: {key} must be true or false, got {text!r}")
            value = text == "true"
        name = option.name or ""
        own[name] = [*own.get(name, ()), value] if option.multiple else value
    ctx.default_map = {**(ctx.default_map or {}), **given, **own}


def _read_file(ctx: click.Context, path: Path) -> dict[str, Any]:
    """Return the options in the command's table of a file."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise click.UsageError(f"{path} cannot be read as TOML: {error}") from None
    commands = _list_names(ctx.find_root().command)
    for name, table in tables.items():
        if name not in commands or not isinstance(table, dict):
            raise click.UsageError(
                f"{path}: {name!r} is not a table of options of a command: "
                f"use [{'], ['.join(commands)}]"
            )
    given = {}
    for name, value in tables.get(ctx.info_name or "", {}).items():
        option = _find_option(ctx, name, str(path))
        text = _write(value, option)
        if text is None:
            raise click.UsageError(f"{path}: {name} must be {_expected(option)}, got {value!r}")
        given[option.name or ""] = text
    return given


def _find_option(ctx: click.Context, name: str, where: str) -> click.Option:
    """Return the option that a key names."""
    options = {
        option_key(option): option
        for option in ctx.command.params
        if isinstance(option, click.Option) and option.name != "config"
    }
    if (key := name.replace("_", "-")) not in options:
        raise click.UsageError(
            f"{where}: {ctx.info_name!r} has no option {name!r}; it has "
            f"{', '.join(sorted(options))}"
        )
    return options[key]


def _list_names(command: click.Command) -> list[str]:
    """Return the names of a command, or of those in a group."""
    if not isinstance(command, click.Group):
        return [command.name or ""]
    return [name for one in command.commands.values() for name in _list_names(one)]


def _write(value: Any, option: click.Option) -> str | bool | list[Any] | None:  # noqa: ANN401 - TOML
    """Return a value as it would be written on the command line; None if that is impossible.

    Arms may also be tables, which hold more than the command line can: they stay as they are.
    """
    if isinstance(option.type, ArmOption) and isinstance(value, list):
        is_valid = all(isinstance(item, str | dict) for item in value)
        return value if is_valid else None
    if isinstance(value, dict) and (option.multiple or isinstance(option.type, Pairs)):
        value = [f"{name}={amount}" for name, amount in value.items()]
    values = value if isinstance(value, list) else [value]
    if any(isinstance(item, list | dict) or "\0" in str(item) for item in values):
        return None
    if option.is_flag:
        return value if isinstance(value, bool) else None
    texts = [str(item) for item in values]
    if option.multiple:
        return texts
    is_joined = isinstance(option.type, Pairs | CommaSeparated)
    return ",".join(texts) if len(texts) == 1 or is_joined else None


def _expected(option: click.Option) -> str:
    """Return what a TOML file may set an option to."""
    if option.is_flag:
        return "true or false"
    if option.multiple or isinstance(option.type, CommaSeparated):
        return "a list of values"
    is_number = isinstance(option.type, click.types.FloatParamType | click.types.IntParamType)
    return "one number" if is_number else "one text"


AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
CONFIG = click.option(
    "--config",
    metavar="FILE|NAME=VALUE",
    multiple=True,
    is_eager=True,
    expose_value=False,
    callback=read_config,
    help="TOML file with a table for this command, or one of its settings; may be repeated.",
)
RUN = click.Path(path_type=Path)


def is_given(ctx: click.Context, option: click.Parameter) -> bool:
    """Return whether an option was set on the command line or in a TOML file."""
    source = ctx.get_parameter_source(option.name or "")
    return source is not click.core.ParameterSource.DEFAULT
