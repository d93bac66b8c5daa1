"""Analysis commands: replay logged decisions and reproduce the paper.

Each command parses its options, calls one stage and prints the result. It computes nothing itself.
"""

from __future__ import annotations

from pathlib import Path

import click

from adacompute.cli.options import (
    RUN,
    common,
)
from adacompute.cli.output import progress, show


@click.command("replay")
@click.argument("log", metavar="LOG", type=RUN)
@click.option("--bundle", type=RUN, required=True, help="Bundle to decide by.")
@click.option("--budget", type=float, required=True, help="Mean cost a request.")
@common
def replay(*, log: Path, bundle: Path, budget: float, as_json: bool) -> None:
    """Say what another budget would have done to what was served."""
    from adacompute.stages.replay import replay_log  # noqa: PLC0415

    show(replay_log(log, bundle, budget=budget), "Replayed", as_json=as_json, rows="shares")


@click.command("reproduce")
@click.argument("sources", metavar="DIR…", type=RUN, nargs=-1, required=True)
@click.option("--out", required=True, type=RUN, help="Directory for the tables and figures.")
@click.option(
    "--full-runs",
    default=4,
    show_default=True,
    help="How many of the runs get every table and figure; the others are only compared.",
)
@common
def reproduce(*, sources: tuple[Path, ...], out: Path, full_runs: int, as_json: bool) -> None:
    """Make every table and figure of the paper from runs or files of samples."""
    from adacompute.stages.reproduce import narrow, reproduce_runs  # noqa: PLC0415

    with progress("Reproducing") as said:
        result = reproduce_runs(sources, out=out, full_runs=full_runs, progress=said)
    shown = result if as_json else narrow(result)
    show(shown, "Reproduced", as_json=as_json, rows="comparison")
