"""Paper claims: claims that a table or figure of the paper states, each with its verdict on a run.

A row has the claim, where the paper makes it, its figure, the result by the paper's protocol, the
held-out result, for claims about the router that with the feature of Figure 13, the rule, and the
verdict that the rule gives. A claim that holds on one set of samples can fail on another. Where a
run lacks the data that a claim needs, it is not measurable, and the row says why.
"""

from __future__ import annotations

from collections.abc import Mapping

from reproduction.comparison import FIGURE_13
from reproduction.table_files import Row
from reproduction.verdicts import (
    NOT_MEASURABLE,
    NOTHING,
    ExhibitData,
    Judgement,
    NotMeasurable,
    PaperClaim,
    judge_adjacent_mistakes,
    judge_budget_deviation,
    judge_ends_get_one,
    judge_equal_spending,
    judge_fine_levels,
    judge_heat_map,
    judge_imitation,
    judge_inverted_u,
    judge_level_two,
    judge_mean_bound,
    judge_middle_gains,
    judge_monotonicity,
    judge_oracle_gain,
    judge_predictability,
    judge_responsive_share,
    judge_router_gain,
    judge_small_gap,
    judge_small_training_set,
    judge_trees,
)

CLAIMS = (
    PaperClaim(
        "The learned router beats uniform allocation at B = 2",
        "Table 1",
        "+4.5 points over Fixed-b",
        "the interval of the held-out gain over the best mixture is above 0",
        judge_router_gain,
    ),
    PaperClaim(
        "The static oracle's gain over the best mixture at B = 2 is real",
        "Table 1",
        "an upper bound, scored on the samples used to choose",
        "at least 90 % remains when it is scored on other samples",
        judge_oracle_gain,
    ),
    PaperClaim(
        "The router imitates the oracle (worst budget)",
        "abstract, Table 5",
        "91–99 %",
        "at least 91 % held out",
        judge_imitation,
    ),
    PaperClaim(
        "Sixteen text statistics predict the oracle's level",
        "Table 7",
        "82 %, against 75 % for always level 1",
        "held-out imitation is above that of always predicting the most common level",
        judge_predictability,
    ),
    PaperClaim(
        "The gap to the oracle is small",
        "Section 5.4, Table 5",
        "0.4–1.4 points",
        "at most 1.4 points held out",
        judge_small_gap,
    ),
    PaperClaim(
        "Trees beat linear classifiers by about 5 points",
        "Section 5.5, Table 2",
        "+5.1 points",
        "at least half of 5 points remains with splits by question",
        judge_trees,
    ),
    PaperClaim(
        "All policies spend the same budget",
        "abstract, Table 1",
        "Fixed-b spends 2.00 at B = 3",
        "Fixed-b spends at least 95 % of the largest budget",
        judge_equal_spending,
    ),
    PaperClaim(
        "Level 2 is worth its cost",
        "Table 4",
        "3–10 % of questions at B = 2",
        "at least 3 % of questions with exact utilities",
        judge_level_two,
    ),
    PaperClaim(
        "A single price meets every binding budget",
        "Table 6",
        "within 0.05",
        "the largest deviation is below 0.05",
        judge_budget_deviation,
    ),
    PaperClaim(
        "The oracle's cost never rises with the price (Theorem 1)",
        "Figure 2",
        "monotone",
        "the cost rises at no price",
        judge_monotonicity,
    ),
    PaperClaim(
        "Voting gains most at middle difficulty",
        "Table 3",
        "+7.2 to +8.5 points, ends +2.7 to +6.5",
        "the band that gains most is neither the easiest nor the hardest",
        judge_middle_gains,
    ),
    PaperClaim(
        "Samples against difficulty form an inverted U at B = 3",
        "Figure 6",
        "the middle fifths get the most",
        "a middle fifth gets more than both ends, with difficulty from other samples",
        judge_inverted_u,
    ),
    PaperClaim(
        "Levels of 4 and above go to responsive questions at B = 2",
        "Figure 7c",
        "essentially all",
        "at least 90 %, with archetypes from other samples",
        judge_responsive_share,
    ),
    PaperClaim(
        "Easy and hard questions get level 1 at B = 2",
        "Figure 7c",
        "above 90 %",
        "above 90 % of both, with archetypes from other samples",
        judge_ends_get_one,
    ),
    PaperClaim(
        "Levels finer than powers of 2 add nothing at B = 2",
        "Figure 12c",
        "below 0.1 points",
        "below 0.1 points, cross-fitted",
        judge_fine_levels,
    ),
    PaperClaim(
        "A quarter of the training questions is enough to beat Fixed-b",
        "Figure 11",
        "at every budget",
        "at every budget, held out",
        judge_small_training_set,
    ),
    PaperClaim(
        "Mean M × error rate bounds the accuracy gap",
        "Figure 10b",
        "all points below it",
        "no point is above it",
        judge_mean_bound,
    ),
    PaperClaim(
        "Most mistakes are one level off",
        "Figure 10c",
        "mostly adjacent levels",
        "more than half of the mistakes, with splits by question",
        judge_adjacent_mistakes,
    ),
    PaperClaim(
        "The router replicates the oracle's levels by difficulty",
        "Figure 5",
        "small differences",
        "no share differs by more than 10 points, held out",
        judge_heat_map,
    ),
)
"""At most twenty, in the order of the paper's main results."""


def judge_claims(data: ExhibitData) -> list[Row]:
    """Judge every claim by the data of a run's exhibits."""
    return [_judge(claim, data) for claim in CLAIMS]


def compare_verdicts(by_run: Mapping[str, list[Row]]) -> list[Row]:
    """Return one row per claim with the verdict of each run."""
    return [
        {
            "claim": claim.claim,
            "in the paper": claim.source,
            "paper": claim.paper,
            **{name: rows[i]["verdict"] for name, rows in by_run.items()},
        }
        for i, claim in enumerate(CLAIMS)
    ]


def _judge(claim: PaperClaim, data: ExhibitData) -> Row:
    try:
        return _make_row(claim, claim.judge(data), NOTHING)
    except NotMeasurable as error:
        return _make_row(claim, _not_measurable(), str(error))
    except KeyError as error:  # the run is too small for an exhibit
        return _make_row(claim, _not_measurable(), f"the run has no data of {error.args[0]}")
    except (StopIteration, ValueError):
        return _make_row(claim, _not_measurable(), "the run is too small")


def _not_measurable() -> Judgement:
    return Judgement(NOTHING, NOTHING, NOT_MEASURABLE)


def _make_row(claim: PaperClaim, judgement: Judgement, reason: str) -> Row:
    return {
        "claim": claim.claim,
        "in the paper": claim.source,
        "paper": claim.paper,
        "by its protocol": judgement.paper,
        "held out": judgement.held_out,
        FIGURE_13: judgement.figure_13,
        "holds if": claim.rule,
        "verdict": judgement.verdict,
        "reason": reason,
    }
