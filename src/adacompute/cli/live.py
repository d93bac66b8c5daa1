"""Live commands: they talk to a model server or stand in front of one.

Each command parses its options, calls one stage and prints the result. It computes nothing itself.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from adacompute.cli.options import (
    API_KEY_ENV,
    RUN,
    collecting,
    common,
)
from adacompute.cli.output import progress, show


@click.command("probe")
@click.option("--base-url", required=True, envvar="OPENAI_BASE_URL", help="The server's /v1.")
@click.option("--model", required=True, help="Model to ask.")
@API_KEY_ENV
@common
def probe(*, base_url: str, model: str, api_key_env: str, as_json: bool) -> None:
    """Find out what a server really does with n, seeds, usage and limits."""
    from adacompute.stages.probe import probe_run  # noqa: PLC0415

    with progress("Probing") as report:
        report(base_url)
        result = probe_run(base_url=base_url, model=model, api_key_env=api_key_env)
    show(result, f"{model} at {base_url}", as_json=as_json, rows="findings")


@click.command("collect")
@click.argument("questions", metavar="QUESTIONS")
@click.option("--run", required=True, type=RUN, help="Directory of the run.")
@collecting
@click.option("--dry-run", is_flag=True, help="Say what it would need at most; call nothing.")
@common
def collect(
    *,
    questions: str,
    run: Path,
    dry_run: bool,
    as_json: bool,
    **options: Any,  # noqa: ANN401 - as declared above
) -> None:
    """Draw the samples that a run still lacks from any OpenAI-compatible server."""
    from adacompute.collection.plan import estimate_cost, read_plan  # noqa: PLC0415
    from adacompute.stages.collect import collect_run  # noqa: PLC0415

    plan = read_plan(questions, **options)
    if dry_run:
        show(estimate_cost(plan), "At most", as_json=as_json, rows="levels")
        return
    with progress("Collecting") as report:
        result = collect_run(plan, run, report=lambda level, now: report(f"{level}: {now}"))
    show(result, "Collected", as_json=as_json, rows="levels")
    lacking = {
        what: sum(level[name] for level in result["levels"])
        for name, what in (("missing", "samples"), ("unscored", "scores"))
    }
    if said := " and ".join(f"{count} {what}" for what, count in lacking.items() if count):
        click.echo(f"adacompute: {said} are missing: run the same command again", err=True)
        sys.exit(1)


@click.command("serve")
@click.option("--bundle", type=RUN, help="Bundle to decide by; 'example' is the one that ships.")
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
@API_KEY_ENV
def serve(*, check: bool, as_json: bool, **options: Any) -> None:  # noqa: ANN401 - as declared
    """Serve any OpenAI client, drawing as often as it is worth the price."""
    from adacompute.stages.serve import check_serving, configure, start_serving  # noqa: PLC0415

    config = configure(**options)
    if check:
        show(check_serving(config), "Ready to serve", as_json=as_json, rows="models")
        return
    start_serving(config, lambda said: click.echo(f"adacompute: {said}", err=True))
