"""Rivals: every policy on every recorded set, by one protocol, and the mean differences.

Run it with ``python benchmarks/rivals.py SAMPLES OUT [SET …]``. SAMPLES is a directory of recorded
samples that ``adacompute import`` can read. Sets that are already scored in OUT are not scored
again. It prints headroom by set and budget, and the mean difference in points between
``sequential`` and each rival at equal cost, with an interval by bootstrap over question texts;
copies of a text in different sets are resampled together.

The sets named in DESIGN were used to design the policy; no other set was.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from adacompute.core.errors import DataError
from adacompute.evaluation.curves import Curve, cross_validate, read_curve, split_folds
from adacompute.evaluation.factories import POLICY_FACTORIES, Experiment
from adacompute.evaluation.oracles import cross_fitted_oracle
from adacompute.evaluation.pool import assign_folds
from adacompute.stages.import_samples import import_samples
from adacompute.stages.inputs import read_pool
from adacompute.storage.store import Run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from adacompute.core.types import FloatArray, KeyArray
    from adacompute.evaluation.curves import Split

BUDGETS = (1.5, 2.0, 3.0, 4.0, 6.0)
LEVELS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
RIVALS = ("adaptive-consistency", "early-stopping", "retry", "router", "value-router")
EXAMS = ("aqua-rat", "hellaswag", "lsat-ar", "lsat-rc", "sat-en")
DESIGN = ("mcqa10x100", "mcqa-design5", "arith110")
PERMUTATIONS, FOLDS, SEED, RESAMPLES = 40, 5, 0, 2000
FEW_QUESTIONS, FEW_REPEATS = 80, 4
MIN_QUESTIONS = 75

Values = dict[str, dict[float, "FloatArray"]]
"""Accuracy by policy and budget: the estimate, then that of each resampling."""


def find_sets(samples: Path, parts: Path) -> Iterator[tuple[str, Path]]:
    """Yield every file, and parts of the exams that were used in the design and that were not."""
    used_texts: set[str] = set()
    for file in sorted(samples.rglob("*.parquet"), key=lambda f: ("mcqa10" not in f.name, f.name)):
        yield file.stem, file
        table = pq.read_table(file)
        if file.stem.startswith("mcqa10x100"):
            used = pc.match_substring_regex(table["question_id"], "^(" + "|".join(EXAMS) + ")")
            used_texts = set(table.filter(used)["question"].to_pylist())
            yield write_part(table.filter(used), "mcqa-design5__gpt-3.5-turbo", parts)
            yield write_part(table.filter(pc.invert(used)), "mcqa-untouched5__gpt-3.5-turbo", parts)
        elif file.stem.startswith("mcqa-comprehensive100"):
            new = pc.invert(pc.is_in(table["question"], pa.array(sorted(used_texts), pa.string())))
            name = file.stem.replace("sive100", "sive-untouched")
            yield write_part(table.filter(new), name, parts)


def write_part(table: pa.Table, name: str, parts: Path) -> tuple[str, Path]:
    """Write a part of a set as a file of its own."""
    pq.write_table(table, parts / f"{name}.parquet")
    return name, parts / f"{name}.parquet"


@dataclass(frozen=True)
class SetScores:
    """The curves of every policy and the values of the oracle on one set."""

    name: str
    group: KeyArray
    budgets: tuple[float, ...]
    curves: dict[str, Curve]
    oracle: dict[float, FloatArray]


def score(name: str, run: Path, *, drop_unparsed: bool, few: bool) -> SetScores | None:
    """Fit and score every policy; with ``few``, the main ones on few training questions."""
    try:
        pool = read_pool(Run(run)).equalise(drop_unparsed=drop_unparsed)
    except DataError as error:
        print(f"{name} is skipped: {error}", file=sys.stderr)
        return None
    levels = tuple(n for n in LEVELS if n <= pool.n_samples // 2)
    budgets = tuple(b for b in BUDGETS if b < max(levels, default=0))
    if not budgets or (few and len(pool) < FEW_QUESTIONS + 20):
        return None
    experiment = Experiment(pool, levels, budgets, PERMUTATIONS, SEED)
    splits: list[Split] = split_folds(assign_folds(pool.group, FOLDS, seed=SEED))
    names: tuple[str, ...] = ("mixture", *RIVALS, "sequential")
    if few:
        splits = [split_few(pool.group, repeat) for repeat in range(FEW_REPEATS)]
        names = ("mixture", "adaptive-consistency", "sequential")
    curves = {
        policy: cross_validate(experiment, POLICY_FACTORIES[policy], splits) for policy in names
    }
    oracle = cross_fitted_oracle(pool, levels, budgets, seed=SEED)
    rows = np.unique(np.concatenate([held_out for _, held_out in splits]))
    return SetScores(
        name,
        pool.group[rows],
        budgets,
        {
            policy: Curve(c.cost[rows], c.accuracy[rows], c.n_rounds[rows], {}, {})
            for policy, c in curves.items()
        },
        {budget: utility[rows] for budget, (_, utility) in oracle.items()},
    )


def split_few(group: KeyArray, repeat: int) -> Split:
    """Train on few questions and hold out all others."""
    unique = np.random.default_rng(repeat).permutation(np.unique(group))
    train = np.isin(group, unique[:FEW_QUESTIONS])
    return np.flatnonzero(train), np.flatnonzero(~train)


def save(scores: SetScores, path: Path) -> None:
    """Store the scores of a set."""
    arrays: dict[str, FloatArray | KeyArray] = {"group": scores.group}
    arrays["budgets"] = np.array(scores.budgets)
    for name, curve in scores.curves.items():
        arrays[f"cost {name}"], arrays[f"accuracy {name}"] = curve.cost, curve.accuracy
        arrays[f"rounds {name}"] = curve.n_rounds
    for budget, value in scores.oracle.items():
        arrays[f"oracle {budget}"] = value
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]


def load(path: Path) -> SetScores:
    """Read stored scores."""
    name, _, _ = path.stem.rsplit("--", 2)
    with np.load(path) as arrays:
        policies = [key.removeprefix("cost ") for key in arrays if key.startswith("cost ")]
        curves = {
            policy: Curve(
                arrays[f"cost {policy}"],
                arrays[f"accuracy {policy}"],
                arrays[f"rounds {policy}"],
                {},
                {},
            )
            for policy in policies
        }
        budgets = tuple(arrays["budgets"].tolist())
        oracle = {b: arrays[f"oracle {b}"] for b in budgets}
        return SetScores(name, arrays["group"], budgets, curves, oracle)


def read_values(scores: SetScores, weights: FloatArray) -> Values:
    """Return the accuracy of every policy and of the oracle at every budget."""
    values: Values = {}
    for name, curve in scores.curves.items():
        values[name] = {}
        for budget in scores.budgets:
            point = read_curve(curve, budget, weights)
            values[name][budget] = np.concatenate([[point.accuracy], point.resampled])
    total = weights.sum(axis=1)
    values["oracle"] = {b: weights @ value / total for b, value in scores.oracle.items()}
    return values


def resample_texts(sets: list[SetScores]) -> list[FloatArray]:
    """Return bootstrap weights of the questions of each set; texts are resampled over all sets."""
    texts = np.unique(np.concatenate([scores.group for scores in sets]))
    rng = np.random.default_rng(SEED)
    counts = rng.multinomial(len(texts), np.full(len(texts), 1 / len(texts)), size=RESAMPLES)
    weights = []
    for scores in sets:
        own = counts[:, np.searchsorted(texts, scores.group)].astype(np.float64)
        own[own.sum(axis=1) == 0] = 1.0
        weights.append(np.concatenate([np.ones((1, len(scores.group))), own]))
    return weights


def has_headroom(values: Values, budget: float) -> bool:
    """Whether the oracle is above the mixture beyond the noise."""
    headroom = values["oracle"][budget] - values["mixture"][budget]
    return bool(np.quantile(headroom[1:], 0.025) > 0)


def report(sets: list[SetScores]) -> None:
    """Print headroom by set, then the differences to each rival over all untouched sets."""
    pairs = zip(sets, resample_texts(sets), strict=True)
    by_set = [read_values(scores, weights) for scores, weights in pairs]
    for scores, values in zip(sets, by_set, strict=True):
        print(f"\n{scores.name}: {len(scores.group)} questions")
        for name in values:
            cells = []
            for b in scores.budgets:
                headroom = values["oracle"][b][0] - values["mixture"][b][0]
                gain = values[name][b][0] - values["mixture"][b][0]
                share = f"{100 * gain / headroom:4.0f}" if has_headroom(values, b) else "   –"
                cells.append(f"{values[name][b][0]:.4f} ({share})")
            print(f"  {name:22}", "  ".join(cells))
    report_rivals(sets, by_set)


def report_rivals(sets: list[SetScores], by_set: list[Values]) -> None:
    """Print the mean difference to each rival, and the cells where ``sequential`` is worst."""
    rivals = [name for name in sets[0].curves if name not in ("mixture", "sequential")]
    cells: list[tuple[float, str]] = []
    differences: dict[str, list[FloatArray]] = {rival: [] for rival in rivals}
    for scores, values in zip(sets, by_set, strict=True):
        untouched = not scores.name.startswith((*DESIGN, "mcqa-comprehensive-"))
        for rival in rivals:
            for b in scores.budgets:
                difference = values["sequential"][b] - values[rival][b]
                error = max(float(difference[1:].std()), 1e-9)
                points = f"{100 * difference[0]:+.2f} ± {196 * error:.2f}"
                text = f"{scores.name} B={b:g} {rival} {points}"
                cells.append((NormalDist().cdf(difference[0] / error), text))
                large = len(scores.group) >= MIN_QUESTIONS
                if untouched and large and has_headroom(values, b):
                    differences[rival].append(difference)
    print("\nmean difference in points, sequential minus rival, over untouched sets and budgets:")
    for rival, found in differences.items():
        if found:
            mean = 100 * np.mean(found, axis=0)
            low, high = np.quantile(mean[1:], [0.025, 0.975])
            print(f"  {rival:22} {mean[0]:+.2f} [{low:+.2f}, {high:+.2f}] of {len(found)} cells")
    cells.sort()
    print("\nworst cells, p value of being worse, and Holm's bound:")
    for i, (p, text) in enumerate(cells[:8]):
        print(f"  {p:.5f} (bound {0.05 / (len(cells) - i):.5f})  {text}")


def main() -> None:
    """Score the sets that are not scored yet, and report."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("samples", type=Path, help="directory of recorded samples")
    parser.add_argument("out", type=Path, help="directory of the scores")
    parser.add_argument("sets", nargs="*", metavar="SET", help="beginnings of names; default: all")
    options = parser.parse_args()
    out: Path = options.out
    (out / "parts").mkdir(parents=True, exist_ok=True)
    for name, file in find_sets(options.samples, out / "parts"):
        if options.sets and not name.startswith(tuple(options.sets)):
            continue
        run = out / "runs" / name
        import_samples(file, run)
        for training in ("all", "few"):
            for kept in ("recorded", "parsed"):
                path = out / f"{name}--{training}--{kept}.npz"
                if path.exists():
                    continue
                start = time.perf_counter()
                scores = score(name, run, drop_unparsed=kept == "parsed", few=training == "few")
                if scores is not None:
                    save(scores, path)
                print(path.stem, f"{time.perf_counter() - start:.0f} s", file=sys.stderr)
    for training in ("all", "few"):
        for kept in ("recorded", "parsed"):
            sets = [load(path) for path in sorted(out.glob(f"*--{training}--{kept}.npz"))]
            if sets:
                print(f"\n# trained on {training} questions, {kept} samples")
                report(sets)


if __name__ == "__main__":
    main()
