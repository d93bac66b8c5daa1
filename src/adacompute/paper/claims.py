"""Paper claims: each claim of the paper with its verdict on one run.

A row has the claim, the paper's figure, the result by the paper's protocol, the held-out result,
the rule, and the verdict that the rule gives. A claim that holds on one set of samples can fail on
another. It knows nothing of plotting.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from adacompute.paper.verdicts import (
    UNKNOWN,
    ExhibitData,
    Judgement,
    judge_adjacent_mistakes,
    judge_budget_deviation,
    judge_duality,
    judge_ends_get_one,
    judge_equal_spending,
    judge_fine_levels,
    judge_imitation,
    judge_inverted_u,
    judge_level_two,
    judge_mean_bound,
    judge_middle_gains,
    judge_monotonicity,
    judge_odd_levels,
    judge_oracle_gain,
    judge_predictability,
    judge_relative_gain,
    judge_responsive_share,
    judge_router_gain,
    judge_small_gap,
    judge_small_training_set,
    judge_trees,
    judge_zero_price,
)
from adacompute.report.table_files import Row


@dataclass(frozen=True)
class PaperClaim:
    """A claim of the paper, the paper's own figure, the rule of the verdict, and its judge."""

    claim: str
    paper: str
    rule: str
    judge: Callable[[ExhibitData], Judgement]


CLAIMS = (
    PaperClaim(
        "The learned router beats uniform allocation at B = 2",
        "+4.5 points over Fixed-b",
        "the interval of the held-out gain over the best mixture is above 0",
        judge_router_gain,
    ),
    PaperClaim(
        "The router's relative gain is large for B ≤ 3",
        "up to 12.8 %",
        "at least half of it remains held out, at equal cost",
        judge_relative_gain,
    ),
    PaperClaim(
        "The static oracle's gain over the best mixture at B = 2 is real",
        "an upper bound, scored on the samples used to choose",
        "at least 90 % remains when it is scored on other samples",
        judge_oracle_gain,
    ),
    PaperClaim(
        "The router imitates the oracle (worst budget)",
        "91–99 %",
        "at least 91 % held out",
        judge_imitation,
    ),
    PaperClaim(
        "Sixteen text statistics predict the oracle's level",
        "82 %, against 75 % for always level 1",
        "held-out imitation is above that of always predicting the most common level",
        judge_predictability,
    ),
    PaperClaim(
        "The gap to the oracle is small",
        "0.4–1.4 points",
        "at most 1.4 points held out",
        judge_small_gap,
    ),
    PaperClaim(
        "Trees beat linear classifiers by about 5 points",
        "+5.1 points",
        "at least half of 5 points remains with splits by question",
        judge_trees,
    ),
    PaperClaim(
        "All policies spend the same budget",
        "Fixed-b spends 2.00 at B = 3",
        "Fixed-b spends at least 95 % of the largest budget",
        judge_equal_spending,
    ),
    PaperClaim(
        "Level 2 is worth its cost",
        "3–10 % of questions at B = 2",
        "at least 3 % of questions with exact utilities",
        judge_level_two,
    ),
    PaperClaim(
        "The deterministic oracle has no duality gap (Proposition 1)",
        "0",
        "the gap is 0 at every budget",
        judge_duality,
    ),
    PaperClaim(
        "A single price meets every binding budget",
        "within 0.05",
        "the largest deviation is below 0.05",
        judge_budget_deviation,
    ),
    PaperClaim(
        "The oracle's cost never rises with the price (Theorem 1)",
        "monotone",
        "the cost rises at no price",
        judge_monotonicity,
    ),
    PaperClaim(
        "At a price of 0 every question gets the largest level",
        "100 %",
        "all questions get it",
        judge_zero_price,
    ),
    PaperClaim(
        "Voting gains most at middle difficulty",
        "+7.2 to +8.5 points, ends +2.7 to +6.5",
        "the band that gains most is neither the easiest nor the hardest",
        judge_middle_gains,
    ),
    PaperClaim(
        "Samples against difficulty form an inverted U at B = 3",
        "the middle fifths get the most",
        "a middle fifth gets more than both ends, with difficulty from other samples",
        judge_inverted_u,
    ),
    PaperClaim(
        "Levels of 4 and above go to responsive questions at B = 2",
        "essentially all",
        "at least 90 %, with archetypes from other samples",
        judge_responsive_share,
    ),
    PaperClaim(
        "Easy and hard questions get level 1 at B = 2",
        "above 90 %",
        "above 90 % of both, with archetypes from other samples",
        judge_ends_get_one,
    ),
    PaperClaim(
        "Levels finer than powers of 2 add nothing at B = 2",
        "below 0.1 points",
        "below 0.1 points, cross-fitted",
        judge_fine_levels,
    ),
    PaperClaim(
        "Powers of 2 are as good as odd levels at B = 2",
        "near-optimal",
        "odd levels add less than 0.1 points, cross-fitted",
        judge_odd_levels,
    ),
    PaperClaim(
        "A quarter of the training questions is enough to beat Fixed-b",
        "at every budget",
        "at every budget, held out",
        judge_small_training_set,
    ),
    PaperClaim(
        "Mean M × error rate bounds the accuracy gap",
        "all points below it",
        "no point is above it",
        judge_mean_bound,
    ),
    PaperClaim(
        "Most mistakes are one level off",
        "mostly adjacent levels",
        "more than half of the mistakes, with splits by question",
        judge_adjacent_mistakes,
    ),
)


def judge_claims(data: ExhibitData) -> list[Row]:
    """Judge every claim by the data of a run's exhibits; inconclusive where data is missing."""
    rows: list[Row] = []
    for claim in CLAIMS:
        try:
            judgement = claim.judge(data)
        except (KeyError, StopIteration, ValueError):  # the run is too small for an exhibit
            judgement = UNKNOWN
        rows.append(
            {
                "claim": claim.claim,
                "paper": claim.paper,
                "by its protocol": judgement.paper,
                "held out": judgement.held_out,
                "holds if": claim.rule,
                "verdict": judgement.verdict,
            }
        )
    return rows
