"""Paper verdicts: how each claim of the paper is judged by the data of a run.

Every judge reads the data behind the tables and figures, says what the paper's protocol and what
held-out questions come to, and decides by a rule. It knows nothing of how a claim is worded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from adacompute.paper.ablations import (
    BY_QUESTION,
    BY_ROW,
    Ablation,
    Efficiency,
    Granularity,
)
from adacompute.paper.archetypes import Archetypes
from adacompute.paper.comparison import Gap, Main
from adacompute.paper.oracle_data import (
    Bisection,
    ByDifficulty,
    Labels,
    Mechanism,
    Scatter,
    Staircase,
)
from adacompute.paper.subject import BUDGETS, MIDDLE, falls
from adacompute.report.table_files import Row

HOLDS, FAILS, OPEN = "holds", "fails", "not shown"
Found: TypeAlias = Mapping[str, Any]
NOTHING = 1e-12
IMITATED, GAP = 0.91, 0.014
"""The least imitation and the largest gap in points that the paper reports."""

LEAD, SECOND, NEAR, LITTLE = 0.025, 0.03, 0.05, 0.001
"""Half the lead of trees; the least share of level 2; how near a budget; what adds nothing."""

MOST, HALF = 0.9, 0.5


@dataclass(frozen=True)
class Judged:
    """What a claim comes to: by the paper's protocol, held out, and the verdict."""

    protocol: str
    held_out: str
    verdict: str


def points(value: float, places: int = 1) -> str:
    """Write a difference of accuracies in points.

    >>> points(0.0123)
    '+1.2 points'
    """
    return f"{100 * value:+z.{places}f} points"


def percent(value: float) -> str:
    """Write a share in per cent.

    >>> percent(0.912)
    '91.2 %'
    """
    return f"{100 * value:z.1f} %"


def verdict(holds: object) -> str:
    """Write a decision in one word."""
    return HOLDS if bool(holds) else FAILS


def judge_router_gain(found: Found) -> Judged:
    """Judge what the router gains."""
    main: Main = found["main"]
    column = "paper's accuracy"
    gain = main.cell("router", MIDDLE, column) - main.cell("fixed", MIDDLE, column)
    fair, low, high = (
        main.cell("router", MIDDLE, name) for name in ("gain over mixture", "gain low", "gain high")
    )
    said = f"{points(fair)} [{100 * low:+z.1f}, {100 * high:+z.1f}]"
    return Judged(points(gain), said, HOLDS if low > 0 else FAILS if high <= 0 else OPEN)


def judge_relative_gain(found: Found) -> Judged:
    """Judge what it gains, relative to the baseline."""
    main: Main = found["main"]
    column = "paper's accuracy"
    own, fair = [], []
    for budget in BUDGETS:
        fixed, mixed = main.cell("fixed", budget, column), main.cell("mixture", budget, "held out")
        if min(fixed, mixed) < NOTHING:  # nothing is right, and nothing is relative to it
            return Judged("–", "–", OPEN)
        own.append(main.cell("router", budget, column) / fixed - 1)
        fair.append(main.cell("router", budget, "gain over mixture") / mixed)
    return Judged(percent(max(own)), percent(max(fair)), verdict(max(fair) >= max(own) / 2 > 0))


def judge_oracle_gain(found: Found) -> Judged:
    """Judge how much of the oracle's gain is noise."""
    main: Main = found["main"]
    own = main.cell("oracle-in-sample", MIDDLE, "gain over mixture")
    fair = main.cell("oracle", MIDDLE, "gain over mixture")
    return Judged(points(own), points(fair), verdict(fair >= MOST * own))


def judge_imitation(found: Found) -> Judged:
    """Judge how often the router says what the oracle says."""
    gap: Gap = found["gap"]
    own = min(_number(row, "imitation") for row in gap.rows)
    fair = min(_number(row, "imitation held out") for row in gap.rows)
    return Judged(percent(own), percent(fair), verdict(fair >= IMITATED))


def _number(row: Row, name: str) -> float:
    return float(row[name] or 0.0)


def judge_telling(found: Found) -> Judged:
    """Judge imitation against saying always the same."""
    gap: Gap = found["gap"]
    common = np.array([_number(row, "commonest label") for row in gap.rows])
    own, fair = (
        float((np.array([_number(row, name) for row in gap.rows]) - common).mean())
        for name in ("imitation", "imitation held out")
    )
    return Judged(points(own), points(fair), verdict(fair > 0))


def judge_small_gap(found: Found) -> Judged:
    """Judge what the router loses to the oracle."""
    gap: Gap = found["gap"]
    own = max(_number(row, "oracle gap") for row in gap.rows)
    fair = max(_number(row, "oracle gap held out") for row in gap.rows)
    return Judged(points(own), points(fair), verdict(fair <= GAP))


def judge_trees(found: Found) -> Judged:
    """Judge trees against a linear classifier."""
    ablation: Ablation = found["ablation"]
    own, fair = (
        ablation.mean("gbm", split, "accuracy") - ablation.mean("logistic", split, "accuracy")
        for split in (BY_ROW, BY_QUESTION)
    )
    if np.isnan(own) or np.isnan(fair):
        return Judged("–", "–", OPEN)
    return Judged(points(own), points(fair), verdict(fair >= LEAD))


def judge_fixed_spends(found: Found) -> Judged:
    """Judge whether the baseline may spend what the others spend."""
    main: Main = found["main"]
    most = max(BUDGETS)
    own, fair = main.cell("fixed", most, "paper's cost"), main.cell("fixed", most, "cost")
    return Judged(f"{own:.2f} of {most:g}", f"{fair:.2f} of {most:g}", verdict(own >= 0.95 * most))


def judge_level_two(found: Found) -> Judged:
    """Judge how often level 2 is chosen."""
    labels: Labels = found["labels"]
    if 2 not in labels.levels:  # noqa: PLR2004 - level 2
        return Judged("–", "–", OPEN)
    at, level = labels.budgets.index(MIDDLE), labels.levels.index(2)
    own, fair = float(labels.windows[at, level]), float(labels.exact[at, level])
    return Judged(percent(own), percent(fair), verdict(fair >= SECOND))


def judge_duality(found: Found) -> Judged:
    """Judge the duality gap of deterministic choices."""
    bisection: Bisection = found["bisection"]
    gap = max(_number(row, "duality gap") for row in bisection.rows)
    return Judged(f"{gap:.2g}", "0 with one question split", verdict(gap < NOTHING))


def judge_near_budget(found: Found) -> Judged:
    """Judge how near one price comes to a budget."""
    rows = found["bisection"].rows
    binding = [row for row in rows if _number(row, "exact price") > 0]
    own = max((_number(row, "|cost − B|") for row in binding), default=0.0)
    split = max(
        (abs(_number(row, "with the split") - _number(row, "B")) for row in binding), default=0.0
    )
    return Judged(f"{own:.3f}", f"{split:.3f} with one question split", verdict(own < NEAR))


def judge_monotone(found: Found) -> Judged:
    """Judge the staircase."""
    stairs: Staircase = found["staircase"]
    own, fair = falls(stairs.windows), falls(stairs.exact)
    paper, other = ("never rises" if never else "rises" for never in (own, fair))
    return Judged(paper, other, verdict(own and fair))


def judge_free(found: Found) -> Judged:
    """Judge what is chosen when nothing costs anything."""
    mechanism: Mechanism = found["mechanism"]
    share = float(mechanism.shares[0, -1])
    return Judged(percent(share), percent(share), verdict(share == 1.0))


def judge_middle_gains(found: Found) -> Judged:
    """Judge where voting gains most."""
    bands: ByDifficulty = found["difficulty"]
    own = np.array([_number(row, "gain (windows)") for row in bands.rows])
    if len(own) < 3:  # noqa: PLR2004 - two bands have no middle
        return Judged("–", "–", OPEN)
    paper, other = (f"most in {bands.names[int(gain.argmax())]}" for gain in (own, bands.gain))
    return Judged(paper, other, verdict(0 < int(bands.gain.argmax()) < len(own) - 1))


def rise_in_middle(spent: np.typing.NDArray[np.float64]) -> float:
    """How much more the most favoured middle fifth gets than either end; above 0 in an inverted U.

    >>> rise_in_middle(np.array([1.0, 2.0, 4.0, 2.0, 1.5]))
    2.5
    """
    return float(spent[1:-1].max() - max(spent[0], spent[-1]))


def judge_inverted(found: Found) -> Judged:
    """Judge where the budget goes."""
    scatter: Scatter = found["scatter"]
    own, fair = rise_in_middle(scatter.spent[-1]), rise_in_middle(scatter.fair_spent[-1])
    return Judged(f"{own:+.2f} samples", f"{fair:+.2f} samples", verdict(fair > 0))


def judge_absorbs(found: Found) -> Judged:
    """Judge which kind gets the high levels."""
    kinds: Archetypes = found["archetypes"]
    own, fair = kinds.absorbed, kinds.absorbed_again
    return Judged(percent(own), percent(fair), verdict(fair >= MOST))


def judge_ends_get_one(found: Found) -> Judged:
    """Judge what the easy and the hard get."""
    kinds: Archetypes = found["archetypes"]

    def least(names: tuple[str, ...], given: np.typing.NDArray[np.float64]) -> float:
        ends = [given[i, 0] for i, name in enumerate(names) if name in ("easy", "hard")]
        return float(min(ends))

    own, fair = least(kinds.names, kinds.given), least(kinds.again_names, kinds.given_again)
    return Judged(percent(own), percent(fair), verdict(fair > MOST))


def judge_finer(found: Found) -> Judged:
    """Judge what finer levels add."""
    return _ladders(found["granularity"], "fine")


def judge_odd(found: Found) -> Judged:
    """Judge what odd levels add."""
    return _ladders(found["granularity"], "odd")


def _ladders(ladders: Granularity, other: str) -> Judged:
    own, fair = (
        ladders.at_middle(other, column) - ladders.at_middle("default", column)
        for column in ("in_sample", "cross_fitted")
    )
    return Judged(points(own, 2), points(fair, 2), verdict(fair < LITTLE))


def judge_few_suffice(found: Found) -> Judged:
    """Judge a quarter of the training questions."""
    efficiency: Efficiency = found["efficiency"]
    at = efficiency.fractions.index(0.25)
    own = efficiency.paper[:, at].mean(axis=1) - efficiency.fixed
    fair = (efficiency.held_out[:, at] - efficiency.fixed_held_out).mean(axis=1)
    return Judged(points(float(own.min())), points(float(fair.min())), verdict(fair.min() > 0))


def judge_mean_bound(found: Found) -> Judged:
    """Judge what the paper draws as a bound."""
    ablation: Ablation = found["ablation"]
    above = [trial.gap > trial.mean_bound + NOTHING for trial in ablation.trials]
    valid = [trial.regret > trial.bound + NOTHING for trial in ablation.trials]
    own, fair = float(np.mean(above)), float(np.mean(valid))
    return Judged(
        f"{percent(own)} of points above it",
        f"{percent(fair)} above the valid one",
        verdict(own == 0),
    )


def judge_near_misses(found: Found) -> Judged:
    """Judge how far off mistakes are."""
    ablation: Ablation = found["ablation"]
    own, fair = ablation.near[BY_ROW], ablation.near[BY_QUESTION]
    return Judged(percent(own), percent(fair), verdict(fair > HALF))
