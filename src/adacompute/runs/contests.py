"""Contests: the stages that fit policies to a run and score them on it.

They work as the stages before them do: artifacts in, one artifact out, its manifest last. What is
fitted goes into a bundle, which the user names; what is scored stays in the run.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from adacompute.core.answers import NULL
from adacompute.core.errors import ConfigError, DataError, MissingExtra, require
from adacompute.evaluation.curves import run_fitted
from adacompute.evaluation.families import FAMILIES, ROUTERS, Contest, Fitted, find_family
from adacompute.evaluation.paper import evaluate_paper
from adacompute.evaluation.pool import Pool
from adacompute.evaluation.scores import ORACLES, evaluate
from adacompute.features.text import FEATURE_SETS, VERSION, extract
from adacompute.policies.bundle import Bundle, save_bundle
from adacompute.runs.costs import Prices, describe_prices, draw_costs, read_prices
from adacompute.runs.stages import DEFAULT_LADDER, check_levels, quiet
from adacompute.storage.store import GRADES, SAMPLES, Run, number_samples

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

EVALUATION = "evaluation.json"
DEFAULT_BUDGETS = (1.5, 2.0, 3.0, 4.0, 6.0)
ORDERS = 40
SEEDS = 2**32
LEARNED = (*ROUTERS, "sequential")
TRAINING = ("xgboost", "onnx", "onnxruntime", "sklearn")
"""What learned policies need beyond the base install."""

PROTOCOLS = {
    "honest": (*FAMILIES, *ORACLES),
    "paper": ("fixed", "random", "longest-first", "router", "oracle-in-sample"),
}
"""Policies that each protocol scores."""


def pool_run(
    place: Run,
    *,
    unit: str,
    prices: Prices | None = None,
    features: str = "paper",
    draft: bool = False,
) -> Pool:
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
        draw_cost=draw_costs(recorded, unit, prices),
        length_feature=FEATURE_SETS[features].index("prompt_length_chars"),
        words=extract(text, features="words"),
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
    family, ladder, place = find_family(policy), check_levels(ladder), Run(run)
    pool = pool_run(place, unit=unit, features=features).even()
    settings: dict[str, Any] = {
        "samples": _within(pool, ladder),
        "budgets": check_budgets(budgets),
        "classifier": classifier,
        "cost_sensitive": cost_sensitive,
        "seed": check_seed(seed),
    }
    contest = Contest(pool, orders=ORDERS, **settings)
    fitted = family(contest, np.arange(len(pool)))
    about = {"policy": policy, "questions": len(pool)}
    rows, known = _rerun(contest, fitted), _known(place)
    bundle = Bundle(
        policy=fitted.policy,
        unit=unit,
        features="words" if policy == "sequential" else features,
        feature_version=VERSION,
        model=model or known.get("model"),
        grader=grader or known.get("grader"),
        data=hash_run(place),
        notes={**about, "features": features, "contest": settings},
    )
    save_bundle(bundle, out)
    return {
        **about,
        "out": str(out),
        "levels": [level.samples for level in fitted.policy.levels],
        "model": bundle.model,
        "grader": bundle.grader,
        "unit": unit,
        "on_training_questions": rows,
    }


def hash_run(place: Run) -> str:
    """Hash what a policy is fitted to."""
    return "+".join(place.hashes([SAMPLES, GRADES]).values())


def _within(pool: Pool, ladder: tuple[int, ...]) -> tuple[int, ...]:
    """Levels for which there are enough samples."""
    most = int(pool.answers.samples[0])
    kept = tuple(n for n in ladder if n <= most)
    if not kept:
        raise DataError(f"{most} samples a question are fewer than the ladder's first level")
    return kept


def _known(place: Run) -> dict[str, Any]:
    """Model and grader that a run was imported with, and the grader that graded it last."""
    imported, graded = place.manifest(place.source), place.manifest("grade")
    known = dict(imported.result) if imported else {}
    return known | (graded.arguments if graded else {})


def _rerun(contest: Contest, fitted: Fitted) -> list[dict[str, float]]:
    """Cost and accuracy of a policy along its prices on the questions it was fitted to."""
    told = contest.draw_cost(np.arange(len(contest.pool)))
    rows = []
    for price in fitted.prices:
        ran = run_fitted(contest, fitted, price, told)
        cost, accuracy = float(ran.cost.mean()), float(ran.accuracy.mean())
        rows.append({"price": price, "cost": cost, "accuracy": accuracy})
    return rows


def evaluate_run(
    run: Path,
    *,
    budgets: Sequence[float] = DEFAULT_BUDGETS,
    ladder: Sequence[int] = DEFAULT_LADDER,
    policies: Sequence[str] | None = None,
    nulls: bool = True,
    protocol: str = "honest",
    unit: str = "samples",
    tariff: Path | None = None,
    features: str = "paper",
    rounds: int | None = None,
    round_cost: float = 0.0,
    seed: int = 0,
    progress: Callable[[str], None] = quiet,
) -> dict[str, Any]:
    """Score policies on questions they have not seen, or by the paper's own protocol.

    Without ``policies`` those are left out for which an optional dependency is missing, and the
    result says so. ``rounds`` is how often a question may be drawn for, ``round_cost`` what each
    time costs beside the draws.
    """
    place, prices = Run(run), read_prices(tariff, [unit])
    names, skipped = _contestants(policies, protocol)
    arguments = {
        "budgets": list(check_budgets(budgets)),
        "ladder": list(check_levels(ladder)),
        "policies": names,
        "nulls": nulls,
        "protocol": protocol,
        "unit": unit,
        "prices": describe_prices(prices),
        "features": features,
        **_check_rounds(rounds, round_cost, protocol),
        "seed": check_seed(seed),
    }
    inputs = place.hashes([SAMPLES, GRADES])
    done = place.finished("evaluate", arguments, inputs)
    if done:
        return done.result
    draft = protocol == "paper"
    pool = pool_run(place, unit=unit, prices=prices, features=features, draft=draft)
    pool = replace(pool, round_cost=round_cost)
    result = _score(pool, arguments, progress) | {"skipped": skipped}
    outputs = {EVALUATION: result}
    place.finish("evaluate", arguments=arguments, inputs=inputs, outputs=outputs, result=result)
    return result


def _check_rounds(rounds: int | None, round_cost: float, protocol: str) -> dict[str, Any]:
    """What was asked about rounds, or a refusal."""
    if rounds is not None and rounds < 1:
        raise ConfigError(f"a question needs at least one round, not {rounds}")
    if not (np.isfinite(round_cost) and round_cost >= 0):
        raise ConfigError(f"a round costs a finite number from 0 on, not {round_cost}")
    if protocol == "paper" and (rounds is not None or round_cost):
        raise ConfigError("the paper's protocol knows no rounds: use the honest one")
    return {"rounds": rounds, "round_cost": round_cost}


def _score(
    pool: Pool, arguments: dict[str, Any], progress: Callable[[str], None]
) -> dict[str, Any]:
    """Score by the protocol that was asked for, and say on what."""
    score = _score_as_paper if arguments["protocol"] == "paper" else _score_honestly
    return {
        **{name: arguments[name] for name in ("protocol", "unit", "nulls")},
        **score(pool, arguments, progress),
        "unreadable_share": float((pool.answers.answer == NULL).mean()),
    }


def _score_honestly(
    pool: Pool, arguments: dict[str, Any], progress: Callable[[str], None]
) -> dict[str, Any]:
    wanted = ("budgets", "ladder", "policies", "nulls", "rounds", "seed")
    scores = evaluate(pool, **{name: arguments[name] for name in wanted}, progress=progress)
    return {
        "questions": scores.questions,
        "left_out": scores.left_out,
        "samples": scores.samples,
        "ladder": list(scores.ladder),
        "rows": scores.rows,
    }


def _score_as_paper(
    pool: Pool, arguments: dict[str, Any], progress: Callable[[str], None]
) -> dict[str, Any]:
    even = pool.even(nulls=arguments["nulls"])
    if not even.draw_cost.any():
        raise DataError("the samples cost nothing at all: use another unit")
    rows = evaluate_paper(even, budgets=arguments["budgets"], progress=progress)
    return {
        "questions": len(even),
        "left_out": even.left_out,
        "rows": [row for row in rows if row["policy"] in arguments["policies"]],
    }


def _contestants(policies: Sequence[str] | None, protocol: str) -> tuple[list[str], dict[str, str]]:
    """Policies to score, and those that are left out with the reason."""
    if protocol not in PROTOCOLS:
        raise ConfigError(f"protocol is 'honest' or 'paper', not {protocol!r}")
    known = PROTOCOLS[protocol]
    if policies is not None:
        for name in policies:
            if name not in known:
                raise ConfigError(f"there is no policy {name!r}; there are {', '.join(known)}")
        return list(dict.fromkeys(policies)), {}
    missing = None if protocol == "paper" else _missing()
    skipped = {name: missing for name in LEARNED if missing}
    return [name for name in known if name not in skipped], skipped


def _missing() -> str | None:
    """What a learned model lacks here, in one sentence."""
    try:
        for module in TRAINING:
            if find_spec(module) is None:  # importing them takes seconds
                require(module, extra="train")
    except MissingExtra as error:
        return str(error)
    return None


def check_budgets(budgets: Sequence[float]) -> tuple[float, ...]:
    """Return budgets by rising size, or refuse them."""
    for budget in budgets:
        if not (np.isfinite(budget) and budget > 0):
            raise ConfigError(f"a budget is a finite number above 0, not {budget}")
    if not budgets:
        raise ConfigError("no budget is given: name at least one")
    return tuple(sorted({float(budget) for budget in budgets}))


def check_seed(seed: int) -> int:
    """Return a seed that every generator takes, or refuse it."""
    if not 0 <= seed < SEEDS:
        raise ConfigError(f"a seed is a whole number from 0 to {SEEDS - 1}, not {seed}")
    return seed
