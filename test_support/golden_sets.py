"""Golden sets: recorded samples and the policies fitted to them, for golden tests of decisions.

A set is a small file of recorded samples. A variant is a policy and the conditions under which it
is fitted and run. Both are fitted by the stages that the command line runs, once per process. It
knows nothing of the paths that decide.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from adacompute.datasets.example import find_example
from adacompute.evaluation.costs import CostModel
from adacompute.evaluation.experiment import Experiment
from adacompute.evaluation.factories import TRAINABLE
from adacompute.models.messages import Settings
from adacompute.models.templates import Template
from adacompute.options.shared import ALL_EVIDENCE
from adacompute.policies.bundles.arm_settings import ArmSettings
from adacompute.policies.bundles.bundle import Bundle, FrontierPoint, load_bundle, save_bundle
from adacompute.policies.episode import UNLIMITED_ROUNDS
from adacompute.stages.calibrate import calibrate_run
from adacompute.stages.import_samples import import_samples
from adacompute.stages.inputs import (
    VOTES,
    read_pool,
)
from adacompute.stages.train import train_run
from adacompute.storage.store import Run

DATA = Path(__file__).parents[1] / "tests" / "data" / "golden"
PRICES = (0.1, 0.0316, 0.01, 0.00316, 0.001)
LEVELS, BUDGETS, BUDGET = (1, 2, 4, 8), (2.0, 4.0), 2.0
"""Levels, and budgets in samples of the cheapest arm, as prices are."""

N_PERMUTATIONS = 8
"""Random orders per question in calibrations: fewer than by default, which saves time."""


@dataclass(frozen=True)
class Variant:
    """A policy, and the conditions under which it is fitted and run."""

    policy: str
    evidence: str = VOTES
    max_rounds: int | None = None


@dataclass(frozen=True)
class GoldenSet:
    """A file of samples, the cost of a sample of its cheapest arm, and what is done with it.

    ``calibrated`` are the variants that are calibrated as well, which takes most of the time.
    """

    path: Path
    grader: str
    variants: tuple[str, ...]
    calibrated: tuple[str, ...]
    unit: str = "samples"
    sample_cost: float = 1.0
    arms: tuple[str, ...] = field(default=())

    @property
    def prices(self) -> tuple[float, ...]:
        """Prices per unit of cost."""
        return tuple(price / self.sample_cost for price in PRICES)


VARIANTS = {
    **{name: Variant(name) for name in TRAINABLE},
    "sequential-two-rounds": Variant("sequential", max_rounds=2),
    "mixture-confidence": Variant("mixture", evidence=ALL_EVIDENCE),
    "sequential-confidence": Variant("sequential", evidence=ALL_EVIDENCE),
}
PLAIN = tuple(TRAINABLE)
ROUNDS = ("sequential-two-rounds",)
CONFIDENT = ("mixture-confidence", "sequential-confidence")
OVER_ARMS = ("mixture", "sequential", *CONFIDENT)
SETS = {
    "example": GoldenSet(
        find_example(),
        "numeric",
        (*PLAIN, *ROUNDS, *CONFIDENT),
        tuple(name for name in PLAIN if name != "router"),
    ),
    "arith110": GoldenSet(
        DATA / "arith110.parquet", "numeric", (*PLAIN, *CONFIDENT), (*PLAIN, *CONFIDENT)
    ),
    "svamp144": GoldenSet(
        DATA / "svamp144.parquet",
        "numeric",
        OVER_ARMS,
        OVER_ARMS,
        unit="tokens",
        sample_cost=18.0,
        arms=("short", "cot"),
    ),
    "mcqa": GoldenSet(DATA / "mcqa.parquet", "exact", (*PLAIN, *ROUNDS), PLAIN),
}


@cache
def _workspace() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="golden-")


@cache
def import_set(name: str) -> Path:
    """Import a set into a run, once; a missing file is an error."""
    run = Path(_workspace().name, name)
    import_samples(SETS[name].path, run)
    return run


@cache
def fit(name: str, variant: str) -> Path:
    """Train a variant on all questions of a set, once; return its bundle."""
    one, golden = VARIANTS[variant], SETS[name]
    out = Path(_workspace().name, f"{name}.{variant}")
    train_run(
        import_set(name),
        policy=one.policy,
        out=out,
        levels=LEVELS,
        budgets=[golden.sample_cost * budget for budget in BUDGETS],
        unit=golden.unit,
        evidence=one.evidence,
        grader=golden.grader,
    )
    return out


@cache
def load_served(name: str, variant: str) -> Bundle:
    """Return a fitted variant as it is served: a budget of 1, 2, … has the first, second … price.

    Whether and how it was calibrated makes no difference.
    """
    golden, bundle = SETS[name], load_bundle(fit(name, variant))
    frontier = tuple(
        FrontierPoint(b * golden.sample_cost, price, b * golden.sample_cost, *[0.0] * 6)
        for b, price in enumerate(golden.prices, 1)
    )
    arms: tuple[ArmSettings, ...] = ()
    if len(bundle.policy.arms) > 1:
        settings, template = Settings(max_tokens=500), Template("{question}")
        arms = tuple(ArmSettings(arm, arm, template, settings) for arm in bundle.policy.arms)
    return replace(
        bundle,
        model="model",
        frontier=frontier,
        pooled_frontier=(),
        max_rounds=VARIANTS[variant].max_rounds,
        arms=arms,
        notes={"policy": bundle.notes["policy"]},
    )


def calibrate(name: str, variant: str) -> dict[str, Any]:
    """Calibrate a variant on a set; return what calibration found."""
    golden, bundle = SETS[name], load_bundle(fit(name, variant))
    path = Path(_workspace().name, f"{name}.{variant}.calibrated")
    settings = bundle.notes["experiment"] | {"n_permutations": N_PERMUTATIONS}
    save_bundle(replace(bundle, notes=bundle.notes | {"experiment": settings}), path)
    return calibrate_run(import_set(name), bundle=path, budget=BUDGET * golden.sample_cost)


def open_experiment(name: str, variant: str) -> Experiment:
    """Return the questions of a set as a variant sees them, with one random order of each."""
    one, golden = VARIANTS[variant], SETS[name]
    costs = CostModel(golden.unit)
    run = Run(import_set(name))
    pool = read_pool(run, costs=costs).equalise()
    return Experiment(
        pool,
        LEVELS,
        n_permutations=1,
        max_rounds=one.max_rounds or UNLIMITED_ROUNDS,
        use_confidence=one.evidence == ALL_EVIDENCE,
    )


@dataclass(frozen=True)
class Question:
    """A question, and its samples of each arm in recorded order."""

    text: str
    samples: dict[str, list[dict[str, Any]]]


@cache
def read_questions(name: str, n: int) -> Sequence[Question]:
    """Return some questions of a set, spread over all; an id stands in for a text that is missing.

    Samples of a set without arms are those of the arm "model".
    """
    found: dict[str, Question] = {}
    columns = ["question_id", "question", "arm", "answer", "mean_logprob", "completion_tokens"]
    rows = Run(import_set(name)).samples().select(columns).to_pylist()
    for row in rows:
        text = row["question"] or row["question_id"]
        arm = row["arm"] if SETS[name].arms else "model"
        question = found.setdefault(row["question_id"], Question(text, {}))
        question.samples.setdefault(arm, []).append(row)
    chosen = np.linspace(0, len(found) - 1, n).astype(int).tolist()
    listed = list(found.values())
    return [listed[i] for i in chosen]
