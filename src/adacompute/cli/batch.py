"""Batch command: answer files of questions under a hard total, or show the plan for it.

It parses its options, calls one stage and prints the result. It computes nothing itself.
"""

from __future__ import annotations

from typing import Any

import click

from adacompute.cli.definition import command
from adacompute.cli.output import format_amount, format_value, print_values, progress, show
from adacompute.options.main import BatchOptions

Result = dict[str, Any]


QUESTIONS = click.argument("questions", nargs=-1, required=True, metavar="QUESTIONS...")


@command("batch", BatchOptions, QUESTIONS)
def batch(*, questions: tuple[str, ...], options: BatchOptions, as_json: bool) -> None:
    """Answer questions."""
    from adacompute.stages.batch import run_batch

    with progress("Batch") as report:
        result = run_batch(questions, options=options, progress=report)
    show(result, _print_plan if options.plan_only else _print_batch, as_json=as_json)


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
    unit, unsure = result["unit"], {}
    if result["unsure"] is not None:
        unsure = {"Not sure": f"{result['unsure']:,}, in {result['unsure_answers']}"}
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
            **unsure,
        },
    )
