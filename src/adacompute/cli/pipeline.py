"""Pipeline commands: from recorded samples to a calibrated policy and a report.

Each command parses its options, calls one stage and prints the result. It computes nothing itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from adacompute.cli.options import (
    FEATURES,
    LEVELS,
    MODEL,
    NAMES,
    NATIVE_N,
    NUMBERS,
    RESORT,
    ROUND_COST,
    RUN,
    SEED,
    TIE_BREAK,
    TOKEN_PRICES,
    UNIT,
    WHOLE_NUMBERS,
    Limit,
    common,
)
from adacompute.cli.output import count, progress, show, show_demo, show_result, show_scores


@click.command("import")
@click.argument("source", type=click.Path(path_type=Path))
@click.option("--run", required=True, type=RUN, help="Directory of the run.")
@MODEL
@click.option("--grader", help="Grader that the answers were, or will be, graded by.")
@click.option(
    "--gold", help="Questions with reference answers, to grade by; else the file's own column gold."
)
@common
def import_(*, source: Path, run: Path, as_json: bool, **options: Any) -> None:  # noqa: ANN401
    """Bring recorded samples into a run: a file, logs, or 'example'."""
    from adacompute.stages.import_samples import import_samples  # noqa: PLC0415

    show(import_samples(source, run, **options), "Imported", as_json=as_json)


@click.command("grade")
@click.argument("run", metavar="DIR", type=RUN)
@click.option(
    "--grader", required=True, help="numeric, math, choice, exact, or cmd:COMMAND for your own."
)
@common
def grade(*, run: Path, grader: str, as_json: bool) -> None:
    """Grade samples (again), from their completions where these are recorded."""
    from adacompute.stages.grade import grade_run  # noqa: PLC0415

    with progress("Grading") as report:
        result = grade_run(run, grader=grader, progress=report)
    show(result, "Graded", as_json=as_json)


@click.command("estimate")
@click.argument("run", metavar="DIR", type=RUN)
@click.option(
    "--levels",
    type=WHOLE_NUMBERS,
    default="1,2,4,8,16",
    show_default=True,
    help="Numbers of samples to estimate.",
)
@click.option(
    "--method",
    type=click.Choice(["exact", "windows", "single", "posterior"]),
    default="exact",
    show_default=True,
    help="All subsets, the paper's windows, one trial, or for few samples what all tell together.",
)
@click.option(
    "--vote",
    type=click.Choice(["majority", "weighted", "best-of", "any"]),
    default="majority",
    show_default=True,
    help="How samples become one answer.",
)
@UNIT
@TOKEN_PRICES
@common
def estimate(*, run: Path, as_json: bool, **options: Any) -> None:  # noqa: ANN401 - as declared above
    """Estimate what each number of samples is worth on each question."""
    from adacompute.stages.estimate import estimate_run  # noqa: PLC0415

    result = estimate_run(run, **options)
    show(result, "Utility by level", as_json=as_json, rows="levels")


@click.command("solve")
@click.argument("run", metavar="DIR", type=RUN)
@click.option("--budget", required=True, type=float, help="Allowed mean cost a question.")
@click.option(
    "--limit",
    "limits",
    type=Limit(),
    multiple=True,
    help="Allowed mean of a further cost, such as latency=3; may be repeated.",
)
@click.option(
    "--method",
    type=click.Choice(["exact", "bisect"]),
    default="exact",
    show_default=True,
    help="Exact, or the paper's bisection.",
)
@UNIT
@TOKEN_PRICES
@common
def solve(
    *,
    run: Path,
    budget: float,
    limits: tuple[tuple[str, float], ...],
    unit: str,
    as_json: bool,
    **options: Any,  # noqa: ANN401 - as declared above
) -> None:
    """Allocate a mean budget as well as can be, with a proof of how good it is."""
    from adacompute.stages.solve import solve_run  # noqa: PLC0415

    if len(dict(limits)) < len(limits):
        raise click.UsageError("a limit is given twice: name each cost once")
    result = solve_run(run, budget=budget, unit=unit, limits=dict(limits), **options)
    if as_json:
        show(result, "", as_json=True)
    else:
        show_result(result, f"Best allocation of {count(budget, unit)} a question")


@click.command("train")
@click.argument("run", metavar="DIR", type=RUN)
@click.option("--policy", required=True, help="Name of the policy, such as router.")
@click.option(
    "--out", required=True, type=click.Path(path_type=Path), help="Where the bundle goes."
)
@LEVELS
@click.option(
    "--budgets",
    type=NUMBERS,
    help="Budgets that the paper's router is trained for; what 1.5,2,3,4,6 samples cost if none.",
)
@click.option(
    "--classifier",
    default="gbm",
    show_default=True,
    help="Classifier of the paper's router; only gbm can be bundled.",
)
@click.option("--cost-sensitive", is_flag=True, help="Weigh questions by what a mistake costs.")
@UNIT
@TOKEN_PRICES
@ROUND_COST
@NATIVE_N
@RESORT
@TIE_BREAK
@FEATURES
@MODEL
@click.option("--grader", help="Grader whose answers the policy will count.")
@SEED
@common
def train(*, run: Path, as_json: bool, **options: Any) -> None:  # noqa: ANN401 - as declared above
    """Fit a policy to a run and write its bundle."""
    from adacompute.stages.train import train_run  # noqa: PLC0415

    with progress("Training") as report:
        report(options["policy"])
        result = train_run(run, **options)
    title = f"Trained {options['policy']}"
    show(result, title, as_json=as_json, rows="on_training_questions", most=12)


@click.command("evaluate")
@click.argument("run", metavar="DIR", type=RUN)
@click.option(
    "--budgets",
    type=NUMBERS,
    help="Mean budgets to score at; what 1.5,2,3,4,6 samples cost if none are given.",
)
@LEVELS
@click.option(
    "--policies", type=NAMES, help="Names of policies, separated by commas; all by default."
)
@click.option("--drop-unparsed", is_flag=True, help="Leave out samples that could not be read.")
@click.option(
    "--protocol",
    type=click.Choice(["held-out", "paper"]),
    default="held-out",
    show_default=True,
    help="Held out and at equal cost, or as the paper does.",
)
@UNIT
@TOKEN_PRICES
@FEATURES
@SEED
@common
@click.option("--rounds", type=int, help="How often a question may be drawn for at most.")
@ROUND_COST
@NATIVE_N
@RESORT
@TIE_BREAK
def evaluate(
    *,
    run: Path,
    as_json: bool,
    **options: Any,  # noqa: ANN401 - as declared above
) -> None:
    """Score policies on questions they have not seen."""
    from adacompute.stages.evaluate import evaluate_run  # noqa: PLC0415

    with progress("Evaluating") as report:
        result = evaluate_run(run, progress=report, **options)
    if as_json:
        show(result, "", as_json=True)
    else:
        show_scores(result)


@click.command("calibrate")
@click.argument("run", metavar="DIR", type=RUN)
@click.option(
    "--bundle", required=True, type=click.Path(path_type=Path), help="Bundle to calibrate."
)
@click.option("--budget", type=float, help="Mean budget that the price must hold.")
@click.option("--accuracy-of", type=int, help="Or keep a share of the accuracy of so many samples.")
@click.option("--share", type=float, default=0.95, show_default=True, help="Share of it to keep.")
@click.option(
    "--confidence", type=float, default=0.95, show_default=True, help="Of every statement made."
)
@click.option("--horizon", type=int, help="Questions that it must hold for; the long run if not.")
@RESORT
@common
def calibrate(*, run: Path, as_json: bool, **options: Any) -> None:  # noqa: ANN401 - as declared above
    """Set a policy's price on held-out questions, and judge it there."""
    from adacompute.stages.calibrate import calibrate_run  # noqa: PLC0415

    with progress("Calibrating") as report:
        result = calibrate_run(run, progress=report, **options)
    show(result, f"Calibrated {result['policy']}", as_json=as_json)


@click.command("report")
@click.argument("run", metavar="DIR", type=RUN)
@click.option("--out", required=True, type=RUN, help="File for the page, such as report.html.")
@click.option("--budget", type=float, help="Mean cost a question; two samples' unless given.")
@click.option("--policy", help="Policy that the page is about; sequential unless given.")
@click.option("--policies", type=NAMES, help="Policies beside it, by commas; a fast few if not.")
@click.option("--levels", type=WHOLE_NUMBERS, help="Levels; as evaluated, or 1,2,4,8,16.")
@click.option(
    "--permutations", default=20, show_default=True, help="Orders that samples are replayed in."
)
@UNIT
@TOKEN_PRICES
@SEED
@common
def report(*, run: Path, as_json: bool, **options: Any) -> None:  # noqa: ANN401 - as declared
    """Write one page that says what a budget buys, and why."""
    from adacompute.stages.report import report_run  # noqa: PLC0415

    with progress("Reporting") as said:
        result = report_run(run, progress=said, **options)
    show(result, "Reported", as_json=as_json)


@click.command("demo")
@click.argument("samples", type=click.Path(path_type=Path), required=False)
@common
def demo(*, samples: Path | None, as_json: bool) -> None:
    """Run the whole line on the samples that ship, or on a file of yours."""
    from adacompute.stages.demo import run_demo  # noqa: PLC0415

    with progress("Demo") as report:
        result = run_demo(samples, progress=report)
    if as_json:
        show(result, "", as_json=True)
    else:
        show_demo(result)
