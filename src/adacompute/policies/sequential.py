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
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from adacompute.core.errors import BundleError
from adacompute.core.states import MOST, Chances, states
from adacompute.policies.induction import follow, indices
from adacompute.policies.learners import one_thread
from adacompute.policies.policy import NO_LEVEL, State
from adacompute.policies.prior import (
    Prior,
    behave,
    fit_prior,
    flat_prior,
    flat_weight,
    lend,
    mix,
)
from adacompute.policies.rounds import plan

if TYPE_CHECKING:
    from adacompute.core.answers import Answers
    from adacompute.core.types import Float32Array, FloatArray, IntArray, KeyArray, Level

STEP, LOWEST = math.log(1.15), 1e-9
"""Plans are made for prices this far apart, down to the lowest."""

SHADE = 0.2
"""Widest difference between the prices of two questions, as a share."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)

LENT = (math.inf, 300.0, 80.0, 20.0)
"""Questions of the whole pool that may be lent to each place; all of them leave one prior."""

LENT_FOLDS = 4
COARSE = np.geomspace(0.5, 3e-4, 16)
DRAWN = (1.5, 2.0, 3.0, 4.0, 6.0)

PRIOR = ("mean", "scale", "slope", "place")
CHANCES = ("reached", "right")
TABLES = ("index", *PRIOR, *CHANCES)


@dataclass(frozen=True, eq=False)
class Sequential:
    """Draw one at a time while the index of the vote state is above the price of a draw.

    ``levels`` are 1, 2, … samples; ``index`` is (states, places), in utility per draw, from the
    chances ``known`` at each place. ``round_cost`` is what a round costs beside its draws, in
    draws; where it is not nothing, or rounds are few, several draws are asked for at once.
    """

    name = "sequential"
    levels: tuple[Level, ...]
    prior: Prior
    index: Float32Array
    known: Chances
    round_cost: float = 0.0
    _plans: dict[int, IntArray] = field(default_factory=dict, repr=False)

    def digest(self, features: Float32Array) -> Float32Array:
        """Keep the place of each question."""
        return self.prior.locate(features)[:, None].astype(np.float32)

    def decide(self, state: State, price: float) -> IntArray:
        """One more, or no more, or several where rounds count; the first draw is always made."""
        going = state.draws.size < len(self.levels)
        if going.all():
            return self._go_on(state, price)
        level, rows = state.at.copy(), np.flatnonzero(going)
        level[rows] = self._go_on(state.take(rows), price)
        return level

    def _go_on(self, state: State, price: float) -> IntArray:
        """Decide where another draw can be made."""
        at, place = state.draws.size, state.features[:, 0].astype(np.int64)
        due = state.cost[np.arange(len(at)), at]  # level n costs this much more than n draws did
        worth = price * due * shade(state.key)
        first = state.at == NO_LEVEL
        if self.round_cost == 0 and (state.rounds_left >= len(self.levels) - at).all():
            more = self.index[state.draws.states, place] > worth
            return np.where(more | first, at, state.at)
        asked = np.maximum(self._ask(state, place, worth), first)
        return np.where(asked > 0, at + asked - 1, state.at)

    def _ask(self, state: State, place: IntArray, price: FloatArray) -> IntArray:
        """Draws that each question should ask for, by the plan of the price next to its own."""
        step = np.rint(np.log(np.maximum(price, LOWEST)) / STEP).astype(np.int64)
        left = np.minimum(state.rounds_left, len(self.levels))
        asked, at = np.zeros(len(state), dtype=np.int64), state.draws.states
        for near in np.unique(step).tolist():
            rows = np.flatnonzero(step == near)
            made, needed = self._plans.get(near), int(left[rows].max())
            if made is None or len(made) <= needed:
                price_of_draw = math.exp(near * STEP)
                fee = price_of_draw * self.round_cost
                made = plan(self.known, price=price_of_draw, round_price=fee, rounds=needed)
                self._plans[near] = made
            asked[rows] = made[left[rows], at[rows], place[rows]]
        return asked


def shade(key: KeyArray) -> FloatArray:
    """Factor of each question's price, by its key: without it many would turn at once.

    Questions in the same state at the same place share an index, so the mean cost would jump as
    the price passes it.
    """
    spin = (key * _GOLDEN) >> np.uint64(11)
    return np.asarray(1.0 - SHADE / 2 + spin * (SHADE * 2.0**-53), dtype=np.float64)


def save_tables(policy: Sequential) -> bytes:
    """Everything a sequential policy looks up, as one file of plain arrays."""
    held = io.BytesIO()
    prior = {name: getattr(policy.prior, name) for name in PRIOR}
    known = {name: getattr(policy.known, name).astype(np.float32) for name in CHANCES}
    np.savez_compressed(held, index=policy.index, **prior, **known)
    return held.getvalue()


def load_tables(data: bytes, levels: tuple[Level, ...], round_cost: float = 0.0) -> Sequential:
    """Build a policy from its tables, and refuse those that do not fit together."""
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as held:
            table = {name: np.asarray(held[name], dtype=np.float32) for name in TABLES}
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise BundleError(f"the tables of a sequential policy are damaged ({error})") from None
    most = len(levels)
    shape = {name: array.shape for name, array in table.items()}
    features, places = len(table["mean"]), len(table["place"])
    fits = most <= MOST and [level.samples for level in levels] == list(range(1, most + 1))
    whole = (states().first[most + 1], places)
    fits = fits and all(shape[name] == whole for name in ("index", *CHANCES))
    fits = fits and shape["scale"] == (features,) and shape["slope"][:1] == (features,)
    if not (fits and shape["slope"][1:] == shape["place"][1:] and places):
        raise BundleError(f"the tables of a sequential policy do not fit its {most} levels")
    if not all(np.isfinite(array).all() for array in table.values()):
        raise BundleError("the tables of a sequential policy hold values that are no numbers")
    prior = Prior(**{name: table[name] for name in PRIOR})
    known = Chances(*(table[name].astype(np.float64) for name in CHANCES))
    return Sequential(levels, prior, table["index"], known, round_cost)


def fit_sequential(
    features: Float32Array,
    answers: Answers,
    known: Chances,
    levels: tuple[Level, ...],
    *,
    round_cost: float = 0.0,
    seed: int = 0,
) -> Sequential:
    """Fit the prior of training questions and the indices at its places.

    How far a place relies on the questions like it, and how far on all, is what gets most right on
    questions left out; relying on all is the policy without features.
    """
    behaviour = behave(answers, len(levels))
    with one_thread():
        prior, weight, strength = fit_prior(features, behaviour, seed=seed)
        if strength is not None:
            lent = _choose_lent(features, behaviour, known, strength=strength, seed=seed)
            flat = math.isinf(lent)
            prior = flat_prior(features.shape[1]) if flat else prior
            weight = flat_weight(len(weight)) if flat else lend(weight, lent)
    mixed = mix(known, weight)
    index = indices(mixed).astype(np.float32)
    kept = (of.astype(np.float32).astype(np.float64) for of in (mixed.reached, mixed.right))
    mixed = Chances(*kept)  # as a bundle keeps them
    return Sequential(levels, prior, index, mixed, round_cost)


def _choose_lent(
    features: Float32Array, behaviour: FloatArray, known: Chances, *, strength: float, seed: int
) -> float:
    """Questions to lend each place, by what is right at equal cost on questions left out."""
    fold = np.random.default_rng(seed).permutation(len(features)) % LENT_FOLDS
    value = np.zeros(len(LENT))
    for f in range(LENT_FOLDS):
        train, held = fold != f, fold == f
        seen, unseen = (
            Chances(known.reached[:, rows], known.right[:, rows]) for rows in (train, held)
        )
        prior, weight, _ = fit_prior(
            features[train], behaviour[train], strength=strength, seed=seed
        )
        for i, lent in enumerate(LENT):
            flat = math.isinf(lent)
            counts = flat_weight(len(weight)) if flat else lend(weight, lent)
            place = np.zeros(int(held.sum()), int) if flat else prior.locate(features[held])
            value[i] += _value(indices(mix(seen, counts), COARSE), unseen, place)
    return LENT[int(value.argmax())]


def _value(index: FloatArray, known: Chances, place: IntArray) -> float:
    """What a rule gets right on given questions, averaged over mean numbers of draws."""
    stop, go = follow(index, COARSE)
    right, drawn = np.zeros(len(COARSE)), np.zeros(len(COARSE))
    for at in np.unique(place):
        rows = place == at
        right += known.right[:, rows].sum(axis=1) @ stop[:, at]
        drawn += known.reached[:, rows].sum(axis=1) @ go[:, at]
    drawn, right = np.maximum.accumulate(drawn / len(place)), right / len(place)
    return float(np.interp(DRAWN, drawn, right).mean())
