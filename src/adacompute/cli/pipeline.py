"""Pipeline commands: from recorded samples to a calibrated policy and a report.

Each command parses its options, calls one stage and prints the result. It computes nothing itself.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from adacompute.cli.calibration_output import print_calibration
from adacompute.cli.options import (
    COLLECTING_NAMES,
    EVIDENCE,
    FEATURES,
    GRADER,
    LEVELS,
    MODEL,
    NAMES,
    NATIVE_N,
    NUMBERS,
    PRICE_AS,
    ROUND_COST,
    RUN,
    SAME_ANSWER,
    SEED,
    TIE_BREAK,
    TOKEN_PRICES,
    UNIT,
    WHOLE_NUMBERS,
    Limit,
    NamedPair,
    collecting,
    common,
    is_given,
    refuse_repeated,
    saving,
)
from adacompute.cli.output import progress, show, warn
from adacompute.cli.results import (
    print_demo,
    print_estimate,
    print_fit,
    print_grades,
    print_import,
    print_report,
    print_scores,
    print_solution,
    print_training,
)


@click.command("import")
@click.argument("source", type=RUN, required=False)
@click.option("--run", required=True, type=RUN, help="Run directory.")
@click.option(
    "--arm",
    "arms",
    type=NamedPair("NAME=FILE", "low=low.parquet"),
    multiple=True,
    callback=refuse_repeated,
    help="Samples of one arm, instead of SOURCE; may be repeated.",
)
@click.option(
    "--no-pool",
    is_flag=True,
    help="Equal answers of different arms are different answers.",
)
@MODEL
@GRADER
@click.option("--gold", help="Question set with reference answers (default: the column gold).")
@click.option(
    "--allow-inconsistent-grades",
    is_flag=True,
    help="Accept equal answers with different grades.",
)
@common
def import_(
    *,
    source: Path | None,
    run: Path,
    arms: dict[str, str],
    no_pool: bool,
    as_json: bool,
    **options: Any,  # noqa: ANN401 - as declared above
) -> None:
    """Import recorded samples into a run: a file, logs or 'example'."""
    from adacompute.stages.import_samples import import_samples

    options |= {"arms": {name: Path(path) for name, path in arms.items()}}
    result = import_samples(source, run, pool_answers=not no_pool, **options)
    show(result, print_import, as_json=as_json)


@click.command("grade")
@click.argument("run", metavar="DIR", type=RUN)
@click.option("--grader", required=True, help="numeric, math, choice, exact or cmd:COMMAND.")
@common
def grade(*, run: Path, grader: str, as_json: bool) -> None:
    """Grade the samples of a run, for the first time or again."""
    from adacompute.stages.grade import grade_run

    with progress("Grading") as report:
        result = grade_run(run, grader=grader, progress=report)
    show(result, print_grades, as_json=as_json)


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
    help="All subsets, the paper's windows, one trial, or, for few samples, a posterior mean.",
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
@PRICE_AS
@common
def estimate(*, run: Path, as_json: bool, **options: Any) -> None:  # noqa: ANN401 - as declared above
    """Estimate the accuracy of every level on every question."""
    from adacompute.stages.estimate import estimate_run

    show(estimate_run(run, **options), print_estimate, as_json=as_json)


@click.command("solve")
@click.argument("run", metavar="DIR", type=RUN)
@click.option("--budget", required=True, type=float, help="Mean cost per question.")
@click.option(
    "--limit",
    "limits",
    type=Limit(),
    multiple=True,
    help="Limit on the mean of another cost, such as latency=3; may be repeated.",
)
@UNIT
@TOKEN_PRICES
@PRICE_AS
@common
def solve(
    *,
    run: Path,
    budget: float,
    limits: tuple[tuple[str, float], ...],
    as_json: bool,
    **options: Any,  # noqa: ANN401 - as declared above
) -> None:
    """Compute the best allocation of a budget, with an upper bound."""
    from adacompute.stages.solve import solve_run

    if len(dict(limits)) < len(limits):
        raise click.UsageError("a limit is given twice: name each cost once")
    result = solve_run(run, budget=budget, limits=dict(limits), **options)
    show(result, partial(print_solution, budget=budget), as_json=as_json)


@click.command("train")
@click.argument("run", metavar="DIR", type=RUN)
@click.option("--policy", required=True, help="Kind of policy, such as sequential.")
@click.option("--out", required=True, type=RUN, help="Directory of the bundle.")
@LEVELS
@click.option(
    "--budgets",
    type=NUMBERS,
    help="Budgets of the paper's router (default: the cost of 1.5,2,3,4,6 samples).",
)
@click.option(
    "--classifier",
    default="gbm",
    show_default=True,
    help="Classifier of the paper's router; only gbm can be saved in a bundle.",
)
@click.option("--cost-sensitive", is_flag=True, help="Weight questions by the loss of an error.")
@click.option(
    "--draft", is_flag=True, help="Let the router decide after one sample, by its uncertainty."
)
@UNIT
@TOKEN_PRICES
@PRICE_AS
@ROUND_COST
@NATIVE_N
@TIE_BREAK
@EVIDENCE
@FEATURES
@MODEL
@GRADER
@SEED
@common
def train(*, run: Path, as_json: bool, **options: Any) -> None:  # noqa: ANN401 - as declared above
    """Fit a policy to a run and write its bundle."""
    from adacompute.stages.train import train_run

    with progress("Training") as report:
        report(options["policy"])
        result = train_run(run, **options)
    show(result, print_training, as_json=as_json)


@click.command("calibrate")
@click.argument("run", metavar="DIR", type=RUN)
@click.option("--bundle", required=True, type=RUN, help="Bundle to calibrate.")
@click.option("--budget", type=float, help="Mean cost per question (or give --today).")
@saving
@click.option(
    "--confidence",
    type=float,
    default=0.95,
    show_default=True,
    help="Confidence level of all intervals.",
)
@click.option(
    "--cost-confidence",
    type=float,
    help="Hold the budget with this confidence (default: spend it on average).",
)
@click.option(
    "--horizon",
    type=int,
    help="Predict the cost of the next N questions (default: of the long run).",
)
@click.option(
    "--margin",
    type=float,
    default=0.005,
    show_default=True,
    help="An interval around 0 within this size is no gain.",
)
@click.option("--max-rounds", type=int, help="Maximum rounds of samples per question.")
@common
def calibrate(*, run: Path, as_json: bool, **options: Any) -> None:  # noqa: ANN401 - as declared above
    """Set a bundle's price on held-out questions and give a verdict."""
    from adacompute.stages.calibrate import calibrate_run, describe_unused_budget

    with progress("Calibrating") as report:
        result = calibrate_run(run, progress=report, **options)
    warn(describe_unused_budget(result))
    show(result, print_calibration, as_json=as_json)


@click.command("evaluate")
@click.argument("run", metavar="DIR", type=RUN)
@click.option(
    "--budgets",
    type=NUMBERS,
    help="Mean costs per question to score at (default: the cost of 1.5,2,3,4,6 samples).",
)
@LEVELS
@click.option("--policies", type=NAMES, help="Policies to score (default: all).")
@click.option("--drop-unparsed", is_flag=True, help="Remove samples that could not be parsed.")
@UNIT
@TOKEN_PRICES
@PRICE_AS
@FEATURES
@SEED
@saving
@click.option("--rounds", type=int, help="Maximum rounds of samples per question.")
@ROUND_COST
@NATIVE_N
@TIE_BREAK
@EVIDENCE
@common
def evaluate(*, run: Path, as_json: bool, **options: Any) -> None:  # noqa: ANN401 - as declared above
    """Score policies on questions they were not fitted to."""
    from adacompute.stages.evaluate import evaluate_run

    with progress("Evaluating") as report:
        result = evaluate_run(run, progress=report, **options)
    show(result, print_scores, as_json=as_json)


@click.command("report")
@click.argument("run", metavar="DIR", type=RUN)
@click.option("--out", required=True, type=RUN, help="File of the page, such as report.html.")
@click.option(
    "--budget", type=float, help="Mean cost per question (default: as fitted, or two samples)."
)
@click.option("--policy", help="Policy that the page is about (default: as fitted, or sequential).")
@click.option(
    "--policies", type=NAMES, help="Policies to compare with (default: a fast selection)."
)
@click.option(
    "--levels",
    type=WHOLE_NUMBERS,
    help="Levels (default: as fitted or evaluated, or 1,2,4,8,16).",
)
@click.option("--all-policies", is_flag=True, help="Draw all policies in the main chart.")
@click.option("--unit", help="Unit of costs and budgets (default: as fitted, or samples).")
@TOKEN_PRICES
@PRICE_AS
@click.option("--seed", type=int, help="Seed of all random choices (default: as fitted, or 0).")
@saving
@common
def report(*, run: Path, as_json: bool, **options: Any) -> None:  # noqa: ANN401 - as declared
    """Write a page that shows what a budget buys, and why."""
    from adacompute.stages.report import report_run

    with progress("Reporting") as status:
        result = report_run(run, progress=status, **options)
    show(result, print_report, as_json=as_json)


@click.command("fit")
@click.argument("source", metavar="SOURCE")
@click.option("--budget", type=float, help="Mean cost per question (or give --today).")
@SAME_ANSWER
@saving
@click.option("--out", required=True, type=RUN, help="Directory of the bundle.")
@click.option("--run", type=RUN, help="Run directory (default: OUT.run).")
@click.option(
    "--policy", help="Kind of policy (default: sequential, if the extra train is installed)."
)
@LEVELS
@UNIT
@TOKEN_PRICES
@PRICE_AS
@TIE_BREAK
@EVIDENCE
@MODEL
@GRADER
@click.option("--gold", help="Question set with reference answers (default: the column gold).")
@click.option(
    "--confidence",
    type=float,
    default=0.95,
    show_default=True,
    help="Confidence level of all intervals.",
)
@SEED
@click.option("--base-url", help="Collect first: SOURCE is questions for this server (…/v1).")
@collecting
@common
@click.pass_context
def fit(
    ctx: click.Context,
    /,
    *,
    source: str,
    base_url: str | None,
    as_json: bool,
    **options: Any,  # noqa: ANN401 - as declared above
) -> None:
    """Go from samples to a calibrated bundle, a report and a verdict."""
    from adacompute.stages.calibrate import describe_unused_budget
    from adacompute.stages.fit import fit_run

    collection = {name: options.pop(name) for name in COLLECTING_NAMES}
    given = [f"--{name.replace('_', '-')}" for name in collection if is_given(ctx, name)]
    if base_url is None and given:
        raise click.UsageError(f"{', '.join(given)} need --base-url, to collect samples first")
    options["collection"] = None if base_url is None else {"base_url": base_url, **collection}
    with progress("Fitting") as status:
        result = fit_run(source, progress=status, **options)
    warn(describe_unused_budget(result))
    show(result, print_fit, as_json=as_json)


@click.command("demo")
@click.argument("samples", type=RUN, required=False)
@common
def demo(*, samples: Path | None, as_json: bool) -> None:
    """Run the pipeline on the example samples, or on your own file."""
    from adacompute.stages.demo import run_demo

    with progress("Demo") as report:
        result = run_demo(samples, progress=report)
    show(result, print_demo, as_json=as_json)
