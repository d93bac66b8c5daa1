"""Paper claims: what the paper says, what its protocol says here, and what held-out questions say.

Each verdict is computed from the numbers beside it by the rule that stands there too; nothing is
taken from elsewhere. A claim that holds on one set of samples may fail on another: the table is
about one run. It knows nothing of drawing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from adacompute.paper.verdicts import (
    OPEN,
    Found,
    Judged,
    judge_absorbs,
    judge_duality,
    judge_ends_get_one,
    judge_few_suffice,
    judge_finer,
    judge_fixed_spends,
    judge_free,
    judge_imitation,
    judge_inverted,
    judge_level_two,
    judge_mean_bound,
    judge_middle_gains,
    judge_monotone,
    judge_near_budget,
    judge_near_misses,
    judge_odd,
    judge_oracle_gain,
    judge_relative_gain,
    judge_router_gain,
    judge_small_gap,
    judge_telling,
    judge_trees,
)
from adacompute.report.table_files import Row


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, its own figure, the rule of the verdict, and how it is judged."""

    claim: str
    paper: str
    rule: str
    judge: Callable[[Found], Judged]


CLAIMS = (
    Claim(
        "The learned router beats uniform allocation at B = 2",
        "+4.5 points over Fixed-b",
        "interval of the held-out gain over the best mixture is above 0",
        judge_router_gain,
    ),
    Claim(
        "Its relative gain over B ≤ 3 is large",
        "up to 12.8 %",
        "half of it remains held out, at equal cost",
        judge_relative_gain,
    ),
    Claim(
        "The oracle's gain over the best mixture at B = 2 is there to be had",
        "upper bound, scored on the samples it chose by",
        "nine tenths remain when it is scored on other samples",
        judge_oracle_gain,
    ),
    Claim(
        "The router imitates the oracle (worst budget)",
        "91–99 %",
        "held out at least 91 %",
        judge_imitation,
    ),
    Claim(
        "Sixteen text statistics tell the oracle's level",
        "82 % against 75 % for always 1",
        "held-out imitation is above always saying the commonest level",
        judge_telling,
    ),
    Claim(
        "The gap to the oracle is small", "0.4–1.4 points", "held out at most 1.4", judge_small_gap
    ),
    Claim(
        "Trees beat linear classifiers by about 5 points",
        "+5.1 points",
        "half of 5 points remain when splits are by question",
        judge_trees,
    ),
    Claim(
        "Budgets are matched",
        "Fixed-b spends 2.00 at B = 3",
        "Fixed-b spends at least 95 % of the largest budget",
        judge_fixed_spends,
    ),
    Claim(
        "Level 2 is worth having", "3–10 % at B = 2", "3 % with exact utilities", judge_level_two
    ),
    Claim(
        "The deterministic oracle has no duality gap (Proposition 1)",
        "0",
        "the gap is 0 at every budget",
        judge_duality,
    ),
    Claim(
        "One price meets every budget that binds",
        "within 0.05",
        "the largest deviation is below 0.05",
        judge_near_budget,
    ),
    Claim(
        "The oracle's cost never rises with the price (Theorem 1)",
        "monotone",
        "no step of the staircase rises",
        judge_monotone,
    ),
    Claim(
        "At a price of 0 every question gets the largest level",
        "100 %",
        "all questions do",
        judge_free,
    ),
    Claim(
        "Voting gains most at middle difficulty",
        "+7.2 to +8.5 points, ends +2.7 to +6.5",
        "the band that gains most is not the easiest or the hardest",
        judge_middle_gains,
    ),
    Claim(
        "The allocation is an inverted U over difficulty at B = 3",
        "middle fifths get most",
        "a middle fifth gets more than both ends, sorted by other samples",
        judge_inverted,
    ),
    Claim(
        "Levels of 4 and more go to the responsive at B = 2",
        "essentially all",
        "nine tenths, kinds told by other samples",
        judge_absorbs,
    ),
    Claim(
        "The easy and the hard get level 1 at B = 2",
        "above 90 %",
        "above 90 % of both, kinds told by other samples",
        judge_ends_get_one,
    ),
    Claim(
        "Finer levels than powers of 2 add nothing at B = 2",
        "below 0.1 point",
        "cross-fitted, below 0.1 point",
        judge_finer,
    ),
    Claim(
        "Powers of 2 are as good as odd levels at B = 2",
        "near-optimal",
        "cross-fitted, odd levels add below 0.1 point",
        judge_odd,
    ),
    Claim(
        "A quarter of the training questions beats Fixed-b",
        "at every budget",
        "held out, at every budget",
        judge_few_suffice,
    ),
    Claim(
        "Mean M × error rate bounds the accuracy gap",
        "all points below",
        "no point is above it",
        judge_mean_bound,
    ),
    Claim(
        "Mistakes are near misses",
        "mostly adjacent levels",
        "more than half of the mistakes, splits by question",
        judge_near_misses,
    ),
)


def judge_claims(found: Found) -> list[Row]:
    """Judge every claim by the data of a run's tables and figures; what they lack is not shown."""
    rows: list[Row] = []
    for claim in CLAIMS:
        try:
            judged = claim.judge(found)
        except (KeyError, StopIteration, ValueError):  # a table that the run is too small for
            judged = Judged("–", "–", OPEN)
        rows.append(
            {
                "claim": claim.claim,
                "paper": claim.paper,
                "by its protocol": judged.protocol,
                "held out": judged.held_out,
                "holds if": claim.rule,
                "verdict": judged.verdict,
            }
        )
    return rows
