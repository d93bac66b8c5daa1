"""Batch command: answer files of questions under a hard total, or show the plan for it.

It parses its options, calls one stage and prints the result. It computes nothing itself.
"""

from __future__ import annotations

from typing import Any

import click

from adacompute.cli.options import API_KEY_ENV, PRICE_AS, RUN, TOKEN_PRICES, common
from adacompute.cli.output import format_amount, format_value, print_values, progress, show

Result = dict[str, Any]


@click.command("batch")
@click.argument("questions", nargs=-1, required=True, metavar="QUESTIONS...")
@click.option("--bundle", required=True, type=RUN, help="Bundle of the policy.")
@click.option("--out", required=True, type=RUN, help="Directory of the batch; it is resumable.")
@click.option(
    "--base-url",
    "base_urls",
    multiple=True,
    help="URL of a server, ending in /v1; repeat it to balance over several.",
)
@click.option("--total", type=float, help="What the batch may cost, in the bundle's unit.")
@click.option("--budget", type=float, help="Mean cost per question, instead of --total.")
@click.option("--model", help="Model to sample, if the bundle names none.")
@click.option("--grader", help="Grader instead of the bundle's; needed for a command (cmd:…).")
@click.option("--max-output-tokens", type=int, help="Limit of tokens per sample.")
@click.option(
    "--reserve", type=float, default=0.01, help="Share kept for calls lost in a crash (0.01)."
)
@click.option("--concurrency", type=int, default=64, help="Calls at a time (default: 64).")
@click.option("--text-column", default="question", help="Column of the text (default: question).")
@click.option("--id-column", default="question_id", help="Column of the id (default: question_id).")
@click.option("--plan-only", is_flag=True, help="Plan and write first decisions; call nothing.")
@click.option(
    "--engine",
    type=click.Choice(["local", "ray"]),
    default="local",
    help="Run on this machine, or on Ray (default: local).",
)
@click.option("--ray-address", help="Address of a Ray cluster (default: start one here).")
@click.option("--accept-verdict", is_flag=True, help="Use a policy whose verdict is not 'gain'.")
@TOKEN_PRICES
@PRICE_AS
@API_KEY_ENV
@common
def batch(
    *,
    plan_only: bool,
    engine: str,
    ray_address: str | None,
    as_json: bool,
    **options: Any,  # noqa: ANN401 - as declared above
) -> None:
    """Answer files of questions under a hard total."""
    from adacompute.stages.batch import BatchOptions, plan_only_batch, run_batch

    given = BatchOptions(**options, engine=engine, ray_address=ray_address)
    with progress("Batch") as report:
        result = (plan_only_batch if plan_only else run_batch)(given, report=report)
    show(result, _print_plan if plan_only else _print_batch, as_json=as_json)


def _print_plan(result: Result) -> None:
    """Print what a batch would do."""
    unit = result["unit"]
    print_values(
        "Plan",
        {
            "Questions": result["questions"],
            "Total": format_amount(result["total"], unit),
            "Price": result["price"],
            "Expected cost": format_amount(result["expected_cost"], unit),
            "First decisions": format_value(result["out"]),
        },
    )


def _print_batch(result: Result) -> None:
    """Print what a batch did."""
    unit = result["unit"]
    print_values(
        "Batch",
        {
            "Questions": result["questions"],
            "Samples": result["samples"],
            "Total": format_amount(result["total"], unit),
            "Cost": format_amount(result["cost"], unit),
            "Lost in crashes": format_amount(result["lost_cost"], unit),
            "Expected cost": format_amount(result["expected_cost"], unit),
            "Answered": result["answered"],
            "Stopped by the total": result["limited"],
            "Without an answer": result["unanswered"],
            "Errors": result["error"],
            "Answers": format_value(result["answers"]),
        },
    )
