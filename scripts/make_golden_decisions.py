"""Golden decisions: the decisions of every policy on recorded samples, stored for comparison.

``python -m scripts.make_golden_decisions tests/data/golden`` writes ``decisions.json`` there. It
fits every policy to small sets of recorded samples, see ``test_support.golden_sets``, and runs it
at five prices through each path that decides, see ``test_support.decision_paths``; it calibrates
the policies as well. ``tests/test_golden_decisions.py`` computes the same with the functions below
and compares it with what is stored.

Fitted policies depend on the versions of numpy, scikit-learn and xgboost, and so do the decisions.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from pathlib import Path

from adacompute.evaluation import experiment
from adacompute.evaluation.factories import POLICY_FACTORIES, TRAINABLE, only_arms
from reproduction.registered_rivals import ARM_RIVALS, RIVALS
from test_support import decision_paths
from test_support.decision_paths import Decided, DecidingGateway
from test_support.golden_sets import SETS

DECISIONS = "decisions.json"
GATEWAY, CALIBRATE, RIVAL = "gateway", "calibrate", "rival"
FACTORIES = RIVALS | ARM_RIVALS


def run_rival(name: str, rival: str) -> Decided:
    """Replay a method of the literature, or a single arm, on a set."""
    return decision_paths.run_rival(name, FACTORIES.get(rival, rival))


PATHS = {
    "replay": decision_paths.run_replay,
    "session": decision_paths.run_sessions,
    "sampler": decision_paths.run_sampler,
    "batch": decision_paths.run_batch,
    CALIBRATE: decision_paths.run_calibration,
    RIVAL: run_rival,
}
"""Paths that decide, beside that of a gateway."""

RIVALS_OF = {
    "arith110": (*(name for name in POLICY_FACTORIES if name not in TRAINABLE), *RIVALS),
    "svamp144": (*ARM_RIVALS, *only_arms(SETS["svamp144"].arms)),
}
"""Policies that can only be replayed, and the sets on which they are."""

Serve = Callable[[str], DecidingGateway]
"""Returns a gateway that serves a set."""


def list_paths(name: str, variant: str) -> list[str]:
    """Return the paths whose decisions are stored for a variant of a set, or for a rival."""
    if variant in RIVALS_OF.get(name, ()):
        return [RIVAL]
    left_out = {RIVAL} if variant in SETS[name].calibrated else {RIVAL, CALIBRATE}
    return [path for path in (*PATHS, GATEWAY) if path not in left_out]


def decide(path: str, name: str, variant: str, serve: Serve) -> Decided:
    """Run a variant of a set through a path; return what was decided."""
    return serve(name).run(variant) if path == GATEWAY else PATHS[path](name, variant)


def decide_all() -> dict[str, dict[str, dict[str, Decided]]]:
    """Run every variant of every set through every path."""
    with ExitStack() as stack:
        serve = cache(lambda name: stack.enter_context(decision_paths.serve_deciding(name)))
        return {
            name: {
                variant: {
                    path: decide(path, name, variant, serve) for path in list_paths(name, variant)
                }
                for variant in (*golden.variants, *RIVALS_OF.get(name, ()))
            }
            for name, golden in SETS.items()
        }


def main() -> None:
    """Write the golden files."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path, help="directory of the golden files")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    experiment.N_ASSIGNMENTS = 1  # as in the tests
    golden = {"sets": decide_all()}
    (options.out / DECISIONS).write_text(json.dumps(golden, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
