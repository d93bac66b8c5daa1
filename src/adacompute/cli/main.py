"""Main: the group of all commands, and how expected failures end.

Every command prints a table for people, or with ``--json`` one JSON document on standard output
and nothing else there. Progress goes to standard error, and only to a terminal. Exit codes: 0 done,
2 wrong use, 1 failed with one sentence. It computes nothing itself.
"""

from __future__ import annotations

import io
import sys
from typing import NoReturn

import click

from adacompute.cli import live, pipeline, spending
from adacompute.cli.definition import format_help
from adacompute.cli.output import fail
from adacompute.core.errors import AdaComputeError, ConfigError

EXAMPLES = """Spend an LLM inference budget where it buys accuracy.

adacompute fit samples.csv --today 5 --out policy
"""
SPEND_EXAMPLES = """Sum what a gateway's calls cost (spend [DIR]), or list its caps.

adacompute spend
adacompute spend caps gateway.toml
"""


class _InOrder(click.Group):
    """A group that lists its commands as they were added."""

    def list_commands(self, _: click.Context) -> list[str]:
        return list(self.commands)


class _Spend(click.Group):
    """The command ``spend [DIR]`` with subcommands beside it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or args[0] not in (*self.commands, "-h", "--help"):
            args = [SUM, *args]
        return super().parse_args(ctx, args)

    def list_commands(self, _: click.Context) -> list[str]:
        return [name for name in self.commands if name != SUM]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.commands[SUM].format_options(ctx, formatter)
        self.format_commands(ctx, formatter)


@click.group(
    cls=_InOrder,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help=format_help(EXAMPLES),
)
@click.version_option(package_name="adacompute", message="%(prog)s %(version)s")
def cli() -> None:
    """Run a command."""


@click.group(cls=_Spend, help=format_help(SPEND_EXAMPLES))
def spend() -> None:
    """Sum what was spent, or run another command about it."""


SUM = "sum"
"""Name of the command that ``spend [DIR]`` calls."""

spend.add_command(spending.spend, SUM)
spend.add_command(spending.caps)
for command in (
    *(pipeline.fit, pipeline.evaluate, pipeline.report, pipeline.solve),
    *(live.collect, live.batch, live.serve, spend),
):
    cli.add_command(command)


def list_commands(group: click.Group = cli, prefix: str = "") -> dict[str, click.Command]:
    """Return every command by the words that call it."""
    found: dict[str, click.Command] = {}
    for name, command in group.commands.items():
        words = prefix if name == SUM else f"{prefix} {name}".strip()
        found |= (
            list_commands(command, words) if isinstance(command, click.Group) else {words: command}
        )
    return found


def main() -> None:
    """Run the command line."""
    run(cli, "adacompute")


def run(command: click.Command, name: str, arguments: list[str] | None = None) -> NoReturn:
    """Run a command and exit; expected failures end in one sentence."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal may lack some of our characters
        sys.stdout.reconfigure(errors="replace")
    try:
        code = command.main(arguments, prog_name=name, standalone_mode=False)
    except click.exceptions.Abort:
        fail("stopped", 130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except AdaComputeError as error:
        fail(str(error), 2 if isinstance(error, ConfigError) else 1)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        fail(f"{where}{error.strerror or error}", 1)
    except MemoryError as error:
        fail(f"this needs more memory than there is: {error or 'take fewer questions'}", 1)
    sys.exit(code if isinstance(code, int) else 0)
