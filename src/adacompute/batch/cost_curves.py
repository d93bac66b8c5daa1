"""Cost curves: the expected cost of each class of questions at each price, from a bundle alone.

For the sequential policy, a class is a cell of the prior: its table of state probabilities and the
rule of break-even prices give the mean number of samples at any price, averaged over the price
jitter; a policy over arms keeps the mean cost of each cell in training. For the paper's router, a
class is the level that a classifier chooses. Other policies have the frontier of their calibration,
whatever the questions are. Nothing here sees a question.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from adacompute.batch.plan import ClassCosts, CostCurve
from adacompute.core.errors import BundleError
from adacompute.core.types import FloatArray, IntArray
from adacompute.policies.bundle import Bundle
from adacompute.policies.coloured import ColouredPolicy
from adacompute.policies.induction import occupancy
from adacompute.policies.router import RouterPolicy
from adacompute.policies.sequential import PRICE_JITTER, SequentialPolicy

PRICE_STEP = 1.02
"""Ratio of two neighbouring prices of the curve of a sequential policy."""

MIN_BREAK_EVEN = 1e-6
"""Smallest break-even price that matters: induction does not separate lower ones."""

PRICES_AT_ONCE = 32
"""Prices for which states are followed at the same time, which bounds the memory."""

JITTER_STEPS = 16
"""Prices over which the price jitter is averaged."""


def has_cell_costs(bundle: Bundle) -> bool:
    """Whether the expected cost of a question follows from its cell of the prior."""
    policy = bundle.policy
    if isinstance(policy, ColouredPolicy):
        cost = () if bundle.baseline is None else bundle.baseline.cell_cost
        return np.shape(cost) == (len(policy.schedule.prices), len(policy.prior.cell_centre))
    return (
        isinstance(policy, SequentialPolicy)
        and policy.is_index_rule
        and (bundle.max_rounds is None or bundle.max_rounds >= len(policy.levels))
    )


def cell_costs(bundle: Bundle) -> ClassCosts:
    """Return the expected cost of a question in each cell, at each price.

    If the policy is calibrated and the shares of cells in training are known, costs are corrected
    so that their mean over the training questions is that on held-out questions.
    """
    policy, baseline = bundle.policy, bundle.baseline
    if isinstance(policy, ColouredPolicy) and baseline is not None:
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
    policy = bundle.policy
    if not isinstance(policy, SequentialPolicy):
        raise TypeError(f"{type(policy).__name__} is no sequential policy")
    cost = float(bundle.level_cost[0, 0])
    highest = max(float(policy.break_even_price[1:].max(initial=0.0)), 2 * MIN_BREAK_EVEN)
    edge = 1.0 - PRICE_JITTER / 2
    n_steps = int(np.ceil(np.log(1.01 * highest / MIN_BREAK_EVEN) / np.log(PRICE_STEP)))
    fine = MIN_BREAK_EVEN * np.power(PRICE_STEP, np.arange(n_steps, -1, -1, dtype=np.float64))
    n_samples = _mean_samples(policy, fine)
    prices = np.concatenate([fine / edge, [fine[-1] / (2 - edge)]])
    shown = np.empty((len(prices), n_samples.shape[1]))
    jitter = edge + PRICE_JITTER * (np.arange(JITTER_STEPS) + 0.5) / JITTER_STEPS
    at = -np.log(prices[:, None] * jitter)
    for cell in range(n_samples.shape[1]):
        shown[:, cell] = np.interp(at, -np.log(fine), n_samples[:, cell]).mean(axis=1)
    return ClassCosts(prices / cost, shown * cost)


def _mean_samples(policy: SequentialPolicy, prices: FloatArray) -> FloatArray:
    """Return the mean number of samples in each cell at falling prices of a sample, (P, C)."""
    # Single precision halves the time, and is what the table of the rule has.
    rule: Any = policy.break_even_price
    mass = policy.measure.mass / np.maximum(policy.measure.mass[0], np.finfo(float).tiny)
    mass = mass.astype(rule.dtype)
    found = []
    for start in range(0, len(prices), PRICES_AT_ONCE):
        _, go = occupancy(rule, prices[start : start + PRICES_AT_ONCE].astype(rule.dtype))
        found.append(np.einsum("sc,scp->pc", mass, go, optimize=True))
    return np.concatenate(found).astype(np.float64)


def router_curve(bundle: Bundle, counts: IntArray) -> CostCurve:
    """Return the mean cost of the paper's router from how often classifiers choose levels, (S, K).

    Between the prices of two classifiers, questions are mixed by shares that are linear in the
    logarithm of the price, so this curve is exact.
    """
    policy = bundle.policy
    if not isinstance(policy, RouterPolicy):
        raise TypeError(f"{type(policy).__name__} is no router")
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    costs = np.maximum.accumulate(share @ bundle.level_cost[0])
    return CostCurve(np.array(policy.schedule.prices), costs)


def frontier_curve(bundle: Bundle) -> CostCurve:
    """Return the mean cost at each calibrated price, on the questions of the calibration."""
    if not bundle.frontier:
        raise BundleError(
            "the policy is not calibrated, so its cost is not known: run 'adacompute calibrate'"
        )
    points = sorted(bundle.frontier, key=lambda point: -point.price)
    costs = np.maximum.accumulate([point.cost for point in points])
    return CostCurve(np.array([point.price for point in points]), costs)
