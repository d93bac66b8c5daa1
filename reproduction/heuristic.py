"""Heuristic: the paper's rule that gives the longest questions the largest level.

The paper ranks questions "by prompt length" and does not define the rule further. It is inferred
from the costs that the paper reports: the longest questions get the largest level and all others
the smallest, and their number is rounded up, so that it spends more than the budget. It is not the
package's ``longest-first``, which mixes the two best numbers of samples in place of the smallest
and the largest level.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from adacompute.core.types import IntArray, UtilityTable, hash_keys
from adacompute.evaluation.experiment import FittedPolicy
from adacompute.evaluation.rivals import LongestFirst
from adacompute.policies.price_schedule import PriceSchedule
from adacompute.policies.uniform import FixedRule

if TYPE_CHECKING:
    from adacompute.evaluation.experiment import Experiment
    from adacompute.evaluation.pool import Pool

HEURISTIC = "paper-heuristic"


def allocate_heuristic(pool: Pool, table: UtilityTable, budget: float) -> IntArray:
    """Return the level of each question, as the paper allocates.

    Of N questions, the longest ⌈N (B − c_1) / (c_K − c_1)⌉ get the largest level.
    """
    lowest, *_, highest = table.costs.mean(axis=0).tolist()
    share = (budget - lowest) / (highest - lowest)
    n_longest = math.ceil(len(pool) * min(max(share, 0.0), 1.0) - 1e-9)
    by_length = np.lexsort((hash_keys(pool.key), -pool.features[:, pool.length_feature]))
    choice = np.zeros(len(pool), dtype=np.int64)
    choice[by_length[:n_longest]] = table.n_levels - 1
    return choice


def make_heuristic(experiment: Experiment, train: IntArray) -> FittedPolicy:
    """Give questions that are long among the training questions the largest level.

    It is scored at the share of long questions that spends each budget, on held-out questions.
    """
    ends = dict.fromkeys((experiment.levels[0], experiment.levels[-1]))
    rules = tuple(FixedRule(n) for n in ends)
    cost = experiment.run_rules(rules).cost[train].mean(axis=0)
    schedule = PriceSchedule((2.0, 1.0)[: len(rules)])
    shares = np.interp(experiment.budgets, cost, np.arange(len(rules), dtype=np.float64))
    positions = sorted({0.0, len(rules) - 1.0, *shares.tolist()})
    column = experiment.pool.length_feature
    policy = LongestFirst(
        HEURISTIC,
        experiment.policy_levels,
        rules,
        schedule,
        training_lengths=tuple(np.sort(experiment.pool.features[train, column]).tolist()),
        length_feature=column,
    )
    prices = tuple(schedule.price_at(position) for position in positions)
    return FittedPolicy(policy, prices, experiment.pool.features)
