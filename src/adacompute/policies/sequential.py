"""Sequential: one price for every draw.

After each draw the votes say how likely the majority is right and what one more draw would change;
the question's text says what to expect before there are votes. Both are in one table of indices:
the price up to which another draw is worth having, for each vote state and each place of the prior.
The policy draws while the index is above the price of a draw, so settled and hopeless questions
stop alike, and one model serves every budget. It ignores who votes for what.
"""

from __future__ import annotations

import io
import math
import zipfile
import zlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from adacompute.core.answers import number_by_appearance
from adacompute.core.errors import BundleError
from adacompute.core.states import MAX_SAMPLES, StateMeasure, states
from adacompute.policies.induction import break_even_prices, occupancy
from adacompute.policies.learners import assign_folds, single_threaded
from adacompute.policies.policy import NO_LEVEL, State, answers_alone
from adacompute.policies.prior import (
    Prior,
    fit_prior,
    mix,
    pooled_prior,
    response_profile,
    shrink,
    uniform_weight,
)
from adacompute.policies.rounds import RESORT, plan, plan_single_samples

if TYPE_CHECKING:
    from adacompute.core.answers import Answers
    from adacompute.core.types import Float32Array, FloatArray, IntArray, KeyArray, Level

STEP, LOWEST = math.log(1.15), 1e-9
"""Plans are made for prices this far apart, down to the lowest."""

PLANS = 8
"""Plans that are kept, 1.4 MB each at most; the shaded prices of one price need three."""

PRICE_JITTER = 0.2
"""Widest difference between the prices of two questions, as a share."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)

SHRINKAGE = (math.inf, 300.0, 80.0, 20.0)
"""Questions of the whole pool that may be lent to each place; all of them leave one prior."""

LENT_FOLDS = 4
COARSE = np.geomspace(0.5, 3e-4, 16)
DRAWN = (1.5, 2.0, 3.0, 4.0, 6.0)

PRIOR = ("mean", "scale", "slope", "cell_centre")
MEASURES = ("mass", "correct_mass")
TABLES = ("break_even_price", *PRIOR, *MEASURES)


@dataclass(frozen=True, eq=False)
class SequentialPolicy:
    """Draw one at a time while the index of the vote state is above the price of a draw.

    ``levels`` are 1, 2, … samples; ``index`` is (states, places), in utility per draw, from the
    chances ``measure`` at each place. ``round_cost`` is what a round costs beside its draws, in
    draws; where it is not nothing, or rounds are few, several draws are asked for at once. Where
    the last level is of another model, it is a last resort, which costs ``resort_cost`` draws.
    """

    name = "sequential"
    levels: tuple[Level, ...]
    prior: Prior
    break_even_price: Float32Array
    measure: StateMeasure
    round_cost: float = 0.0
    resort_cost: float = 0.0
    _plans: dict[tuple[int, bool], IntArray] = field(default_factory=dict, repr=False)

    @property
    def max_samples(self) -> int:
        """Draws that can be made before the last resort, if there is one."""
        return len(self.levels) - (self.measure.resort is not None)

    def prepare_features(self, features: Float32Array) -> Float32Array:
        """Keep the place of each question."""
        return self.prior.find_cell(features)[:, None].astype(np.float32)

    def decide(self, state: State, price: float) -> IntArray:
        """One more, or no more, or several where rounds count; the first draw is always made."""
        going = state.observed.n_samples < len(self.levels)  # with a last resort, all of them
        if going.all():
            return self._go_on(state, price)
        level, rows = state.level.copy(), np.flatnonzero(going)
        level[rows] = self._go_on(state.take(rows), price)
        return level

    def _go_on(self, state: State, price: float) -> IntArray:
        """Decide where another draw can be made, or the last resort is left."""
        at, place = state.observed.n_samples, state.features[:, 0].astype(np.int64)
        resort = self.measure.resort is not None
        # Level n costs this much more than n draws did; what the last resort costs never changes.
        due = state.cost[:, -1] / self.resort_cost if resort else state.cost[np.arange(len(at)), at]
        worth = price * due * price_jitter(state.key)
        first = state.level == NO_LEVEL
        free = self.round_cost == 0 and bool((state.rounds_left >= len(self.levels) - at).all())
        if free and not resort:
            more = self.break_even_price[state.observed.states, place] > worth
            return np.where(more | first, at, state.level)
        asked = self._ask(state, place, worth, free=free)
        asked = np.where(first & (asked == 0), 1, asked)
        ahead = np.where(asked > 0, at + asked - 1, state.level)
        return np.where(asked == RESORT, len(self.levels) - 1, ahead)

    def _ask(self, state: State, place: IntArray, price: FloatArray, *, free: bool) -> IntArray:
        """Draws that each question should ask for, by the plan of the price next to its own."""
        step = np.rint(np.log(np.maximum(price, LOWEST)) / STEP).astype(np.int64)
        left = np.minimum(state.rounds_left, 0 if free else len(self.levels))
        asked, at = np.zeros(len(state), dtype=np.int64), state.observed.states
        for near in np.unique(step).tolist():
            rows = np.flatnonzero(step == near)
            made, needed = self._plans.get((near, free)), int(left[rows].max())
            if made is None or len(made) <= needed:
                made = self._plan(math.exp(near * STEP), needed, free=free)
                self._keep((near, free), made)
            asked[rows] = made[left[rows], at[rows], place[rows]]
        return asked

    def _plan(self, price: float, rounds: int, *, free: bool) -> IntArray:
        """Make the plan for a price of a draw."""
        resort = price * self.resort_cost
        if free:
            return plan_single_samples(self.measure, price=price, resort_price=resort)
        fee = price * self.round_cost
        return plan(self.measure, price=price, round_price=fee, rounds=rounds, resort_price=resort)

    def _keep(self, step: tuple[int, bool], made: IntArray) -> None:
        """Keep a plan, and forget the one that was made first where there are too many."""
        self._plans.pop(step, None)
        while len(self._plans) >= PLANS:
            self._plans.pop(next(iter(self._plans)))
        self._plans[step] = made


def price_jitter(key: KeyArray) -> FloatArray:
    """Factor of each question's price, by its key: without it many would turn at once.

    Questions in the same state at the same place share an index, so the mean cost would jump as
    the price passes it.
    """
    spin = (key * _GOLDEN) >> np.uint64(11)
    return np.asarray(1.0 - PRICE_JITTER / 2 + spin * (PRICE_JITTER * 2.0**-53), dtype=np.float64)


def save_tables(policy: SequentialPolicy) -> bytes:
    """Everything a sequential policy looks up, as one file of plain arrays."""
    held = io.BytesIO()
    prior = {name: getattr(policy.prior, name) for name in PRIOR}
    measure = {name: getattr(policy.measure, name).astype(np.float32) for name in MEASURES}
    if policy.measure.resort is not None:
        measure["resort"] = policy.measure.resort.astype(np.float32)
    np.savez_compressed(held, break_even_price=policy.break_even_price, **prior, **measure)
    return held.getvalue()


def load_tables(
    data: bytes, levels: tuple[Level, ...], round_cost: float = 0.0, resort_cost: float = 0.0
) -> SequentialPolicy:
    """Build a policy from its tables, and refuse those that do not fit together."""
    apart = answers_alone(levels)
    names = (*TABLES, "resort") if apart.any() else TABLES
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as held:
            table = {name: np.asarray(held[name], dtype=np.float32) for name in names}
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise BundleError(f"the tables of a sequential policy are damaged ({error})") from None
    if not all(np.isfinite(array).all() for array in table.values()):
        raise BundleError("the tables of a sequential policy hold values that are no numbers")
    if not _fits(table, levels):
        raise BundleError(f"the tables of a sequential policy do not fit its {len(levels)} levels")
    if apart.any() and not (math.isfinite(resort_cost) and resort_cost > 0):
        raise BundleError(f"a last resort cannot cost {resort_cost} draws: train the policy again")
    prior = Prior(**{name: table[name] for name in PRIOR})
    measure = StateMeasure(*(table[name].astype(np.float64) for name in MEASURES))
    if apart.any():
        measure = replace(measure, resort=table["resort"].astype(np.float64))
    return SequentialPolicy(
        levels, prior, table["break_even_price"], measure, round_cost, resort_cost
    )


def _fits(table: dict[str, Float32Array], levels: tuple[Level, ...]) -> bool:
    """Whether tables fit together, and levels of 1, 2, … samples with at most one resort."""
    resorts = int(answers_alone(levels).sum())
    most = len(levels) - resorts
    rising = [level.n_samples for level in levels[:most]] == list(range(1, most + 1))
    if resorts > 1 or answers_alone(levels[:most]).any() or not rising or most > MAX_SAMPLES:
        return False
    shape = {name: array.shape for name, array in table.items()}
    features, places = len(table["mean"]), len(table["cell_centre"])
    whole = (states().first[most + 1], places)
    sloped = shape["slope"][:1] == (features,) and shape["slope"][1:] == shape["cell_centre"][1:]
    tables = [name for name in table if name not in PRIOR]
    fits = all(shape[name] == whole for name in tables) and shape["scale"] == (features,)
    return bool(fits and sloped and places)


def fit_sequential(
    features: Float32Array,
    answers: Answers,
    measure: StateMeasure,
    levels: tuple[Level, ...],
    *,
    group: KeyArray | None = None,
    round_cost: float = 0.0,
    resort_cost: float = 0.0,
    seed: int = 0,
) -> SequentialPolicy:
    """Fit the prior of training questions and the indices at its places.

    Copies of a question share a ``group``; without it every question is one of its own.

    How far a place relies on the questions like it, and how far on all, is what gets most right on
    questions left out; relying on all is the policy without features.
    """
    behaviour = response_profile(answers, len(levels) - (measure.resort is not None))
    own = np.arange(len(features)) if group is None else number_by_appearance(group)
    with single_threaded():
        prior, weight, strength = fit_prior(features, behaviour, own, seed=seed)
        if strength is not None:
            lent = _select_shrinkage(
                features, behaviour, own, measure, strength=strength, seed=seed
            )
            flat = math.isinf(lent)
            prior = pooled_prior(features.shape[1]) if flat else prior
            weight = uniform_weight(len(weight)) if flat else shrink(weight, lent)
    mixed = mix(measure, weight)
    index = break_even_prices(mixed).astype(np.float32)
    mixed = mixed.map(lambda table: table.astype(np.float32).astype(np.float64))  # as is kept
    return SequentialPolicy(levels, prior, index, mixed, round_cost, resort_cost)


def _select_shrinkage(
    features: Float32Array,
    behaviour: FloatArray,
    group: IntArray,
    measure: StateMeasure,
    *,
    strength: float,
    seed: int,
) -> float:
    """Questions to lend each place, by what is right at equal cost on questions left out.

    All of them, which leaves no text, must get more right in every fold: the luck of one must not
    decide whether the text counts.
    """
    fold = assign_folds(group, LENT_FOLDS, seed=seed)
    value = np.zeros((LENT_FOLDS, len(SHRINKAGE)))
    for f in range(LENT_FOLDS):
        train, held = fold != f, fold == f
        seen, unseen = (
            StateMeasure(measure.mass[:, rows], measure.correct_mass[:, rows])
            for rows in (train, held)
        )
        _, left = np.unique(group[train], return_inverse=True)
        prior, weight, _ = fit_prior(
            features[train], behaviour[train], left, strength=strength, seed=seed
        )
        for i, lent in enumerate(SHRINKAGE):
            flat = math.isinf(lent)
            counts = uniform_weight(len(weight)) if flat else shrink(weight, lent)
            place = np.zeros(int(held.sum()), int) if flat else prior.find_cell(features[held])
            value[f, i] = _value(break_even_prices(mix(seen, counts), COARSE), unseen, place)
    best = 1 + int(value[:, 1:].mean(axis=0).argmax())
    return SHRINKAGE[0 if (value[:, 0] > value[:, best]).all() else best]


def _value(index: FloatArray, measure: StateMeasure, place: IntArray) -> float:
    """What a rule gets right on given questions, averaged over mean numbers of draws."""
    stop, go = occupancy(index, COARSE)
    right, drawn = np.zeros(len(COARSE)), np.zeros(len(COARSE))
    for at in np.unique(place):
        rows = place == at
        right += measure.correct_mass[:, rows].sum(axis=1) @ stop[:, at]
        drawn += measure.mass[:, rows].sum(axis=1) @ go[:, at]
    drawn, right = np.maximum.accumulate(drawn / len(place)), right / len(place)
    return float(np.interp(DRAWN, drawn, right).mean())
