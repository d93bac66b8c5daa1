"""Rivals: every policy on every recorded set, by one protocol, and the mean differences.

Run it with ``python -m benchmarks.rivals SAMPLES OUT [SET …]``. SAMPLES is a directory of recorded
samples that ``adacompute research import`` can read. Sets that are already scored in OUT are not
scored again. It prints accuracy and headroom by set and budget, and the difference in points
between ``sequential`` and each rival at equal cost, by set and budget and in the mean. Intervals
cover the questions, with copies of a text in different sets counted as one, and the fits. It also
prints which sets and budgets are not part of the mean, and why.

The sets named in DESIGN were used to design the policy; no other set was.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from adacompute.core.errors import DataError
from adacompute.evaluation.experiment import Experiment
from adacompute.evaluation.pool import Pool
from adacompute.evaluation.scoring.held_out import measure_difference
from adacompute.evaluation.scoring.oracles import cross_fitted_oracle
from adacompute.evaluation.scoring.policy_score import PolicyScore, score_policy
from adacompute.evaluation.scoring.scores import oracle_point
from adacompute.stages.inputs import read_pool
from adacompute.stages.research.import_samples import import_samples
from adacompute.storage.store import Run
from reproduction.registered_rivals import register_rivals

if TYPE_CHECKING:
    from adacompute.core.types import FloatArray, KeyArray

BUDGETS = (1.5, 2.0, 3.0, 4.0, 6.0)
LEVELS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
RIVALS = (
    "sequential-votes",
    "adaptive-consistency",
    "early-stopping",
    "retry",
    "router",
    "value-router",
    "marginal-rewards",
)
FEW_RIVALS = ("sequential-votes", "adaptive-consistency")
EXAMS = ("aqua-rat", "hellaswag", "lsat-ar", "lsat-rc", "sat-en")
DESIGN = ("mcqa10x100", "mcqa-design5", "arith110", "mcqa-comprehensive-")
FEW_QUESTIONS, FEW_PARTS = 100, 4
"""With 100 questions, five folds have 80 training questions each."""

MIN_QUESTIONS = 75
ARMS = "arms"
"""Directory of samples of several models and efforts, which are not sets of their own."""

REFIT_SPLITS = 1
"""Three fits per policy for the variance of refitting; routers take too long for more."""


def find_sets(samples: Path, parts: Path) -> Iterator[tuple[str, Path]]:
    """Yield every file, and parts of the exams that were used in the design and that were not."""
    used_texts: set[str] = set()
    for file in sorted(samples.rglob("*.parquet"), key=lambda f: ("mcqa10" not in f.name, f.name)):
        if file.parent.name == ARMS:
            continue
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


@dataclass(frozen=True, eq=False)
class SetScores:
    """Results of one set by policy and budget.

    ``accuracy`` and ``headroom`` are (policies, budgets); headroom is NaN where the oracle may gain
    nothing. ``difference`` and ``refit_variance`` are (rivals, budgets): ``sequential`` minus each
    rival. ``influence`` is (rivals, budgets, N), that of each question on the difference.
    """

    name: str
    group: KeyArray
    budgets: FloatArray
    policies: tuple[str, ...]
    accuracy: FloatArray
    headroom: FloatArray
    difference: FloatArray
    refit_variance: FloatArray
    influence: FloatArray

    @property
    def rivals(self) -> tuple[str, ...]:
        """The policies that ``sequential`` is compared with."""
        return self.policies[2:]


ARRAYS = ("group", "budgets", "accuracy", "headroom", "difference", "refit_variance", "influence")


def score(name: str, pool: Pool, rivals: tuple[str, ...]) -> SetScores | str:
    """Fit and score every policy; return the reason if the set cannot be used."""
    levels = tuple(n for n in LEVELS if n <= pool.n_samples // 2)
    budgets = tuple(b for b in BUDGETS if b < max(levels, default=0))
    if not budgets:
        return f"{pool.n_samples} samples per question are too few for any budget"
    experiment = Experiment(pool, levels, budgets)
    mixture = score_policy(experiment, "mixture")
    scores = {"mixture": mixture}
    for policy in ("sequential", *rivals):
        scored = score_policy(experiment, policy)
        scores[policy] = replace(scored, refit_splits=REFIT_SPLITS)
    ours = scores["sequential"]
    cells = [[compare(ours, scores[rival], budget) for budget in budgets] for rival in rivals]
    return SetScores(
        name=name,
        group=pool.group,
        budgets=np.array(budgets),
        policies=tuple(scores),
        accuracy=np.array([[s.curve.read(b).accuracy for b in budgets] for s in scores.values()]),
        headroom=measure_headroom(experiment, scores, budgets),
        difference=np.array([[cell[0] for cell in row] for row in cells]),
        refit_variance=np.array([[cell[1] for cell in row] for row in cells]),
        influence=np.array([[cell[2] for cell in row] for row in cells]),
    )


def compare(
    ours: PolicyScore, rival: PolicyScore, budget: float
) -> tuple[float, float, FloatArray]:
    """Return the difference at a budget, its variance between fits, and its influences."""
    point = ours.curve.read(budget)
    value, influence = measure_difference(rival.curve, point)
    other = rival.curve.read(point.cost)
    variance = ours.refit_variance(point).gain + rival.refit_variance(other).gain
    return value, variance, influence


def measure_headroom(
    experiment: Experiment, scores: dict[str, PolicyScore], budgets: tuple[float, ...]
) -> FloatArray:
    """Return the gain of each policy as a share of the oracle's; NaN where that may be zero."""
    mixture = scores["mixture"]
    oracle = cross_fitted_oracle(experiment.pool, experiment.levels, budgets, seed=0)
    headroom = np.full((len(scores), len(budgets)), np.nan)
    for k, budget in enumerate(budgets):
        point = oracle_point(oracle[budget])
        possible = mixture.interval(*measure_difference(mixture.curve, point))
        if possible.low > 0:
            for i, one in enumerate(scores.values()):
                gain, _ = measure_difference(mixture.curve, one.curve.read(budget))
                headroom[i, k] = gain / possible.value
    return headroom


def split_few(pool: Pool) -> Iterator[Pool]:
    """Yield disjoint random parts with few independent questions each."""
    unique = np.random.default_rng(0).permutation(np.unique(pool.group))
    for part in range(min(FEW_PARTS, len(unique) // FEW_QUESTIONS)):
        some = unique[part * FEW_QUESTIONS : (part + 1) * FEW_QUESTIONS]
        yield pool.take(np.isin(pool.group, some))


def save(scores: SetScores, path: Path) -> None:
    """Store the scores of a set."""
    arrays = {name: getattr(scores, name) for name in ARRAYS}
    np.savez_compressed(path, policies=np.array(scores.policies), **arrays)


def load(path: Path) -> SetScores:
    """Read stored scores."""
    name = path.stem.split("--")[0]
    with np.load(path) as arrays:
        policies = tuple(arrays["policies"].tolist())
        return SetScores(name=name, policies=policies, **{key: arrays[key] for key in ARRAYS})


def report(sets: list[SetScores]) -> None:
    """Print accuracy and headroom by set, then the differences to each rival."""
    for scores in sets:
        print(f"\n{scores.name}: {len(scores.group)} questions, budgets {scores.budgets.tolist()}")
        for name, accuracy, headroom in zip(
            scores.policies, scores.accuracy, scores.headroom, strict=True
        ):
            cells = [
                f"{a:.4f} ({'   –' if np.isnan(h) else f'{100 * h:4.0f}'})"
                for a, h in zip(accuracy.tolist(), headroom.tolist(), strict=True)
            ]
            print(f"  {name:22}", "  ".join(cells))
        for i, rival in enumerate(scores.rivals):
            pairs = [average([(scores, k)], i) for k in range(len(scores.budgets))]
            cells = [f"{100 * value:+.2f} ± {196 * error:.2f}" for value, error in pairs]
            print(f"  minus {rival:16}", "  ".join(cells))
    used = select_cells(sets)
    print("\nmean difference in points, sequential minus rival, over untouched sets and budgets:")
    for i, rival in enumerate(sets[0].rivals):
        if used:
            value, error = average(used, i)
            low, high = value - 1.96 * error, value + 1.96 * error
            count = f"{len(used)} cells of {len({scores.name for scores, _ in used})} sets"
            print(f"  {rival:22} {100 * value:+.2f} [{100 * low:+.2f}, {100 * high:+.2f}], {count}")
    report_worst(sets)


def select_cells(sets: list[SetScores]) -> list[tuple[SetScores, int]]:
    """Return the sets and budgets that count, and print the others with the reason."""
    used = []
    print("\nnot part of the mean:")
    for scores in sets:
        if scores.name.startswith(DESIGN):
            print(f"  {scores.name}: used in the design")
            continue
        missing = [f"{b:g}" for b in BUDGETS if b not in scores.budgets]
        if missing:
            print(f"  {scores.name}, budgets {', '.join(missing)}: too few samples per question")
        without = np.isnan(scores.headroom[0])
        if without.any():
            named = ", ".join(f"{b:g}" for b in scores.budgets[without])
            print(f"  {scores.name}, budgets {named}: the oracle may gain nothing")
        used += [(scores, int(k)) for k in np.flatnonzero(~without)]
    return used


def average(used: list[tuple[SetScores, int]], rival: int) -> tuple[float, float]:
    """Return the mean difference over sets and budgets, and its standard error."""
    value = float(np.mean([scores.difference[rival, k] for scores, k in used]))
    texts: dict[int, float] = {}
    variance = 0.0
    for scores in {id(one): one for one, _ in used}.values():
        columns = [k for one, k in used if one is scores]
        share = scores.influence[rival, columns].sum(axis=0) / len(scores.group) / len(used)
        for text, part in zip(scores.group.tolist(), share.tolist(), strict=True):
            texts[text] = texts.get(text, 0.0) + part
        # The fits are the same at all budgets, so their errors do not average out.
        error = np.sqrt(scores.refit_variance[rival, columns]).sum() / len(used)
        variance += float(error) ** 2
    return value, float(np.sqrt(sum(part**2 for part in texts.values()) + variance))


def report_worst(sets: list[SetScores]) -> None:
    """Print the cells where ``sequential`` is worst, with the bound of Holm's test."""
    cells = []
    for scores in sets:
        for i, rival in enumerate(scores.rivals):
            for k, budget in enumerate(scores.budgets.tolist()):
                value, error = average([(scores, k)], i)
                points = f"{100 * value:+.2f} ± {196 * error:.2f}"
                text = f"{scores.name} B={budget:g} {rival} {points}"
                cells.append((NormalDist().cdf(value / max(error, 1e-9)), text))
    cells.sort()
    print("\nworst cells, p value of being worse, and Holm's bound:")
    for i, (p, text) in enumerate(cells[:8]):
        print(f"  {p:.5f} (bound {0.05 / (len(cells) - i):.5f})  {text}")


def score_set(name: str, run: Path, out: Path) -> None:
    """Score a set with all and with few questions, as recorded and with parsed samples only."""
    for kept in ("recorded", "parsed"):
        try:
            pool = read_pool(Run(run)).equalise(drop_unparsed=kept == "parsed")
        except DataError as error:
            print(f"{name}, {kept}: excluded, {error}")
            continue
        parts: dict[str, tuple[Pool, tuple[str, ...]]] = {f"{name}--all--{kept}": (pool, RIVALS)}
        for i, part in enumerate(split_few(pool)):
            parts[f"{name}, part {i + 1}--few--{kept}"] = part, FEW_RIVALS
        for stem, (some, rivals) in parts.items():
            if len(np.unique(some.group)) < MIN_QUESTIONS:
                print(f"{stem}: excluded, fewer than {MIN_QUESTIONS} independent questions")
                continue
            if (out / f"{stem}.npz").exists():
                continue
            start = time.perf_counter()
            scores = score(stem.split("--")[0], some, rivals)
            if isinstance(scores, str):
                print(f"{stem}: excluded, {scores}")
                continue
            save(scores, out / f"{stem}.npz")
            print(stem, f"{time.perf_counter() - start:.0f} s", file=sys.stderr)


def main() -> None:
    """Score the sets that are not scored yet, and report."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("samples", type=Path, help="directory of recorded samples")
    parser.add_argument("out", type=Path, help="directory of the scores")
    parser.add_argument("sets", nargs="*", metavar="SET", help="beginnings of names; default: all")
    options = parser.parse_args()
    out: Path = options.out
    register_rivals()
    (out / "parts").mkdir(parents=True, exist_ok=True)
    for name, file in find_sets(options.samples, out / "parts"):
        if options.sets and not name.startswith(tuple(options.sets)):
            continue
        import_samples(file, out / "runs" / name, allow_inconsistent_grades=True)
        score_set(name, out / "runs" / name, out)
    for training in ("all", "few"):
        for kept in ("recorded", "parsed"):
            sets = [load(path) for path in sorted(out.glob(f"*--{training}--{kept}.npz"))]
            if sets:
                print(f"\n# trained on {training} questions, {kept} samples")
                report(sets)


if __name__ == "__main__":
    main()
