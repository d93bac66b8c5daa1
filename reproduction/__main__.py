"""Main: the commands that reproduce the paper, and what they print.

``python -m reproduction RUN… --out DIR`` makes the tables and figures, and ``python -m reproduction
evaluate RUN`` scores policies by the paper's protocol. ``python -m reproduction rivals RUN`` is
``adacompute evaluate RUN`` with the methods of the literature. Output, progress, failures and exit
codes are those of the package's own commands. It computes nothing itself.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from adacompute.cli import pipeline
from adacompute.cli.definition import command
from adacompute.cli.main import run as run_command
from adacompute.cli.options import AS_JSON, CONFIG, RUN
from adacompute.cli.output import (
    format_amount,
    format_percent,
    print_rows,
    print_text,
    print_values,
    progress,
    show,
)
from adacompute.cli.results import accuracy_and_cost, print_by_budget, print_skipped
from adacompute.options.shared import ScoringOptions
from reproduction.comparison import FIGURE_13
from reproduction.evaluation import evaluate_run
from reproduction.registered_rivals import register_rivals
from reproduction.runs import FULL_RUNS, reproduce_runs

Result = dict[str, Any]

COLUMNS = (
    "run",
    "mixture",
    "static oracle (cross-fitted)",
    "router (paper)",
    f"router ({FIGURE_13})",
    "router (held out)",
    "sequential",
)
"""Columns of the comparison that fit a terminal."""


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def cli() -> None:
    """Reproduce the paper from recorded samples; `reproduce` need not be written."""


@cli.command("reproduce")
@click.argument("sources", metavar="RUN…", type=RUN, nargs=-1, required=True)
@click.option("--out", required=True, type=RUN, help="Directory for the tables and figures.")
@click.option(
    "--full-runs",
    default=FULL_RUNS,
    show_default=True,
    help="Number of runs that get every table and figure; the others are only compared.",
)
@AS_JSON
@CONFIG
def reproduce(*, sources: tuple[Path, ...], out: Path, full_runs: int, as_json: bool) -> None:
    """Make every table and figure of the paper from recorded samples."""
    with progress("Reproducing") as report:
        result = reproduce_runs(sources, out=out, full_runs=full_runs, progress=report)
    show(result, _print_reproduction, as_json=as_json)


@dataclass(frozen=True, kw_only=True)
class PaperOptions(ScoringOptions):
    """Score the paper's policies by its own protocol."""


@command("evaluate", PaperOptions, click.argument("run", metavar="RUN", type=RUN))
def evaluate(*, run: Path, options: PaperOptions, as_json: bool) -> None:
    """Score by the paper's protocol."""
    with progress("Evaluating") as report:
        result = evaluate_run(run, progress=report, **vars(options))
    show(result, print_scores, as_json=as_json)


cli.add_command(evaluate)
cli.add_command(pipeline.evaluate, "rivals")


def _print_reproduction(result: Result) -> None:
    """Print what was reproduced, and the comparison of all runs."""
    print_values(
        "Reproduced",
        {
            "Index": result["index"],
            "Runs": result["runs"],
            "Runs with every table and figure": result["complete"],
            "Files": len(result["paths"]),
            "Left out": len(result["excluded"]) or None,
        },
    )
    rows = [
        {name: row[name] if name == "run" else format_percent(row[name]) for name in COLUMNS}
        for row in result["comparison"]
    ]
    print_rows("Accuracy at 2 samples per question", rows)


def print_scores(result: Result) -> None:
    """Print the accuracy and the cost of each policy at each budget."""
    dropped = ", unparsed samples removed" if result["drop_unparsed"] else ""
    title = f"Accuracy by mean budget in {result['unit']}, the paper's protocol{dropped}"
    print_by_budget(title, result["rows"], accuracy_and_cost)
    questions = format_amount(result["questions"], "question")
    if "subsample_of" in result:
        questions += f", a subsample by hash of {result['subsample_of']:,}"
    print_text(
        f"{questions}; accuracy, and realised cost. {format_percent(result['unparsed_share'])} of "
        f"the samples could not be parsed. entropy_estimate: {result['entropy_estimate']}."
    )
    over: dict[str, list[str]] = {}
    for row in result["rows"]:
        if row["is_over_budget"]:
            over.setdefault(row["policy"], []).append(f"{row['budget']:g}")
    for name, budgets in over.items():
        print_text(f"Over the budget: {name} at {', '.join(budgets)}")
    print_skipped(result)


def main() -> None:
    """Run a command; without the name of one, make the tables and figures."""
    register_rivals()
    arguments = sys.argv[1:]
    if not arguments or arguments[0] not in (*cli.commands, "-h", "--help"):
        arguments = ["reproduce", *arguments]
    run_command(cli, "python -m reproduction", arguments)


if __name__ == "__main__":
    main()
