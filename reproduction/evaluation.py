"""Evaluation: the policies of a run, scored by the paper's protocol.

It reads a run and says which policies cannot be scored. It writes nothing, and does not know how a
policy is scored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from adacompute.core.answers import UNPARSED
from adacompute.core.errors import ConfigError, DataError
from adacompute.core.progress import no_progress
from adacompute.evaluation.costs import CostModel, read_token_prices
from adacompute.stages.evaluate import TEXT_POLICIES
from adacompute.stages.inputs import (
    describe_subsample,
    make_pool,
    read_recorded,
    resolve_budgets,
)
from adacompute.storage.store import Run
from reproduction.drafts import read_drafts
from reproduction.heuristic import HEURISTIC
from reproduction.protocol import LEAKING_ROUTER, POLICIES, evaluate_paper


def evaluate_run(
    run: Path,
    *,
    budgets: Sequence[float] | None = None,
    policies: Sequence[str] | None = None,
    drop_unparsed: bool = False,
    unit: str = "samples",
    token_prices: Path | None = None,
    price_as: Mapping[str, str] | None = None,
    features: str = "paper",
    progress: Callable[[str], None] = no_progress,
) -> dict[str, Any]:
    """Score the paper's policies by its protocol; costs: see `CostModel`."""
    costs = CostModel(unit, read_token_prices(token_prices, [unit], price_as, run=run))
    recorded = read_recorded(Run(run))
    if len(recorded.arms) > 1:
        raise ConfigError("the paper's protocol scores one model, and the run has several arms")
    names, skipped = _select_policies(policies, has_texts=any(recorded.text))
    chosen = resolve_budgets(recorded, costs, budgets)
    pool = make_pool(recorded, costs=costs, features=features)
    drafts = read_drafts(recorded, pool)
    equal = pool.equalise(drop_unparsed=drop_unparsed)
    if not equal.sample_cost.any():
        raise DataError("all samples cost nothing: use another unit")
    rows = evaluate_paper(equal, budgets=chosen, policies=names, drafts=drafts, progress=progress)
    return {
        "protocol": "paper",
        "unit": unit,
        "drop_unparsed": drop_unparsed,
        "questions": len(equal),
        "excluded": equal.n_excluded,
        "entropy_estimate": None if drafts is None else drafts.description,
        "rows": rows,
        "unparsed_share": float((pool.answers.answer == UNPARSED).mean()),
        "skipped": skipped,
        **describe_subsample(recorded),
    }


def _select_policies(
    policies: Sequence[str] | None, *, has_texts: bool
) -> tuple[Sequence[str], dict[str, str]]:
    """Return the policies to score, and those that are skipped with the reason."""
    reason = "the run has no question texts"
    needs_texts = {*TEXT_POLICIES, HEURISTIC, LEAKING_ROUTER}
    blind = () if has_texts else tuple(name for name in POLICIES if name in needs_texts)
    for name in policies or ():
        if name not in POLICIES:
            raise ConfigError(f"there is no policy {name!r}; there are {', '.join(POLICIES)}")
        if name in blind:
            raise ConfigError(f"{name} cannot be scored: {reason}")
    return (POLICIES, dict.fromkeys(blind, reason)) if policies is None else (policies, {})
