"""Evaluate: the stage that scores policies on questions they were not fitted to.

It scores by the held-out protocol, or by the paper's own. The scores stay in the run.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from adacompute.core.answers import UNPARSED
from adacompute.core.errors import ConfigError, DataError
from adacompute.evaluation.costs import CostModel, read_token_prices
from adacompute.evaluation.factories import BASELINES, POLICY_FACTORIES, ROUTERS
from adacompute.evaluation.pool import Pool
from adacompute.evaluation.scores import ARM_POLICIES, ORACLES, evaluate
from adacompute.features.embedding import pin_encoder
from adacompute.paper.protocol import evaluate_paper
from adacompute.policies.episode import FIRST_SEEN
from adacompute.stages.inputs import (
    ALL_EVIDENCE,
    DEFAULT_LEVELS,
    LEARNED,
    check_evidence,
    check_levels,
    check_seed,
    check_tie_break,
    missing_extra,
    no_progress,
    read_pool,
    resolve_budgets,
)
from adacompute.storage.store import GRADES, SAMPLES, Run

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


EVALUATION = "evaluation.json"
FORMAT = 5
"""Version of the scores in the run."""

TEXT_POLICIES = (*ROUTERS, "longest-first")
"""Policies that decide by the text of a question alone."""

PROTOCOLS = {
    "held-out": (*BASELINES, *POLICY_FACTORIES, *ORACLES),
    "paper": ("fixed", "random", "longest-first", "router", "oracle-in-sample"),
}
"""Policies that each protocol scores."""


def evaluate_run(
    run: Path,
    *,
    budgets: Sequence[float] | None = None,
    levels: Sequence[int] = DEFAULT_LEVELS,
    policies: Sequence[str] | None = None,
    drop_unparsed: bool = False,
    protocol: str = "held-out",
    unit: str = "samples",
    token_prices: Path | None = None,
    price_as: Mapping[str, str] | None = None,
    native_n: bool = False,
    tie_break: str = FIRST_SEEN,
    features: str = "paper",
    rounds: int | None = None,
    round_cost: float = 0.0,
    evidence: str = ALL_EVIDENCE,
    seed: int = 0,
    progress: Callable[[str], None] = no_progress,
) -> dict[str, Any]:
    """Score policies on held-out questions, or by the paper's protocol; costs: see `CostModel`."""
    store, features = Run(run), pin_encoder(features)
    prices = read_token_prices(token_prices, [unit], price_as, run=run)
    costs = CostModel(unit, prices, native_n, round_cost)
    names, skipped = _select_policies(policies, protocol, **_describe_run(store))
    arguments = {
        "format": FORMAT,
        "budgets": list(resolve_budgets(store, costs, budgets)),
        "levels": list(check_levels(levels)),
        "policies": names,
        "drop_unparsed": drop_unparsed,
        "protocol": protocol,
        "unit": unit,
        "features": features,
        "rounds": _check_rounds(rounds, costs, protocol),
        **costs.to_dict(),
        "tie_break": check_tie_break(tie_break),
        "evidence": check_evidence(evidence),
        "seed": check_seed(seed),
    }
    inputs = store.hashes([SAMPLES, GRADES])
    if finished := store.find_finished("evaluate", arguments, inputs):
        return finished.result
    known: dict[str, Any] = {"features": features, "tie_break": tie_break}
    pool = read_pool(store, costs=costs, draft=protocol == "paper", **known)
    result = {**_score(pool, arguments, progress), "skipped": skipped}
    _finish(store, arguments, inputs, result)
    return result


def _finish(
    store: Run, arguments: dict[str, Any], inputs: dict[str, str], result: dict[str, Any]
) -> None:
    outputs = {EVALUATION: result}
    store.finish("evaluate", arguments=arguments, inputs=inputs, outputs=outputs, result=result)


def _describe_run(store: Run) -> dict[str, bool]:
    """Return whether some question of a run has a text, and whether there are several arms."""
    recorded = store.encoded_samples()
    has_texts = any(text is not None for text in recorded.text)
    return {"has_texts": has_texts, "has_arms": len(recorded.arms) > 1}


def _check_rounds(rounds: int | None, costs: CostModel, protocol: str) -> int | None:
    """Return the maximum number of rounds, if it is valid."""
    if rounds is not None and rounds < 1:
        raise ConfigError(f"rounds must be at least 1, got {rounds}")
    if protocol == "paper" and (rounds is not None or costs.round_cost or costs.native_n):
        raise ConfigError("the paper's protocol has no rounds: use the protocol held-out")
    return rounds


def _score(
    pool: Pool, arguments: dict[str, Any], progress: Callable[[str], None]
) -> dict[str, Any]:
    """Score by the given protocol, and describe the samples."""
    score = _score_as_paper if arguments["protocol"] == "paper" else _score_held_out
    return {
        **{name: arguments[name] for name in ("protocol", "unit", "drop_unparsed")},
        **score(pool, arguments, progress),
        "unparsed_share": float((pool.answers.answer == UNPARSED).mean()),
    }


def _score_held_out(
    pool: Pool, arguments: dict[str, Any], progress: Callable[[str], None]
) -> dict[str, Any]:
    names = ("budgets", "levels", "policies", "drop_unparsed", "seed")
    options = {name: arguments[name] for name in names}
    options |= {"use_confidence": arguments["evidence"] == ALL_EVIDENCE}
    scores = evaluate(pool, max_rounds=arguments["rounds"], progress=progress, **options)
    return {
        "questions": scores.n_questions,
        "excluded": scores.n_excluded,
        "samples": scores.n_samples,
        "imputed_samples": scores.n_imputed,
        "levels": list(scores.levels),
        "levels_excluded": list(scores.levels_excluded),
        "rows": scores.rows,
    }


def _score_as_paper(
    pool: Pool, arguments: dict[str, Any], progress: Callable[[str], None]
) -> dict[str, Any]:
    equal = pool.trim(drop_unparsed=arguments["drop_unparsed"])
    if not equal.sample_cost.any():
        raise DataError("all samples cost nothing: use another unit")
    rows = evaluate_paper(equal, budgets=arguments["budgets"], progress=progress)
    return {
        "questions": len(equal),
        "excluded": equal.n_excluded,
        "entropy_estimate": None if pool.draft is None else pool.draft.describe(),
        "rows": [row for row in rows if row["policy"] in arguments["policies"]],
    }


def _select_policies(
    policies: Sequence[str] | None, protocol: str, *, has_texts: bool, has_arms: bool
) -> tuple[list[str], dict[str, str]]:
    """Return the policies to score, and those that are skipped with the reason."""
    if protocol not in PROTOCOLS:
        raise ConfigError(f"protocol must be 'held-out' or 'paper', got {protocol!r}")
    known = PROTOCOLS[protocol]
    if has_arms and protocol == "paper":
        raise ConfigError("the paper's protocol scores one model, and the run has several arms")
    if has_arms:
        known = ARM_POLICIES
    if policies is not None:
        for name in policies:
            if name not in known:
                raise ConfigError(f"there is no policy {name!r}; there are {', '.join(known)}")
            if name in TEXT_POLICIES and not has_texts:
                raise ConfigError(f"{name} needs question texts, and the run has none")
        return list(dict.fromkeys(policies)), {}
    missing = None if protocol == "paper" else missing_extra()
    skipped = {name: missing for name in LEARNED if missing}
    if not has_texts:
        skipped |= dict.fromkeys(TEXT_POLICIES, "the run has no question texts")
    if has_arms:
        others = [name for name in PROTOCOLS[protocol] if name not in known]
        skipped = {name: skipped[name] for name in skipped if name in known}
        skipped |= dict.fromkeys(others, "for one arm, and the run has several")
    return [name for name in known if name not in skipped], skipped
