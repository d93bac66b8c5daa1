"""Paper claims, shared: claims that compare several runs, with their judges.

The data are those of every run's exhibits by the name of the run, and those of the exhibits that
all runs share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from reproduction.claims_ablation import OTHERS, TREES
from reproduction.classifier_ablation import BY_QUESTION, BY_ROW
from reproduction.verdicts import (
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
    from reproduction.ablations import Efficiency
    from reproduction.archetypes import Compositions
    from reproduction.classifier_ablation import Ablation
    from reproduction.oracle_data import Bisection, CostByPrice, DifficultyGains

MAX_GAIN_SPREAD, MAX_GAP_SPREAD, MAX_SHARE_SPREAD, MIN_TREE_LEAD = 0.02, 0.01, 0.1, 0.03
MIN_EASY_SHARE, EASY_SET = 0.9, 0.94


@dataclass(frozen=True, eq=False)
class RunsData:
    """The data of the exhibits of each run by its name, and of those of all runs together."""

    by_run: Mapping[str, ExhibitData]
    pooled: Ablation | None
    kinds: Compositions

    def collect(self, exhibit: str) -> list[Any]:
        """Return the data of one exhibit of every run; at least two runs must have it."""
        found = [data[exhibit] for data in self.by_run.values() if exhibit in data]
        if len(found) < 2:  # noqa: PLR2004 - nothing to compare
            raise NotMeasurable(f"fewer than two runs have data of {exhibit}")
        return found


def _runs(data: ExhibitData) -> RunsData:
    runs: RunsData = data["runs"]
    return runs


def judge_alike_gains(data: ExhibitData) -> Judgement:
    """Judge whether voting gains the same in each band of difficulty on every run."""
    found: list[DifficultyGains] = _runs(data).collect("difficulty")
    names = found[0].names
    if any(set(bands.names) != set(names) for bands in found):
        raise NotMeasurable("the runs have different bands of difficulty")
    order = [[bands.names.index(name) for name in names] for bands in found]
    windows = [[float(row["gain (windows)"] or 0) for row in bands.rows] for bands in found]
    exact = [bands.gain for bands in found]
    paper, held_out = (
        float(np.ptp([np.array(g)[o] for g, o in zip(gains, order, strict=True)], axis=0).max())
        for gains in (windows, exact)
    )
    return Judgement(points(paper), points(held_out), decide(held_out <= MAX_GAIN_SPREAD))


def judge_trees_everywhere(data: ExhibitData) -> Judgement:
    """Judge whether trees beat the other classifiers on every run."""
    ablation = _runs(data).pooled
    if ablation is None:
        raise NotMeasurable("the runs could not be pooled")

    def lead(split: str) -> float:
        trees = np.min([ablation.run_accuracy(name, split) for name in TREES], axis=0)
        others = np.max([ablation.run_accuracy(name, split) for name in OTHERS], axis=0)
        return float((trees - others).min())

    paper, held_out = lead(BY_ROW), lead(BY_QUESTION)
    if np.isnan([paper, held_out]).any():
        raise NotMeasurable("a classifier could not be fitted")
    return Judgement(points(paper), points(held_out), decide(held_out >= MIN_TREE_LEAD))


def judge_alike_gaps(data: ExhibitData) -> Judgement:
    """Judge whether the gap to the oracle with all training questions is the same on every run."""
    found: list[Efficiency] = _runs(data).collect("efficiency")
    gaps = [float((one.oracle - one.paper[:, -1].mean(axis=1)).mean()) for one in found]
    lost = [
        float((one.oracle - one.fixed).mean())
        - float((one.held_out[:, -1] - one.fixed_held_out).mean())
        for one in found
    ]
    spread = float(np.ptp(gaps)), float(np.ptp(lost))
    return Judgement(points(spread[0]), points(spread[1]), decide(spread[1] <= MAX_GAP_SPREAD))


def judge_alike_kinds(data: ExhibitData) -> Judgement:
    """Judge whether the runs are similar mixtures of the archetypes."""
    shares = _runs(data).kinds.shares
    if len(shares) < 2:  # noqa: PLR2004 - nothing to compare
        raise NotMeasurable("there is one run")
    spread = float(np.ptp(shares, axis=0).max())
    return Judgement(points(spread), NOTHING, decide(spread <= MAX_SHARE_SPREAD))


def judge_easy_set_kinds(data: ExhibitData) -> Judgement:
    """Judge whether an almost solved run consists of easy questions."""
    runs = _runs(data)
    kinds = runs.kinds
    easy = [
        kinds.runs.index(name)
        for name, one in runs.by_run.items()
        if "measures" in one and float(one["measures"].mean_utility[0]) > EASY_SET
    ]
    if not easy or "easy" not in kinds.names:
        raise NotMeasurable("one sample solves no run above 94 %")
    share = float(kinds.shares[easy, kinds.names.index("easy")].min())
    return Judgement(percent(share), NOTHING, decide(share > MIN_EASY_SHARE))


def judge_plateaus(data: ExhibitData) -> Judgement:
    """Judge whether the run with the widest step of the cost misses its budgets most."""
    runs = _runs(data)
    costs: list[CostByPrice] = runs.collect("staircase")
    searches: list[Bisection] = runs.collect("bisection")
    if len(costs) != len(searches):
        raise NotMeasurable("a run has no data of the bisection")
    widest = np.array([_widest_step(cost.windows) for cost in costs])
    missed = np.array([_largest_miss(search) for search in searches])
    shown = f"widest in run {int(widest.argmax()) + 1}, missed most in {int(missed.argmax()) + 1}"
    return Judgement(shown, NOTHING, decide(widest.argmax() == missed.argmax()))


def _widest_step(cost: FloatArray) -> float:
    return float(np.abs(np.diff(cost)).max())


def _largest_miss(search: Bisection) -> float:
    """Largest deviation from a budget that binds; 0 where none does."""
    binding = [row for row in search.rows if float(row["price (exact)"] or 0) > 0]
    return max((float(row["|cost − B|"] or 0) for row in binding), default=0.0)


SHARED_CLAIMS = (
    PaperClaim(
        "Voting gains alike on every model",
        "Appendix F.1",
        "within 1.6 points",
        "the gains of each band differ by at most 2 points, over all subsets",
        judge_alike_gains,
    ),
    PaperClaim(
        "Trees beat the other classifiers on every model",
        "Figure 10a",
        "by 3–6 points",
        "the smallest lead is at least 3 points, pooled and split by question",
        judge_trees_everywhere,
    ),
    PaperClaim(
        "The gap to the oracle with all training questions is the same for every model",
        "Appendix H.2",
        "model-independent",
        "it differs by at most 1 point, held out",
        judge_alike_gaps,
    ),
    PaperClaim(
        "All models have similar mixtures of the archetypes",
        "Figure 7b",
        "comparable mixtures",
        "no share differs by more than 10 points",
        judge_alike_kinds,
    ),
    PaperClaim(
        "An almost solved set consists of easy questions",
        "Figure 7b",
        "above 90 %",
        "more than 90 % of it are in the easy cluster",
        judge_easy_set_kinds,
    ),
    PaperClaim(
        "Wider plateaus of the cost make a budget harder to meet",
        "Appendix G.1",
        "Qwen2.5-7B: 0.165",
        "the run with the widest step has the largest deviation",
        judge_plateaus,
    ),
)
"""In the order of the paper."""
