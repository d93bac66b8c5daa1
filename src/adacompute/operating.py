"""Operating: the commands that run a policy and look at what it did.

As the command line's other half it parses, calls and prints, and computes nothing itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from adacompute.console import show
from adacompute.options import KEY_ENV, RUN, common


@click.command("serve")
@click.option("--policy", type=RUN, help="Bundle to decide by; 'example' is the one that ships.")
@click.option("--base-url", envvar="OPENAI_BASE_URL", help="The upstream's /v1.")
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
    from adacompute.runs.serving import check_serving, configure, start_serving  # noqa: PLC0415

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
    from adacompute.runs.replays import replay_log  # noqa: PLC0415

    show(replay_log(ledger, policy, budget=budget), "Replayed", as_json=as_json, rows="shares")
