"""Paper claims, oracle: claims about the levels that the oracle chooses.

Each has its judge. Claims about sets that are almost solved by one sample are measurable only on
such sets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from reproduction.run_data import BUDGETS, MAIN_BUDGET
from reproduction.verdicts import (
    HALF,
    MAX_DEVIATION,
    NINE_TENTHS,
    NOTHING,
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
    from reproduction.comparison import HeatMap
    from reproduction.oracle_data import (
        CostByPrice,
        DifficultyGains,
        LevelScatter,
        LevelShares,
    )

EASY_SET, EASY = 0.94, 0.75
"""Accuracy of one sample on the paper's easy set, and in its easiest band."""

MIN_LOWEST_SHARE, MAX_SPREAD_SHARE = 0.6, 0.18
"""The paper has at least 63 % at level 1 with B = 3, and at most 18 % above it with B = 1.5."""

ONE_TENTH = 0.1


def share_of(shares: LevelShares, table: FloatArray, budget: float, level: int) -> float:
    """Share of questions at a level and a budget."""
    if level not in shares.levels:
        raise NotMeasurable(f"the run has too few samples for level {level}")
    return float(table[shares.budgets.index(budget), shares.levels.index(level)])


def judge_lowest_share(data: ExhibitData) -> Judgement:
    """Judge how many questions get level 1 at the largest budget."""
    labels: LevelShares = data["labels"]
    windows, exact = (share_of(labels, t, max(BUDGETS), 1) for t in (labels.windows, labels.exact))
    return Judgement(percent(windows), percent(exact), decide(exact >= MIN_LOWEST_SHARE))


def judge_few_above_one(data: ExhibitData) -> Judgement:
    """Judge how many questions get more than level 1 at the smallest budget."""
    labels: LevelShares = data["labels"]
    above = [1 - share_of(labels, t, min(BUDGETS), 1) for t in (labels.windows, labels.exact)]
    return Judgement(percent(above[0]), percent(above[1]), decide(above[1] <= MAX_SPREAD_SHARE))


def judge_levels_fill(data: ExhibitData) -> Judgement:
    """Judge whether the share of every level from 4 on grows with the budget."""
    labels: LevelShares = data["labels"]

    def growths(table: FloatArray) -> list[float]:
        return [
            share_of(labels, table, max(BUDGETS), level)
            - share_of(labels, table, min(BUDGETS), level)
            for level in (4, 8, 16)
        ]

    windows, exact = growths(labels.windows), growths(labels.exact)
    return Judgement(points(min(windows)), points(min(exact)), decide(min(exact) >= 0))


def judge_two_is_rare(data: ExhibitData) -> Judgement:
    """Judge whether level 2 is chosen less often than level 4."""
    labels: LevelShares = data["labels"]

    def lead(table: FloatArray) -> float:
        return min(share_of(labels, table, b, 4) - share_of(labels, table, b, 2) for b in BUDGETS)

    windows, exact = lead(labels.windows), lead(labels.exact)
    return Judgement(points(windows), points(exact), decide(exact > 0))


def judge_common_levels(data: ExhibitData) -> Judgement:
    """Judge whether levels 2 and 4 are the most common ones above level 1."""
    labels: LevelShares = data["labels"]
    row = labels.budgets.index(MAIN_BUDGET)
    found = []
    for table in (labels.windows, labels.exact):
        order = np.argsort(-table[row, 1:], kind="stable")[:2] + 1
        found.append({labels.levels[k] for k in order.tolist()})
    names = [f"levels {' and '.join(map(str, sorted(levels)))}" for levels in found]
    return Judgement(names[0], names[1], decide(found[1] == {2, 4}))


def judge_step_to_two(data: ExhibitData) -> Judgement:
    """Judge whether the step from 2 to 4 samples gains more than the step from 1 to 2."""
    measures: ClaimMeasures = data["measures"]
    if len(measures.mean_utility) < 3:  # noqa: PLR2004 - levels 1, 2 and 4
        raise NotMeasurable("the run has too few samples for level 4")
    first, second = np.diff(measures.mean_utility[:3]).tolist()
    return Judgement(NOTHING, f"{points(first)}, {points(second)}", decide(first < second))


def judge_easy_set_shares(data: ExhibitData) -> Judgement:
    """Judge whether the labels of an almost solved set depend on the budget."""
    labels: LevelShares = data["labels"]
    _require_easy_set(data)
    lowest = labels.windows[:, 0], labels.exact[:, 0]
    spread = [float(np.ptp(shares)) for shares in lowest]
    return Judgement(points(spread[0]), points(spread[1]), decide(spread[1] <= MAX_DEVIATION))


def judge_easy_set_cost(data: ExhibitData) -> Judgement:
    """Judge whether the free oracle of an almost solved set spends less than 2 samples."""
    cost: CostByPrice = data["staircase"]
    _require_easy_set(data)
    windows, exact = float(cost.windows[0]), float(cost.exact[0])
    return Judgement(f"{windows:.2f}", f"{exact:.2f}", decide(windows < MAIN_BUDGET))


def _require_easy_set(data: ExhibitData) -> None:
    measures: ClaimMeasures = data["measures"]
    accuracy = float(measures.mean_utility[0])
    if accuracy <= EASY_SET:
        raise NotMeasurable(f"one sample is correct on {percent(accuracy)}, not above 94 %")


def judge_smallest_gain(data: ExhibitData) -> Judgement:
    """Judge whether the hardest band gains least by voting."""
    bands: DifficultyGains = data["difficulty"]
    windows = np.array([float(row["gain (windows)"] or 0) for row in bands.rows])
    lowest = [bands.names[int(gain.argmin())] for gain in (windows, bands.gain)]
    verdict = decide(int(bands.gain.argmin()) == len(bands.names) - 1)
    return Judgement(f"least in {lowest[0]}", f"least in {lowest[1]}", verdict)


def judge_easiest_solved(data: ExhibitData) -> Judgement:
    """Judge how often one sample is correct in the easiest band."""
    bands: DifficultyGains = data["difficulty"]
    row = bands.rows[0]
    keys = [key for key in row if key.startswith("level ")]
    windows, exact = float(row[keys[0]] or 0), float(row[keys[2]] or 0)
    return Judgement(percent(windows), percent(exact), decide(exact >= EASY))


def judge_flanks(data: ExhibitData) -> Judgement:
    """Judge whether the end fifths stay at level 1 while the middle gets 4, 8 and 16 at B = 3."""
    scatter: LevelScatter = data["scatter"]
    same, other = (groups.shares[-1] for groups in (scatter.same, scatter.other))
    ends = [float(min(shares[0, 0], shares[-1, 0])) for shares in (same, other)]
    high = [k for k, level in enumerate(scatter.same.levels) if level in (4, 8, 16)]
    middle = bool((same[1:-1][:, high].max(axis=0) > 0).all()) and len(high) == 3  # noqa: PLR2004
    return Judgement(percent(ends[0]), percent(ends[1]), decide(ends[1] >= NINE_TENTHS and middle))


def judge_tight_budget(data: ExhibitData) -> Judgement:
    """Judge whether nearly all questions get level 1 at the smallest budget of the heat map."""
    heat: HeatMap = data["heat-map"]
    share = float(heat.oracle[0, :, 0].min())
    return Judgement(percent(share), NOTHING, decide(share >= NINE_TENTHS))


def judge_tight_exceptions(data: ExhibitData) -> Judgement:
    """Judge whether the exceptions at the smallest budget are mostly of middle difficulty."""
    heat: HeatMap = data["heat-map"]
    _require_middle(heat.bands)
    band = int(heat.oracle[0, :, 0].argmin())
    return Judgement(f"most in {heat.bands[band]}", NOTHING, decide(0 < band < len(heat.bands) - 1))


def judge_harder_bands(data: ExhibitData) -> Judgement:
    """Judge whether only the harder bands get levels 4 and 8 at B = 1.5."""
    heat: HeatMap = data["heat-map"]
    _require_middle(heat.bands)
    columns = [k for k, level in enumerate(heat.levels) if level in (4, 8)]
    shares = heat.oracle[heat.budgets.index(min(BUDGETS))][:, columns].sum(axis=1)
    harder = float(shares[1:].min())
    shown = f"{percent(float(shares[0]))}, then at least {percent(harder)}"
    return Judgement(shown, NOTHING, decide(shares[0] < ONE_TENTH <= harder))


def judge_easiest_at_three(data: ExhibitData) -> Judgement:
    """Judge whether the easiest band is mostly at level 1 at B = 3."""
    heat: HeatMap = data["heat-map"]
    share = float(heat.oracle[heat.budgets.index(max(BUDGETS)), 0, 0])
    return Judgement(percent(share), NOTHING, decide(share > HALF))


def judge_hardest_at_three(data: ExhibitData) -> Judgement:
    """Judge whether some of the hardest questions get level 16 at B = 3."""
    heat: HeatMap = data["heat-map"]
    if heat.levels[-1] < 16:  # noqa: PLR2004 - the paper's largest level
        raise NotMeasurable("the run has too few samples for level 16")
    share = float(heat.oracle[heat.budgets.index(max(BUDGETS)), -1, -1])
    return Judgement(percent(share), NOTHING, decide(share > 0))


def _require_middle(bands: tuple[str, ...]) -> None:
    if len(bands) < 3:  # noqa: PLR2004 - two bands have no middle
        raise NotMeasurable("the run has fewer than three bands of difficulty")


ORACLE_CLAIMS = (
    PaperClaim(
        "At B = 3 most questions still get level 1",
        "Table 4",
        "63–69 %",
        "at least 60 % of questions with exact utilities",
        judge_lowest_share,
    ),
    PaperClaim(
        "At B = 1.5 few questions get more than level 1",
        "Table 4",
        "11–18 %",
        "at most 18 % with exact utilities",
        judge_few_above_one,
    ),
    PaperClaim(
        "Levels 4, 8 and 16 fill as the budget grows",
        "Table 4",
        "level 16 from 0 % to 4–7 %",
        "no share falls from B = 1.5 to B = 3, with exact utilities",
        judge_levels_fill,
    ),
    PaperClaim(
        "Level 2 is rarer than level 4",
        "Table 4",
        "3–10 % against 7–17 %",
        "at every budget, with exact utilities",
        judge_two_is_rare,
    ),
    PaperClaim(
        "Levels 2 and 4 are the most common above level 1 at B = 2",
        "Appendix H.3",
        "most frequently assigned",
        "they have the two largest shares, with exact utilities",
        judge_common_levels,
    ),
    PaperClaim(
        "The step from 1 to 2 samples gains less than that from 2 to 4",
        "Appendix F.2",
        "often too small to justify",
        "the mean gain over all subsets is smaller",
        judge_step_to_two,
    ),
    PaperClaim(
        "On an almost solved set the labels do not depend on the budget",
        "Appendix F.2",
        "91–92 % at level 1",
        "the share of level 1 changes by at most 5 points",
        judge_easy_set_shares,
    ),
    PaperClaim(
        "On an almost solved set the free oracle spends less than 2 samples",
        "Table 6",
        "1.77",
        "the cost at a price of 0 is below 2",
        judge_easy_set_cost,
    ),
    PaperClaim(
        "The hardest questions gain least by voting",
        "Table 3",
        "+2.7 to +4.3 points",
        "the hardest band has the smallest gain",
        judge_smallest_gain,
    ),
    PaperClaim(
        "One sample mostly solves the easiest questions",
        "Table 3",
        "75–76 %",
        "at least 75 % in the easiest band",
        judge_easiest_solved,
    ),
    PaperClaim(
        "At B = 3 the end fifths stay at level 1 and the middle gets 4, 8 and 16",
        "Figure 6",
        "the flanking quintiles remain at 1",
        "at least 90 % of both ends at level 1, with difficulty from other samples",
        judge_flanks,
    ),
    PaperClaim(
        "At B = 1.2 nearly all questions get level 1",
        "Figure 5",
        "virtually all",
        "at least 90 % in every band",
        judge_tight_budget,
    ),
    PaperClaim(
        "At B = 1.2 the exceptions are of middle difficulty",
        "Figure 5",
        "concentrated in level 3",
        "a middle band has the largest share above level 1",
        judge_tight_exceptions,
    ),
    PaperClaim(
        "At B = 1.5 only harder questions get levels 4 and 8",
        "Figure 5",
        "10–15 % of the harder levels",
        "below 10 % of the easiest band and at least 10 % of every other",
        judge_harder_bands,
    ),
    PaperClaim(
        "At B = 3 the easiest questions are mostly at level 1",
        "Figure 5",
        "predominantly",
        "more than half",
        judge_easiest_at_three,
    ),
    PaperClaim(
        "At B = 3 some of the hardest questions get level 16",
        "Figure 5",
        "some",
        "the share is above 0",
        judge_hardest_at_three,
    ),
)
"""In the order of the tables and figures."""
