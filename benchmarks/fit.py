"""Fit: processor time of fitting the sequential policy to all questions of a set.

Run it with ``python -m benchmarks.fit SAMPLES.parquet``. It prints the best of five fits after a
first one that is not counted, state sums included. Compare two versions by running each with its
own ``PYTHONPATH`` in turn.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from adacompute.evaluation.experiment import Experiment
from adacompute.evaluation.factories import find_factory
from adacompute.stages.inputs import read_pool
from adacompute.stages.research.import_samples import import_samples
from adacompute.storage.store import Run

LEVELS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
REPEATS = 5


def main() -> None:
    """Print the seconds of one fit."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("samples", type=Path, help="file of recorded samples")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        import_samples(options.samples, Path(directory, "run"))
        pool = read_pool(Run(Path(directory, "run"))).equalise()
    times = []
    for _ in range(REPEATS + 1):
        experiment = Experiment(pool, LEVELS, (2.0,), n_permutations=40, seed=0)
        start = time.process_time()
        find_factory("sequential")(experiment, np.arange(len(pool)))
        times.append(time.process_time() - start)
    print(f"{len(pool)} questions: {min(times[1:]):.2f} s of processor time per fit")


if __name__ == "__main__":
    main()
