"""The page of the commands, with all their options and settings."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

import click
from definitions import define, table

from adacompute.cli.main import list_commands
from adacompute.cli.options import Setting, option_key
from adacompute.cli.output import EXIT_CODES


def command_line() -> str:
    """Return the page of all commands."""
    found = "\n".join(describe(name, command) for name, command in list_commands().items())
    return COMMAND_LINE.format(commands=found, exit_codes=exit_codes())


def describe(name: str, command: click.Command) -> str:
    """Return the section of a command: an example, its options and settings, an anchor each."""
    sentence, example, more = _split_help(command)
    usage = click.Context(command, info_name=f"adacompute {name}").get_usage()
    lines = [f"## adacompute {name}", "", sentence, ""]
    lines += ["```console", f"$ {example}", "```", ""] if example else []
    lines += [more, ""] if more else []
    lines += [usage.replace("Usage: ", "Usage: `") + "`", ""]
    options = [one for one in command.params if isinstance(one, click.Option)]
    lines += _describe_options(name, [one for one in options if not isinstance(one, Setting)])
    if hidden := [one for one in options if isinstance(one, Setting)]:
        lines += [SETTINGS_OF_COMMAND, "", *_describe_options(name, hidden)]
    return "\n".join(lines)


def _split_help(command: click.Command) -> tuple[str, str, str]:
    """Return the first sentence of the help, the example, and the rest."""
    sentence, _, rest = inspect.cleandoc(command.help or "").partition("\n\n\b\n")
    example, _, more = rest.partition("\n\n")
    return sentence, example.strip(), more


def _describe_options(command: str, options: Sequence[click.Option]) -> list[str]:
    """Return a list of definitions, with an anchor for each option."""
    lines = []
    for one in options:
        key, kind = option_key(one), "" if one.is_flag else one.make_metavar(click.Context(NO))
        word = f"{key} = {kind or 'true'}" if isinstance(one, Setting) else f"--{key} {kind}"
        default = f" Default: `{one.default}`." if one.show_default else ""
        required = " Required." if one.required else ""
        lines += define(
            word.strip(), f"{command}-{key}".replace(" ", "-"), "", f"{one.help}{required}{default}"
        )
    return lines


def exit_codes() -> str:
    """Return the table of exit codes."""
    rows = [(str(code), meaning) for code, meaning in EXIT_CODES.items()]
    return "\n".join(table(("exit code", "meaning"), rows))


NO = click.Command("none")
"""A command without options: click asks for one to write types."""

SETTINGS_OF_COMMAND = "Settings, given as `--config NAME=VALUE`, or in the file of `--config FILE`:"

COMMAND_LINE = """# Command line

## What all commands share

Every command prints a table. With `--json` it prints one JSON document on standard output, and
nothing else there. Progress goes to standard error, and only if that is a terminal.

{exit_codes}

A command has options, and settings, which fewer people need. `--config seed=1` gives one setting;
`--config FILE` reads a TOML file, in which the table named after the command may hold both:

```toml
[evaluate]
budgets = [1.5, 2, 3]
levels = [1, 2, 3, 4, 6, 8]
drop-unparsed = true
```

Options on the command line win, then `NAME=VALUE`, then the file. An unknown name is rejected, with
a list of the known ones. `serve` reads the [configuration of the gateway](configuration.md) in the
same two ways.

{commands}
"""
