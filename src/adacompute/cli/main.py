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

from adacompute.cli import analysis, batch, live, pipeline
from adacompute.cli.output import fail
from adacompute.core.errors import AdaComputeError, ConfigError

REPOSITORY = "is not part of the package: run python -m reproduction"
MOVED = {
    ("reproduce", ""): f"reproduce {REPOSITORY} RUN… --out DIR in the repository",
    ("evaluate", "--protocol"): f"evaluate --protocol {REPOSITORY} evaluate RUN in the repository",
    ("calibrate", "--accuracy-of"): "there is no --accuracy-of: use --today N, what you run now",
    ("calibrate", "--share"): "there is no --share: use --today N and --tolerance",
}
"""Commands and options that were here, and what to use instead."""


class _InOrder(click.Group):
    """A group that lists its commands in the order of the pipeline, and names what moved."""

    def list_commands(self, _: click.Context) -> list[str]:
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, *options = args
        for given in ("", *(option.partition("=")[0] for option in options)):
            if (name, given) in MOVED:
                raise click.UsageError(MOVED[name, given])
        return super().resolve_command(ctx, args)


@click.group(
    cls=_InOrder, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(package_name="adacompute", message="%(prog)s %(version)s")
def cli() -> None:
    """Spend an LLM inference budget where it buys accuracy."""


for command in (
    pipeline.demo,
    pipeline.fit,
    pipeline.import_,
    live.collect,
    live.probe,
    pipeline.grade,
    pipeline.estimate,
    pipeline.solve,
    analysis.arms,
    pipeline.train,
    pipeline.calibrate,
    pipeline.evaluate,
    pipeline.report,
    live.serve,
    live.caps,
    batch.batch,
    analysis.replay,
    analysis.spend,
):
    cli.add_command(command)


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
