"""Held-out curves: cost and accuracy of a policy on questions that it was not fitted to.

Questions are split into folds, copies together. In each fold the policy is fitted on the training
questions and replayed at falling prices. The mean cost of the *training* questions names a setting:
the same training cost means another price in each fold, because every fit is different. The
held-out questions of all folds together give the cost and the accuracy of a setting. A budget is
read at the setting whose held-out mean cost is the budget; between two prices, they are mixed.
Questions are split into folds several times, and what a question gets is the mean of its
assignments: one assignment alone moves the scores of a hundred questions by half a point.

This is the only way in which a policy is scored: `evaluate`, `calibrate` and `report` read the same
curve. It does not judge whether a policy is worth using.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from adacompute.core.progress import StepProgress
from adacompute.evaluation.kept_results import Arrays, name_function
from adacompute.evaluation.pool import N_FOLDS, assign_folds
from adacompute.evaluation.replay import ReplayResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from adacompute.core.types import FloatArray, IntArray, KeyArray
    from adacompute.evaluation.experiment import Experiment, FittedPolicy, PolicyFactory

Split = tuple["IntArray", "IntArray"]
"""Rows of the training questions and of the held-out questions."""

FITTED_TO_BUDGETS = {"adacompute.evaluation.factories.make_router"}
"""Functions that fit a policy to the budgets of the experiment; others do not read them."""

ASSIGNMENT_SEEDS = 101
"""Difference between the seeds of two assignments, so that those of two experiments differ."""

PARTS = ("prices", "training_cost", "held_out")
"""Arrays of a fold besides its results."""


ROUNDING = 1e-9
"""Relative difference up to which two costs are the same."""


def last_within(wanted: FloatArray, cost: FloatArray) -> IntArray:
    """Return the last of some rising costs that is within each wanted one, or the first."""
    fits = np.searchsorted(cost, wanted * (1 + ROUNDING), side="right") - 1
    return np.maximum(fits, 0)


def interpolate(wanted: float, cost: FloatArray, value: FloatArray, *, is_stepped: bool) -> float:
    """Return the value at a cost, from the values at rising costs; at the ends, that of the end.

    A policy that is stepped has no value between two of them: that within the cost is returned.
    """
    if is_stepped:
        return float(value[last_within(np.array(wanted), cost)])
    # Where several settings cost the same, the first one is enough for that cost, and the last one
    # is where the next cost begins.
    after = int(np.searchsorted(cost, min(wanted, cost[-1]) * (1 - ROUNDING)))
    if after == 0 or cost[after] <= wanted * (1 + ROUNDING):
        return float(value[after])
    place = slice(after - 1, after + 1)
    return float(np.interp(wanted, cost[place], value[place]))


def split_folds(fold: IntArray) -> list[Split]:
    """Return one split per fold, in which that fold is held out."""
    return [(np.flatnonzero(fold != f), np.flatnonzero(fold == f)) for f in np.unique(fold)]


@dataclass(frozen=True, eq=False)
class FoldResult:
    """The prices of a fitted policy, its mean training cost there, and its held-out results.

    ``training_cost`` (prices,) never falls from one price to the next lower one. ``held_out`` are
    the rows of the questions of ``result``. A stepped policy has no settings between its prices.
    ``fitted`` is the policy, if it was fitted in this process.
    """

    prices: FloatArray
    training_cost: FloatArray
    held_out: IntArray
    result: ReplayResult
    is_stepped: bool = False
    fitted: FittedPolicy | None = None

    def locate(self, settings: FloatArray) -> tuple[IntArray, FloatArray]:
        """Return the first price of the mixtures that cost this much, and the next one's share."""
        cost = self.training_cost
        if self.is_stepped:
            return last_within(settings, cost), np.zeros(len(settings))
        position = np.interp(settings, cost, np.arange(len(cost)))
        first = np.minimum(position.astype(np.int64), len(cost) - 1)
        return first, position - first

    def price_at(self, setting: float) -> float:
        """Return the price of the mixture that costs this much in training."""
        (first,), (share,) = self.locate(np.array([setting]))
        place = np.arange(len(self.prices))
        return float(np.exp(np.interp(first + share, place, np.log(self.prices))))

    def at(self, setting: float) -> ReplayResult:
        """Return the results of the held-out questions at a setting."""
        (first,), (share,) = self.locate(np.array([setting]))
        return self.result.mix(int(first), float(share))


@dataclass(frozen=True, eq=False)
class CurvePoint:
    """A policy at one setting: the results of each held-out question, (N,)."""

    setting: float
    result: ReplayResult

    @property
    def cost(self) -> float:
        """Mean cost."""
        return float(self.result.cost.mean())

    @property
    def accuracy(self) -> float:
        """Mean accuracy."""
        return float(self.result.accuracy.mean())


@dataclass(frozen=True, eq=False)
class HeldOutCurve:
    """The results of a policy at all settings.

    Each question is held out exactly once in each assignment of questions to folds.
    """

    folds: tuple[FoldResult, ...]
    group: KeyArray

    def __len__(self) -> int:
        return len(self.group)

    @property
    def is_stepped(self) -> bool:
        """Whether the policy has no settings between its prices."""
        return self.folds[0].is_stepped

    @property
    def n_assignments(self) -> int:
        """How often each question is held out."""
        return sum(len(fold.held_out) for fold in self.folds) // max(1, len(self))

    @cached_property
    def settings(self) -> FloatArray:
        """Rising settings between which cost and accuracy are linear."""
        return np.unique(np.concatenate([fold.training_cost for fold in self.folds]))

    @cached_property
    def _means(self) -> tuple[FloatArray, FloatArray]:
        """Mean held-out cost and accuracy at each of the settings."""
        totals = np.zeros((2, len(self.settings)))
        for fold in self.folds:
            first, share = fold.locate(self.settings)
            after = np.minimum(first + 1, len(fold.training_cost) - 1)
            by_price = np.stack([fold.result.cost.sum(axis=0), fold.result.accuracy.sum(axis=0)])
            totals += by_price[:, first] * (1 - share) + by_price[:, after] * share
        cost, accuracy = totals / (len(self) * self.n_assignments)
        return cost, accuracy

    @cached_property
    def cost(self) -> FloatArray:
        """Mean held-out cost at each of the settings; it never falls."""
        return np.maximum.accumulate(self._means[0])

    @property
    def accuracy(self) -> FloatArray:
        """Mean held-out accuracy at each of the settings."""
        return self._means[1]

    def find_setting(self, cost: float) -> float:
        """Return the setting whose held-out mean cost is the given one; at the ends, the end.

        A stepped policy has no such setting: the most expensive one within the cost is returned.
        """
        return interpolate(cost, self.cost, self.settings, is_stepped=self.is_stepped)

    def at(self, setting: float) -> CurvePoint:
        """Return the results of all questions at a setting."""
        parts = [fold.at(setting) for fold in self.folds]
        rows = [fold.held_out for fold in self.folds]
        return CurvePoint(setting, ReplayResult.join(parts, rows))

    def read(self, cost: float) -> CurvePoint:
        """Return the results of all questions at a mean held-out cost."""
        return self.at(self.find_setting(cost))

    def slope(self, cost: float) -> float:
        """Return the accuracy that one more unit of cost buys; 0 beyond the ends."""
        after = int(np.searchsorted(self.cost, cost, side="right"))
        if not 0 < after < len(self.cost):
            return 0.0
        place = slice(after - 1, after + 1)
        return float(np.diff(self.accuracy[place])[0] / np.diff(self.cost[place])[0])


def score_held_out(
    experiment: Experiment, factory: PolicyFactory, *, n_assignments: int | None = None
) -> HeldOutCurve:
    """Fit a policy on the training questions of each fold and score it on the held-out ones.

    By default, questions are assigned to folds as often as the experiment says.
    """
    group = experiment.pool.group
    n_assignments = n_assignments or experiment.n_assignments
    seeds = [experiment.seed + ASSIGNMENT_SEEDS * i for i in range(n_assignments)]
    splits = [one for seed in seeds for one in split_folds(assign_folds(group, N_FOLDS, seed=seed))]
    name = f"folds of {n_assignments} assignments"
    return HeldOutCurve(recall_splits(experiment, experiment, factory, splits, name), group)


def recall_splits(
    experiment: Experiment,
    scored: Experiment,
    factory: PolicyFactory,
    splits: Sequence[Split],
    name: str,
) -> tuple[FoldResult, ...]:
    """Return what ``replay_splits`` does, from the kept results of an experiment if it is there.

    ``scored`` is the experiment or a part of it, and ``name`` says how ``splits`` were made of it.
    """
    function = name_function(factory)
    if experiment.kept is None or function is None:
        return tuple(replay_splits(scored, factory, splits))
    is_fitted_to_budgets = function in FITTED_TO_BUDGETS
    of = experiment.key if is_fitted_to_budgets else experiment.key_at_any_budget
    key = f"{name} of {function} in {of}"
    known = experiment.kept.read(key)
    if known is not None:
        return _from_arrays(known)
    folds = tuple(replay_splits(scored, factory, splits))
    experiment.kept.write(key, _to_arrays(folds))
    return folds


def _to_arrays(folds: Sequence[FoldResult]) -> dict[str, np.ndarray]:
    """Return the arrays of folds under their numbers; those that equal the cost are left out."""
    arrays: dict[str, np.ndarray] = {}
    for i, fold in enumerate(folds):
        arrays |= {f"{i} {name}": getattr(fold, name) for name in PARTS}
        arrays[f"{i} is_stepped"] = np.array(fold.is_stepped)
        values = {one.name: getattr(fold.result, one.name) for one in fields(fold.result)}
        cost = values["cost"]
        arrays |= {
            f"{i} {name}": value
            for name, value in values.items()
            if value is cost or not np.array_equal(value, cost)
        }
    return arrays


def _from_arrays(arrays: Arrays) -> tuple[FoldResult, ...]:
    """Return the folds of ``_to_arrays``."""
    folds = []
    for i in itertools.takewhile(lambda i: f"{i} cost" in arrays, itertools.count()):
        cost = arrays[f"{i} cost"]
        result = ReplayResult(
            *(arrays.get(f"{i} {one.name}", cost) for one in fields(ReplayResult))
        )
        known: dict[str, Any] = {name: arrays[f"{i} {name}"] for name in PARTS}
        is_stepped = bool(arrays[f"{i} is_stepped"])
        folds.append(FoldResult(**known, result=result, is_stepped=is_stepped))
    return tuple(folds)


def replay_splits(
    experiment: Experiment, factory: PolicyFactory, splits: Sequence[Split]
) -> list[FoldResult]:
    """Fit a policy on the training questions of each split and replay it on both parts."""
    total = 2 * len(splits)
    fits: list[FittedPolicy] = []
    for train, _ in splits:
        experiment.progress(StepProgress(len(fits), total))
        fits.append(factory(experiment, train))
    cost: list[FloatArray] = [np.zeros(len(fitted.prices)) for fitted in fits]
    parts: list[list[ReplayResult]] = [[] for _ in fits]
    sample_cost = [experiment.sample_cost(train) for train, _ in splits]
    in_training, in_held_out = (
        [np.isin(np.arange(len(experiment.pool)), rows[side]) for rows in splits] for side in (0, 1)
    )
    for rows, results in experiment.run_blocks(fits, sample_cost):
        replayed = len(splits) * (int(rows[-1]) + 1) / len(experiment.pool)
        experiment.progress(StepProgress(len(splits) + replayed, total))
        for i, result in enumerate(results):
            cost[i] += result.cost[in_training[i][rows]].sum(axis=0)
            parts[i].append(result.take(np.flatnonzero(in_held_out[i][rows])))
    return [
        FoldResult(
            prices=np.asarray(fitted.prices),
            is_stepped=fitted.policy.is_stepped,
            # Accumulated, so that a price that costs more than a lower one is never used.
            training_cost=np.maximum.accumulate(cost[i] / len(splits[i][0])),
            held_out=splits[i][1],
            result=ReplayResult.concatenate(parts[i]),
            fitted=replace(fitted, known=None),
        )
        for i, fitted in enumerate(fits)
    ]


def measure_difference(curve: HeldOutCurve, point: CurvePoint) -> tuple[float, FloatArray]:
    """Return the accuracy of a point minus that of a curve at the same mean cost.

    The second value is the influence of each question on the difference, (N,): its own deviation,
    the curve's costs included. Its mean is 0, and its spread is that of the difference.
    """
    other = curve.read(point.cost)
    difference = point.result.accuracy - other.result.accuracy
    extra_cost = point.result.cost - other.result.cost
    adjusted = difference - curve.slope(point.cost) * extra_cost
    value = float(difference.mean())
    return value, np.asarray(adjusted - adjusted.mean())
