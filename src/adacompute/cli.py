"""Command line: one command a stage; parse, call, print.

Every command prints a table for people, or with ``--json`` one JSON document on standard output
and nothing else there. Progress goes to standard error, and only to a terminal. Exit codes: 0 done,
2 wrong use, 1 failed with one sentence. It computes nothing itself.
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from adacompute.core.errors import AdaComputeError, ConfigError

F = TypeVar("F", bound=Callable[..., Any])


class Numbers(click.ParamType[tuple[Any, ...]]):
    """Numbers separated by commas."""

    def __init__(self, kind: type[int | float]) -> None:
        self.kind = kind
        self.name = "N,N,…"

    def convert(
        self,
        value: Any,  # noqa: ANN401 - text, or what a TOML file holds
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> tuple[Any, ...]:
        """Read ``1,2,4``, or a list from a TOML file."""
        items = value.split(",") if isinstance(value, str) else value
        try:
            return tuple(self.kind(item) for item in items)
        except (TypeError, ValueError):
            kind = "whole numbers" if self.kind is int else "numbers"
            self.fail(f"{value!r} is not a list of {kind} such as 1,2,4", param, ctx)


class Limit(click.ParamType[tuple[str, float]]):
    """A limit on a further cost, NAME=VALUE."""

    name = "NAME=VALUE"

    def convert(
        self,
        value: Any,  # noqa: ANN401 - text, or what a TOML file holds
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> tuple[str, float]:
        """Read ``latency=3``."""
        if isinstance(value, tuple):
            return value
        name, _, amount = str(value).partition("=")
        try:
            return name, float(amount)
        except ValueError:
            self.fail(f"{value!r} is not a limit such as latency=3", param, ctx)


def _read_config(ctx: click.Context, _: click.Parameter, path: Path | None) -> None:
    """Take options from the command's table of a TOML file; the command line goes before it."""
    if path is None:
        return
    try:
        tables = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise click.UsageError(f"{path} cannot be read as TOML: {error}") from None
    command = ctx.info_name or ""
    options = tables.get(command, {})
    known = {p.name for p in ctx.command.params if isinstance(p, click.Option)} - {"config"}
    for name in options:
        if name.replace("-", "_") not in known:
            raise click.UsageError(
                f"{path} sets {name!r} for {command!r}, which takes "
                f"{', '.join(sorted(str(k).replace('_', '-') for k in known))}"
            )
    given = {name.replace("-", "_"): value for name, value in options.items()}
    ctx.default_map = {**(ctx.default_map or {}), **given}


def _common(function: F) -> F:
    """Give a command the options that all commands share."""
    as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
    config = click.option(
        "--config",
        type=click.Path(path_type=Path, dir_okay=False),
        is_eager=True,
        expose_value=False,
        callback=_read_config,
        help="Take options from this TOML file, from the table named after the command.",
    )
    return as_json(config(function))


RUN = click.Path(path_type=Path)
UNIT = click.option(
    "--unit",
    default="samples",
    show_default=True,
    help="What a budget counts: samples, tokens, characters, money or seconds.",
)
LADDER = click.option(
    "--ladder",
    type=Numbers(int),
    default="1,2,4,8,16",
    show_default=True,
    help="Numbers of samples that policies choose from.",
)
FEATURES = click.option(
    "--features", default="paper", show_default=True, help="Set of text features: paper or paper+."
)
MODEL = click.option("--model", help="Name of the model that is, or will be, sampled.")
SEED = click.option("--seed", default=0, show_default=True, help="Seed of folds and orders.")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="adacompute", message="%(prog)s %(version)s")
def cli() -> None:
    """Spend an LLM inference budget where it buys accuracy."""


@cli.command("import")
@click.argument("source", type=click.Path(path_type=Path))
@click.option("--run", required=True, type=RUN, help="Directory of the run.")
@MODEL
@click.option("--grader", help="Grader that the answers were, or will be, graded by.")
@_common
def import_(
    *, source: Path, run: Path, model: str | None, grader: str | None, as_json: bool
) -> None:
    """Bring recorded samples (tidy Parquet) into a run."""
    from adacompute.runs.stages import import_samples  # noqa: PLC0415

    _show(import_samples(source, run, model=model, grader=grader), "Imported", as_json=as_json)


@cli.command("grade")
@click.argument("run", metavar="DIR", type=RUN)
@click.option(
    "--grader", required=True, help="numeric, math, choice, exact, or cmd:COMMAND for your own."
)
@_common
def grade(*, run: Path, grader: str, as_json: bool) -> None:
    """Grade samples (again), from their completions where these are recorded."""
    from adacompute.runs.stages import grade_run  # noqa: PLC0415

    with _progress("Grading") as report:
        result = grade_run(run, grader=grader, progress=report)
    _show(result, "Graded", as_json=as_json)


@cli.command("estimate")
@click.argument("run", metavar="DIR", type=RUN)
@click.option(
    "--levels",
    type=Numbers(int),
    default="1,2,4,8,16",
    show_default=True,
    help="Numbers of samples to estimate.",
)
@click.option(
    "--method",
    type=click.Choice(["exact", "windows", "single"]),
    default="exact",
    show_default=True,
    help="All subsets, the paper's windows, or one trial.",
)
@click.option(
    "--vote",
    type=click.Choice(["majority", "weighted", "best-of", "any"]),
    default="majority",
    show_default=True,
    help="How samples become one answer.",
)
@_common
def estimate(*, run: Path, levels: tuple[int, ...], method: str, vote: str, as_json: bool) -> None:
    """Estimate what each number of samples is worth on each question."""
    from adacompute.runs.stages import estimate_run  # noqa: PLC0415

    result = estimate_run(run, levels=levels, method=method, vote=vote)
    _show(result, "Utility by level", as_json=as_json, rows="levels")


@cli.command("solve")
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
@_common
def solve(
    *,
    run: Path,
    budget: float,
    limits: tuple[tuple[str, float], ...],
    method: str,
    unit: str,
    as_json: bool,
) -> None:
    """Allocate a mean budget as well as can be, with a proof of how good it is."""
    from adacompute.runs.stages import solve_run  # noqa: PLC0415

    result = solve_run(run, budget=budget, unit=unit, limits=dict(limits), method=method)
    _show(result, f"Best allocation of {budget:g} {unit} a question", as_json=as_json)


@cli.command("train")
@click.argument("run", metavar="DIR", type=RUN)
@click.option("--policy", required=True, help="Name of the policy, such as router.")
@click.option(
    "--out", required=True, type=click.Path(path_type=Path), help="Where the bundle goes."
)
@LADDER
@click.option(
    "--budgets",
    type=Numbers(float),
    default="1.5,2,3,4,6",
    show_default=True,
    help="Budgets that the paper's router is trained for.",
)
@click.option(
    "--classifier",
    default="gbm",
    show_default=True,
    help="Classifier of the paper's router; only gbm can be bundled.",
)
@click.option("--cost-sensitive", is_flag=True, help="Weigh questions by what a mistake costs.")
@UNIT
@FEATURES
@MODEL
@click.option("--grader", help="Grader whose answers the policy will count.")
@SEED
@_common
def train(*, run: Path, as_json: bool, **options: Any) -> None:  # noqa: ANN401 - as declared above
    """Fit a policy to a run and write its bundle."""
    from adacompute.runs.contests import train_run  # noqa: PLC0415

    with _progress("Training") as report:
        report(options["policy"])
        result = train_run(run, **options)
    title = f"Trained {options['policy']}"
    _show(result, title, as_json=as_json, rows="on_training_questions")


@cli.command("evaluate")
@click.argument("run", metavar="DIR", type=RUN)
@click.option(
    "--budgets",
    type=Numbers(float),
    default="1.5,2,3,4,6",
    show_default=True,
    help="Mean budgets to score at.",
)
@LADDER
@click.option("--policies", help="Names of policies, separated by commas; all by default.")
@click.option("--no-nulls", is_flag=True, help="Leave out samples that could not be read.")
@click.option(
    "--protocol",
    type=click.Choice(["honest", "paper"]),
    default="honest",
    show_default=True,
    help="Held out and at equal cost, or as the paper does.",
)
@UNIT
@FEATURES
@SEED
@_common
def evaluate(
    *,
    run: Path,
    policies: str | None,
    no_nulls: bool,
    as_json: bool,
    **options: Any,  # noqa: ANN401 - as declared above
) -> None:
    """Score policies on questions they have not seen."""
    from adacompute.runs.contests import evaluate_run  # noqa: PLC0415

    names = [name.strip() for name in policies.split(",")] if policies else None
    with _progress("Evaluating") as report:
        result = evaluate_run(run, policies=names, nulls=not no_nulls, progress=report, **options)
    if as_json:
        _show(result, "", as_json=True)
    else:
        from adacompute.tables import show_scores  # noqa: PLC0415

        show_scores(result)


@cli.command("demo")
@click.argument("samples", type=click.Path(path_type=Path), required=False)
@_common
def demo(*, samples: Path | None, as_json: bool) -> None:
    """Run the whole line on a file of recorded samples."""
    from adacompute.runs.demo import run_demo  # noqa: PLC0415

    with _progress("Demo") as report:
        result = run_demo(samples, progress=report)
    if as_json:
        _show(result, "", as_json=True)
    else:
        from adacompute.tables import show_scores  # noqa: PLC0415

        show_scores(result["evaluation"])
        click.echo(f"The run is in {result['run']}")


@contextmanager
def _progress(what: str) -> Iterator[Callable[[str], None]]:
    """Say on a terminal's standard error what is under way."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console  # noqa: PLC0415

    with Console(stderr=True).status(what) as status:
        yield lambda now: status.update(f"{what}: {now}")


def _show(result: dict[str, Any], title: str, *, as_json: bool, rows: str | None = None) -> None:
    if as_json:
        click.echo(json.dumps(result, indent=2))
        return
    from adacompute.tables import show_result  # noqa: PLC0415

    show_result(result, title, rows=rows)


def main() -> None:
    """Run the command line; expected failures end in one sentence."""
    try:
        code = cli.main(standalone_mode=False)
    except click.exceptions.Abort:
        click.echo("adacompute: stopped", err=True)
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except ConfigError as error:
        click.echo(f"adacompute: {error}", err=True)
        sys.exit(2)
    except AdaComputeError as error:
        click.echo(f"adacompute: {error}", err=True)
        sys.exit(1)
    except OSError as error:
        where = f" {error.filename}" if error.filename else ""
        click.echo(f"adacompute: {error.strerror or error}{where}", err=True)
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)
