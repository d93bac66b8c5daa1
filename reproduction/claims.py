"""Paper claims: each claim of the paper with its verdict on one run, or on several together.

A row has the claim, where the paper makes it, its figure, the result by the paper's protocol, the
held-out result, for claims about the router that with the feature of Figure 13, the rule, and the
verdict that the rule gives. A claim that holds on one set of
samples can fail on another. Where a run lacks the data that a claim needs, it is not measurable,
and the row says why. It knows nothing of plotting.
"""

from __future__ import annotations

from collections.abc import Mapping

from reproduction.claims_ablation import ABLATION_CLAIMS
from reproduction.claims_archetypes import ARCHETYPE_CLAIMS
from reproduction.claims_learned import LEARNED_CLAIMS
from reproduction.claims_oracle import ORACLE_CLAIMS
from reproduction.claims_prices import PRICE_CLAIMS
from reproduction.claims_shared import SHARED_CLAIMS, RunsData
from reproduction.claims_training import TRAINING_CLAIMS
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

MAIN_CLAIMS = (
    PaperClaim(
        "The learned router beats uniform allocation at B = 2",
        "Table 1",
        "+4.5 points over Fixed-b",
        "the interval of the held-out gain over the best mixture is above 0",
        judge_router_gain,
    ),
    PaperClaim(
        "The router's relative gain is large for B ≤ 3",
        "abstract",
        "up to 12.8 %",
        "at least half of it remains held out, at equal cost",
        judge_relative_gain,
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
        "The deterministic oracle has no duality gap (Proposition 1)",
        "Section 3.3",
        "0",
        "the gap is 0 at every budget",
        judge_duality,
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
        "At a price of 0 every question gets the largest level",
        "Section 3.1",
        "100 %",
        "all questions get it",
        judge_zero_price,
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
        "Powers of 2 are as good as odd levels at B = 2",
        "Appendix H.3",
        "near-optimal",
        "odd levels add less than 0.1 points, cross-fitted",
        judge_odd_levels,
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
)


CLAIMS = (
    *MAIN_CLAIMS,
    *LEARNED_CLAIMS,
    *TRAINING_CLAIMS,
    *ABLATION_CLAIMS,
    *ORACLE_CLAIMS,
    *ARCHETYPE_CLAIMS,
    *PRICE_CLAIMS,
)
"""Every claim that one run can decide, or that none can."""


def judge_claims(data: ExhibitData) -> list[Row]:
    """Judge every claim by the data of a run's exhibits; those about several runs come last."""
    rows = [_judge(claim, data) for claim in CLAIMS]
    reason = "it is about several runs: give them to one call of reproduce"
    return rows + [_make_row(claim, _not_measurable(), reason) for claim in SHARED_CLAIMS]


def judge_shared_claims(data: RunsData) -> list[Row]:
    """Judge every claim about several runs by the data of their exhibits."""
    return [_judge(claim, {"runs": data}) for claim in SHARED_CLAIMS]


def compare_verdicts(by_run: Mapping[str, list[Row]], shared: list[Row]) -> list[Row]:
    """Return one row per claim with the verdict of each run, or of all where it compares them."""
    first = next(iter(by_run.values()))
    of_all = {row["claim"]: row["verdict"] for row in shared}
    return [
        {"claim": row["claim"], "in the paper": row["in the paper"], "paper": row["paper"]}
        | {name: rows[i]["verdict"] for name, rows in by_run.items()}
        | {"all runs": of_all.get(row["claim"], NOTHING)}
        for i, row in enumerate(first)
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
