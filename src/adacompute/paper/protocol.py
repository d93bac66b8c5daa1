"""Paper: the paper's own protocol, as published.

80/20 splits and three seeds; utilities from windows; oracle, labels and scores on the same samples.
Its table scores the learned policy on all questions, those it was trained on included: that is the
only reading under which its figures can be had, so this is what ``accuracy`` is here. What the same
policy gets on the fifth it has not seen stands beside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from adacompute.core.oracle import solve
from adacompute.core.types import IntArray, UtilityTable, make_levels
from adacompute.core.upgrades import choose
from adacompute.evaluation.imitation import measure
from adacompute.evaluation.oracles import PAPER_LEVELS
from adacompute.evaluation.pool import Pool, assign_folds
from adacompute.policies.episode import Episode
from adacompute.policies.policy import Policy, SampleMatrix
from adacompute.policies.price_schedule import PriceSchedule
from adacompute.policies.router import fit_router
from adacompute.policies.uniform import FixedRule, RulePolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SEEDS = (0, 1, 2)
FIFTHS = 5


def evaluate_paper(
    pool: Pool,
    *,
    budgets: Sequence[float],
    classifier: str = "gbm",
    progress: Callable[[str], None] = lambda _: None,
) -> list[dict[str, Any]]:
    """Score the paper's policies by its protocol; ``low`` and ``high`` are ± one deviation."""
    equal = pool.equalise()
    samples = tuple(n for n in PAPER_LEVELS if n <= int(equal.answers.n_samples[0]))
    table = equal.table(samples, method="windows")
    rows = []
    for budget in sorted(set(budgets)):
        progress(f"budget {budget:g}")
        runs: dict[str, list[dict[str, float]]] = {}
        for seed in SEEDS:
            held = assign_folds(equal.group, FIFTHS, seed=seed) == 0
            found = solve(table, budget)
            choices = {
                name: decide_once(policy, equal, price, table)
                for name, (policy, price) in _uniform(equal, samples, budget).items()
            }
            choices["router"] = _route(
                equal, table, samples, budget, ~held, classifier=classifier, seed=seed
            )
            choices["oracle-in-sample"] = found.choice
            for name, choice in choices.items():
                runs.setdefault(name, []).append(_score(table, choice, held, found.price, budget))
        rows += [_row(name, budget, many) for name, many in runs.items()]
    return rows


def decide_once(policy: Policy, pool: Pool, price: float, table: UtilityTable) -> IntArray:
    """Level that a policy reaches before it has seen a draw."""
    nothing = SampleMatrix(np.empty((len(pool), 0), dtype=np.int64))
    start = Episode.start(
        policy,
        price,
        key=pool.key,
        features=policy.prepare_features(pool.features),
        cost=np.broadcast_to(table.cost, table.utility.shape),
        samples=nothing,
    )
    return start.decide().state.level


def _uniform(
    pool: Pool, samples: tuple[int, ...], budget: float
) -> dict[str, tuple[RulePolicy, float]]:
    """Fixed, random and longest-first: the levels next to the budget, differently mixed."""
    each = float(pool.mean_sample_cost().mean())
    costs = each * np.asarray(samples)
    first = max(0, int(np.searchsorted(costs, budget, side="right")) - 1)
    after = min(first + 1, len(samples) - 1)
    share = (budget - costs[first]) / (costs[after] - costs[first]) if after > first else 0.0
    dial = PriceSchedule((2.0, 1.0))
    price = dial.price_at(min(1.0, share))
    rules = FixedRule(samples[first]), FixedRule(samples[after])
    lengths = tuple(np.sort(pool.features[:, pool.length_feature]).tolist())
    names = {"fixed": "none", "random": "key", "longest-first": "length"}
    return {
        name: (
            RulePolicy(
                name,
                make_levels(samples),
                rules,
                dial,
                mix_by=ticket,
                training_lengths=lengths,
                length_feature=pool.length_feature,
            ),
            price,
        )
        for name, ticket in names.items()
    }


def _route(
    pool: Pool,
    table: UtilityTable,
    samples: tuple[int, ...],
    budget: float,
    train: np.typing.NDArray[np.bool_],
    *,
    classifier: str,
    seed: int,
) -> IntArray:
    rows = np.flatnonzero(train)
    policy = fit_router(
        pool.features[rows],
        table.take(rows),
        make_levels(samples),
        budgets=[budget],
        classifier=classifier,
        seed=seed,
    )
    return decide_once(policy, pool, policy.schedule.prices[0], table)


def _score(
    table: UtilityTable,
    choice: IntArray,
    held: np.typing.NDArray[np.bool_],
    price: float,
    budget: float,
) -> dict[str, float]:
    cost, accuracy = table.cost_of(choice), table.utility_of(choice)
    return {
        "cost": float(cost.mean()),
        "accuracy": float(accuracy.mean()),
        **measure(table, choice, price, budget),
        "held_out_cost": float(cost[held].mean()),
        "held_out_accuracy": float(accuracy[held].mean()),
        "held_out_imitation": float((choice == choose(table, price))[held].mean()),
    }


def _row(name: str, budget: float, runs: list[dict[str, float]]) -> dict[str, Any]:
    means = {column: float(np.mean([run[column] for run in runs])) for column in runs[0]}
    spread = float(np.std([run["accuracy"] for run in runs]))
    return {
        "policy": name,
        "budget": budget,
        **means,
        "accuracy_low": means["accuracy"] - spread,
        "accuracy_high": means["accuracy"] + spread,
    }
