"""Cost curves: the expected cost of each class of questions at each price, from a bundle alone.

For the sequential policy, a class is a cell of the prior: its table of state probabilities and the
rule of break-even prices give the mean number of samples at any price, averaged over the price
jitter; a policy over arms keeps the mean cost of each cell in training. For the paper's router, a
class is the level that a classifier chooses. Other policies have the frontier of their calibration,
whatever the questions are. Nothing here sees a question.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from adacompute.batch.planning.plan import ClassCosts, CostCurve
from adacompute.core.errors import BundleError
from adacompute.core.types import IntArray
from adacompute.policies.bundles.bundle import Bundle
from adacompute.policies.policy import PreparedKind
from adacompute.policies.sequential.vote_table import PRICE_JITTER

PRICE_STEP = 1.02
"""Ratio of two neighbouring prices of the curve of a sequential policy."""

MIN_BREAK_EVEN = 1e-6
"""Smallest break-even price that matters: induction does not separate lower ones."""

JITTER_STEPS = 16
"""Prices over which the price jitter is averaged."""


def has_cell_costs(bundle: Bundle) -> bool:
    """Whether the expected cost of a question follows from its cell of the prior."""
    policy, baseline = bundle.policy, bundle.baseline
    if policy.arms and policy.n_cells and policy.schedule is not None:
        cost = () if baseline is None else baseline.cell_cost
        return np.shape(cost) == (len(policy.schedule.prices), policy.n_cells)
    has_rounds = bundle.max_rounds is None or bundle.max_rounds >= len(policy.levels)
    return policy.is_index_rule and has_rounds


def cell_costs(bundle: Bundle) -> ClassCosts:
    """Return the expected cost of a question in each cell, at each price.

    If the policy is calibrated and the shares of cells in training are known, costs are corrected
    so that their mean over the training questions is that on held-out questions.
    """
    policy, baseline = bundle.policy, bundle.baseline
    if policy.arms and policy.schedule is not None and baseline is not None:
        prices = np.array(policy.schedule.prices)
        costs = np.maximum.accumulate(np.array(baseline.cell_cost), axis=0)
        found = ClassCosts(prices, costs)
    else:
        found = sequential_costs(bundle)
    n_cells = found.costs.shape[1]
    if baseline is None or len(baseline.cell_share) != n_cells or not bundle.frontier:
        return found
    return found.corrected(np.array(baseline.cell_share), frontier_curve(bundle))


@lru_cache(maxsize=4)  # a second or two, and the same for every batch
def sequential_costs(bundle: Bundle) -> ClassCosts:
    """Return the expected cost of a question in each cell of a sequential policy, at each price."""
    policy, cost = bundle.policy, float(bundle.level_cost[0, 0])
    highest = max(policy.highest_price, 2 * MIN_BREAK_EVEN)
    edge = 1.0 - PRICE_JITTER / 2
    n_steps = int(np.ceil(np.log(1.01 * highest / MIN_BREAK_EVEN) / np.log(PRICE_STEP)))
    fine = MIN_BREAK_EVEN * np.power(PRICE_STEP, np.arange(n_steps, -1, -1, dtype=np.float64))
    n_samples = policy.mean_samples(fine)
    if n_samples is None:
        raise TypeError(f"the cost of a {policy.name} policy does not follow from its cells")
    prices = np.concatenate([fine / edge, [fine[-1] / (2 - edge)]])
    shown = np.empty((len(prices), n_samples.shape[1]))
    jitter = edge + PRICE_JITTER * (np.arange(JITTER_STEPS) + 0.5) / JITTER_STEPS
    at = -np.log(prices[:, None] * jitter)
    for cell in range(n_samples.shape[1]):
        shown[:, cell] = np.interp(at, -np.log(fine), n_samples[:, cell]).mean(axis=1)
    return ClassCosts(prices / cost, shown * cost)


def router_curve(bundle: Bundle, counts: IntArray) -> CostCurve:
    """Return the mean cost of the paper's router from how often classifiers choose levels, (S, K).

    Between the prices of two classifiers, questions are mixed by shares that are linear in the
    logarithm of the price, so this curve is exact.
    """
    schedule = bundle.policy.schedule
    if schedule is None or bundle.policy.prepared != PreparedKind.LEVELS:
        raise TypeError(f"a {bundle.policy.name} policy is no router")
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    costs = np.maximum.accumulate(share @ bundle.level_cost[0])
    return CostCurve(np.array(schedule.prices), costs)


def frontier_curve(bundle: Bundle) -> CostCurve:
    """Return the mean cost at each calibrated price, on the questions of the calibration."""
    if not bundle.frontier:
        raise BundleError(
            "the policy is not calibrated, so its cost is not known: run 'adacompute fit' "
            "or call ada.calibrate"
        )
    points = sorted(bundle.frontier, key=lambda point: -point.price)
    costs = np.maximum.accumulate([point.cost for point in points])
    return CostCurve(np.array([point.price for point in points]), costs)
