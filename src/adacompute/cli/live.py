"""Live commands: they talk to a model server, or run a gateway in front of one.

Each command parses its options, calls one stage and prints the result. It computes nothing itself.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from adacompute.cli.definition import command
from adacompute.cli.options import RUN
from adacompute.cli.output import (
    format_amount,
    format_share,
    format_value,
    print_columns,
    print_rows,
    print_text,
    print_values,
    progress,
    show,
)
from adacompute.core.errors import needs_extra
from adacompute.options.main import BatchOptions, CollectOptions, ServeOptions

Result = dict[str, Any]


@command(
    "collect",
    CollectOptions,
    click.argument("questions", metavar="QUESTIONS"),
    click.option("--run", required=True, type=RUN, help="Run directory."),
    click.option("--dry-run", is_flag=True, help="Print what it would need at most; call nothing."),
)
def collect(
    *, questions: str, run: Path, dry_run: bool, options: CollectOptions, as_json: bool
) -> None:
    """Collect samples."""
    from adacompute.collection.plan import estimate_cost, read_plan
    from adacompute.stages.collect import collect_run, describe_missing

    plan = read_plan(questions, options=options)
    if dry_run:
        show(estimate_cost(plan), _print_plan, as_json=as_json)
        return
    with progress("Collecting") as report:
        result = collect_run(plan, run, report=lambda arm, now: report(f"{arm}: {now}"))
    show(result, _print_collection, as_json=as_json)
    if missing := describe_missing(result):
        click.echo(f"adacompute: {missing}: run the same command again", err=True)
        sys.exit(1)


QUESTIONS = click.argument("questions", nargs=-1, required=True, metavar="QUESTIONS...")


@command("batch", BatchOptions, QUESTIONS)
def batch(*, questions: tuple[str, ...], options: BatchOptions, as_json: bool) -> None:
    """Answer questions."""
    from adacompute.stages.batch import run_batch

    with progress("Batch") as report:
        result = run_batch(questions, options=options, progress=report)
    show(result, _print_batch_plan if options.plan_only else _print_batch, as_json=as_json)


@command("serve", ServeOptions)
def serve(*, options: ServeOptions, as_json: bool) -> None:
    """Run a gateway."""
    with needs_extra("serve"):
        from adacompute.stages.serve import check_serving, configure, start_serving

    if options.check:
        show(check_serving(configure(options=options)), _print_serving, as_json=as_json)
        return
    start_serving(options, lambda line: click.echo(f"adacompute: {line}", err=True))


def _print_collection(result: Result) -> None:
    """Print what was collected, one column per arm."""
    rows = [
        {
            "Arm": row["arm"],
            "Model": row["model"],
            "Samples": f"{row['samples']} of {row['samples_planned']}",
            "New samples": row["new_samples"],
            "Calls": row["calls"],
            "Correct": format_share(row["correct"], row["samples"]),
            "Unparsed": format_share(row["unparsed"], row["samples"]),
            "Without a score": row["unscored"],
            "Completion tokens": row["completion_tokens"],
            "Cost": row["cost"],
            "Failed calls": row["failed"],
            "Stopped because": row["stopped"],
        }
        for row in result["arms"]
    ]
    print_columns(f"Collected {format_amount(result['questions'], 'question')}", rows)


def _print_plan(result: Result) -> None:
    """Print what a collection would need at most, one column per arm."""
    labels = {
        "arm": "Arm",
        "model": "Model",
        "samples": "Samples",
        "max_calls": "Calls, at most",
        "scores": "Scores",
        "prompt_tokens": "Prompt tokens, about",
        "max_completion_tokens": "Completion tokens, at most",
        "max_cost": "Cost, at most",
        "max_cost_with_native_n": "Cost with several samples per call, at most",
    }
    rows = [
        {label: row[name] for name, label in labels.items() if name in row}
        for row in result["arms"]
    ]
    print_columns(f"Plan for {format_amount(result['questions'], 'question')}", rows)


def _print_serving(result: Result) -> None:
    """Print what a gateway would serve."""
    print_values(
        "Ready to serve",
        {
            "Address": result["listen"],
            "Bearer token": "needed" if result["needs_token"] else "none",
        },
    )
    _print_upstreams(result["upstreams"])
    rows = [
        {
            "Virtual model": row["name"],
            "Upstream model": row["model"],
            "Budget": format_amount(row["budget"], row["unit"]),
            "Verdict": row["verdict"] or "none needed",
            "Minimum budget": format_amount(row["min_budget"], row["unit"]),
            "Price": row["price"],
            "Levels to choose from": row["levels"],
            "Grader": row["grader"],
        }
        for row in result["models"]
    ]
    if rows:
        print_columns("Models", rows)
    _print_serving_limits(result)
    if not result["caps"]:
        return
    rows = [
        {
            "Cap": row["whose"],
            "Amount": format_amount(row["amount"], row["unit"]),
            "Period": row["period"],
            "Kept by a lost worker": f"at most {format_amount(row['max_stranded'], row['unit'])}",
        }
        for row in result["caps"]
    ]
    print_rows("Caps", rows)
    print_text(
        "A worker that disappears keeps its lease, about 30 seconds of its traffic, until the "
        "period ends. If the account store and all gateways that used it are lost together, caps "
        "count from zero: correct that with adacompute spend caps --set-spent."
    )
    if result["store_problem"] is not None:
        print_text(f"Account store: {result['store_problem']}")


def _print_serving_limits(result: Result) -> None:
    """Print what limits requests, where files are kept, and what the probe costs."""
    by_owner = {"Gateway": result["limits"]}
    by_owner |= {f"Model {one['name']}": one["limits"] for one in result["models"]}
    rows = [
        {"Limit of": whose, "Setting": name, "Value": _show_limit(value)}
        for whose, limits in by_owner.items()
        for name, value in limits.items()
    ]
    print_rows("Limits", rows)
    rows = [
        {
            "Files": one["name"],
            "Directory": one["directory"],
            "Can be written": "yes" if one["is_writable"] else "no",
        }
        for one in result["directories"]
    ]
    print_rows("Directories", rows)
    for model in result["models"]:
        if model["found"] is not None:
            print_values(f"What a probe of {model['model']} found", model["found"])
    probe = result["probe"]
    if not probe["models"]:
        print_text("The start needs no probe.")
        return
    cost = "unknown without token prices" if probe["max_cost"] is None else probe["max_cost"]
    values = {
        "Models": ", ".join(probe["models"]),
        "Calls": probe["max_calls"],
        "Prompt tokens": probe["max_prompt_tokens"],
        "Completion tokens": probe["max_completion_tokens"],
        "Cost": cost,
    }
    print_values("Probe at the start, at most", values)


def _show_limit(value: object) -> str:
    """Write a limit, or a list of what is allowed."""
    listed = ", ".join(map(str, value)) if isinstance(value, list | tuple) else value
    return format_value(listed)


def _print_upstreams(upstreams: list[Result]) -> None:
    """Print each address of each upstream, and whether it answers."""
    rows = [
        {
            "Upstream": row["upstream"] or "the gateway's",
            "Address": row["base_url"],
            "Status": row["problem"] or "answers",
        }
        for row in upstreams
    ]
    print_rows("Upstreams", rows)


def _print_batch_plan(result: Result) -> None:
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
