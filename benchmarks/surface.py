"""Surface: what rounds cost, which policy wins at which prices, and accuracy by money and rounds.

Run it with ``python benchmarks/surface.py SAMPLES``, a directory of recorded samples. It takes the
five exams that policies were designed on, counts a token as four characters, and scores every
policy on held-out questions at equal money, as ``adacompute evaluate`` does:

    calls      what a round costs beside its draws, by the length of the prompt, whether n draws are
               one call or n, and whether prompts are cached: who wins turns with it
    surface    accuracy and rounds of one policy, by the rounds that it is allowed and the budget
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from adacompute.evaluation.curves import Curve, cross_validate, read_curve, split_folds
from adacompute.evaluation.factories import POLICY_FACTORIES, Experiment, FittedPolicy
from adacompute.evaluation.intervals import bootstrap_weights
from adacompute.evaluation.pool import Pool, assign_folds
from adacompute.policies.episode import UNLIMITED_ROUNDS
from adacompute.policies.sequential import SequentialPolicy
from adacompute.spending.token_prices import TokenPrices
from adacompute.stages.import_samples import import_samples
from adacompute.stages.inputs import read_pool
from adacompute.storage.store import Run, encode_samples

if TYPE_CHECKING:
    from adacompute.core.types import FloatArray, IntArray

FILE = "mcqa10x100__gpt-3.5-turbo.parquet"
EXAMS = ("aqua-rat", "hellaswag", "lsat-ar", "lsat-rc", "sat-en")
LEVELS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
CHARACTERS = 4
"""Characters a token, about."""

TOKEN_PRICES = TokenPrices(input=0.15, cached_input=0.075, output=0.6)
"""Per million tokens, as gpt-4o-mini is listed; the ratio of input to output is common."""

MUCH_CACHED = replace(TOKEN_PRICES, cached_input=0.015)
"""A tenth of the price for cached prompts, as others list."""

ALIKE = (2, 3, 4, 6)
"""Budgets: the money of so many draws in one call."""

ORDERS, FOLDS, SEED, RESAMPLINGS = 40, 5, 0, 1000
POLICIES = ("mixture", "early-stopping", "adaptive-consistency", "sequential, rounds free")


@dataclass(frozen=True)
class Scene:
    """How calls are made and paid: tokens of a prompt, as they are or as so many completions."""

    name: str
    longer: float | None = None
    native_n: bool = True
    cached: bool = False
    token_prices: TokenPrices = TOKEN_PRICES


SCENES = (
    Scene("short prompts, a call a draw", native_n=False),
    Scene("short prompts, native n"),
    Scene("prompt 10 × completion, a call a draw", 10, native_n=False),
    Scene(
        "prompt 10 × completion, native n, cached at a tenth",
        10,
        cached=True,
        token_prices=MUCH_CACHED,
    ),
    Scene("prompt 10 × completion, native n, cached at half", 10, cached=True),
    Scene("prompt 10 × completion, native n", 10),
    Scene("prompt 40 × completion, native n", 40),
)


def read_exams(samples: Path) -> tuple[Pool, FloatArray, FloatArray]:
    """The questions, and tokens of their prompts and of every completion."""
    table = pq.read_table(samples / FILE)
    table = table.filter(pc.match_substring_regex(table["question_id"], f"^({'|'.join(EXAMS)})"))
    with TemporaryDirectory() as place:
        pq.write_table(table, Path(place, "part.parquet"))
        import_samples(Path(place, "part.parquet"), Path(place, "run"))
        run = Run(Path(place, "run"))
        pool, recorded = read_pool(run), encode_samples(run.samples())
    length = recorded.column("completion_chars")
    length = np.where(np.isnan(length), np.nanmean(length), length) / CHARACTERS
    prompt = np.array([len(text or "") for text in recorded.text]) / CHARACTERS
    return pool, prompt, length


def set_scene(scene: Scene, pool: Pool, prompt: FloatArray, length: FloatArray) -> Pool:
    """Cost of draws and of rounds, as money over a thousand questions.

    Where prompts are cached, what the first call pays above that is the same for every policy, and
    left out.
    """
    tokens = prompt if scene.longer is None else np.full(len(prompt), scene.longer * length.mean())
    price = scene.token_prices.cached_input if scene.cached else scene.token_prices.input
    sent, drawn = tokens * (price or 0.0) / 1e3, length * scene.token_prices.output / 1e3
    if scene.native_n:
        return replace(pool, sample_cost=drawn, round_cost=sent)
    return replace(pool, sample_cost=drawn + sent[pool.answers.question])


def fit_careless(experiment: Experiment, train: IntArray) -> FittedPolicy:
    """Fit the sequential policy as if rounds were for nothing: one draw at a time."""
    fitted = POLICY_FACTORIES["sequential"](experiment, train)
    assert isinstance(fitted.policy, SequentialPolicy)
    return replace(fitted, policy=replace(fitted.policy, round_cost=0.0, _plans={}))


def score(experiment: Experiment, name: str) -> Curve:
    """Score a policy on questions held out."""
    family = fit_careless if name.endswith("free") else POLICY_FACTORIES[name]
    splits = split_folds(assign_folds(experiment.pool.group, FOLDS, seed=SEED))
    return cross_validate(experiment, family, splits)


def budgets_of(pool: Pool) -> dict[int, float]:
    """What so many draws in one call cost on average."""
    each, fee = float(pool.mean_sample_cost().mean()), float(pool.round_costs.mean())
    return {n: each * n + fee for n in ALIKE}


def compare_calls(pool: Pool, prompt: FloatArray, length: FloatArray) -> None:
    """Print accuracy and rounds of every policy in every scene."""
    weights = bootstrap_weights(pool.group, RESAMPLINGS, seed=SEED)
    print("accuracy, in brackets rounds, at the money of n =", *ALIKE)
    for scene in SCENES:
        paid = set_scene(scene, pool, prompt, length)
        budgets = budgets_of(paid)
        experiment = Experiment(paid, LEVELS, tuple(budgets.values()), ORDERS, SEED)
        fee = float(paid.round_costs.mean() / paid.mean_sample_cost().mean())
        print(f"\n{scene.name}: a round costs {fee:.2f} draws beside its own")
        curves = {name: score(experiment, name) for name in (*POLICIES, "sequential")}
        for name, curve in curves.items():
            read = [read_curve(curve, budget, weights) for budget in budgets.values()]
            ours = [read_curve(curves["sequential"], b, weights) for b in budgets.values()]
            cells = [f"{100 * r.accuracy:.1f} ({r.n_rounds:.1f})" for r in read]
            gap = np.mean([o.resampled - r.resampled for o, r in zip(ours, read, strict=True)], 0)
            mean = np.mean([o.accuracy - r.accuracy for o, r in zip(ours, read, strict=True)])
            low, high = np.quantile(gap, [0.025, 0.975])
            told = f"sequential {100 * mean:+.2f} [{100 * low:+.2f}, {100 * high:+.2f}]"
            print(f"| {name} |", " | ".join(cells), f"| {told} |", flush=True)


def print_surface(pool: Pool) -> None:
    """Print accuracy, cost and rounds of one policy by rounds allowed and budget, in samples."""
    weights = bootstrap_weights(pool.group, RESAMPLINGS, seed=SEED)
    budgets = (1.5, 2.0, 3.0, 4.0, 6.0)
    print("\n| rounds |", " | ".join(f"B = {b:g}" for b in budgets), "|")
    known: dict[bytes, FittedPolicy] = {}

    def fit_once(experiment: Experiment, train: IntArray) -> FittedPolicy:
        return known.setdefault(
            train.tobytes(),
            known.get(train.tobytes()) or POLICY_FACTORIES["sequential"](experiment, train),
        )

    whole = Experiment(pool, LEVELS, budgets, ORDERS, SEED)
    splits = split_folds(assign_folds(pool.group, FOLDS, seed=SEED))
    for rounds in (1, 2, 3, 4, UNLIMITED_ROUNDS):
        experiment = replace(whole, max_rounds=rounds, _rule_results={})
        curve = cross_validate(experiment, partial(fit_once), splits)
        read = [read_curve(curve, budget, weights) for budget in budgets]
        cells = [f"{100 * r.accuracy:.1f} ({r.n_rounds:.2f})" for r in read]
        name = "any" if rounds == UNLIMITED_ROUNDS else str(rounds)
        print(f"| {name} |", " | ".join(cells), "|", flush=True)
    mixture = score(whole, "mixture")
    cells = [f"{100 * read_curve(mixture, b, weights).accuracy:.1f}" for b in budgets]
    print("| mixture |", " | ".join(cells), "|")


def main() -> None:
    """Read the exams, and print both tables."""
    pool, prompt, length = read_exams(Path(sys.argv[1]))
    print(f"{len(pool)} questions, prompts {prompt.mean():.0f}, completions {length.mean():.0f}")
    print_surface(pool)
    compare_calls(pool, prompt, length)


if __name__ == "__main__":
    main()
