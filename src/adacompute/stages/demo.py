"""Demo: the whole pipeline, offline, on the example samples or on a file of yours.

Each step is one command with the options that a user would give it. Steps that need an extra or
more data than there is are skipped, with the reason. It ends in a verdict where one is possible.
"""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adacompute.core.errors import DataError, MissingExtra
from adacompute.core.progress import no_progress
from adacompute.datasets.example import EXAMPLE
from adacompute.datasets.sources import read_source
from adacompute.evaluation.pool import common_sample_count
from adacompute.options.shared import DEFAULT_LEVELS, TodayOptions
from adacompute.stages.evaluate import evaluate_run
from adacompute.stages.inputs import (
    BEST_POLICY,
    add_level,
)
from adacompute.stages.report import report_run
from adacompute.stages.research.calibrate import calibrate_run
from adacompute.stages.research.estimate import estimate_run
from adacompute.stages.research.import_samples import import_samples
from adacompute.stages.research.solve import solve_run
from adacompute.stages.research.train import train_run
from adacompute.stages.results import RunResults
from adacompute.storage.store import encode_samples

if TYPE_CHECKING:
    from adacompute.core.answers import Answers

Stage = Callable[..., dict[str, Any]]
Step = Callable[[Callable[[str], None]], dict[str, Any]]
"""A step of the demo; it takes the function to report progress to."""

BUDGET, BUDGETS = 2.0, (1.5, 2.0, 3.0, 4.0)
TODAY = TodayOptions(5)
MAIN = ("evaluate", "report")
"""Steps that are commands of their own; the others are for research."""

BUNDLE, PAGE = "policy", "report.html"
POLICIES = ("mixture", "retry", "adaptive-consistency", "early-stopping", "oracle")
WITHOUT_PROGRESS = (estimate_run, solve_run)
OPTIONAL = ("train", "calibrate", "report")
"""Steps that are skipped if the samples do not suffice for them."""


def run_quietly(_name: str, _command: str, step: Step) -> dict[str, Any]:
    """Run a step of the demo and show nothing."""
    return step(no_progress)


def run_demo(
    samples: Path | None = None,
    *,
    run_step: Callable[[str, str, Step], dict[str, Any]] = run_quietly,
) -> dict[str, Any]:
    """Run every step in a temporary run; return their results and their commands.

    ``run_step`` gets the name and the command of a step, and runs it.
    """
    source = Path(EXAMPLE) if samples is None else samples
    answers = encode_samples(read_source(source)).answers  # refuse a bad file before any step
    run = Path(tempfile.mkdtemp(prefix="adacompute-demo-"))
    command = shlex.join(["adacompute", "research", "import", str(source), "--run", str(run)])
    results = {"import": run_step("import", command, lambda _: import_samples(source, run))}
    commands = {"import": command}
    skipped: dict[str, str] = {}
    for name, (stage, options) in _steps(answers, run, BEST_POLICY).items():
        words = [name] if name in MAIN else ["research", name]
        command = shlex.join(["adacompute", *words, str(run), *_format_options(options)])
        try:
            results[name] = run_step(name, command, partial(_run, stage, run, options))
        except (DataError, MissingExtra) as error:
            if name not in OPTIONAL:
                raise
            skipped[name] = skipped.get("train", str(error))
            continue
        commands[name] = command
    known = {"run": str(run), "budget": BUDGET, "commands": commands, "skipped": skipped}
    return {**known, **results}


def _run(
    stage: Stage, run: Path, options: dict[str, Any], progress: Callable[[str], None]
) -> dict[str, Any]:
    """Run a stage; the fast ones report no progress."""
    known = {} if stage in WITHOUT_PROGRESS else {"progress": progress}
    return stage(run, **known, **options)


def _steps(answers: Answers, run: Path, policy: str) -> dict[str, tuple[Stage, dict[str, Any]]]:
    """Return the steps after the import: name of the command, stage function and options.

    Estimate uses levels that every question has samples for. The other steps exclude the few
    questions with fewer samples than usual.
    """
    fewest, usual = int(answers.n_samples.min()), common_sample_count(answers.n_samples)
    estimated, scored = (
        tuple(level for level in DEFAULT_LEVELS if level <= limit) for limit in (fewest, usual)
    )
    scored = add_level(scored, TODAY)
    bundle, results = run / BUNDLE, RunResults.of(run)
    return {
        "estimate": (estimate_run, {"levels": estimated}),
        "solve": (solve_run, {"budget": BUDGET}),
        "evaluate": (
            partial(evaluate_run, results=results),
            {"budgets": BUDGETS, "levels": scored, "policies": POLICIES, "today": TODAY},
        ),
        "train": (
            partial(train_run, results=results),
            {"policy": policy, "out": bundle, "levels": scored},
        ),
        "calibrate": (
            partial(calibrate_run, results=results),
            {"bundle": bundle, "today": TODAY},
        ),
        "report": (
            partial(report_run, results=results),
            {"out": run / PAGE, "budget": BUDGET, "today": TODAY},
        ),
    }


def _format_options(options: dict[str, Any]) -> list[str]:
    """Format options as on the command line.

    >>> _format_options({"budget": 2.0, "levels": (1, 2)})
    ['--budget', '2', '--levels', '1,2']
    """
    words = []
    for name, value in options.items():
        given = value.today if isinstance(value, TodayOptions) else value
        items = given if isinstance(given, tuple) else (given,)
        texts = (f"{item:g}" if isinstance(item, float) else str(item) for item in items)
        words += [f"--{name.replace('_', '-')}", ",".join(texts)]
    return words
