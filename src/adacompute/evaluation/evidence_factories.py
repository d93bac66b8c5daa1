"""Evidence factories: how policies that see arms and confidence are fitted to training questions.

They return fitted policies with their results on all questions, because these are looked up in the
tables of ``evaluation.evidence`` and not replayed decision by decision.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from adacompute.core.coloured_states import Colours
from adacompute.core.types import Level
from adacompute.evaluation.experiment import N_PRICES, Experiment, FittedPolicy
from adacompute.policies.arm_mixture import ArmMixture
from adacompute.policies.coloured import ColouredPolicy
from adacompute.policies.coloured_fit import (
    FittedVotes,
    plan_prices,
    state_values,
)
from adacompute.policies.confidence import equal_confidence
from adacompute.policies.learners import single_threaded
from adacompute.policies.price_schedule import PriceSchedule, fit_price_schedule
from adacompute.policies.prior import Prior, pooled_prior
from adacompute.policies.sequential import choose_prior

if TYPE_CHECKING:
    from adacompute.core.positions import VoteTable
    from adacompute.core.types import Float32Array, FloatArray, IntArray
    from adacompute.evaluation.evidence import Evidence
    from adacompute.evaluation.replay import ReplayResult
    from adacompute.policies.kinds import EvidencePolicy

MAX_ARMS = 4
"""Arms that a plan chooses from at most."""

N_COMPARED = 64
"""Costs at which mixtures without one of the arms are compared."""

LOWEST_PRICE = 1e-4
"""Accuracy that one sample of the most expensive arm must add at the lowest price."""


def list_levels(experiment: Experiment) -> list[tuple[int, int]]:
    """Return arm and number of samples of every level, in the order of ``run_levels``."""
    caps = experiment.evidence.max_samples
    return [(arm, n) for arm, cap in enumerate(caps) for n in range(1, cap + 1)]


def make_arm_mixture(experiment: Experiment, train: IntArray, *, plain: bool) -> FittedPolicy:
    """Mix numbers of samples of single arms as well as possible on the training questions.

    Votes are weighted as learned; if ``plain``, every sample counts once.
    """
    evidence = experiment.evidence
    votes = None if plain else evidence.votes(train, joint=False)
    result = evidence.run_levels(votes)
    cost, accuracy = result.cost[train].mean(axis=0), result.accuracy[train].mean(axis=0)
    kept, schedule = fit_price_schedule(cost, accuracy)
    levels, names = list_levels(experiment), experiment.arm_names
    policy = ArmMixture(
        arms=names,
        choices=tuple(levels[i] for i in kept.tolist()),
        schedule=schedule,
        confidence=equal_confidence(len(experiment.arm_names))
        if votes is None
        else votes.confidence,
        sample_cost=mean_arm_cost(experiment, train),
    )
    return FittedPolicy(
        policy, schedule.prices, experiment.pool.features, known=result.columns(kept)
    )


def mean_arm_cost(experiment: Experiment, rows: IntArray) -> tuple[float, ...]:
    """Return the mean cost of a sample of each arm on some questions."""
    return tuple(experiment.pool.arm_cost()[rows].mean(axis=0).tolist())


def make_coloured(experiment: Experiment, train: IntArray, features: Float32Array) -> FittedPolicy:
    """Decide after every sample, by text, votes and confidence, which arm to sample next."""
    arms, wanted = choose_arms(experiment, train)
    evidence = experiment.evidence.select(arms, wanted)
    names = tuple(experiment.arm_names[arm] for arm in arms)
    votes = evidence.votes(train, joint=True)
    with single_threaded():
        chosen = choose_prior(
            features[train],
            experiment.response_profile[train],
            experiment.state_sums,
            rows=train,
            group=experiment.pool.group[train],
            seed=experiment.seed,
        )
    table = evidence.table(votes)
    measure = evidence.measure(votes, train)
    own = _rows_of(table, train, evidence)
    every = mean_arm_cost(experiment, train)
    costs = tuple(every[arm] for arm in arms)
    prices = price_steps(costs)

    def fit(prior: Prior, weight: FloatArray) -> ColouredPolicy:
        values = state_values(measure, own, chosen.cluster, weight)
        return ColouredPolicy(
            arms=names,
            levels=arm_levels(names, votes.colours.max_samples),
            colours=votes.colours,
            confidence=votes.confidence,
            prior=prior,
            schedule=PriceSchedule(prices),
            action=plan_prices(measure.states, values, prices),
            sample_cost=costs,
        )

    policy = fit(chosen.prior, chosen.weight)
    if chosen.weight.shape[1] > 1 and len(train) == len(experiment.pool):  # only it is served
        pooled = fit(pooled_prior(features.shape[1]), chosen.equal_weight)
        policy = replace(policy, pooled=pooled)
    cell = policy.prepare_features(features)[:, 0].astype(np.int64)
    known = evidence.run_plans(votes, policy.action, cell, table)
    return FittedPolicy(policy, prices, features, known=known)


def replay_evidence(
    experiment: Experiment, policy: EvidencePolicy, features: Float32Array
) -> ReplayResult:
    """Return the results of a fitted policy at its prices on all questions."""
    numbers = [experiment.arm_names.index(name) for name in policy.arms]
    evidence = experiment.evidence.select(tuple(numbers))
    if isinstance(policy, ArmMixture):
        votes = FittedVotes(policy.confidence, Colours(evidence.max_samples, (1,) * len(numbers)))
        levels = list_levels(experiment)
        kept = [levels.index((numbers[arm], n)) for arm, n in policy.choices]
        return experiment.evidence.run_levels(votes).columns(np.array(kept))
    votes = FittedVotes(policy.confidence, policy.colours)
    cell = policy.prepare_features(features)[:, 0].astype(np.int64)
    return evidence.run_plans(votes, policy.action, cell)


def choose_arms(experiment: Experiment, train: IntArray) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return at most four arms that are efficient on the training questions, by rising cost.

    While there are more, the one is left out without which the best mixture loses least. With each
    arm goes the largest number of its samples that is efficient.
    """
    evidence = experiment.evidence
    if evidence.samples.n_arms == 1:
        return (0,), evidence.max_samples
    result = evidence.run_levels(None)
    cost, accuracy = result.cost[train].mean(axis=0), result.accuracy[train].mean(axis=0)
    arm = np.array([arm for arm, _ in list_levels(experiment)])
    kept = set(arm[fit_price_schedule(cost, accuracy)[0]].tolist())
    limit = np.geomspace(cost.min(), cost.max(), N_COMPARED)
    while len(kept) > MAX_ARMS:
        values = {}
        for one in kept:
            rows = np.flatnonzero(np.isin(arm, list(kept - {one})))
            hull = rows[fit_price_schedule(cost[rows], accuracy[rows])[0]]
            values[one] = float(np.interp(limit, cost[hull], accuracy[hull], left=0.0).mean())
        kept.discard(max(values, key=lambda one: values[one]))
    single = mean_arm_cost(experiment, train)
    arms = tuple(sorted(kept, key=lambda one: single[one]))
    rows = np.flatnonzero(np.isin(arm, arms))
    hull = rows[fit_price_schedule(cost[rows], accuracy[rows])[0]]
    count = np.array([n for _, n in list_levels(experiment)])
    needed = [int(count[hull][arm[hull] == one].max(initial=1)) for one in arms]
    return arms, tuple(needed)


def _rows_of(table: VoteTable, rows: IntArray, evidence: Evidence) -> VoteTable:
    """Return the votes of the orders of some questions."""
    orders = (rows[:, None] * evidence.n_permutations + np.arange(evidence.n_permutations)).ravel()
    return table._replace(state=table.state[orders], correct=table.correct[orders])


def price_steps(costs: tuple[float, ...]) -> tuple[float, ...]:
    """Return falling prices, from one sample of the cheapest arm to nearly free samples."""
    return tuple(np.geomspace(1.0 / min(costs), LOWEST_PRICE / max(costs), N_PRICES).tolist())


def arm_levels(arms: tuple[str, ...], max_samples: tuple[int, ...]) -> tuple[Level, ...]:
    """Return the numbers of samples of each arm that can be reached."""
    single = len(arms) == 1
    return tuple(
        Level(str(n) if single else f"{arm} × {n}", n, None if single else arm)
        for arm, cap in zip(arms, max_samples, strict=True)
        for n in range(1, cap + 1)
    )
