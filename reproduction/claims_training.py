"""Paper claims, training: claims about the time and the number of questions that training needs.

Each has its judge.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from reproduction.verdicts import (
    NOTHING,
    TOLERANCE,
    ExhibitData,
    Judgement,
    NotMeasurable,
    PaperClaim,
    decide,
    points,
)

if TYPE_CHECKING:
    from reproduction.ablations import Efficiency
    from reproduction.claim_measures import ClaimMeasures

MAX_FIT_S, MAX_ROUTING_SHARE = 1.0, 0.01
MAX_LATE_GAP, MIN_FIT = 0.02, 0.9


def judge_training_time(data: ExhibitData) -> Judgement:
    """Judge the time of training; no digits, so that the same run gives the same file."""
    measures: ClaimMeasures = data["measures"]
    is_fast = measures.fit_s < MAX_FIT_S
    shown = f"{'below' if is_fast else 'above'} 1 s of processor time"
    return Judgement(shown, NOTHING, decide(is_fast))


def judge_routing_time(data: ExhibitData) -> Judgement:
    """Judge the time of a decision against that of one sample."""
    measures: ClaimMeasures = data["measures"]
    if measures.latency_s is None:
        raise NotMeasurable("the samples have no latency")
    is_cheap = measures.routing_s < MAX_ROUTING_SHARE * measures.latency_s
    shown = f"{'below' if is_cheap else 'above'} 1 % of a sample"
    return Judgement(shown, NOTHING, decide(is_cheap))


def judge_rising_accuracy(data: ExhibitData) -> Judgement:
    """Judge whether more training questions never lower the accuracy."""
    efficiency: Efficiency = data["efficiency"]
    paper, held_out = (
        float(np.diff(values.mean(axis=2), axis=1).min())
        for values in (efficiency.paper, efficiency.held_out)
    )
    return Judgement(points(paper), points(held_out), decide(held_out >= 0))


def judge_diminishing_returns(data: ExhibitData) -> Judgement:
    """Judge whether the last two fifths of the training questions gain less than the rest."""
    efficiency: Efficiency = data["efficiency"]
    middle = efficiency.fractions.index(0.6)
    found = []
    for values in (efficiency.paper, efficiency.held_out):
        mean = values.mean(axis=(0, 2))
        found.append((float(mean[middle] - mean[0]), float(mean[-1] - mean[middle])))
    shown = [f"{points(early)}, then {points(late)}" for early, late in found]
    return Judgement(shown[0], shown[1], decide(0 < found[1][1] < found[1][0]))


def judge_logarithmic_rate(data: ExhibitData) -> Judgement:
    """Judge how well accuracy follows the logarithm of the number of training questions."""
    efficiency: Efficiency = data["efficiency"]
    share = np.log(efficiency.fractions)
    found = []
    for values in (efficiency.paper, efficiency.held_out):
        mean = values.mean(axis=(0, 2))
        varies = float(np.ptp(mean)) > TOLERANCE
        correlation = float(np.corrcoef(share, mean)[0, 1]) if varies else 0.0
        found.append(correlation * abs(correlation))
    verdict = decide(found[1] >= MIN_FIT)
    return Judgement(f"R² = {found[0]:.2f}", f"R² = {found[1]:.2f}", verdict)


def judge_late_gap(data: ExhibitData) -> Judgement:
    """Judge the gap to the oracle with all training questions."""
    efficiency: Efficiency = data["efficiency"]
    gap = efficiency.oracle - efficiency.paper[:, -1].mean(axis=1)
    gain = efficiency.held_out[:, -1] - efficiency.fixed_held_out
    held_out = efficiency.oracle - efficiency.fixed - gain.mean(axis=1)
    worst = float(gap.max()), float(held_out.max())
    return Judgement(points(worst[0]), points(worst[1]), decide(worst[1] <= MAX_LATE_GAP))


TRAINING_CLAIMS = (
    PaperClaim(
        "Training takes less than a second",
        "Figure 3",
        "below 1 s",
        "one router trains in less than 1 s of processor time",
        judge_training_time,
    ),
    PaperClaim(
        "Routing costs less than 1 % of inference",
        "Section 4.3",
        "below 1 %",
        "the trees' decision takes less than 1 % of the latency of a sample",
        judge_routing_time,
    ),
    PaperClaim(
        "More training questions always help",
        "Figure 11",
        "climbs monotonically",
        "no step lowers the accuracy, held out",
        judge_rising_accuracy,
    ),
    PaperClaim(
        "Returns diminish beyond 60 % of the training questions",
        "Figure 11",
        "beyond 60 %",
        "the last 40 % gain something, but less than the first 60 %, held out",
        judge_diminishing_returns,
    ),
    PaperClaim(
        "Accuracy grows with the logarithm of the training questions",
        "Appendix H.2",
        "near-logarithmic",
        "R² is at least 0.9 with a positive slope, held out",
        judge_logarithmic_rate,
    ),
    PaperClaim(
        "With all training questions the gap to the oracle is 1 to 2 points",
        "Appendix H.2",
        "1–2 points",
        "at most 2 points at every budget, held out",
        judge_late_gap,
    ),
)
"""In the order of the paper."""
