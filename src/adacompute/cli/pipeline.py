"""Pipeline commands: from recorded samples to a calibrated policy and a report.

Each command calls one stage and prints the result. It computes nothing itself.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from adacompute.cli.calibration_output import print_calibration
from adacompute.cli.definition import DIRECTORY, command
from adacompute.cli.options import RUN
from adacompute.cli.output import progress, show, warn
from adacompute.cli.results import (
    print_command,
    print_demo_end,
    print_demo_step,
    print_estimate,
    print_fit,
    print_grades,
    print_import,
    print_report,
    print_scores,
    print_solution,
    print_training,
)
from adacompute.options.main import DemoOptions, EvaluateOptions, FitOptions, ReportOptions
from adacompute.options.research import (
    CalibrateOptions,
    EstimateOptions,
    GradeOptions,
    ImportOptions,
    SolveOptions,
    TrainOptions,
)

Result = dict[str, Any]

SOURCE = click.argument("source", type=RUN, required=False)
RUN_OPTION = click.option("--run", required=True, type=RUN, help="Run directory.")


@command("import", ImportOptions, SOURCE, RUN_OPTION)
def import_(*, source: Path | None, run: Path, options: ImportOptions, as_json: bool) -> None:
    """Import samples."""
    from adacompute.stages.research.import_samples import import_samples

    show(import_samples(source, run, options=options), print_import, as_json=as_json)


@command("grade", GradeOptions, DIRECTORY)
def grade(*, run: Path, options: GradeOptions, as_json: bool) -> None:
    """Grade samples."""
    from adacompute.stages.research.grade import grade_run

    with progress("Grading") as report:
        result = grade_run(run, options=options, progress=report)
    show(result, print_grades, as_json=as_json)


@command("estimate", EstimateOptions, DIRECTORY)
def estimate(*, run: Path, options: EstimateOptions, as_json: bool) -> None:
    """Estimate utilities."""
    from adacompute.stages.research.estimate import estimate_run

    show(estimate_run(run, options=options), print_estimate, as_json=as_json)


@command("solve", SolveOptions, DIRECTORY)
def solve(*, run: Path, options: SolveOptions, as_json: bool) -> None:
    """Solve the allocation."""
    from adacompute.stages.research.solve import solve_run

    result = solve_run(run, options=options)
    show(result, partial(print_solution, budget=options.budget), as_json=as_json)


@command("train", TrainOptions, DIRECTORY)
def train(*, run: Path, options: TrainOptions, as_json: bool) -> None:
    """Fit a policy."""
    from adacompute.stages.research.train import train_run

    with progress("Training") as report:
        report(options.policy)
        result = train_run(run, options=options, progress=report)
    show(result, print_training, as_json=as_json)


@command("calibrate", CalibrateOptions, DIRECTORY)
def calibrate(*, run: Path, options: CalibrateOptions, as_json: bool) -> None:
    """Set the price of a bundle."""
    from adacompute.stages.research.calibrate import calibrate_run, describe_unused_budget

    with progress("Calibrating") as report:
        result = calibrate_run(run, options=options, progress=report)
    warn(describe_unused_budget(result))
    show(result, print_calibration, as_json=as_json)


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
    from adacompute.stages.fit import fit_run
    from adacompute.stages.research.calibrate import describe_unused_budget

    with progress("Fitting") as status:
        result = fit_run(source, options=options, progress=status)
    warn(describe_unused_budget(result))
    show(result, print_fit, as_json=as_json)


@command("demo", DemoOptions, click.argument("samples", type=RUN, required=False))
def demo(*, samples: Path | None, options: DemoOptions, as_json: bool) -> None:
    """Run the whole pipeline, and show each command as it runs."""
    del options
    from adacompute.stages.demo import BUDGET, Step, run_demo

    def run_step(name: str, command: str, step: Step) -> Result:
        if not as_json:
            print_command(command)
        with progress(name) as report:
            result = step(report)
        if not as_json:
            print_demo_step(name, result, BUDGET)
        return result

    show(run_demo(samples, run_step=run_step), print_demo_end, as_json=as_json)
