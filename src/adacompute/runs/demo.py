"""Demo: the whole line on one file of recorded samples, offline.

No samples ship with the package yet, and none are made up: the file is the user's.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adacompute.core.errors import ConfigError
from adacompute.datasets.rows import read_samples
from adacompute.runs.contests import evaluate_run
from adacompute.runs.stages import DEFAULT_LADDER, estimate_run, import_samples, quiet, solve_run
from adacompute.storage.store import Run, number_samples

if TYPE_CHECKING:
    from collections.abc import Callable

BUDGETS = (1.5, 2.0, 3.0, 4.0)
POLICIES = ("mixture", "retry", "adaptive-consistency", "early-stopping", "oracle")


def run_demo(samples: Path | None, *, progress: Callable[[str], None] = quiet) -> dict[str, Any]:
    """Import, estimate, solve and evaluate into a temporary run."""
    if samples is None:
        raise ConfigError(
            "no samples are shipped with this version and none are invented: name a Parquet file "
            "of recorded samples, 'adacompute demo FILE'"
        )
    read_samples(samples)  # before anything is made
    run = Path(tempfile.mkdtemp(prefix="adacompute-demo-"))
    progress("import")
    imported = import_samples(samples, run)
    progress("estimate")
    fewest = int(number_samples(Run(run).samples()).answers.samples.min())
    estimated = estimate_run(run, levels=tuple(n for n in DEFAULT_LADDER if n <= fewest))
    progress("solve")
    solved = solve_run(run, budget=2.0)
    progress("evaluate")
    evaluated = evaluate_run(run, budgets=BUDGETS, policies=POLICIES, progress=progress)
    return {
        "run": str(run),
        "import": imported,
        "estimate": estimated,
        "solve": solved,
        "evaluation": evaluated,
    }
