"""Rounds: what few rounds of samples cost in accuracy, on recorded sets.

``python -m benchmarks.rounds [SETS]`` prints the held-out accuracy of ``sequential`` at budgets of
two and four samples (of arms: the second and the fourth of their budgets) within one, two, three
and any number of rounds, as a mean over five fold assignments, and the mean rounds that it takes.
Beside it are the best uniform numbers of samples at the same cost, and five samples at once. Sets
are those of ``benchmarks.policy_change``, or beginnings of their names; by default three with
log-probabilities. A set of arms takes hours.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np

from adacompute.core.utility import estimate
from adacompute.evaluation.factories import find_factory
from adacompute.evaluation.scoring.held_out import HeldOutCurve, score_held_out
from adacompute.policies.episode import UNLIMITED_ROUNDS
from benchmarks.policy_change import SEEDS, list_sets, make_experiment

SETS = ("example", "arith110", "svamp141")
ROUNDS = (1, 2, 3, UNLIMITED_ROUNDS)
PLACES = (1, 3)
"""Which budgets of a set are shown: two and four samples, of one arm."""

N_PARALLEL = 5


def measure(name: str) -> None:
    """Print the rows of one set."""
    full = next(one for one in sorted(list_sets(), key=len) if one.startswith(name))
    found: dict[str, list[list[float]]] = {}
    for seed in SEEDS:
        whole = make_experiment(full, list_sets()[full], seed)
        for limit in ROUNDS:
            experiment = replace(whole, max_rounds=limit, _rule_results={})
            curve = score_held_out(experiment, find_factory("sequential"))
            label = f"{limit} rounds" if limit < UNLIMITED_ROUNDS else "any rounds"
            found.setdefault(label, []).append(read(curve, whole.budgets))
        curve = score_held_out(whole, find_factory("mixture"))
        found.setdefault("mixture, 1 round", []).append(read(curve, whole.budgets))
    if not whole.pool.has_arms and whole.pool.n_samples >= N_PARALLEL:
        parallel = estimate(whole.pool.answers, [N_PARALLEL], standard_errors=False).utility
        found[f"{N_PARALLEL} at once, equal votes"] = [[float(parallel.mean()), 1.0]]
    for label, rows in found.items():
        shown = "  ".join(f"{value:.4f}" for value in np.mean(rows, axis=0))
        print(f"{full[:24]:24} {label:26} {shown}", flush=True)


def read(curve: HeldOutCurve, budgets: tuple[float, ...]) -> list[float]:
    """Return accuracy and rounds at each budget that is shown."""
    points = [curve.read(budgets[place]) for place in PLACES]
    return [value for one in points for value in (one.accuracy, float(one.result.n_rounds.mean()))]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("sets", nargs="*", default=SETS)
    print(f"{'set':24} {'':26} B = 2: accuracy, rounds; B = 4: accuracy, rounds")
    for name in parser.parse_args().sets:
        measure(name)


if __name__ == "__main__":
    main()
