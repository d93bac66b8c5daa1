"""Results: what the stages of one run have computed, so that each result is computed once.

Stages of one process share experiments, with everything that they hold in memory. Scores on
held-out questions are kept in the run directory as well, for later commands. It does not know how
anything is computed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import adacompute
from adacompute.storage.manifest import hash_bytes
from adacompute.storage.result_files import DIRECTORY, ResultFiles

if TYPE_CHECKING:
    from adacompute.evaluation.experiment import Experiment

FORMAT = 1
"""Version of the kept results."""

CODE = ("core", "features", "policies", "evaluation", "report")
"""Packages whose code results depend on."""

LIBRARIES = ("numpy", "scikit-learn", "scipy", "xgboost", "matplotlib", "jinja2")
"""Libraries whose versions results depend on."""


@cache
def code_version() -> str:
    """Return a text that changes with the code and the libraries that results depend on."""
    root = Path(adacompute.__file__).parent
    files = [path for name in CODE for path in sorted((root / name).rglob("*.*"))]
    kept = [path for path in files if path.suffix != ".pyc" and path.is_file()]
    code = hash_bytes(b"".join(path.read_bytes() for path in kept))
    return " ".join([f"{FORMAT} {code}", *(f"{name} {_version(name)}" for name in LIBRARIES)])


def _version(library: str) -> str:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return "none"


@dataclass(frozen=True, eq=False)
class RunResults:
    """The experiments of one process on one run, and the files where results are kept."""

    files: ResultFiles
    _experiments: dict[str, Experiment] = field(default_factory=dict, repr=False)

    @staticmethod
    def of(run: Path) -> RunResults:
        """Return the results of a run directory."""
        return RunResults(ResultFiles(run / DIRECTORY, code_version()))

    def share(self, experiment: Experiment) -> Experiment:
        """Return an experiment that keeps its results; the same one for the same experiment."""
        return self._experiments.setdefault(experiment.key, replace(experiment, kept=self.files))
