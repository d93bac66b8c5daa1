"""Evaluate: the stage that scores policies on questions they were not fitted to.

It scores by the held-out protocol, or by the paper's own. The scores stay in the run.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from adacompute.core.answers import UNPARSED
from adacompute.core.errors import ConfigError, DataError
from adacompute.evaluation.costs import CostModel, read_token_prices
from adacompute.evaluation.factories import ROUTERS
from adacompute.evaluation.pool import Pool
from adacompute.evaluation.rival_data import RivalData
from adacompute.evaluation.scores import ONE_ARM_POLICIES, arm_policies, evaluate
from adacompute.features.embedding import pin_encoder
from adacompute.paper.protocol import evaluate_paper
from adacompute.policies.episode import FIRST_SEEN
from adacompute.stages.inputs import (
    ALL_EVIDENCE,
    DEFAULT_LEVELS,
    LEARNED,
    check_choices,
    check_levels,
    describe_subsample,
    make_pool,
    missing_extra,
    no_progress,
    read_recorded,
    resolve_budgets,
)
from adacompute.stages.results import RunResults
from adacompute.storage.store import GRADES, SAMPLES, Run, SampleSet

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from adacompute.core.types import FloatArray
    from adacompute.evaluation.experiment import Experiment

    Share = Callable[[Experiment], Experiment]


EVALUATION = "evaluation.json"
FORMAT = 5
"""Version of the scores in the run."""

TEXT_POLICIES = (*ROUTERS, "longest-first")
"""Policies that decide by the text of a question alone."""

PROTOCOLS = {
    "held-out": ONE_ARM_POLICIES,
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
    write: bool = True,
    results: RunResults | None = None,
    progress: Callable[[str], None] = no_progress,
) -> dict[str, Any]:
    """Score policies by a protocol, and store the scores if ``write``; costs: see `CostModel`."""
    store, features = Run(run), pin_encoder(features)
    prices = read_token_prices(token_prices, [unit], price_as, run=run)
    costs, recorded = CostModel(unit, prices, native_n, round_cost), read_recorded(store)
    about = _describe_run(recorded, costs, rounds=rounds, evidence=evidence, tie_break=tie_break)
    names, skipped = _select_policies(policies, protocol, about)
    arguments = {
        "format": FORMAT,
        "budgets": list(resolve_budgets(recorded, costs, budgets)),
        "levels": list(check_levels(levels)),
        "policies": names,
        "drop_unparsed": drop_unparsed,
        "protocol": protocol,
        "unit": unit,
        "features": features,
        "rounds": _check_rounds(rounds, costs, protocol),
        **costs.to_dict(),
        **check_choices(tie_break=tie_break, evidence=evidence, seed=seed),
    }
    inputs = store.hashes([SAMPLES, GRADES])
    if finished := store.find_finished("evaluate", arguments, inputs):
        return finished.result
    known: dict[str, Any] = {"features": features, "tie_break": tie_break}
    pool = make_pool(recorded, costs=costs, draft=protocol == "paper", **known)
    share = (results or RunResults.of(run)).share
    result = {**_score(pool, arguments, share, progress), "skipped": skipped}
    result |= describe_subsample(recorded)
    return _finish(store, arguments, inputs, result) if write else result


def _finish(
    store: Run, arguments: dict[str, Any], inputs: dict[str, str], result: dict[str, Any]
) -> dict[str, Any]:
    outputs = {EVALUATION: result}
    store.finish("evaluate", arguments=arguments, inputs=inputs, outputs=outputs, result=result)
    return result


@dataclass(frozen=True)
class _Recorded:
    """What decides which policies of a run can be scored."""

    has_texts: bool
    arms: tuple[str, ...]
    rival_data: RivalData

    @property
    def has_arms(self) -> bool:
        return len(self.arms) > 1

    def find_obstacle(self, name: str) -> str | None:
        """Return why a policy cannot be scored; None if it can."""
        if name in TEXT_POLICIES and not self.has_texts:
            return "the run has no question texts"
        return None if self.has_arms else self.rival_data.find_obstacle(name)


def _describe_run(
    recorded: SampleSet, costs: CostModel, *, rounds: int | None, evidence: str, tie_break: str
) -> _Recorded:
    """Return what a run has recorded, and which options rivals do not support."""
    lengths = [recorded.column(name) for name in ("completion_tokens", "completion_chars")]
    return _Recorded(
        has_texts=any(text is not None for text in recorded.text),
        arms=recorded.arms,
        rival_data=RivalData(
            has_logprobs=bool(np.isfinite(recorded.column("mean_logprob")).any()),
            has_lengths=_has_lengths(*lengths),
            use_confidence=evidence == ALL_EVIDENCE,
            has_rounds=rounds is not None or costs.round_cost > 0 or costs.native_n,
            breaks_ties=tie_break != FIRST_SEEN,
        ),
    )


def _has_lengths(tokens: FloatArray, characters: FloatArray) -> bool:
    """Whether all samples have a length: in tokens if some have one, else in characters."""
    return bool(np.isfinite(characters if np.isnan(tokens).all() else tokens).all())


def _check_rounds(rounds: int | None, costs: CostModel, protocol: str) -> int | None:
    """Return the maximum number of rounds, if it is valid."""
    if rounds is not None and rounds < 1:
        raise ConfigError(f"rounds must be at least 1, got {rounds}")
    if protocol == "paper" and (rounds is not None or costs.round_cost or costs.native_n):
        raise ConfigError("the paper's protocol has no rounds: use the protocol held-out")
    return rounds


def _score(
    pool: Pool, arguments: dict[str, Any], share: Share, progress: Callable[[str], None]
) -> dict[str, Any]:
    """Score by the given protocol, and describe the samples."""
    if arguments["protocol"] == "paper":
        scores = _score_as_paper(pool, arguments, progress)
    else:
        scores = _score_held_out(pool, arguments, share, progress)
    return {
        **{name: arguments[name] for name in ("protocol", "unit", "drop_unparsed")},
        **scores,
        "unparsed_share": float((pool.answers.answer == UNPARSED).mean()),
    }


def _score_held_out(
    pool: Pool, arguments: dict[str, Any], share: Share, progress: Callable[[str], None]
) -> dict[str, Any]:
    names = ("budgets", "levels", "policies", "drop_unparsed", "seed")
    options = {name: arguments[name] for name in names}
    options |= {"use_confidence": arguments["evidence"] == ALL_EVIDENCE, "share": share}
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
    policies: Sequence[str] | None, protocol: str, recorded: _Recorded
) -> tuple[list[str], dict[str, str]]:
    """Return the policies to score, and those that are skipped with the reason."""
    if protocol not in PROTOCOLS:
        raise ConfigError(f"protocol must be 'held-out' or 'paper', got {protocol!r}")
    if recorded.has_arms and protocol == "paper":
        raise ConfigError("the paper's protocol scores one model, and the run has several arms")
    known = arm_policies(recorded.arms) if recorded.has_arms else PROTOCOLS[protocol]
    if policies is not None:
        for name in policies:
            if name not in known:
                raise ConfigError(f"there is no policy {name!r}; there are {', '.join(known)}")
            if reason := recorded.find_obstacle(name):
                raise ConfigError(f"{name} cannot be scored: {reason}")
        return list(dict.fromkeys(policies)), {}
    missing = None if protocol == "paper" else missing_extra()
    reasons = {
        name: missing if name in LEARNED and missing else recorded.find_obstacle(name)
        for name in known
    }
    skipped = {name: reason for name, reason in reasons.items() if reason}
    if recorded.has_arms:
        others = [name for name in PROTOCOLS[protocol] if name not in known]
        skipped |= dict.fromkeys(others, "for one arm, and the run has several")
    return [name for name in known if name not in skipped], skipped
