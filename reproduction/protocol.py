"""Paper protocol: the paper's own evaluation, as published.

It uses 80/20 splits with three seeds and utilities from windows, and it computes the oracle, the
labels and the scores from the same samples. ``accuracy`` is that of all questions, including those
that the router was trained on: only so can the paper's figures be obtained. The scores on the
unseen fifth are ``held_out_accuracy``, ``held_out_cost`` and ``held_out_imitation``; there the
router does not see the draft sample, which the paper does not charge for.

Figure 13 of the paper lists a feature ``single_pass_acc``, which needs the reference answer.
``router-single-pass-acc`` is the paper's router with it: each question's own Acc(x, 1), of the same
samples that it is scored on. It shows what such a leak is worth, not how the paper was made.

``is_over_budget`` marks rows that spend more than the budget, such as those of the heuristic.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from adacompute.core.allocation.oracle import solve
from adacompute.core.types import (
    Allocation,
    BoolArray,
    FloatArray,
    IntArray,
    KeyArray,
    UtilityTable,
    make_levels,
)
from adacompute.evaluation.intervals import CONFIDENCE, Interval, Mean
from adacompute.evaluation.pool import Pool, assign_folds
from adacompute.evaluation.scoring.imitation import measure_imitation
from adacompute.evaluation.scoring.oracles import PAPER_LEVELS
from adacompute.policies.episode import Episode, start_state
from adacompute.policies.policy import Policy, SampleMatrix
from adacompute.policies.price_schedule import PriceSchedule
from adacompute.policies.router import RouterTraining, fit_router
from adacompute.policies.rule_policy import RulePolicy
from adacompute.policies.uniform import FixedRule
from reproduction.drafts import Drafts, add_free_draft
from reproduction.heuristic import HEURISTIC, allocate_heuristic

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LEAKING_ROUTER = "router-single-pass-acc"
"""The router with the feature of Figure 13, which needs the reference answer."""

POLICIES = ("fixed", "random", HEURISTIC, "router", LEAKING_ROUTER, "oracle-in-sample")
SEEDS = (0, 1, 2)
FOLDS = 5
"""One fold in five is held out: the 80/20 split."""


@dataclass(frozen=True, eq=False)
class SplitChoices:
    """Levels that a policy chose with one seed, for all questions and for the unseen fifth."""

    choice: IntArray
    unseen_choice: IntArray
    held_out: BoolArray


def evaluate_paper(
    pool: Pool,
    *,
    budgets: Sequence[float],
    policies: Sequence[str] = POLICIES,
    classifier: str = "gbm",
    drafts: Drafts | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> list[dict[str, Any]]:
    """Score the paper's policies by its protocol.

    ``accuracy_low`` and ``accuracy_high`` are one standard deviation over the seeds below and above
    the mean. The ends of imitation and of the gap to the oracle are those of 95 % intervals over
    the questions, with the labels and the fits as they are.
    """
    equal = pool.equalise()
    levels = tuple(n for n in PAPER_LEVELS if n <= equal.n_samples)
    table = equal.table(levels, windows=True)
    held_out = [assign_folds(equal.group, FOLDS, seed=seed) == 0 for seed in SEEDS]
    rows = []
    for budget in sorted(set(budgets)):
        progress(f"budget {budget:g}")
        oracle = solve(table, budget)
        upfront = {
            name: decide_upfront(policy, equal, price, table)
            for name, (policy, price) in _uniform_policies(equal, levels, budget).items()
        }
        upfront[HEURISTIC] = allocate_heuristic(equal, table, budget)
        upfront["oracle-in-sample"] = oracle.choice
        for name in policies:
            if name in upfront:
                splits = [SplitChoices(upfront[name], upfront[name], unseen) for unseen in held_out]
            else:
                pools = [
                    add_single_pass_accuracy(one, table) if name == LEAKING_ROUTER else one
                    for one in (add_free_draft(equal, drafts), equal)
                ]
                splits = [
                    _route_split(pools, table, levels, budget, unseen, classifier, seed)
                    for seed, unseen in zip(SEEDS, held_out, strict=True)
                ]
            scores = _score(table, splits, oracle, budget, equal.group)
            rows.append({"policy": name, "budget": budget, **scores})
    return rows


def _route_split(
    pools: Sequence[Pool],
    table: UtilityTable,
    levels: tuple[int, ...],
    budget: float,
    held_out: BoolArray,
    classifier: str,
    seed: int,
) -> SplitChoices:
    """Train a router on the questions that are not held out.

    ``pools`` are with the draft that is not paid for and, for the unseen fifth, without it.
    """
    train = np.flatnonzero(~held_out)
    known: dict[str, Any] = {"classifier": classifier, "seed": seed}
    with_draft, without = pools
    choice = route(with_draft, table, levels, budget, train, **known)
    if np.array_equal(with_draft.features, without.features):
        return SplitChoices(choice, choice, held_out)
    return SplitChoices(choice, route(without, table, levels, budget, train, **known), held_out)


def add_single_pass_accuracy(pool: Pool, table: UtilityTable) -> Pool:
    """Return the pool with each question's own accuracy at the lowest level as one more feature.

    It is known only where answers are graded, so no router could see it in use.
    """
    accuracy = table.utility[:, :1].astype(pool.features.dtype)
    return replace(pool, features=np.hstack([pool.features, accuracy]))


def decide_upfront(policy: Policy, pool: Pool, price: float, table: UtilityTable) -> IntArray:
    """Return the level that a policy chooses for each question before its first sample."""
    episode = Episode.start(
        policy,
        price,
        start_state(
            key=pool.key,
            features=policy.prepare_features(pool.features),
            cost=np.broadcast_to(table.cost, table.utility.shape),
            samples=SampleMatrix(np.empty((len(pool), 0), dtype=np.int64)),
        ),
    )
    return episode.decide().state.level


def _uniform_policies(
    pool: Pool, levels: tuple[int, ...], budget: float
) -> dict[str, tuple[RulePolicy, float]]:
    """Fixed and random, with their prices: two mixtures of the levels next to the budget.

    Fixed uses only the lower one, random spends the budget on random questions.
    """
    cost = float(pool.mean_sample_cost().mean()) * np.asarray(levels)
    lower = max(0, int(np.searchsorted(cost, budget, side="right")) - 1)
    upper = min(lower + 1, len(levels) - 1)
    share = (budget - cost[lower]) / (cost[upper] - cost[lower]) if upper > lower else 0.0
    schedule = PriceSchedule((2.0, 1.0))
    price = schedule.price_at(min(1.0, share))
    rules = FixedRule(levels[lower]), FixedRule(levels[upper])
    return {
        name: (RulePolicy(name, make_levels(levels), rules, schedule, mix_by=mix_by), price)
        for name, mix_by in (("fixed", "none"), ("random", "key"))
    }


def route(
    pool: Pool,
    table: UtilityTable,
    levels: tuple[int, ...],
    budget: float,
    train: IntArray,
    *,
    classifier: str = "gbm",
    seed: int = 0,
) -> IntArray:
    """Train the paper's router on some questions; return the level it gives to every one."""
    policy = fit_router(
        pool.features[train],
        table.take(train),
        make_levels(levels),
        RouterTraining(budgets=[budget], classifier=classifier, seed=seed),
    )
    return decide_upfront(policy, pool, policy.schedule.prices[0], table)


def _score(
    table: UtilityTable,
    splits: Sequence[SplitChoices],
    oracle: Allocation,
    budget: float,
    group: KeyArray,
) -> dict[str, Any]:
    """Return the mean over the seeds of every score, with intervals of some."""
    runs = [_score_split(table, split, oracle, budget) for split in splits]
    means = {name: float(np.mean([run[name] for run in runs])) for name in runs[0]}
    deviation = float(np.std([run["accuracy"] for run in runs]))
    unseen = np.stack([split.held_out for split in splits])
    best = table.utility_of(oracle.choice)
    ends: dict[str, float] = {}
    for prefix, scored, choices in (
        ("", np.ones_like(unseen), [split.choice for split in splits]),
        ("held_out_", unseen, [split.unseen_choice for split in splits]),
    ):
        agrees = np.stack([choice == oracle.choice for choice in choices])
        lost = np.stack([best - table.utility_of(choice) for choice in choices])
        ends |= mean_of_scored(agrees, scored, group).clip(0, 1).named(f"{prefix}imitation")
        ends |= mean_of_scored(lost, scored, group).named(f"{prefix}oracle_gap")
    return {
        **means,
        **ends,
        "is_over_budget": means["cost"] > budget * (1 + 1e-9),
        "accuracy_low": means["accuracy"] - deviation,
        "accuracy_high": means["accuracy"] + deviation,
    }


def _score_split(
    table: UtilityTable, split: SplitChoices, oracle: Allocation, budget: float
) -> dict[str, float]:
    """Score one split on all questions and on the unseen fifth."""
    choice, unseen = split.choice, split.unseen_choice
    return {
        "cost": float(table.cost_of(choice).mean()),
        "accuracy": float(table.utility_of(choice).mean()),
        **measure_imitation(table, choice, oracle.choice, oracle.price, budget),
        "held_out_cost": float(table.cost_of(unseen)[split.held_out].mean()),
        "held_out_accuracy": float(table.utility_of(unseen)[split.held_out].mean()),
    }


def mean_of_scored(values: FloatArray | BoolArray, scored: BoolArray, group: KeyArray) -> Interval:
    """Return the mean of the values that are scored, (splits, N), with its interval of 95 %.

    Copies of a question, and one question in several splits, count as one observation.
    """
    n_scored, total = scored.sum(axis=0), np.where(scored, values, 0.0).sum(axis=0)
    mean = total.sum() / n_scored.sum()
    influence = mean + (total - mean * n_scored) / n_scored.mean()
    return Mean.of(influence, group).interval(CONFIDENCE)
