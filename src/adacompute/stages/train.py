"""Train: the stage that fits a policy to all questions of a run and writes its bundle.

The bundle records how the policy was fitted, so that `calibrate` can refit it on folds of the
questions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from adacompute.core.answers import UNPARSED
from adacompute.core.errors import DataError
from adacompute.core.progress import no_progress
from adacompute.evaluation.costs import CostModel
from adacompute.evaluation.experiment import Experiment, FittedPolicy
from adacompute.evaluation.factories import find_trainable
from adacompute.evaluation.pool import Pool
from adacompute.evaluation.run_results import RunResults
from adacompute.features.text import VERSION
from adacompute.options.definition import takes
from adacompute.options.shared import ALL_EVIDENCE, CostOptions, LevelOptions
from adacompute.policies.bundles.arm_settings import ArmSettings
from adacompute.policies.bundles.baseline import Baseline
from adacompute.policies.bundles.bundle import Bundle, save_bundle
from adacompute.policies.sequential.prior import response_profile
from adacompute.stages.inputs import (
    check_evidence,
    check_levels,
    check_seed,
    describe_source,
    describe_subsample,
    find_arms,
    find_settings,
    find_template,
    hash_run,
    make_pool,
    read_recorded,
    resolve_budgets,
    token_prices_of,
)
from adacompute.storage.store import Run

if TYPE_CHECKING:
    from collections.abc import Callable

    from adacompute.core.types import Float32Array

CELL_SHRINKAGE = 4.0
"""Questions of prior weight that the mean cost of a cell has."""


@dataclass(frozen=True, kw_only=True)
class TrainOptions(LevelOptions, CostOptions):
    """Which policy is fitted, and to what; ``out`` is the directory of its bundle.

    ``budgets`` are those of the paper's router, and ``native_n`` is whether a round is one call.
    """

    policy: str
    out: Path
    native_n: bool = False
    evidence: str = ALL_EVIDENCE
    model: str | None = None
    grader: str | None = None
    seed: int = 0
    budgets: Sequence[float] | None = None


@takes(TrainOptions)
def train_run(
    run: Path,
    options: TrainOptions,
    *,
    min_budget: float = math.inf,
    results: RunResults | None = None,
    progress: Callable[[str], None] = no_progress,
) -> str:
    """Fit a policy to all questions of a run and write its bundle if it holds ``min_budget``.

    The digest of the bundle is returned.
    """
    policy, unit, out, store = options.policy, options.unit, options.out, Run(run)
    factory, levels = find_trainable(policy), check_levels(options.levels)
    costs = CostModel(unit, token_prices_of(options, run), options.native_n)
    recorded = read_recorded(store)
    pool = make_pool(recorded, costs=costs).equalise()
    pool.check_budget(min_budget)
    kept = limit_levels(pool, levels)
    settings: dict[str, Any] = {
        "levels": kept,
        "budgets": resolve_budgets(recorded, costs, options.budgets),
        "seed": check_seed(options.seed),
        "use_confidence": check_evidence(options.evidence) == ALL_EVIDENCE,
    }
    experiment = (results or RunResults.of(run)).share(
        Experiment(pool, progress=progress, **settings)
    )
    fitted = check_choice(experiment.fit_final(factory), pool, levels)
    about = {"policy": policy, "questions": len(pool), **describe_subsample(recorded)}
    fit = {"features": "paper", "experiment": settings, "costs": costs.to_dict()}
    source = describe_samples(store, fitted, options.model, options.grader)
    return save_bundle(make_bundle(experiment, fitted, about | fit, unit=unit, **source), out)


def _find_arms(source: dict[str, Any], fitted: FittedPolicy) -> tuple[ArmSettings, ...]:
    """Return how the arms of a policy were collected, if it has several."""
    arms = fitted.policy.arms
    return find_arms(source, arms) if arms else ()


def describe_samples(
    store: Run, fitted: FittedPolicy, model: str | None, grader: str | None
) -> dict[str, Any]:
    """Return what a bundle records of where its samples come from."""
    source = describe_source(store)
    return {
        "model": model or source.get("model"),
        "grader": grader or source.get("grader"),
        "template": find_template(source),
        "settings": find_settings(source),
        "data_hash": hash_run(store),
        "arms": _find_arms(source, fitted),
    }


def make_bundle(
    experiment: Experiment,
    fitted: FittedPolicy,
    notes: dict[str, Any],
    **known: Any,  # noqa: ANN401 - further fields of the bundle
) -> Bundle:
    """Return a bundle of a fitted policy, with the costs and the baseline of its questions."""
    return Bundle(
        features="words" if notes["policy"] == "sequential" else notes["features"],
        feature_version=VERSION,
        sample_cost=experiment.sample_cost(np.arange(len(experiment.pool))),
        **describe_fit(experiment, fitted, notes),
        **known,
    )


def describe_fit(
    experiment: Experiment, fitted: FittedPolicy, notes: dict[str, Any]
) -> dict[str, Any]:
    """Return the fields of a bundle that depend on the fit of its policy."""
    pool = experiment.pool
    features = pool.sequential_features if notes["policy"] == "sequential" else pool.features
    return {
        "policy": fitted.policy,
        "baseline": _baseline(features, pool, fitted),
        "notes": {**notes, "prices": list(fitted.prices)},
    }


def limit_levels(pool: Pool, levels: tuple[int, ...]) -> tuple[int, ...]:
    """Return the levels for which there are enough samples."""
    n_samples = pool.n_samples
    kept = tuple(n for n in levels if n <= n_samples)
    if not kept:
        raise DataError(
            f"{n_samples} samples per question are fewer than the lowest level, {levels[0]}: "
            "collect more samples, or give lower levels"
        )
    return kept


def check_choice(fitted: FittedPolicy, pool: Pool, levels: tuple[int, ...]) -> FittedPolicy:
    """Return a fitted policy, if it has at least two levels to choose from.

    A mixture may have one efficient level, if there are others.
    """
    can_choose = pool.has_arms or sum(n <= pool.n_samples for n in levels) > 1
    is_mixture = not fitted.policy.needs_choice and can_choose
    if len(fitted.policy.levels) > 1 or is_mixture:
        return fitted
    raise DataError(
        f"{pool.n_samples} samples per question leave one of the levels "
        f"{', '.join(map(str, levels))}, and a policy needs two: collect more samples, or give "
        "more levels or a larger max_samples"
    )


def _baseline(features: Float32Array | None, pool: Pool, fitted: FittedPolicy) -> Baseline | None:
    """Return the baseline of drift: features, agreement and unparsed share of the questions."""
    if features is None:
        return None
    answers = pool.answers
    agree = response_profile(answers, 1)[:, -2]
    read, made = (count * (count - 1.0) for count in (answers.n_parsed, answers.n_samples))
    own = Baseline(
        feature_mean=tuple(features.mean(axis=0, dtype=np.float64).tolist()),
        feature_std=tuple(features.std(axis=0, dtype=np.float64).tolist()),
        agreement=float((agree * made).sum() / max(1.0, read.sum())),
        unparsed=float((answers.answer == UNPARSED).mean()),
        **_cells(fitted),
    )
    return replace(own, distance=float(own.measure_drift(features).mean()))


def _cells(fitted: FittedPolicy) -> dict[str, Any]:
    """Return the share of each cell among the questions, and its mean cost if that is known."""
    policy = fitted.policy
    if not policy.n_cells:
        return {}
    cell = fitted.prepared_features[:, 0].astype(np.int64)
    size = np.bincount(cell, minlength=policy.n_cells)
    found: dict[str, Any] = {"cell_share": tuple((size / len(cell)).tolist())}
    if policy.arms and fitted.known is not None:
        cost, every = fitted.known.cost, fitted.known.cost.mean(axis=0)
        sums = np.stack([np.bincount(cell, one, minlength=len(size)) for one in cost.T])
        # A cell with few questions is shrunk to all of them.
        shrunk = (sums + CELL_SHRINKAGE * every[:, None]) / (size + CELL_SHRINKAGE)
        found["cell_cost"] = tuple(tuple(row) for row in shrunk.tolist())
    return found
