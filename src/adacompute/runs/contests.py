"""Contests: the stages that fit policies to a run and score them on it.

They work as the stages before them do: artifacts in, one artifact out, its manifest last. What is
fitted goes into a bundle, which the user names; what is scored stays in the run.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from adacompute.core.errors import ConfigError, DataError
from adacompute.evaluation.families import Contest, find_family
from adacompute.evaluation.paper import evaluate_paper
from adacompute.evaluation.pool import Pool
from adacompute.evaluation.scores import evaluate
from adacompute.features.text import FEATURE_SETS, VERSION, extract
from adacompute.policies.bundle import Bundle, save_bundle
from adacompute.runs.costs import draw_costs
from adacompute.runs.stages import DEFAULT_LADDER, check_levels, quiet
from adacompute.storage.manifest import hash_file, read_manifest
from adacompute.storage.store import GRADES, SAMPLES, Run, number_samples

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

EVALUATION = "evaluation.json"
DEFAULT_BUDGETS = (1.5, 2.0, 3.0, 4.0, 6.0)
ORDERS = 40


def pool_run(place: Run, *, unit: str, features: str = "paper", draft: bool = False) -> Pool:
    """Return the samples of a run with all that a policy may know.

    With ``draft`` the first sample's log-probability is a feature, as in the paper; it is then
    known before anything is paid for, so honest scores do without it.
    """
    recorded = number_samples(place.samples())
    logprob = recorded.numbers("mean_logprob")[recorded.first_samples()] if draft else None
    text = pa.array(recorded.text, pa.string())
    return Pool(
        answers=recorded.answers,
        key=recorded.key,
        group=recorded.group,
        features=extract(text, features=features, draft_logprob=logprob),
        draw_cost=draw_costs(recorded, unit),
        length_feature=FEATURE_SETS[features].index("prompt_length_chars"),
    )


def train_run(
    run: Path,
    *,
    policy: str,
    out: Path,
    ladder: Sequence[int] = DEFAULT_LADDER,
    budgets: Sequence[float] = DEFAULT_BUDGETS,
    unit: str = "samples",
    features: str = "paper",
    classifier: str = "gbm",
    cost_sensitive: bool = False,
    model: str | None = None,
    grader: str | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Fit a policy to all questions of a run and write its bundle."""
    family = find_family(policy)
    place = Run(run)
    pool = pool_run(place, unit=unit, features=features).even()
    most = int(pool.answers.samples[0])
    samples = tuple(n for n in check_levels(ladder) if n <= most)
    if not samples:
        raise DataError(f"{most} samples a question are fewer than the ladder's first level")
    contest = Contest(
        pool,
        samples,
        tuple(budgets),
        orders=ORDERS,
        seed=seed,
        classifier=classifier,
        cost_sensitive=cost_sensitive,
    )
    every = np.arange(len(pool))
    fitted = family(contest, every)
    told = contest.draw_cost(every)
    runs = [
        (price, contest.replay.run(fitted.policy, price, draw_cost=told)) for price in fitted.prices
    ]
    imported = read_manifest(place.file("import.manifest.json"))
    known = imported.result if imported else {}
    bundle = Bundle(
        policy=fitted.policy,
        unit=unit,
        features=features,
        feature_version=VERSION,
        model=model or known.get("model"),
        grader=grader or known.get("grader"),
        data=hash_file(place.file(SAMPLES)),
        notes={"questions": len(pool), "policy": policy},
    )
    save_bundle(bundle, out)
    return {
        "policy": policy,
        "out": str(out),
        "questions": len(pool),
        "levels": [level.samples for level in fitted.policy.levels],
        "model": bundle.model,
        "grader": bundle.grader,
        "unit": unit,
        "on_training_questions": [
            {"price": price, "cost": float(r.cost.mean()), "accuracy": float(r.accuracy.mean())}
            for price, r in runs
        ],
    }


def evaluate_run(
    run: Path,
    *,
    budgets: Sequence[float] = DEFAULT_BUDGETS,
    ladder: Sequence[int] = DEFAULT_LADDER,
    policies: Sequence[str] | None = None,
    nulls: bool = True,
    protocol: str = "honest",
    unit: str = "samples",
    features: str = "paper",
    seed: int = 0,
    progress: Callable[[str], None] = quiet,
) -> dict[str, Any]:
    """Score policies on questions they have not seen, or by the paper's own protocol."""
    if protocol not in ("honest", "paper"):
        raise ConfigError(f"protocol is 'honest' or 'paper', not {protocol!r}")
    if features not in FEATURE_SETS:
        raise ConfigError(f"features are one of {', '.join(FEATURE_SETS)}, not {features!r}")
    place = Run(run)
    arguments = {
        "budgets": list(budgets),
        "ladder": list(check_levels(ladder)),
        "policies": None if policies is None else list(policies),
        "nulls": nulls,
        "protocol": protocol,
        "unit": unit,
        "features": features,
        "seed": seed,
    }
    done = place.finished("evaluate", arguments, [SAMPLES, GRADES])
    if done:
        return done.result
    pool = pool_run(place, unit=unit, features=features, draft=protocol == "paper")
    result: dict[str, Any] = {"protocol": protocol, "unit": unit, "nulls": nulls}
    if protocol == "paper":
        result["rows"] = evaluate_paper(pool, budgets=budgets, progress=progress)
        result["questions"] = len(pool)
    else:
        scores = evaluate(
            pool,
            budgets=budgets,
            ladder=ladder,
            policies=policies,
            nulls=nulls,
            seed=seed,
            progress=progress,
        )
        result |= {
            "questions": scores.questions,
            "left_out": scores.left_out,
            "samples": scores.samples,
            "ladder": list(scores.ladder),
            "rows": scores.rows,
        }
    result["unreadable_share"] = float((pool.answers.answer == -1).mean())
    place.finish(
        "evaluate",
        arguments=arguments,
        inputs=[SAMPLES, GRADES],
        outputs={EVALUATION: result},
        result=result,
    )
    return result
