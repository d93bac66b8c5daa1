"""Same answer: the stage that replaces today's N samples by a vote that stops early.

It chooses how large a lead must be, writes the bundle of that rule, and says how often its answer
is the one of all N samples. It uses no grades.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from adacompute.core.errors import ConfigError
from adacompute.evaluation.costs import CostModel
from adacompute.evaluation.experiment import Experiment, FittedPolicy
from adacompute.evaluation.intervals import CONFIDENCE
from adacompute.evaluation.scoring.same_answer import (
    NAME,
    PRICE,
    SHARE,
    compare_with_today,
    keep_complete,
    make_policy,
)
from adacompute.evaluation.scoring.today import Today, read_today
from adacompute.evaluation.scoring.verdict import round_up
from adacompute.options.shared import TodayOptions
from adacompute.policies.bundles.bundle import FrontierPoint, save_bundle
from adacompute.policies.stopping import VoteLeadRule
from adacompute.stages.inputs import (
    check_seed,
    describe_subsample,
    make_pool,
    read_recorded,
    token_prices_of,
)
from adacompute.stages.train import describe_samples, make_bundle
from adacompute.storage.store import Run

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from adacompute.evaluation.pool import Pool
    from adacompute.stages.train import TrainOptions


def read_count(today: str | int) -> int:
    """Return today's number of samples; without grades it is nothing but a number."""
    found = read_today(today)
    if found != Today(found.n_samples):
        raise ConfigError(
            f"--today {today} needs grades, because votes are weighted and arms compared by them: "
            "without grades give --today N, the number of samples"
        )
    return found.n_samples


def state_same_answer(
    pool: Pool,
    today: TodayOptions,
    options: TrainOptions,
    *,
    share: float = SHARE,
    confidence: float = CONFIDENCE,
) -> dict[str, Any]:
    """Return what the cheapest lead that keeps enough answers saves; no grade is used."""
    wanted = read_count(today.today)
    n_samples = min(wanted, int(pool.answers.n_samples.max(initial=1)))
    known: dict[str, Any] = {"confidence": confidence, "seed": check_seed(options.seed)}
    found = compare_with_today(pool, n_samples, share=share, **known)
    found["wanted_samples"] = wanted
    return found | {"sentence": describe_same_answer(found, options.unit)}


def fit_same_answer(
    run: Path,
    today: TodayOptions,
    options: TrainOptions,
    *,
    share: float = SHARE,
    confidence: float = CONFIDENCE,
) -> dict[str, Any]:
    """Write the bundle of the cheapest lead that keeps enough answers, and return what it saves."""
    store, unit, out = Run(run), options.unit, options.out
    costs = CostModel(unit, token_prices_of(options, run))
    recorded = read_recorded(store, need_grades=False)
    pool = make_pool(recorded, costs=costs)
    found = state_same_answer(pool, today, options, share=share, confidence=confidence)
    n_samples = found["samples"]
    result = _as_calibration(found)
    fitted = FittedPolicy(
        make_policy(VoteLeadRule(found["lead"], n_samples)), (PRICE,), pool.features
    )
    notes: dict[str, Any] = {
        "policy": NAME,
        "features": "paper",
        "costs": costs.to_dict(),
        "calibration": result,
    }
    notes |= {"questions": found["questions"], **describe_subsample(recorded)}
    source = describe_samples(store, fitted, options.model, options.grader)
    experiment = Experiment(keep_complete(pool, n_samples), (n_samples,))
    source |= {"unit": unit, "frontier": (_frontier(result),)}
    bundle = make_bundle(experiment, fitted, notes, **source)
    where = {"bundle": str(out), "bundle_digest": save_bundle(bundle, out)}
    return {
        "policy": NAME,
        **where,
        "unit": unit,
        **result,
        "graded": store.is_graded,
        "report": None,
    }


def _as_calibration(found: dict[str, Any]) -> dict[str, Any]:
    """Return what a bundle records of its calibration: the verdict, and the budget to use."""
    copied = {name: found[name] for name in ("verdict", "advice", "rounds", "confidence")}
    return {
        **copied,
        "budget": round_up(found["delivered_cost"]),
        "price": PRICE,
        **{name: found[f"delivered_{name}"] for name in ("cost", "cost_low", "cost_high")},
        "questions": found["questions"],
        "today": found,
    }


def _frontier(result: Mapping[str, Any]) -> FrontierPoint:
    """Return the only point of the policy; its accuracy is not known."""
    names = ("budget", "price", "cost", "cost_low", "cost_high", "rounds")
    known: dict[str, Any] = {name: result[name] for name in names}
    return FrontierPoint(**known, accuracy=None, accuracy_low=None, accuracy_high=None)


def describe_same_answer(today: Mapping[str, Any], unit: str) -> str:
    """Return what is saved, and how often the answer is the same, in one sentence."""
    size, saving = today["samples"], round(100 * today["delivered_saving"])
    noun = "sample" if size == 1 else "samples"
    if unit == "samples":
        change = f"{size} {noun} → {today['delivered_cost']:.1f} per question"
    else:
        costs = (f"{today[name]:.4g}" for name in ("cost", "delivered_cost"))
        change = f"{size} {noun}: {' → '.join(costs)} {unit} per question"
    if today["same_answer_low"] == 1:
        same = f"always the same answer as {size}, so accuracy does not change"
    else:
        low = math.floor(1000 * today["same_answer_low"] + 1e-9) / 10
        same = (
            f"same answer as {size} in {100 * today['same_answer']:.1f} % (at least {low:.1f} %), "
            f"so accuracy changes by at most {100 - low:.1f} points"
        )
    return f"{change}: {saving} % less; {same}, whatever the right answers are."
