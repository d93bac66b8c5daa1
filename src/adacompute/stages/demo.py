"""Demo: the whole line, offline, on the samples that ship with the package or on others.

Each step is one command of the line, with the options that it would be given; a step that is added
to `steps` is run, and shown with its command.
"""

from __future__ import annotations

import shlex
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adacompute.core.errors import MissingExtra
from adacompute.datasets.example import NAME
from adacompute.datasets.sources import read_source
from adacompute.evaluation.pool import common_sample_count
from adacompute.stages.estimate import estimate_run
from adacompute.stages.evaluate import evaluate_run
from adacompute.stages.import_samples import import_samples
from adacompute.stages.inputs import DEFAULT_LEVELS, no_progress
from adacompute.stages.report import check_extra, report_run
from adacompute.stages.solve import solve_run
from adacompute.storage.store import encode_samples

if TYPE_CHECKING:
    from collections.abc import Callable

    from adacompute.core.answers import Answers

BUDGETS = (1.5, 2.0, 3.0, 4.0)
PAGE = "report.html"
POLICIES = ("mixture", "retry", "adaptive-consistency", "early-stopping", "oracle")


def run_demo(
    samples: Path | None = None, *, progress: Callable[[str], None] = no_progress
) -> dict[str, Any]:
    """Take every step into a temporary run: the result of each, and the commands that do it."""
    source = Path(NAME) if samples is None else samples
    answers = encode_samples(read_source(source)).answers  # before anything is made
    run = Path(tempfile.mkdtemp(prefix="adacompute-demo-"))
    progress("import")
    results = {"import": import_samples(source, run)}
    commands = {"import": shlex.join(["adacompute", "import", str(source), "--run", str(run)])}
    taken, missing = steps(answers, progress), _missing()
    if missing is None:
        taken["report"] = (
            partial(report_run, progress=progress),
            {"out": run / PAGE, "budget": 2.0},
        )
    for name, (take, options) in taken.items():
        progress(name)
        results[name] = take(run, **options)
        commands[name] = shlex.join(["adacompute", name, str(run), *_spell(options)])
    skipped = {} if missing is None else {"report": missing}
    return {"run": str(run), "budget": 2.0, "commands": commands, "skipped": skipped, **results}


def _missing() -> str | None:
    """What a page lacks here, in one sentence."""
    try:
        check_extra()
    except MissingExtra as error:
        return str(error)
    return None


def steps(
    answers: Answers, progress: Callable[[str], None]
) -> dict[str, tuple[Callable[..., dict[str, Any]], dict[str, Any]]]:
    """The steps after the import: commands, what they call, and their options.

    Every question is estimated, by the samples of the one with fewest; few with fewer than others
    are left out of the scores.
    """
    fewest, usual = int(answers.n_samples.min()), common_sample_count(answers.n_samples)
    levels, scored_levels = (
        tuple(level for level in DEFAULT_LEVELS if level <= most) for most in (fewest, usual)
    )
    scored = {"budgets": BUDGETS, "levels": scored_levels, "policies": POLICIES}
    return {
        "estimate": (estimate_run, {"levels": levels}),
        "solve": (solve_run, {"budget": 2.0}),
        "evaluate": (partial(evaluate_run, progress=progress), scored),
    }


def _spell(options: dict[str, Any]) -> list[str]:
    """Spell options as on the command line.

    >>> _spell({"budget": 2.0, "levels": (1, 2)})
    ['--budget', '2', '--levels', '1,2']
    """
    words = []
    for name, value in options.items():
        items = value if isinstance(value, tuple) else (value,)
        texts = (f"{item:g}" if isinstance(item, float) else str(item) for item in items)
        words += [f"--{name.replace('_', '-')}", ",".join(texts)]
    return words
