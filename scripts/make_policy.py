"""Policy: the bundle that ships in the package, trained on the example set.

``python -m scripts.make_policy OUT`` imports the shipped samples, trains a sequential policy on
their votes, calibrates it at two samples per question, and adds the prompt and the sampling
settings that were used to collect them.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from adacompute.datasets.example import find_example
from adacompute.models.messages import Settings
from adacompute.models.templates import Template
from adacompute.policies.bundles.bundle import load_bundle, save_bundle
from adacompute.stages.calibrate import calibrate_run
from adacompute.stages.import_samples import import_samples
from adacompute.stages.train import train_run
from test_support.arithmetic import FEW_SHOT

FORM = "Question: {question}\nAnswer:"


def main() -> None:
    """Write the bundle to OUT."""
    out = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as directory:
        run = Path(directory) / "run"
        import_samples(find_example(), run, grader="numeric")
        train_run(run, policy="sequential", out=out, evidence="votes")
        calibrate_run(run, bundle=out, budget=2.0)
    template = Template(FORM, few_shot=tuple(FEW_SHOT), chat=False)
    settings = Settings(temperature=0.7, max_tokens=20, stop=("\n",))
    save_bundle(replace(load_bundle(out), template=template, settings=settings), out)


if __name__ == "__main__":
    main()
