"""Paper verdicts: one function per claim of the paper that judges it by the data of a run.

Each function reads the data behind the tables and figures, returns the result by the paper's
protocol and the result on held-out questions or samples, and decides by a rule. The rules are
worded in ``claims``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from adacompute.core.types import FloatArray
from reproduction.ablations import Efficiency, Granularity
from reproduction.archetypes import Archetypes
from reproduction.classifier_ablation import BY_QUESTION, BY_ROW, Ablation
from reproduction.comparison import FIGURE_13, GapTable, HeatMap, MainTable
from reproduction.oracle_data import (
    Bisection,
    CostByPrice,
    DifficultyGains,
    LevelScatter,
    LevelShares,
)
from reproduction.run_data import BUDGETS, MAIN_BUDGET, never_rises
from reproduction.table_files import Row

HOLDS, FAILS, INCONCLUSIVE = "holds", "fails", "inconclusive"
NOT_MEASURABLE = "not measurable"
NOTHING = "–"
"""Result of a claim that has no counterpart in one of the two protocols."""

ExhibitData: TypeAlias = Mapping[str, Any]
"""The data of a run's exhibits by name."""

COLUMNS = ("paper", "held out", FIGURE_13)
"""The three columns of the tables about the router."""

BY_PROTOCOL = ("accuracy (paper)", f"accuracy ({FIGURE_13})")
"""The columns by the paper's protocol: without and with the feature of Figure 13."""

TOLERANCE = 1e-12
MIN_IMITATION, MAX_GAP = 0.91, 0.014
"""The lowest imitation and the largest gap that the paper reports."""

MIN_LEAD = 0.025
"""Half of the lead that the paper reports for trees."""

MIN_LEVEL_TWO_SHARE, MAX_DEVIATION, NEGLIGIBLE = 0.03, 0.05, 0.001
NINE_TENTHS, HALF = 0.9, 0.5
MIN_SPENT_SHARE, MAX_CELL = 0.95, 0.1


@dataclass(frozen=True)
class Judgement:
    """The result of a claim by the paper's protocol and held out, and the verdict.

    ``figure_13`` is the result by the paper's protocol of a router with the feature of Figure 13
    that needs the reference answer, for claims about the router. It does not decide the verdict.
    """

    paper: str
    held_out: str
    verdict: str
    figure_13: str = NOTHING


class NotMeasurable(Exception):  # noqa: N818 - a finding, not an error
    """A run lacks the data that a claim needs; the message says what."""


@dataclass(frozen=True)
class PaperClaim:
    """A claim of the paper, where it is made, the paper's own figure, the rule, and its judge."""

    claim: str
    source: str
    paper: str
    rule: str
    judge: Callable[[ExhibitData], Judgement]


def points(value: float, digits: int = 1) -> str:
    """Format a difference of accuracies in points.

    >>> points(0.0123)
    '+1.2 points'
    """
    return f"{100 * value:+z.{digits}f} points"


def percent(value: float) -> str:
    """Format a share in per cent.

    >>> percent(0.912)
    '91.2 %'
    """
    return f"{100 * value:z.1f} %"


def decide(holds: object) -> str:
    """Return the verdict of a rule."""
    return HOLDS if bool(holds) else FAILS


def _number(row: Row, column: str) -> float:
    return float(row[column] or 0.0)


def judge_router_gain(data: ExhibitData) -> Judgement:
    """Judge the router's gain over uniform allocation."""
    main: MainTable = data["main"]
    fixed = main.cell("fixed", MAIN_BUDGET, "accuracy (paper)")
    router, leaking = (main.cell("router", MAIN_BUDGET, column) for column in BY_PROTOCOL)
    columns = ("gain over mixture", "gain low", "gain high")
    gain, low, high = (main.cell("router", MAIN_BUDGET, column) for column in columns)
    held_out = f"{points(gain)} [{100 * low:+z.1f}, {100 * high:+z.1f}]"
    verdict = HOLDS if low > 0 else FAILS if high <= 0 else INCONCLUSIVE
    return Judgement(points(router - fixed), held_out, verdict, points(leaking - fixed))


def judge_oracle_gain(data: ExhibitData) -> Judgement:
    """Judge how much of the oracle's gain remains on other samples."""
    main: MainTable = data["main"]
    paper, held_out = (
        main.cell(oracle, MAIN_BUDGET, "gain over mixture")
        for oracle in ("oracle-in-sample", "oracle")
    )
    return Judgement(points(paper), points(held_out), decide(held_out >= NINE_TENTHS * paper))


def judge_imitation(data: ExhibitData) -> Judgement:
    """Judge how often the router chooses the oracle's level."""
    gap: GapTable = data["gap"]
    paper, held_out, leaking = (
        min(_number(row, f"imitation ({column})") for row in gap.rows) for column in COLUMNS
    )
    verdict = decide(held_out >= MIN_IMITATION)
    return Judgement(percent(paper), percent(held_out), verdict, percent(leaking))


def judge_predictability(data: ExhibitData) -> Judgement:
    """Judge imitation against a constant prediction of the most common level."""
    gap: GapTable = data["gap"]
    constant = np.array([_number(row, "share of the most common level") for row in gap.rows])
    paper, held_out, leaking = (
        float(
            (
                np.array([_number(row, f"imitation ({column})") for row in gap.rows]) - constant
            ).mean()
        )
        for column in COLUMNS
    )
    return Judgement(points(paper), points(held_out), decide(held_out > 0), points(leaking))


def judge_small_gap(data: ExhibitData) -> Judgement:
    """Judge how much accuracy the router loses to the oracle."""
    gap: GapTable = data["gap"]
    paper, held_out, leaking = (
        max(_number(row, f"oracle gap ({column})") for row in gap.rows) for column in COLUMNS
    )
    return Judgement(points(paper), points(held_out), decide(held_out <= MAX_GAP), points(leaking))


def judge_trees(data: ExhibitData) -> Judgement:
    """Judge trees against a linear classifier."""
    ablation: Ablation = data["ablation"]
    paper, held_out = (
        ablation.mean("gbm", split, "accuracy") - ablation.mean("logistic", split, "accuracy")
        for split in (BY_ROW, BY_QUESTION)
    )
    if np.isnan(paper) or np.isnan(held_out):
        raise NotMeasurable("a classifier could not be fitted")
    return Judgement(points(paper), points(held_out), decide(held_out >= MIN_LEAD))


def judge_equal_spending(data: ExhibitData) -> Judgement:
    """Judge whether the fixed baseline spends the budget that the others spend."""
    main: MainTable = data["main"]
    budget = max(BUDGETS)
    paper, held_out = (main.cell("fixed", budget, f"cost ({p})") for p in ("paper", "held out"))
    verdict = decide(paper >= MIN_SPENT_SHARE * budget)
    return Judgement(f"{paper:.2f} of {budget:g}", f"{held_out:.2f} of {budget:g}", verdict)


def judge_level_two(data: ExhibitData) -> Judgement:
    """Judge how often the oracle chooses level 2."""
    labels: LevelShares = data["labels"]
    if 2 not in labels.levels:  # noqa: PLR2004 - level 2
        raise NotMeasurable("the run has no level 2")
    i, level = labels.budgets.index(MAIN_BUDGET), labels.levels.index(2)
    paper, exact = float(labels.windows[i, level]), float(labels.exact[i, level])
    return Judgement(percent(paper), percent(exact), decide(exact >= MIN_LEVEL_TWO_SHARE))


def judge_budget_deviation(data: ExhibitData) -> Judgement:
    """Judge how close the cost at one price is to the budget."""
    bisection: Bisection = data["bisection"]
    binding = [row for row in bisection.rows if _number(row, "price (exact)") > 0]
    deviation = max((_number(row, "|cost − B|") for row in binding), default=0.0)
    split = max(
        (abs(_number(row, "cost with one question split") - _number(row, "B")) for row in binding),
        default=0.0,
    )
    held_out = f"{split:.3f} with one question split"
    return Judgement(f"{deviation:.3f}", held_out, decide(deviation < MAX_DEVIATION))


def judge_monotonicity(data: ExhibitData) -> Judgement:
    """Judge whether the oracle's cost ever rises with the price."""
    cost: CostByPrice = data["staircase"]
    monotone = never_rises(cost.windows), never_rises(cost.exact)
    paper, exact = ("never rises" if never else "rises" for never in monotone)
    return Judgement(paper, exact, decide(all(monotone)))


def judge_middle_gains(data: ExhibitData) -> Judgement:
    """Judge which band of difficulty gains most by voting."""
    bands: DifficultyGains = data["difficulty"]
    windows = np.array([_number(row, "gain (windows)") for row in bands.rows])
    if len(windows) < 3:  # noqa: PLR2004 - two bands have no middle
        raise NotMeasurable("the run has fewer than three bands of difficulty")
    paper, exact = (f"most in {bands.names[int(g.argmax())]}" for g in (windows, bands.gain))
    return Judgement(paper, exact, decide(0 < int(bands.gain.argmax()) < len(windows) - 1))


def middle_excess(cost: FloatArray) -> float:
    """Return how much more the largest middle value is than either end; above 0 in an inverted U.

    >>> middle_excess(np.array([1.0, 2.0, 4.0, 2.0, 1.5]))
    2.5
    """
    return float(cost[1:-1].max() - max(cost[0], cost[-1]))


def judge_inverted_u(data: ExhibitData) -> Judgement:
    """Judge whether questions of middle difficulty get the most samples."""
    scatter: LevelScatter = data["scatter"]
    paper, other = middle_excess(scatter.same.cost[-1]), middle_excess(scatter.other.cost[-1])
    return Judgement(f"{paper:+.2f} samples", f"{other:+.2f} samples", decide(other > 0))


def judge_responsive_share(data: ExhibitData) -> Judgement:
    """Judge whether the high levels go to responsive questions."""
    archetypes: Archetypes = data["archetypes"]
    paper, other = archetypes.responsive_share, archetypes.other_responsive_share
    return Judgement(percent(paper), percent(other), decide(other >= NINE_TENTHS))


def judge_ends_get_one(data: ExhibitData) -> Judgement:
    """Judge whether easy and hard questions get level 1."""
    archetypes: Archetypes = data["archetypes"]

    def min_share(names: tuple[str, ...], shares: FloatArray) -> float:
        ends = [shares[i, 0] for i, name in enumerate(names) if name in ("easy", "hard")]
        return float(min(ends))

    paper = min_share(archetypes.names, archetypes.level_shares)
    other = min_share(archetypes.half_names, archetypes.other_level_shares)
    return Judgement(percent(paper), percent(other), decide(other > NINE_TENTHS))


def judge_fine_levels(data: ExhibitData) -> Judgement:
    """Judge the gain of finer levels."""
    granularity: Granularity = data["granularity"]
    other, default = granularity.level_sets["fine"], granularity.level_sets["default"]
    in_sample = other.in_sample_at_main - default.in_sample_at_main
    cross_fitted = other.cross_fitted_at_main - default.cross_fitted_at_main
    verdict = decide(cross_fitted < NEGLIGIBLE)
    return Judgement(points(in_sample, 2), points(cross_fitted, 2), verdict)


def judge_small_training_set(data: ExhibitData) -> Judgement:
    """Judge a router that is trained on a quarter of the training questions."""
    efficiency: Efficiency = data["efficiency"]
    quarter = efficiency.fractions.index(0.25)
    paper = efficiency.paper[:, quarter].mean(axis=1) - efficiency.fixed
    held_out = (efficiency.held_out[:, quarter] - efficiency.fixed_held_out).mean(axis=1)
    verdict = decide(held_out.min() > 0)
    return Judgement(points(float(paper.min())), points(float(held_out.min())), verdict)


def judge_mean_bound(data: ExhibitData) -> Judgement:
    """Judge whether what the paper plots as a bound is one."""
    ablation: Ablation = data["ablation"]
    above_mean = [trial.oracle_gap > trial.mean_bound + TOLERANCE for trial in ablation.trials]
    above_valid = [trial.regret > trial.regret_bound + TOLERANCE for trial in ablation.trials]
    paper, valid = float(np.mean(above_mean)), float(np.mean(above_valid))
    return Judgement(
        f"{percent(paper)} of points above it",
        f"{percent(valid)} above the valid bound",
        decide(paper == 0),
    )


def judge_adjacent_mistakes(data: ExhibitData) -> Judgement:
    """Judge whether most mistakes are one level off."""
    ablation: Ablation = data["ablation"]
    paper, held_out = ablation.adjacent_share[BY_ROW], ablation.adjacent_share[BY_QUESTION]
    return Judgement(percent(paper), percent(held_out), decide(held_out > HALF))


def judge_heat_map(data: ExhibitData) -> Judgement:
    """Judge how far the router's shares by difficulty are from the oracle's."""
    heat: HeatMap = data["heat-map"]
    paper, held_out = (
        float(np.abs(shares - heat.oracle).max()) for shares in (heat.router, heat.router_held_out)
    )
    return Judgement(points(paper), points(held_out), decide(held_out <= MAX_CELL))
