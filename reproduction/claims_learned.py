"""Paper claims, learned: claims about the router, its frontier and its cost.

Each has its judge.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from reproduction.comparison import FIGURE_13
from reproduction.heuristic import HEURISTIC
from reproduction.run_data import BUDGETS
from reproduction.verdicts import (
    BY_PROTOCOL,
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
    from reproduction.comparison import BudgetCurve, Frontiers, GapTable, HeatMap, MainTable

MIN_GAIN, LARGE_GAIN, EASY_GAIN = 0.03, 0.05, 0.019
"""The smallest lead over Fixed-b that the paper reports, that at B = 3, and that on GSM8K."""

EASY_SET, MAX_HEURISTIC_GAIN, PLATEAU, MAX_CELL = 0.94, 0.012, 0.01, 0.1
KNEE, FEW_BUDGETS = 3.0, (2.0, 6.0)
BASELINES = ("fixed", "random", HEURISTIC)


def judge_every_baseline(data: ExhibitData) -> Judgement:
    """Judge the router against every baseline at every budget."""
    main: MainTable = data["main"]
    by_protocol = "accuracy (paper)"
    paper, held_out, leaking = (
        min(
            main.cell("router", budget, own) - main.cell(name, budget, column)
            for budget in BUDGETS
            for name in names
        )
        for own, column, names in (
            (by_protocol, by_protocol, BASELINES),
            ("accuracy (held out)", "accuracy (held out)", (*BASELINES, "mixture")),
            (f"accuracy ({FIGURE_13})", by_protocol, BASELINES),
        )
    )
    return Judgement(points(paper), points(held_out), decide(held_out > 0), points(leaking))


def judge_gain_range(data: ExhibitData) -> Judgement:
    """Judge the router's smallest lead over uniform allocation."""
    paper, held_out, leaking = _leads(data)
    verdict = decide(min(held_out) >= MIN_GAIN)
    return Judgement(points(min(paper)), points(min(held_out)), verdict, points(min(leaking)))


def judge_gain_at_three(data: ExhibitData) -> Judgement:
    """Judge the router's lead over uniform allocation at the largest budget."""
    paper, held_out, leaking = _leads(data)
    verdict = decide(held_out[-1] >= LARGE_GAIN)
    return Judgement(points(paper[-1]), points(held_out[-1]), verdict, points(leaking[-1]))


def judge_gain_on_easy_set(data: ExhibitData) -> Judgement:
    """Judge the router's lead on a set that one sample almost solves."""
    measures: ClaimMeasures = data["measures"]
    accuracy = float(measures.mean_utility[0])
    if accuracy <= EASY_SET:
        raise NotMeasurable(f"one sample is correct on {percent(accuracy)}, not above 94 %")
    paper, held_out, leaking = _leads(data)
    verdict = decide(max(held_out) >= EASY_GAIN)
    return Judgement(points(max(paper)), points(max(held_out)), verdict, points(max(leaking)))


def _leads(data: ExhibitData) -> tuple[list[float], list[float], list[float]]:
    """Return the router's lead over Fixed-b as in the paper, and over the mixture held out.

    The last is that over Fixed-b with the feature of Figure 13.
    """
    main: MainTable = data["main"]
    paper, leaking = (
        [
            main.cell("router", budget, column) - main.cell("fixed", budget, "accuracy (paper)")
            for budget in BUDGETS
        ]
        for column in BY_PROTOCOL
    )
    return paper, [main.cell("router", b, "gain over mixture") for b in BUDGETS], leaking


def judge_saving(data: ExhibitData) -> Judgement:
    """Judge whether the router, as trained, spends less than the budget."""
    gap: GapTable = data["gap"]
    columns = ("cost (paper)", "cost as trained (held out)")
    below = [
        sum(float(r[column] or 0) < float(r["B"] or 0) for r in gap.rows) for column in columns
    ]
    shown = [f"{n} of {len(gap.rows)} budgets" for n in below]
    return Judgement(shown[0], shown[1], decide(min(below) > len(gap.rows) / 2))


def judge_heuristic(data: ExhibitData) -> Judgement:
    """Judge whether the paper's heuristic gains little over uniform allocation."""
    main: MainTable = data["main"]
    paper, held_out = (
        max(main.cell(HEURISTIC, b, column) - main.cell(base, b, column) for b in BUDGETS)
        for column, base in (("accuracy (paper)", "fixed"), ("accuracy (held out)", "mixture"))
    )
    return Judgement(points(paper), points(held_out), decide(held_out <= MAX_HEURISTIC_GAIN))


def judge_dominance(data: ExhibitData) -> Judgement:
    """Judge whether the router is above every baseline at every budget of the grid."""
    frontiers: Frontiers = data["pareto"]
    router = frontiers.paper["router"]
    paper = min(
        float((router.accuracy - frontiers.paper[name].accuracy)[1:].min()) for name in BASELINES
    )
    held_out = float(_held_out_lead(frontiers).min())
    return Judgement(points(paper), points(held_out), decide(held_out > 0))


def _held_out_lead(frontiers: Frontiers) -> FloatArray:
    """Accuracy of the held-out router minus that of the mixture, above the smallest budget."""
    router, mixture = frontiers.held_out["router"], frontiers.held_out["mixture"]
    if len(router.budget) < 2:  # noqa: PLR2004 - there is no budget above the smallest
        raise NotMeasurable("half of the samples are enough for level 1 only")
    return np.asarray(router.accuracy - np.interp(router.cost, mixture.cost, mixture.accuracy))[1:]


def judge_best_budgets(data: ExhibitData) -> Judgement:
    """Judge whether the largest relative gain is at budgets from 2 to 6."""
    frontiers: Frontiers = data["pareto"]
    fixed = frontiers.paper["fixed"].accuracy
    if fixed.min() < TOLERANCE:
        raise NotMeasurable("no vote of the baseline is correct, so no ratio is defined")
    gain = frontiers.paper["router"].accuracy / fixed
    paper = float(frontiers.paper["router"].budget[int(gain.argmax())])
    lead = _held_out_lead(frontiers)
    held_out = float(frontiers.held_out["router"].budget[1:][int(lead.argmax())])
    low, high = FEW_BUDGETS
    verdict = decide(low <= held_out <= high and lead.max() > 0)
    return Judgement(f"at B = {paper:g}", f"at B = {held_out:g}", verdict)


def judge_plateau(data: ExhibitData) -> Judgement:
    """Judge whether every policy gains less than a point beyond B = 3."""
    frontiers: Frontiers = data["pareto"]

    def late_gain(curves: dict[str, BudgetCurve]) -> float:
        return max(
            float(c.accuracy[-1] - np.interp(KNEE, c.budget, c.accuracy)) for c in curves.values()
        )

    paper, held_out = late_gain(frontiers.paper), late_gain(frontiers.held_out)
    return Judgement(points(paper), points(held_out), decide(max(paper, held_out) < PLATEAU))


def judge_fixed_steps(data: ExhibitData) -> Judgement:
    """Judge whether Fixed-b spends only whole levels."""
    frontiers: Frontiers = data["pareto"]
    cost = frontiers.paper["fixed"].cost
    is_level = np.isclose(np.log2(cost), np.rint(np.log2(cost)))
    return Judgement(f"{len(set(cost.tolist()))} steps", NOTHING, decide(is_level.all()))


def judge_served_questions(data: ExhibitData) -> Judgement:
    """Judge whether the router reaches the accuracy of uniform allocation for less."""
    frontiers: Frontiers = data["pareto"]

    def needed(curves: dict[str, BudgetCurve], baseline: str) -> float:
        base, router = curves[baseline], curves["router"]
        target = float(np.interp(KNEE, base.budget, base.accuracy))
        enough = router.cost[router.accuracy >= target]
        return float(enough.min()) if len(enough) else np.inf

    costs = needed(frontiers.paper, "fixed"), needed(frontiers.held_out, "mixture")
    shown = [f"{cost:.2f} samples" if np.isfinite(cost) else "never" for cost in costs]
    return Judgement(shown[0], shown[1], decide(costs[1] < KNEE))


def judge_heat_map(data: ExhibitData) -> Judgement:
    """Judge how far the router's shares by difficulty are from the oracle's."""
    heat: HeatMap = data["heat-map"]
    paper, held_out = (
        float(np.abs(shares - heat.oracle).max()) for shares in (heat.router, heat.router_held_out)
    )
    return Judgement(points(paper), points(held_out), decide(held_out <= MAX_CELL))


def judge_discrepancies(data: ExhibitData) -> Judgement:
    """Judge whether router and oracle differ most at level 2."""
    heat: HeatMap = data["heat-map"]
    found = []
    for shares in (heat.router, heat.router_held_out):
        difference = np.abs(shares - heat.oracle).mean(axis=(0, 1))
        found.append(heat.levels[int(difference.argmax())])
    return Judgement(f"level {found[0]}", f"level {found[1]}", decide(found[1] == 2))  # noqa: PLR2004


def judge_energy(_: ExhibitData) -> Judgement:
    """Samples do not record what they needed."""
    raise NotMeasurable("samples record no energy")


def judge_priority(_: ExhibitData) -> Judgement:
    """Samples say nothing about other papers."""
    raise NotMeasurable("it is about other papers, such as Damani et al. (2025), not about samples")


LEARNED_CLAIMS = (
    PaperClaim(
        "The router beats every baseline at every budget",
        "Table 1",
        "in all 12 settings",
        "its smallest lead, held out and over the mixture too, is above 0",
        judge_every_baseline,
    ),
    PaperClaim(
        "The router's lead over uniform allocation is 3 to 6 points",
        "Section 6",
        "3–6 points",
        "at least 3 points at every budget, held out over the mixture",
        judge_gain_range,
    ),
    PaperClaim(
        "At B = 3 the lead is above 5 points",
        "Section 5.2",
        "+5.2 to +6.4 points",
        "at least 5 points, held out over the mixture",
        judge_gain_at_three,
    ),
    PaperClaim(
        "The router gains even on an almost solved set",
        "Section 5.2",
        "+1.9 points",
        "at least 1.9 points, held out over the mixture",
        judge_gain_on_easy_set,
    ),
    PaperClaim(
        "The router often spends less than the budget",
        "Section 5.2",
        "2.73 of 3",
        "at most of the budgets, by both protocols",
        judge_saving,
    ),
    PaperClaim(
        "The heuristic gains little",
        "Section 5.2",
        "+0.3 to +1.2 points",
        "at most 1.2 points, held out over the mixture",
        judge_heuristic,
    ),
    PaperClaim(
        "The router dominates at every budget of the grid",
        "Figure 4",
        "every budget level",
        "its smallest lead over the mixture at equal cost, held out, is above 0",
        judge_dominance,
    ),
    PaperClaim(
        "The largest relative gains are at budgets of 2 to 6",
        "Figure 4",
        "B = 2–6",
        "the largest held-out lead is above 0 and at such a budget",
        judge_best_budgets,
    ),
    PaperClaim(
        "Beyond B = 3 all policies plateau",
        "Figure 4",
        "B ≈ 3",
        "no policy gains a point or more beyond B = 3, by either protocol",
        judge_plateau,
    ),
    PaperClaim(
        "Fixed-b is a staircase",
        "Figure 4",
        "levels only",
        "all its costs are levels",
        judge_fixed_steps,
    ),
    PaperClaim(
        "The same budget serves more questions",
        "Section 6",
        "more queries",
        "the held-out router reaches the mixture's accuracy at B = 3 for less",
        judge_served_questions,
    ),
    PaperClaim(
        "The router replicates the oracle's levels by difficulty",
        "Figure 5",
        "small differences",
        "no share differs by more than 10 points, held out",
        judge_heat_map,
    ),
    PaperClaim(
        "Router and oracle differ most at level 2",
        "Figure 5",
        "the tier b = 2",
        "the largest mean difference is at level 2, held out",
        judge_discrepancies,
    ),
    PaperClaim(
        "Allocation lowers the carbon footprint",
        "Section 6",
        "reduced",
        "energy per question falls",
        judge_energy,
    ),
    PaperClaim(
        "No earlier work formalises allocation under a budget",
        "Section 1",
        "the first",
        "there is none",
        judge_priority,
    ),
)
"""In the order of the paper."""
