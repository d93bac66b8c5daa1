"""Paper protocol: the paper's own evaluation, as published.

It uses 80/20 splits with three seeds and utilities from windows, and it computes the oracle, the
labels and the scores from the same samples. ``accuracy`` is that of all questions, including those
that the router was trained on: only so can the paper's figures be obtained. The scores on the
unseen fifth are ``held_out_accuracy``, ``held_out_cost`` and ``held_out_imitation``; there the
router does not see the draft sample, which the paper does not charge for.

The heuristic, ``longest-first``, is inferred from the costs that the paper reports: the longest
questions get the largest level and all others the smallest, and their number is rounded up, so that
it spends more than the budget. ``is_over_budget`` marks such rows.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from adacompute.core.allocation.oracle import solve
from adacompute.core.types import (
    Allocation,
    BoolArray,
    IntArray,
    UtilityTable,
    hash_keys,
    make_levels,
)
from adacompute.evaluation.pool import Pool, assign_folds
from adacompute.evaluation.scoring.imitation import measure_imitation
from adacompute.evaluation.scoring.oracles import PAPER_LEVELS
from adacompute.features.text import FEATURES
from adacompute.policies.episode import Episode, start_state
from adacompute.policies.policy import Policy, SampleMatrix
from adacompute.policies.price_schedule import PriceSchedule
from adacompute.policies.router import RouterTraining, fit_router
from adacompute.policies.rule_policy import RulePolicy
from adacompute.policies.uniform import FixedRule

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

POLICIES = ("fixed", "random", "longest-first", "router", "oracle-in-sample")
SEEDS = (0, 1, 2)
FOLDS = 5
"""One fold in five is held out: the 80/20 split."""


def evaluate_paper(
    pool: Pool,
    *,
    budgets: Sequence[float],
    classifier: str = "gbm",
    progress: Callable[[str], None] = lambda _: None,
) -> list[dict[str, Any]]:
    """Score the paper's policies by its protocol.

    ``accuracy_low`` and ``accuracy_high`` are one standard deviation over the seeds below and above
    the mean.
    """
    equal = pool.trim()
    paper = add_free_draft(equal)
    levels = tuple(n for n in PAPER_LEVELS if n <= equal.n_samples)
    table = equal.table(levels, method="windows")
    rows = []
    for budget in sorted(set(budgets)):
        progress(f"budget {budget:g}")
        runs: dict[str, list[dict[str, float]]] = {}
        for seed in SEEDS:
            held_out = assign_folds(equal.group, FOLDS, seed=seed) == 0
            oracle = solve(table, budget)
            choices = {
                name: decide_upfront(policy, equal, price, table)
                for name, (policy, price) in _uniform_policies(equal, levels, budget).items()
            }
            choices["longest-first"] = allocate_longest_first(equal, table, budget)
            train = np.flatnonzero(~held_out)
            known: dict[str, Any] = {"classifier": classifier, "seed": seed}
            choices["router"] = route(paper, table, levels, budget, train, **known)
            choices["oracle-in-sample"] = oracle.choice
            unseen = dict(choices)
            if paper is not equal:
                unseen["router"] = route(equal, table, levels, budget, train, **known)
            for name, choice in choices.items():
                scores = _score(table, choice, oracle, budget)
                scores |= _score_unseen(table, unseen[name], oracle, held_out)
                runs.setdefault(name, []).append(scores)
        rows += [_row(name, budget, scores) for name, scores in runs.items()]
    return rows


def add_free_draft(pool: Pool) -> Pool:
    """Return the pool with the uncertainty of each first sample as a feature that costs nothing."""
    if pool.draft is None or not pool.draft.is_known:
        return pool
    features = pool.features.copy()
    features[:, FEATURES.index("entropy_estimate")] = np.nan_to_num(pool.first_drafts()[0])
    return replace(pool, features=features)


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


def allocate_longest_first(pool: Pool, table: UtilityTable, budget: float) -> IntArray:
    """Give the longest questions the largest level and all others the smallest.

    Of N questions, the longest ⌈N (B − c_1) / (c_K − c_1)⌉ get the largest level.
    """
    lowest, *_, highest = table.costs.mean(axis=0).tolist()
    share = (budget - lowest) / (highest - lowest)
    n_longest = math.ceil(len(pool) * min(max(share, 0.0), 1.0) - 1e-9)
    by_length = np.lexsort((hash_keys(pool.key), -pool.features[:, pool.length_feature]))
    choice = np.zeros(len(pool), dtype=np.int64)
    choice[by_length[:n_longest]] = table.n_levels - 1
    return choice


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
    choice: IntArray,
    oracle: Allocation,
    budget: float,
) -> dict[str, float]:
    """Score a choice on all questions."""
    return {
        "cost": float(table.cost_of(choice).mean()),
        "accuracy": float(table.utility_of(choice).mean()),
        **measure_imitation(table, choice, oracle.choice, oracle.price, budget),
    }


def _score_unseen(
    table: UtilityTable, choice: IntArray, oracle: Allocation, held_out: BoolArray
) -> dict[str, float]:
    """Score a choice on the unseen fifth."""
    cost, accuracy = table.cost_of(choice), table.utility_of(choice)
    return {
        "held_out_cost": float(cost[held_out].mean()),
        "held_out_accuracy": float(accuracy[held_out].mean()),
        "held_out_imitation": float((choice == oracle.choice)[held_out].mean()),
    }


def _row(policy: str, budget: float, runs: list[dict[str, float]]) -> dict[str, Any]:
    """Return the mean over the seeds of every score."""
    means = {name: float(np.mean([run[name] for run in runs])) for name in runs[0]}
    deviation = float(np.std([run["accuracy"] for run in runs]))
    return {
        "policy": policy,
        "budget": budget,
        **means,
        "is_over_budget": means["cost"] > budget * (1 + 1e-9),
        "accuracy_low": means["accuracy"] - deviation,
        "accuracy_high": means["accuracy"] + deviation,
    }
