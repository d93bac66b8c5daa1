"""Rivals: every policy on every recorded set, by one protocol, and what it adds up to.

Run it with ``python benchmarks/rivals.py SAMPLES OUT [SET …]``. SAMPLES is a directory of recorded
samples, as ``adacompute import`` reads them; sets already scored in OUT are not scored again. It
prints headroom by set and budget, and the mean difference in points at equal cost to each rival,
with an interval by bootstrap over question texts, copies in different sets together.

Sets named in DESIGN were looked at while the policy was made; no other was.
"""

from __future__ import annotations

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
ORDERS, FOLDS, SEED, RESAMPLINGS = 40, 5, 0, 2000
FEW, REPEATS = 80, 4
MIN_QUESTIONS = 100


def find_sets(samples: Path, place: Path) -> Iterator[tuple[str, Path]]:
    """Every file, and the exam questions parted into those looked at and the others."""
    exam: set[str] = set()
    for file in sorted(samples.rglob("*.parquet"), key=lambda f: ("mcqa10" not in f.name, f.name)):
        yield file.stem, file
        table = pq.read_table(file)
        if file.stem.startswith("mcqa10x100"):
            seen = _starts(table, EXAMS)
            exam = set(table.filter(seen)["question"].to_pylist())
            yield _part(table.filter(seen), "mcqa-design5__gpt-3.5-turbo", place)
            yield _part(table.filter(pc.invert(seen)), "mcqa-untouched5__gpt-3.5-turbo", place)
        elif file.stem.startswith("mcqa-comprehensive100"):
            new = pc.invert(pc.is_in(table["question"], pa.array(sorted(exam))))
            yield _part(table.filter(new), file.stem.replace("sive100", "sive-untouched"), place)


def _starts(table: pa.Table, names: tuple[str, ...]) -> pa.ChunkedArray:
    return pc.match_substring_regex(table["question_id"], "^(" + "|".join(names) + ")")


def _part(table: pa.Table, name: str, place: Path) -> tuple[str, Path]:
    pq.write_table(table, place / f"{name}.parquet")
    return name, place / f"{name}.parquet"


@dataclass(frozen=True)
class Scored:
    """One set, with or without its nulls: curves of every policy, and the oracle's values."""

    name: str
    nulls: bool
    few: bool
    group: KeyArray
    budgets: tuple[float, ...]
    curves: dict[str, Curve]
    oracle: dict[float, FloatArray]


def score(name: str, run: Path, *, nulls: bool, few: bool) -> Scored | None:
    """Fit and score every policy; with ``few`` training questions only, the two that matter."""
    try:
        pool = read_pool(Run(run)).equalise(drop_unparsed=not nulls)
    except DataError as error:
        print(f"{name} is left out: {error}", file=sys.stderr)
        return None
    samples = tuple(n for n in LEVELS if n <= int(pool.answers.n_samples[0]) // 2)
    budgets = tuple(b for b in BUDGETS if b < max(samples, default=0))
    if not budgets or (few and len(pool) < FEW + 20):
        return None
    experiment = Experiment(pool, samples, budgets, ORDERS, SEED)
    splits: list[Split] = split_folds(assign_folds(pool.group, FOLDS, seed=SEED))
    names: tuple[str, ...] = ("mixture", *RIVALS, "sequential")
    if few:
        splits = [_few(pool.group, repeat) for repeat in range(REPEATS)]
        names = ("mixture", "adaptive-consistency", "sequential")
    curves = {
        policy: cross_validate(experiment, POLICY_FACTORIES[policy], splits) for policy in names
    }
    best = cross_fitted_oracle(pool, samples, budgets, seed=SEED)
    oracle = {budget: value for budget, (_, value) in best.items()}
    kept = np.unique(np.concatenate([held for _, held in splits]))
    curves = {
        n: Curve(c.cost[kept], c.accuracy[kept], c.n_rounds[kept], {}, {})
        for n, c in curves.items()
    }
    oracle = {budget: value[kept] for budget, value in oracle.items()}
    return Scored(name, nulls, few, pool.group[kept], budgets, curves, oracle)


def _few(group: KeyArray, repeat: int) -> Split:
    """Train on few questions, and hold out all others."""
    unique = np.random.default_rng(repeat).permutation(np.unique(group))
    train = np.isin(group, unique[:FEW])
    return np.flatnonzero(train), np.flatnonzero(~train)


def save(scored: Scored, path: Path) -> None:
    """Keep what was scored."""
    arrays: dict[str, FloatArray | KeyArray] = {"group": scored.group}
    arrays["budgets"] = np.array(scored.budgets)
    for name, curve in scored.curves.items():
        arrays[f"cost {name}"], arrays[f"accuracy {name}"] = curve.cost, curve.accuracy
        arrays[f"rounds {name}"] = curve.n_rounds
    for budget, value in scored.oracle.items():
        arrays[f"oracle {budget}"] = value
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]


def load(path: Path) -> Scored:
    """Read it again."""
    name, kind, nulls = path.stem.rsplit("--", 2)
    with np.load(path) as held:
        curves = {
            key[5:]: Curve(
                held[key], held[f"accuracy {key[5:]}"], held[f"rounds {key[5:]}"], {}, {}
            )
            for key in held
            if key.startswith("cost ")
        }
        budgets = tuple(held["budgets"].tolist())
        oracle = {b: held[f"oracle {b}"] for b in budgets}
        return Scored(name, nulls == "nulls", kind == "few", held["group"], budgets, curves, oracle)


def read(scored: Scored, weights: FloatArray) -> dict[str, dict[float, FloatArray]]:
    """Accuracy of every policy at every budget: as it is, then in each resampling."""
    values: dict[str, dict[float, FloatArray]] = {}
    for name, curve in scored.curves.items():
        values[name] = {}
        for budget in scored.budgets:
            found = read_curve(curve, budget, weights)
            values[name][budget] = np.concatenate([[found.accuracy], found.resampled])
    total = weights.sum(axis=1)
    values["oracle"] = {b: weights @ value / total for b, value in scored.oracle.items()}
    return values


def resample_texts(every: list[Scored]) -> dict[int, FloatArray]:
    """How often each question counts: texts are resampled over all sets at once."""
    texts = np.unique(np.concatenate([scored.group for scored in every]))
    rng = np.random.default_rng(SEED)
    counts = rng.multinomial(len(texts), np.full(len(texts), 1 / len(texts)), size=RESAMPLINGS)
    weights = {}
    for i, scored in enumerate(every):
        mine = counts[:, np.searchsorted(texts, scored.group)].astype(np.float64)
        mine[mine.sum(axis=1) == 0] = 1.0
        weights[i] = np.concatenate([np.ones((1, len(scored.group))), mine])
    return weights


def report(every: list[Scored]) -> None:
    """Print headroom by set, then the differences to each rival over all untouched sets."""
    weights = resample_texts(every)
    values = [read(scored, weights[i]) for i, scored in enumerate(every)]
    for scored, value in zip(every, values, strict=True):
        print(f"\n{scored.name}: {len(scored.group)} questions")
        for name in value:
            cells = []
            for b in scored.budgets:
                room = value["oracle"][b] - value["mixture"][b]
                gain = value[name][b][0] - value["mixture"][b][0]
                roomy = np.quantile(room[1:], 0.025) > 0
                share = f"{100 * gain / room[0]:4.0f}" if roomy else "   –"
                cells.append(f"{value[name][b][0]:.4f} ({share})")
            print(f"  {name:22}", "  ".join(cells))
    _report_rivals(every, values)


def _report_rivals(every: list[Scored], values: list[dict[str, dict[float, FloatArray]]]) -> None:
    rivals = [n for n in every[0].curves if n not in ("mixture", "sequential")]
    worse: list[tuple[float, str]] = []
    cells: dict[str, list[FloatArray]] = {rival: [] for rival in rivals}
    for scored, value in zip(every, values, strict=True):
        untouched = not scored.name.startswith((*DESIGN, "mcqa-comprehensive-"))
        for rival in rivals:
            for b in scored.budgets:
                gap = value["sequential"][b] - value[rival][b]
                spread = max(float(gap[1:].std()), 1e-9)
                text = f"{scored.name} B={b:g} {rival} {100 * gap[0]:+.2f} ± {196 * spread:.2f}"
                worse.append((NormalDist().cdf(gap[0] / spread), text))
                room = value["oracle"][b] - value["mixture"][b]
                roomy = np.quantile(room[1:], 0.025) > 0
                if untouched and roomy and len(scored.group) >= MIN_QUESTIONS * 0.75:
                    cells[rival].append(gap)
    print("\nmean difference in points, sequential less rival, over untouched sets and budgets:")
    for rival, gaps in cells.items():
        if gaps:
            mean = 100 * np.mean(gaps, axis=0)
            low, high = np.quantile(mean[1:], [0.025, 0.975])
            print(f"  {rival:22} {mean[0]:+.2f} [{low:+.2f}, {high:+.2f}] of {len(gaps)} cells")
    worse.sort()
    print("\nworst cells, p of being worse by chance, and the bound Holm sets:")
    for i, (p, text) in enumerate(worse[:8]):
        print(f"  {p:.5f} (bound {0.05 / (len(worse) - i):.5f})  {text}")


def main() -> None:
    """Score what is not scored yet, and report."""
    samples, out, wanted = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
    (out / "parts").mkdir(parents=True, exist_ok=True)
    for name, file in find_sets(samples, out / "parts"):
        if wanted and not any(name.startswith(start) for start in wanted):
            continue
        run = out / "runs" / name
        import_samples(file, run)
        for few in (False, True):
            for nulls in (True, False):
                kind = "few" if few else "all"
                path = out / f"{name}--{kind}--{'nulls' if nulls else 'readable'}.npz"
                if path.exists():
                    continue
                begin = time.perf_counter()
                scored = score(name, run, nulls=nulls, few=few)
                if scored is not None:
                    save(scored, path)
                print(path.stem, f"{time.perf_counter() - begin:.0f} s", file=sys.stderr)
    for kind in ("all", "few"):
        for which in ("nulls", "readable"):
            every = [load(path) for path in sorted(out.glob(f"*--{kind}--{which}.npz"))]
            if every:
                print(f"\n# trained on {kind} questions, {which}")
                report(every)


if __name__ == "__main__":
    main()
