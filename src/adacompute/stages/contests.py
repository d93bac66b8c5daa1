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

from adacompute.core.answers import UNPARSED
from adacompute.core.errors import ConfigError, DataError, MissingExtra, require
from adacompute.evaluation.costs import BY_SAMPLES, Costs, check_budgets, read_token_prices
from adacompute.evaluation.curves import run_fitted
from adacompute.evaluation.factories import (
    POLICY_FACTORIES,
    ROUTERS,
    Experiment,
    FittedPolicy,
    find_factory,
)
from adacompute.evaluation.pool import Pool
from adacompute.evaluation.scores import ORACLES, evaluate
from adacompute.features.text import FEATURE_SETS, VERSION, extract
from adacompute.paper.protocol import evaluate_paper
from adacompute.policies.bundle import Baseline, Bundle, read_template, save_bundle
from adacompute.policies.episode import FIRST_SEEN, LOGPROB, TIE_BREAKS
from adacompute.policies.prior import response_profile
from adacompute.stages.pipeline import DEFAULT_LADDER, check_levels, no_progress
from adacompute.stages.resorts import read_resort
from adacompute.storage.store import GRADES, SAMPLES, Run, encode_samples

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from adacompute.core.types import Float32Array, FloatArray, Level
    from adacompute.storage.store import SampleSet

EVALUATION = "evaluation.json"
DEFAULT_BUDGETS = (1.5, 2.0, 3.0, 4.0, 6.0)
"""In samples; in another unit, times what a sample costs."""

ORDERS = 40
SEEDS = 2**32
FORMAT = 2
"""Version of the scores that are kept in the run."""

LEARNED = (*ROUTERS, "sequential")
TRAINING = ("xgboost", "onnx", "onnxruntime", "sklearn")
"""What learned policies need beyond the base install."""

PROTOCOLS = {
    "honest": (*POLICY_FACTORIES, *ORACLES),
    "paper": ("fixed", "random", "longest-first", "router", "oracle-in-sample"),
}
"""Policies that each protocol scores."""


def pool_run(
    place: Run,
    *,
    costs: Costs = BY_SAMPLES,
    features: str = "paper",
    resort: Path | None = None,
    ties: str = FIRST_SEEN,
    draft: bool = False,
) -> Pool:
    """Return the samples of a run with all that a policy may know, and those of a last resort.

    With ``draft`` the first sample's log-probability is a feature, as in the paper; it is then
    known before anything is paid for, so honest scores do without it.
    """
    recorded = encode_samples(place.samples())
    logprob = recorded.numbers("mean_logprob")[recorded.first_samples()] if draft else None
    text = pa.array(recorded.text, pa.string())
    draw_cost, round_cost = costs.split(recorded)
    likely = _logprobs(recorded) if check_ties(ties) == LOGPROB else None
    return Pool(
        answers=recorded.answers,
        key=recorded.key,
        group=recorded.group,
        features=extract(text, features=features, draft_logprob=logprob),
        draw_cost=draw_cost,
        round_cost=round_cost,
        resort=None if resort is None else read_resort(recorded, Run(resort), costs),
        logprob=likely,
        length_feature=FEATURE_SETS[features].index("prompt_length_chars"),
        words=extract(text, features="words"),
    )


def _logprobs(recorded: SampleSet) -> FloatArray:
    """Mean log-probability of every sample, or a refusal."""
    logprob = recorded.numbers("mean_logprob")
    missing = int(np.isnan(logprob).sum())
    if missing:
        raise DataError(
            f"{missing} of {len(logprob)} samples have no mean_logprob, so ties cannot be broken "
            "by it: leave --ties at 'first'"
        )
    return logprob


def check_ties(ties: str) -> str:
    """Return a known way to break ties, or refuse it."""
    if ties not in TIE_BREAKS:
        raise ConfigError(f"ties are broken by {' or '.join(TIE_BREAKS)}, not {ties!r}")
    return ties


def train_run(
    run: Path,
    *,
    policy: str,
    out: Path,
    ladder: Sequence[int] = DEFAULT_LADDER,
    budgets: Sequence[float] | None = None,
    unit: str = "samples",
    tariff: Path | None = None,
    native_n: bool = False,
    round_cost: float = 0.0,
    resort: Path | None = None,
    ties: str = FIRST_SEEN,
    features: str = "paper",
    classifier: str = "gbm",
    cost_sensitive: bool = False,
    model: str | None = None,
    grader: str | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Fit a policy to all questions of a run and write its bundle, with the costs it is for."""
    family, ladder, place = find_factory(policy), check_levels(ladder), Run(run)
    costs = Costs(unit, read_token_prices(tariff, [unit]), native_n, round_cost)
    pool = pool_run(place, costs=costs, features=features, resort=resort, ties=ties).even()
    settings: dict[str, Any] = {
        "samples": _within(pool, ladder),
        "budgets": _aims(place, costs, budgets),
        "classifier": classifier,
        "cost_sensitive": cost_sensitive,
        "seed": check_seed(seed),
    }
    contest = Experiment(pool, orders=ORDERS, **settings)
    fitted = _refuse_alone(family(contest, np.arange(len(pool))), pool, ladder)
    about = {"policy": policy, "questions": len(pool)}
    notes = {**about, "features": features, "resort": hash_resort(resort), "contest": settings}
    bundle = replace(
        _bundle(place, contest, fitted, notes | {"costs": costs.describe()}), unit=unit, ties=ties
    )
    bundle = replace(bundle, model=model or bundle.model, grader=grader or bundle.grader)
    save_bundle(bundle, out)
    return {
        **about,
        "out": str(out),
        "levels": [_label(level) for level in fitted.policy.levels],
        "model": bundle.model,
        "grader": bundle.grader,
        "unit": unit,
        "round_cost": contest.round_cost(np.arange(len(pool))),
        "on_training_questions": _rerun(contest, fitted),
    }


def _bundle(place: Run, contest: Experiment, fitted: FittedPolicy, notes: dict[str, Any]) -> Bundle:
    """A fitted policy with what the run and its questions say."""
    pool, known = contest.pool, describe_source(place)
    words = notes["policy"] == "sequential"
    return Bundle(
        policy=fitted.policy,
        features="words" if words else notes["features"],
        feature_version=VERSION,
        model=known.get("model"),
        grader=known.get("grader"),
        data=hash_run(place),
        draw_cost=contest.draw_cost(np.arange(len(pool))),
        template=None if known.get("template") is None else read_template(known["template"]),
        baseline=_baseline(pool.words if words else pool.features, pool),
        notes=notes,
    )


def hash_run(place: Run) -> str:
    """Hash what a policy is fitted to."""
    return "+".join(place.hashes([SAMPLES, GRADES]).values())


def hash_resort(resort: Path | None) -> str | None:
    """Hash the samples of a last resort, where there is one."""
    return None if resort is None else hash_run(Run(resort))


def _label(level: Level) -> int | str:
    """Return what tells a level apart: its samples, or the model it resorts to."""
    return level.samples if level.model is None else level.name


def _within(pool: Pool, ladder: tuple[int, ...]) -> tuple[int, ...]:
    """Levels for which there are enough samples."""
    most = int(pool.answers.n_samples[0])
    kept = tuple(n for n in ladder if n <= most)
    if not kept:
        raise DataError(
            f"the number of samples a question, {most}, is below the ladder's first level, "
            f"{ladder[0]}: collect more samples a question, or name lower levels by --ladder"
        )
    return kept


def _refuse_alone(fitted: FittedPolicy, pool: Pool, ladder: tuple[int, ...]) -> FittedPolicy:
    """Return a policy that has levels to choose from, or refuse it."""
    if len(fitted.policy.levels) > 1:
        return fitted
    raise DataError(
        f"the number of samples a question, {pool.answers.n_samples[0]}, leaves one level of the "
        f"ladder {', '.join(map(str, ladder))}, and a policy needs two to decide between: collect "
        "more samples a question, or name more levels by --ladder"
    )


def _baseline(features: Float32Array | None, pool: Pool) -> Baseline | None:
    """What the questions are like, for those who must notice when others come."""
    if features is None:
        return None
    answers = pool.answers
    agree = response_profile(answers, 1)[:, -2]
    read, made = (count * (count - 1.0) for count in (answers.n_parsed, answers.n_samples))
    return Baseline(
        mean=tuple(features.mean(axis=0, dtype=np.float64).tolist()),
        spread=tuple(features.std(axis=0, dtype=np.float64).tolist()),
        agreement=float((agree * made).sum() / max(1.0, read.sum())),
        unreadable=float((answers.answer == UNPARSED).mean()),
    )


def describe_source(place: Run) -> dict[str, Any]:
    """Model and grader that a run was imported with, and the grader that graded it last."""
    imported, graded = place.manifest(place.source), place.manifest("grade")
    known = dict(imported.result) if imported else {}
    return known | (graded.arguments if graded else {})


def _rerun(contest: Experiment, fitted: FittedPolicy) -> list[dict[str, float]]:
    """Cost and accuracy of a policy along its prices on the questions it was fitted to."""
    told = contest.draw_cost(np.arange(len(contest.pool)))
    rows = []
    for price in fitted.prices:
        ran = run_fitted(contest, fitted, price, told)
        cost, accuracy = float(ran.cost.mean()), float(ran.accuracy.mean())
        rounds = float(ran.rounds.mean())
        rows.append({"price": price, "cost": cost, "accuracy": accuracy, "rounds": rounds})
    return rows


def evaluate_run(
    run: Path,
    *,
    budgets: Sequence[float] | None = None,
    ladder: Sequence[int] = DEFAULT_LADDER,
    policies: Sequence[str] | None = None,
    nulls: bool = True,
    protocol: str = "honest",
    unit: str = "samples",
    tariff: Path | None = None,
    native_n: bool = False,
    resort: Path | None = None,
    ties: str = FIRST_SEEN,
    features: str = "paper",
    rounds: int | None = None,
    round_cost: float = 0.0,
    seed: int = 0,
    progress: Callable[[str], None] = no_progress,
) -> dict[str, Any]:
    """Score policies on questions they have not seen, or by the paper's own protocol.

    Without ``policies`` those that lack an optional dependency are left out, and named. A question
    is drawn for ``rounds`` times at most, each for ``round_cost`` and, with ``native_n``, a prompt.
    """
    place, costs = Run(run), Costs(unit, read_token_prices(tariff, [unit]), native_n, round_cost)
    names, skipped = _contestants(policies, protocol)
    arguments = {
        "format": FORMAT,
        "budgets": list(_aims(place, costs, budgets)),
        "ladder": list(check_levels(ladder)),
        "policies": names,
        "nulls": nulls,
        "protocol": protocol,
        "unit": unit,
        "features": features,
        "rounds": _check_rounds(rounds, costs, protocol),
        **costs.describe(),
        "resort": hash_resort(resort),
        "ties": check_ties(ties),
        "seed": check_seed(seed),
    }
    inputs = place.hashes([SAMPLES, GRADES])
    if done := place.finished("evaluate", arguments, inputs):
        return done.result
    known: dict[str, Any] = {"features": features, "resort": resort, "ties": ties}
    pool = pool_run(place, costs=costs, draft=protocol == "paper", **known)
    result = _score(pool, arguments, progress) | {"skipped": skipped}
    outputs = {EVALUATION: result}
    place.finish("evaluate", arguments=arguments, inputs=inputs, outputs=outputs, result=result)
    return result


def _check_rounds(rounds: int | None, costs: Costs, protocol: str) -> int | None:
    """What was asked about rounds, or a refusal."""
    if rounds is not None and rounds < 1:
        raise ConfigError(f"a question needs at least one round, not {rounds}")
    if protocol == "paper" and (rounds is not None or costs.round_cost or costs.native_n):
        raise ConfigError("the paper's protocol knows no rounds: use the honest one")
    return rounds


def _score(
    pool: Pool, arguments: dict[str, Any], progress: Callable[[str], None]
) -> dict[str, Any]:
    """Score by the protocol that was asked for, and say on what."""
    score = _score_as_paper if arguments["protocol"] == "paper" else _score_honestly
    return {
        **{name: arguments[name] for name in ("protocol", "unit", "nulls")},
        **score(pool, arguments, progress),
        "unreadable_share": float((pool.answers.answer == UNPARSED).mean()),
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
        "levels_left_out": list(scores.levels_left_out),
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
    missing = None if protocol == "paper" else missing_extra()
    skipped = {name: missing for name in LEARNED if missing}
    return [name for name in known if name not in skipped], skipped


def missing_extra() -> str | None:
    """What a learned model lacks here, in one sentence."""
    try:
        for module in TRAINING:
            if find_spec(module) is None:  # importing them takes seconds
                require(module, extra="train")
    except MissingExtra as error:
        return str(error)
    return None


def _aims(place: Run, costs: Costs, budgets: Sequence[float] | None) -> tuple[float, ...]:
    """Budgets as they are asked for; by default, multiples of what a sample costs."""
    if budgets is not None:
        return check_budgets(budgets)
    if costs.unit == "samples":
        return DEFAULT_BUDGETS
    return check_budgets(costs.multiply(encode_samples(place.samples()), DEFAULT_BUDGETS))


def check_seed(seed: int) -> int:
    """Return a seed that every generator takes, or refuse it."""
    if not 0 <= seed < SEEDS:
        raise ConfigError(f"a seed is a whole number from 0 to {SEEDS - 1}, not {seed}")
    return seed
