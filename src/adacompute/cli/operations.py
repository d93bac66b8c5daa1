"""Operating: the commands that run a policy and look at what it did.

As the command line's other half it parses, calls and prints, and computes nothing itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from adacompute.cli.options import KEY_ENV, NAMES, RUN, SEED, TARIFF, UNIT, WHOLE_NUMBERS, common
from adacompute.cli.output import progress, show


@click.command("serve")
@click.option("--policy", type=RUN, help="Bundle to decide by; 'example' is the one that ships.")
@click.option("--base-url", help="The upstream's /v1; without a file, OPENAI_BASE_URL if set.")
@click.option("--budget", type=float, help="Mean cost a request, in the unit of the bundle.")
@click.option("--model", help="Model to decide for, where the bundle names none.")
@click.option("--grader", help="How answers are read, where the bundle does not say.")
@click.option("--host", help="Address to listen on; 127.0.0.1 unless given.")
@click.option("--port", type=int, help="Port to listen on; 8000 unless given.")
@click.option("--workers", type=int, help="Processes; one unless given.")
@click.option("--log", type=RUN, help="Directory for the log of decisions.")
@click.option("--config", type=RUN, help="TOML file with a table [serve].")
@click.option("--check", is_flag=True, help="Check everything, start nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document, with --check.")
@KEY_ENV
def serve(*, check: bool, as_json: bool, **options: Any) -> None:  # noqa: ANN401 - as declared
    """Serve any OpenAI client, drawing as often as it is worth the price."""
    from adacompute.stages.serve import check_serving, configure, start_serving  # noqa: PLC0415

    config = configure(**options)
    if check:
        show(check_serving(config), "Ready to serve", as_json=as_json, rows="models")
        return
    start_serving(config, lambda said: click.echo(f"adacompute: {said}", err=True))


@click.command("replay")
@click.argument("ledger", metavar="LEDGER", type=RUN)
@click.option("--policy", type=RUN, required=True, help="Bundle to decide by.")
@click.option("--budget", type=float, required=True, help="Mean cost a request.")
@common
def replay(*, ledger: Path, policy: Path, budget: float, as_json: bool) -> None:
    """Say what another budget would have done to what was served."""
    from adacompute.stages.replay import replay_log  # noqa: PLC0415

    show(replay_log(ledger, policy, budget=budget), "Replayed", as_json=as_json, rows="shares")


@click.command("report")
@click.argument("run", metavar="DIR", type=RUN)
@click.option("--out", required=True, type=RUN, help="File for the page, such as report.html.")
@click.option("--budget", type=float, help="Mean cost a question; two samples' unless given.")
@click.option("--policy", help="Policy that the page is about; sequential unless given.")
@click.option("--policies", type=NAMES, help="Policies beside it, by commas; a fast few if not.")
@click.option("--ladder", type=WHOLE_NUMBERS, help="Levels; as evaluated, or 1,2,4,8,16.")
@click.option(
    "--orders", default=20, show_default=True, help="Orders that samples are replayed in."
)
@UNIT
@TARIFF
@SEED
@common
def report(*, run: Path, as_json: bool, **options: Any) -> None:  # noqa: ANN401 - as declared
    """Write one page that says what a budget buys, and why."""
    from adacompute.stages.report import report_run  # noqa: PLC0415

    with progress("Reporting") as said:
        result = report_run(run, progress=said, **options)
    show(result, "Reported", as_json=as_json)


@click.command("reproduce")
@click.argument("sources", metavar="DIR…", type=RUN, nargs=-1, required=True)
@click.option("--out", required=True, type=RUN, help="Directory for the tables and figures.")
@click.option(
    "--figures",
    default=4,
    show_default=True,
    help="How many of the runs get every table and figure; the others are only compared.",
)
@common
def reproduce(*, sources: tuple[Path, ...], out: Path, figures: int, as_json: bool) -> None:
    """Make every table and figure of the paper from runs or files of samples."""
    from adacompute.stages.reproduce import narrow, reproduce_runs  # noqa: PLC0415

    with progress("Reproducing") as said:
        result = reproduce_runs(sources, out=out, figures=figures, progress=said)
    shown = result if as_json else narrow(result)
    show(shown, "Reproduced", as_json=as_json, rows="comparison")
