"""Pipeline commands: from recorded samples to a calibrated policy and a report.

Each command calls one stage and prints the result. It computes nothing itself.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from adacompute.cli.definition import DIRECTORY, command, find_run
from adacompute.cli.options import RUN
from adacompute.cli.output import progress, show, warn
from adacompute.cli.results import print_fit, print_report, print_scores, print_solution
from adacompute.options.main import EvaluateOptions, FitOptions, ReportOptions, SolveOptions


@command("solve", SolveOptions, click.argument("source", type=RUN, callback=find_run))
def solve(*, source: Path, options: SolveOptions, as_json: bool) -> None:
    """Solve the allocation."""
    from adacompute.stages.solve import solve_source

    result = solve_source(source, options=options)
    show(result, partial(print_solution, budget=options.budget), as_json=as_json)


@command("evaluate", EvaluateOptions, DIRECTORY)
def evaluate(*, run: Path, options: EvaluateOptions, as_json: bool) -> None:
    """Score policies."""
    from adacompute.stages.evaluate import evaluate_run

    with progress("Evaluating") as report:
        result = evaluate_run(run, options=options, progress=report)
    show(result, print_scores, as_json=as_json)


@command("report", ReportOptions, DIRECTORY)
def report(*, run: Path, options: ReportOptions, as_json: bool) -> None:
    """Write a page."""
    from adacompute.stages.report import report_run

    with progress("Reporting") as status:
        result = report_run(run, options=options, progress=status)
    show(result, print_report, as_json=as_json)


@command("fit", FitOptions, click.argument("source", metavar="[SOURCE]", required=False))
def fit(*, source: str | None, options: FitOptions, as_json: bool) -> None:
    """Fit, calibrate and report."""
    from adacompute.stages.calibrate import describe_unused_budget
    from adacompute.stages.fit import fit_run

    with progress("Fitting") as status:
        result = fit_run(source, options=options, progress=status)
    warn(describe_unused_budget(result))
    show(result, print_fit, as_json=as_json)
