"""What a change of the policy is worth: two versions on the same folds and orders of recorded sets.

``python -m benchmarks.policy_change score DIR`` scores ``sequential``, the mixture and
Adaptive-Consistency on all recorded sets, in five fold assignments, and writes what each question
gets at each budget to a directory. ``compare NEW OLD`` reads two such directories, of two versions
of the code, and prints paired differences with their intervals; questions are clustered by their
text, also across sets. ``table DIR`` prints the accuracies of one directory as the tables of
``docs/research/results.md``. ``--sets`` and ``--seeds`` restrict what is scored. Recorded samples
are found in ``ADACOMPUTE_DATA``.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np

from adacompute.datasets.sources import read_source
from adacompute.evaluation.costs import CostModel, read_token_prices
from adacompute.evaluation.experiment import Experiment
from adacompute.evaluation.factories import find_factory
from adacompute.evaluation.scoring.held_out import HeldOutCurve, score_held_out
from adacompute.stages.inputs import read_pool, read_recorded, resolve_budgets
from adacompute.storage.store import Run
from benchmarks.arms import DATA, adjust, import_set
from benchmarks.arms import SETS as ARM_SETS
from reproduction.runs import write_run

BUDGETS: tuple[float, ...] = (1.5, 2.0, 3.0, 4.0, 6.0)
LEVELS: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
ARM_LEVELS = (1, 2, 3, 4)
SEEDS = (0, 1, 2, 3, 4)
POLICIES = ("sequential", "mixture", "adaptive-consistency")
CURRENT, MARGIN, ALPHA = "sequential", 0.0015, 0.05
N_RESAMPLES = 2000


def list_sets() -> dict[str, Path | None]:
    """Return the files of all recorded sets of one arm by name, and None for sets of arms."""
    files = [*sorted(DATA.glob("*.parquet")), *sorted(DATA.glob("n8/*.parquet"))]
    return {"example": Path("example"), **{one.stem: one for one in files}} | dict.fromkeys(
        ARM_SETS
    )


def is_for_design(name: str) -> bool:
    """Whether a set was looked at while the policy was designed."""
    files = [one.stem for one in sorted(DATA.glob("*.parquet"))]
    chosen = {"example", "svamp", "svamp-parameters", "gpqa-gpt-5.2", "gpqa-opus-4.5"}
    chosen |= {one for one in files if one.startswith(("arith110", "svamp141"))}
    return name in chosen or name in files[1::2]


def make_experiment(name: str, file: Path | None, seed: int) -> Experiment:
    """Return a set in one fold assignment."""
    with tempfile.TemporaryDirectory() as directory:
        costs: dict[str, Any] = {"unit": "samples"}
        levels = ARM_LEVELS if file is None else LEVELS
        if file is None:
            costs = import_set(ARM_SETS[name], Path(directory))
        else:
            write_run(Path(directory, "run"), read_source(file))
        run = Run(Path(directory, "run"))
        prices = read_token_prices(costs.get("token_prices"), [costs["unit"]], None, run=run.path)
        model = CostModel(costs["unit"], prices)
        recorded = read_recorded(run)
        pool = read_pool(run, costs=model, features="paper").equalise()
        budgets = BUDGETS if file is not None else ARM_SETS[name].budgets
        wanted = resolve_budgets(recorded, model, budgets)
    kept = tuple(n for n in levels if n <= pool.n_samples)
    return Experiment(pool, kept, wanted, seed=seed, max_assignments=1)


def read_curve(curve: HeldOutCurve, budgets: tuple[float, ...]) -> dict[str, np.ndarray]:
    """Return cost and accuracy of each question, and the slope of the curve, at each budget."""
    points = [curve.read(budget) for budget in budgets]
    return {
        "cost": np.stack([point.result.cost for point in points]),
        "accuracy": np.stack([point.result.accuracy for point in points]),
        "slope": np.array([curve.slope(budget) for budget in budgets]),
    }


def score(
    place: Path, names: list[str], seeds: tuple[int, ...], policies: tuple[str, ...] = POLICIES
) -> None:
    """Score policies on sets; what is there is not computed again."""
    place.mkdir(parents=True, exist_ok=True)
    for name, file in list_sets().items():
        if names and name not in names:
            continue
        for seed in seeds:
            path = place / f"{name} {seed}.npz"
            if path.exists():
                continue
            start = time.perf_counter()
            experiment = make_experiment(name, file, seed)
            found: dict[str, Any] = {"group": experiment.pool.group}
            found["budgets"] = np.array(experiment.budgets)
            for policy in policies:
                if experiment.pool.has_arms and policy == "adaptive-consistency":
                    continue
                curve = score_held_out(experiment, find_factory(policy))
                read = read_curve(curve, experiment.budgets)
                found |= {f"{policy} {key}": value for key, value in read.items()}
            np.savez_compressed(path, **found)
            shown = " ".join(f"{a:.4f}" for a in found["sequential accuracy"].mean(axis=1))
            print(f"{name} {seed}: {shown} ({time.perf_counter() - start:.0f} s)", flush=True)


@dataclass(frozen=True)
class Paired:
    """Influences of questions on a difference at each budget, mean of fold assignments, (B, N)."""

    name: str
    group: np.ndarray
    value: float
    influence: np.ndarray
    by_budget: np.ndarray

    @property
    def standard_error(self) -> float:
        """Standard error of the mean over budgets."""
        return self.error_of(self.influence.mean(axis=0))

    def error_of(self, influence: np.ndarray) -> float:
        """Return a standard error over independent questions."""
        _, place = np.unique(self.group, return_inverse=True)
        total = np.bincount(place, influence)
        size = len(total)
        return float(np.sqrt((total**2).sum() * size / max(1, size - 1)) / len(influence))


def pair(name: str, new: Path, old: Path, policy: str, other: str) -> Paired | None:
    """Return the difference of two policies on a set, at equal cost."""
    influences, means = [], []
    for path in sorted(new.glob(f"{name} *.npz")):
        if not (old / path.name).exists():
            return None
        one, two = np.load(path), np.load(old / path.name)
        if f"{other} cost" not in two:
            return None
        extra = one[f"{policy} cost"] - two[f"{other} cost"]
        difference = one[f"{policy} accuracy"] - two[f"{other} accuracy"]
        difference = difference - two[f"{other} slope"][:, None] * extra.mean(axis=1)[:, None]
        means.append(difference.mean(axis=1))
        adjusted = difference - two[f"{other} slope"][:, None] * (
            extra - extra.mean(axis=1, keepdims=True)
        )
        influences.append(adjusted - adjusted.mean(axis=1, keepdims=True))
        group = one["group"]
    if not influences:
        return None
    mean = np.mean(means, axis=0)
    return Paired(name, group, float(mean.mean()), np.mean(influences, axis=0), mean)


def bound_mean(found: list[Paired]) -> tuple[float, float, float]:
    """Return the mean over sets, and its interval by a bootstrap over texts of all sets."""
    texts = np.unique(np.concatenate([one.group for one in found]))
    total = np.zeros(len(texts))
    for one in found:
        place = np.searchsorted(texts, one.group)
        influence = one.influence.mean(axis=0)
        np.add.at(total, place, influence / len(influence) / len(found))
    rng = np.random.default_rng(0)
    drawn = [total @ rng.poisson(1.0, len(texts)) for _ in range(N_RESAMPLES)]
    value = float(np.mean([one.value for one in found]))
    low, high = np.quantile(drawn, [0.025, 0.975])
    return value, value + float(low), value + float(high)


def compare(new: Path, old: Path, names: list[str]) -> None:
    """Print the differences of two versions, and to the other policies."""
    others = {"current": (old, CURRENT), "mixture": (new, "mixture")}
    others["adaptive-consistency"] = (new, "adaptive-consistency")
    for label, (place, other) in others.items():
        print(f"\nnew minus {label}, points (mean of the budgets; then each budget)")
        every = [pair(name, new, place, CURRENT, other) for name in names or list_sets()]
        found = [one for one in every if one is not None]
        z = [one.value / max(one.standard_error, 1e-12) for one in found]
        worse = adjust([NormalDist().cdf(one) for one in z])
        for one, p in zip(found, worse, strict=True):
            budgets = " ".join(f"{100 * value:+.2f}" for value in one.by_budget)
            mark = "design" if is_for_design(one.name) else "report"
            shown = f"{100 * one.value:+.2f} ± {196 * one.standard_error:.2f} ({budgets})"
            worst = " WORSE" if p < ALPHA else ""
            print(f"  {one.name:45} {len(one.group):5} {mark} {shown}{worst}")
        single = [one for one in found if list_sets()[one.name] is not None]
        for title, chosen in (
            ("all files", [one for one in single if one.name != "example"]),
            ("for report", [one for one in single if not is_for_design(one.name)]),
        ):
            if chosen:
                value, low, high = bound_mean(chosen)
                print(
                    f"  mean of {title} ({len(chosen)}): {100 * value:+.3f} "
                    f"[{100 * low:+.3f}, {100 * high:+.3f}]"
                )


def print_table(place: Path, names: list[str]) -> None:
    """Print the accuracy of each policy at each budget, and the difference to the mixture."""
    for name in names:
        seeds = [np.load(path) for path in sorted(place.glob(f"{name} *.npz"))]
        budgets = " | ".join(f"{budget:.3g}" for budget in seeds[0]["budgets"])
        print(f"| {name} | budget | {budgets} | |")
        for policy in [one for one in POLICIES if f"{one} accuracy" in seeds[0]]:
            means = np.mean([one[f"{policy} accuracy"].mean(axis=1) for one in seeds], axis=0)
            cells = [f"{value:.3f}".removeprefix("0") for value in means]
            found = pair(name, place, place, policy, "mixture")
            if found is not None and policy == CURRENT:
                for i, value in enumerate(found.by_budget):
                    half = 196 * found.error_of(found.influence[i])
                    cells[i] += f" ({100 * value:+.1f} ± {half:.1f})"
            print(f"| | {policy} | {' | '.join(cells)} | {means.mean():.3f} |".replace("-", "−"))


def main() -> None:
    """Score or compare."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("command", choices=("score", "compare", "table"))
    parser.add_argument("directories", nargs="+", type=Path)
    parser.add_argument("--sets", type=lambda text: text.split(","), default=[])
    parser.add_argument("--seeds", type=lambda text: tuple(map(int, text.split(","))))
    options = parser.parse_args()
    if options.command == "score":
        score(options.directories[0], options.sets, options.seeds or SEEDS)
    elif options.command == "table":
        print_table(options.directories[0], options.sets)
    else:
        compare(options.directories[0], options.directories[1], options.sets)


if __name__ == "__main__":
    main()
