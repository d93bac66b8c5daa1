"""Options: what the commands take, on the command line or from a TOML file.

A file has a table for each command, and in it a key for each option, spelled as on the command
line; the command line goes before it. What is not known is refused with the list of what is. It
knows nothing of what the options mean.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


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
        """Read ``1,2,4``."""
        try:
            return tuple(self.kind(item.strip()) for item in value.split(","))
        except ValueError:
            kind = "whole numbers" if self.kind is int else "numbers"
            self.fail(f"{value!r} is not a list of {kind} such as 1,2,4", param, ctx)


NUMBERS, WHOLE_NUMBERS = CommaSeparated(float, "N,N,…"), CommaSeparated(int, "N,N,…")
NAMES = CommaSeparated(str, "NAME,NAME,…")


class Limit(click.ParamType):  # type: ignore[type-arg]  # as above
    """A limit on a further cost, NAME=VALUE."""

    name = "NAME=VALUE"

    def convert(
        self,
        value: str,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> tuple[str, float]:
        """Read ``latency=3``."""
        name, _, amount = value.partition("=")
        try:
            return name, float(amount)
        except ValueError:
            self.fail(f"{value!r} is not a limit such as latency=3", param, ctx)


def read_config(ctx: click.Context, _: click.Parameter, path: Path | None) -> None:
    """Take options from the command's table of a TOML file; the command line goes before it."""
    if path is None:
        return
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise click.UsageError(f"{path} cannot be read as TOML: {error}") from None
    command = ctx.info_name or ""
    group = ctx.find_root().command
    commands = list(group.commands) if isinstance(group, click.Group) else [command]
    for name, table in tables.items():
        if name not in commands or not isinstance(table, dict):
            raise click.UsageError(
                f"{path} sets {name!r}, which is not a table of options of a command: "
                f"there are [{'], ['.join(commands)}]"
            )
    options = {
        option.opts[-1].removeprefix("--"): option
        for option in ctx.command.params
        if isinstance(option, click.Option) and option.name != "config"
    }
    given = {}
    for name, value in tables.get(command, {}).items():
        if name not in options:
            raise click.UsageError(
                f"{path} sets {name!r} for {command!r}, which takes {', '.join(sorted(options))}"
            )
        option = options[name]
        text = _write(value, option)
        if text is None:
            raise click.UsageError(
                f"{path} sets {name!r} for {command!r} to {value!r}, which it cannot be"
            )
        given[option.name or ""] = text
    ctx.default_map = {**(ctx.default_map or {}), **given}


def _write(value: Any, option: click.Option) -> str | bool | list[str] | None:  # noqa: ANN401 - TOML
    """Write a value as it would stand on the command line; None when it cannot stand there."""
    if isinstance(value, dict) and option.multiple:
        value = [f"{name}={amount}" for name, amount in value.items()]
    values = value if isinstance(value, list) else [value]
    if any(isinstance(item, list | dict) or "\0" in str(item) for item in values):
        return None
    if option.is_flag:
        return value if isinstance(value, bool) else None
    texts = [str(item) for item in values]
    if option.multiple:
        return texts
    return ",".join(texts) if len(texts) == 1 or isinstance(option.type, CommaSeparated) else None


def common(function: F) -> F:
    """Give a command the options that all commands share."""
    as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
    config = click.option(
        "--config",
        type=click.Path(path_type=Path, dir_okay=False),
        is_eager=True,
        expose_value=False,
        callback=read_config,
        help="Take options from this TOML file, from the table named after the command.",
    )
    return as_json(config(function))


RUN = click.Path(path_type=Path)
UNIT = click.option(
    "--unit",
    default="samples",
    show_default=True,
    help="What a budget counts: samples, tokens, characters, money or seconds.",
)
TOKEN_PRICES = click.option(
    "--token-prices", type=click.Path(path_type=Path), help="Prices of tokens, TOML, for money."
)
NATIVE_N = click.option(
    "--native-n",
    is_flag=True,
    help="A round is one call: by the token prices, its prompt is paid once.",
)
ROUND_COST = click.option(
    "--round-cost",
    default=0.0,
    show_default=True,
    help="What each round of draws costs beside them: a prompt sent again, a wait.",
)
RESORT = click.option(
    "--resort",
    type=click.Path(path_type=Path),
    help="Run of a stronger model on the same questions, the last level of 'sequential'.",
)
TIE_BREAK = click.option(
    "--tie-break",
    default="first",
    show_default=True,
    help="Who wins where votes are equal: the answer seen first, or by logprob the likeliest.",
)
LEVELS = click.option(
    "--levels",
    type=WHOLE_NUMBERS,
    default="1,2,4,8,16",
    show_default=True,
    help="Numbers of samples that policies choose from.",
)
FEATURES = click.option(
    "--features",
    default="paper",
    show_default=True,
    help="Set of text features: paper or extended.",
)
MODEL = click.option("--model", help="Name of the model that is, or will be, sampled.")
SEED = click.option("--seed", default=0, show_default=True, help="Seed of folds and orders.")
API_KEY_ENV = click.option(
    "--api-key-env",
    default="OPENAI_API_KEY",
    show_default=True,
    help="Environment variable that holds the API key, if one is needed.",
)


class LevelOption(click.ParamType):  # type: ignore[type-arg]  # as above
    """An operating level, KEY=VALUE,KEY=VALUE."""

    name = "name=NAME,KEY=VALUE,…"

    def convert(
        self,
        value: Any,  # noqa: ANN401 - as above
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> dict[str, str]:
        """Read ``name=big,model=gpt-4o,effort=high``."""
        if isinstance(value, dict):
            return value
        pairs = [item.partition("=") for item in value.split(",")]
        if not all(sign for _, sign, _ in pairs):
            self.fail(f"{value!r} is not a level such as name=big,model=gpt-4o", param, ctx)
        return {key.strip(): text.strip() for key, _, text in pairs}


COLLECTING = (
    click.option("--base-url", required=True, envvar="OPENAI_BASE_URL", help="The server's /v1."),
    click.option("--model", required=True, help="Model to sample."),
    click.option("--samples", default=48, show_default=True, help="Samples of each question."),
    click.option("--adaptive", is_flag=True, help="Draw on only while a question is undecided."),
    click.option("--budget", type=float, help="Mean samples a question that --adaptive is for: 2."),
    click.option("--grader", required=True, help="numeric, math, choice, exact or cmd:COMMAND."),
    click.option(
        "--level",
        "levels",
        type=LevelOption(),
        multiple=True,
        help="An operating level of its own: name=big,model=…,effort=high; may be repeated.",
    ),
    click.option("--temperature", default=0.7, show_default=True, help="Of sampling."),
    click.option("--max-tokens", default=1024, show_default=True, help="Of a completion."),
    click.option("--stop", multiple=True, help="Text that ends a completion; may be repeated."),
    click.option("--system", help="System message."),
    click.option("--prompt", default="{question}", show_default=True, help="Form of a prompt."),
    click.option(
        "--few-shot", type=click.Path(path_type=Path), help="Worked examples, JSON lines."
    ),
    click.option("--completion", is_flag=True, help="Use completions instead of chat."),
    click.option(
        "--max-questions", type=int, help="Choose so many questions, evenly by difficulty."
    ),
    click.option("--difficulties", type=NAMES, help="Choose among these difficulties."),
    TOKEN_PRICES,
    click.option("--max-cost", type=float, help="Stop before this much money is exceeded."),
    click.option("--scorer", help="URL that scores samples, for best-of-n."),
    click.option("--scorer-price", default=0.0, show_default=True, help="Money a score."),
    click.option(
        "--scorer-api-key-env",
        default="SCORER_API_KEY",
        show_default=True,
        help="Environment variable that holds the scorer's key, if it needs one.",
    ),
    click.option(
        "--timeout", default=120.0, show_default=True, help="Seconds until a call must answer."
    ),
    click.option("--concurrency", default=64, show_default=True, help="Calls at once at most."),
    click.option("--requests-per-minute", type=int, help="As your provider limits them."),
    click.option("--tokens-per-minute", type=int, help="As your provider limits them."),
    API_KEY_ENV,
    SEED,
)


def collecting(function: F) -> F:
    """Give a command the options of a collection."""
    for option in reversed(COLLECTING):
        function = option(function)
    return function
