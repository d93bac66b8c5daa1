"""Paper claims, prices: claims about prices, their search, and the estimates of utilities.

Each has its judge.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from reproduction.run_data import never_rises
from reproduction.verdicts import (
    HALF,
    MAX_DEVIATION,
    NINE_TENTHS,
    NOTHING,
    TOLERANCE,
    ExhibitData,
    Judgement,
    NotMeasurable,
    PaperClaim,
    decide,
    percent,
    points,
)

if TYPE_CHECKING:
    from adacompute.core.types import FloatArray
    from reproduction.claim_measures import ClaimMeasures
    from reproduction.oracle_data import Bisection, CostByPrice

LOW_PRICE, HIGH_PRICE = 0.01, 0.10
MAX_STEPS = 10
SAME_PRICE = 1e-9
"""Prices that are closer differ by rounding only."""


def judge_falling_prices(data: ExhibitData) -> Judgement:
    """Judge whether the price falls as the budget grows."""
    bisection: Bisection = data["bisection"]
    columns = ("price (bisection)", "price (exact)")
    prices = [[float(row[column] or 0) for row in bisection.rows] for column in columns]
    shown = [", ".join(f"{price:.3g}" for price in own) for own in prices]
    verdict = decide(all(never_rises(np.array(own)) for own in prices))
    return Judgement(shown[0], shown[1], verdict)


def judge_steps(data: ExhibitData) -> Judgement:
    """Judge after how many steps the bisection comes no closer to the budget than 0.05 more."""
    bisection: Bisection = data["bisection"]
    needed = []
    for row, trace in zip(bisection.rows, bisection.traces, strict=True):
        if not len(trace.cost_middle):  # the budget does not bind
            continue
        is_wide = trace.high - trace.low > SAME_PRICE
        deviation = np.abs(trace.cost_middle - float(row["B"] or 0))[is_wide]
        closest = np.minimum.accumulate(deviation)
        needed.append(int(np.argmax(closest < closest[-1] + MAX_DEVIATION)) + 1)
    if not needed:
        raise NotMeasurable("no budget binds")
    return Judgement(f"{max(needed)} steps", NOTHING, decide(max(needed) <= MAX_STEPS))


def judge_mixing(data: ExhibitData) -> Judgement:
    """Judge whether splitting one question spends a binding budget exactly."""
    bisection: Bisection = data["bisection"]
    binding = [row for row in bisection.rows if float(row["price (exact)"] or 0) > 0]
    if not binding:
        raise NotMeasurable("no budget binds")
    spent = [(float(r["cost with one question split"] or 0), float(r["B"] or 0)) for r in binding]
    worst = max(abs(cost - budget) for cost, budget in spent)
    return Judgement(NOTHING, f"{worst:.3f}", decide(worst < TOLERANCE * 1e3))


def judge_price_range(data: ExhibitData) -> Judgement:
    """Judge how much of the fall of the cost is between the prices 0.01 and 0.10."""
    cost: CostByPrice = data["staircase"]

    def share(values: FloatArray) -> float:
        low, high = np.interp([LOW_PRICE, HIGH_PRICE], cost.price, values)
        return float((low - high) / max(TOLERANCE, values[0] - values[-1]))

    windows, exact = share(cost.windows), share(cost.exact)
    return Judgement(percent(windows), percent(exact), decide(exact > HALF))


def judge_price_of_one(data: ExhibitData) -> Judgement:
    """Judge whether every question gets level 1 from a price of 0.10 on."""
    cost: CostByPrice = data["staircase"]
    found = [float(np.interp(HIGH_PRICE, cost.price, c)) for c in (cost.windows, cost.exact)]
    return Judgement(
        f"{found[0]:.2f} samples", f"{found[1]:.2f} samples", decide(found[1] < 1 + MAX_DEVIATION)
    )


def judge_easiest_first(data: ExhibitData) -> Judgement:
    """Judge whether the easiest questions fall to level 1 first as the price rises."""
    return _judge_drops(data, lambda prices: prices[-1] <= prices.min() + TOLERANCE)


def judge_middle_last(data: ExhibitData) -> Judgement:
    """Judge whether questions of middle difficulty fall to level 1 last."""
    return _judge_drops(data, lambda prices: 0 < int(prices.argmax()) < len(prices) - 1)


def _judge_drops(data: ExhibitData, is_so: Callable[[FloatArray], object]) -> Judgement:
    measures: ClaimMeasures = data["measures"]
    both = measures.drop_price, measures.other_drop_price
    shown = ["; ".join(f"{price:.3f}" for price in prices.tolist()) for prices in both]
    return Judgement(shown[0], shown[1], decide(is_so(both[1])))


def judge_stable_labels(data: ExhibitData) -> Judgement:
    """Judge whether labels are the same on two halves of the samples."""
    measures: ClaimMeasures = data["measures"]
    agreement = measures.label_agreement
    return Judgement(NOTHING, percent(agreement), decide(agreement >= NINE_TENTHS))


def judge_single_trials(data: ExhibitData) -> Judgement:
    """Judge whether one trial per question gives the mean accuracy of each level."""
    measures: ClaimMeasures = data["measures"]
    error = measures.single_error
    two_errors = 2 * HALF / np.sqrt(measures.n_questions)
    return Judgement(points(error), NOTHING, decide(error <= two_errors))


def judge_feasibility(data: ExhibitData) -> Judgement:
    """Judge the first part of Theorem 3 on the held-out router."""
    measures: ClaimMeasures = data["measures"]
    slack = measures.feasibility_slack
    return Judgement(NOTHING, f"{slack:+.2f} samples", decide(slack >= -TOLERANCE))


def judge_optimality(data: ExhibitData) -> Judgement:
    """Judge the second part of Theorem 3, as published, on the held-out router."""
    measures: ClaimMeasures = data["measures"]
    slack = measures.optimality_slack
    return Judgement(NOTHING, points(slack), decide(slack >= -TOLERANCE))


PRICE_CLAIMS = (
    PaperClaim(
        "The price falls as the budget grows",
        "Table 6",
        "0.057, 0.021, 0.008",
        "no price rises, by bisection and exactly",
        judge_falling_prices,
    ),
    PaperClaim(
        "The bisection is complete within 10 steps",
        "Figure 8",
        "6–10 steps",
        "later steps come less than 0.05 closer to the budget",
        judge_steps,
    ),
    PaperClaim(
        "Mixing spends a binding budget exactly",
        "Appendix E.3",
        "exact in expectation",
        "the largest deviation with one question split is 0",
        judge_mixing,
    ),
    PaperClaim(
        "The cost falls mostly between prices of 0.01 and 0.10",
        "Figures 2 and 9",
        "concentrated in [0.01, 0.10]",
        "more than half of the fall, with exact utilities",
        judge_price_range,
    ),
    PaperClaim(
        "From a price of 0.10 every question gets level 1",
        "Appendix G.1",
        "1.0 samples",
        "the mean cost there is below 1.05, with exact utilities",
        judge_price_of_one,
    ),
    PaperClaim(
        "As the price rises, the easiest questions fall to level 1 first",
        "Section 3.1",
        "starting with the easiest",
        "no other fifth falls at a lower mean price (the list begins with the hardest)",
        judge_easiest_first,
    ),
    PaperClaim(
        "Questions of middle difficulty keep high levels longest",
        "Figure 9a",
        "the responsive middle band",
        "a middle fifth falls at the highest mean price",
        judge_middle_last,
    ),
    PaperClaim(
        "8 to 16 repetitions give stable labels",
        "Appendix D",
        "typically sufficient",
        "at least 90 % of the labels at B = 2 are equal on both halves of the samples",
        judge_stable_labels,
    ),
    PaperClaim(
        "One binary trial per question gives reliable mean accuracies",
        "Appendix D",
        "reliable aggregates",
        "the largest error is within two standard errors",
        judge_single_trials,
    ),
    PaperClaim(
        "A router with error rate ε spends at most ε (c_K − c_1) above the budget",
        "Theorem 3",
        "proved",
        "the bound minus the cost is never below 0",
        judge_feasibility,
    ),
    PaperClaim(
        "A router with error rate ε is within M̄ ε of the optimum of the larger budget",
        "Theorem 3",
        "proved",
        "the bound minus the gap is never below 0 on this run",
        judge_optimality,
    ),
)
"""In the order of the tables and figures, then the theorem."""
