"""Evidence factories: how policies that see arms and confidence are fitted to training questions.

They return fitted policies with their results on all questions, because these are looked up in the
orders of ``evaluation.evidence`` and not replayed decision by decision.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from adacompute.core.answers import number_by_appearance
from adacompute.core.errors import ConfigError
from adacompute.core.states import MAX_SAMPLES
from adacompute.core.types import Level, make_levels
from adacompute.evaluation.experiment import Experiment, FittedPolicy
from adacompute.policies.arm_mixture import ArmMixture, name_level
from adacompute.policies.confidence import equal_confidence
from adacompute.policies.learners import single_threaded
from adacompute.policies.sequential.advantage_fit import TrainingOrders, fit_advantages
from adacompute.policies.sequential.arm_samples import Grid, list_counts
from adacompute.policies.sequential.fitted_values import RoundLimits, list_actions
from adacompute.policies.sequential.prior import fit_cells, pooled_prior, response_profile
from adacompute.policies.sequential.vote_table_fit import TrainingSet, fit_by_votes

if TYPE_CHECKING:
    from adacompute.core.types import Float32Array, FloatArray, IntArray
    from adacompute.evaluation.evidence import Evidence
    from adacompute.policies.sequential.policy import SequentialPolicy

MAX_POSITIONS = 130
"""Positions that fitted values are computed at; arms are added, cheapest first, while they fit."""

MAX_REGRESSIONS = 1 << 14
"""Regressions of a policy, over all positions, actions and rounds; each is for all prices."""

N_PRICES = 32
"""Prices of the grid; between two, questions are mixed."""

LOWEST_PRICE = 1e-4
"""Accuracy that one sample of the most expensive arm must add at the lowest price."""

PROFILE_SAMPLES = 4
"""Samples of an arm that its response profile looks at."""


def make_arm_mixture(
    experiment: Experiment, train: IntArray, *, plain: bool, arm: int | None = None
) -> FittedPolicy:
    """Mix numbers of samples of single arms as well as possible on the training questions.

    Votes are weighted as learned; if ``plain``, every sample counts once. ``arm`` leaves out all
    other arms.
    """
    evidence = experiment.evidence
    confidence = None if plain else evidence.confidence(train, joint=False)
    result = evidence.run_levels(confidence) if arm is None else evidence.run_arm(arm, confidence)
    kept, schedule = result.find_efficient(train)
    levels = [one for one in evidence.levels if arm in (None, one[0])]
    names = experiment.arm_names
    policy = ArmMixture(
        arms=names,
        choices=tuple(levels[i] for i in kept.tolist()),
        schedule=schedule,
        confidence=equal_confidence(len(names)) if confidence is None else confidence,
        sample_cost=mean_arm_cost(experiment, train),
    )
    return FittedPolicy(
        policy, schedule.prices, experiment.pool.features, known=result.columns(kept)
    )


def mean_arm_cost(experiment: Experiment, rows: IntArray) -> tuple[float, ...]:
    """Return the mean cost of a sample of each arm on some questions."""
    return tuple(experiment.pool.arm_cost()[rows].mean(axis=0).tolist())


def make_fitted(experiment: Experiment, train: IntArray, features: Float32Array) -> FittedPolicy:
    """Decide after every sample, by text, votes and confidence, which arm to sample next."""
    arms, caps = choose_arms(experiment, train)
    evidence = experiment.evidence.select(arms, caps)
    group, every = experiment.pool.group[train], mean_arm_cost(experiment, train)
    costs = tuple(every[arm] for arm in arms)
    rounds = _limit_rounds(experiment, train, evidence.max_samples)
    by_votes: SequentialPolicy | None = None
    if not experiment.pool.has_arms:
        by_votes = fit_vote_states(experiment, train, features)
        prior, own = by_votes.prior, by_votes.prior.find_cell(features[train])
    else:
        profile = evidence.remember("profiles", _profile_arms)[train]
        with single_threaded():
            groups = number_by_appearance(group)
            prior, own = fit_cells(features[train], profile, groups, seed=experiment.seed)
    names = tuple(experiment.arm_names[arm] for arm in arms)
    confidence = evidence.confidence(train, joint=True)
    training = TrainingOrders(
        samples=evidence.ordered(confidence),
        train=train,
        group=group,
        n_orders=evidence.n_permutations,
        prices=np.array(price_steps(costs)),
        rounds=rounds,
    )
    known: dict[str, Any] = {
        "arms": names,
        "levels": arm_levels(names, evidence.max_samples),
        "confidence": confidence,
        "sample_cost": costs,
    }
    table, pooled_table = None, None
    if by_votes is not None and rounds.are_free:
        table, pooled_table = by_votes.table, (by_votes.pooled or by_votes).table
    with single_threaded():
        policy = fit_advantages(training, prior, own, table, known)
        if len(prior.cell_centre) > 1 and len(train) == len(experiment.pool):  # only it is served
            pooled = pooled_prior(features.shape[1])
            of_pool = fit_advantages(training, pooled, own * 0, pooled_table, known)
            policy = replace(policy, pooled=of_pool)
        result = evidence.run(policy, features)
    return FittedPolicy(policy, tuple(training.prices.tolist()), features, known=result)


def _limit_rounds(
    experiment: Experiment, train: IntArray, max_samples: tuple[int, ...]
) -> RoundLimits:
    """Return how samples can be drawn; a limit that no question reaches is none."""
    limit = experiment.round_limit
    if limit is not None and limit >= sum(max_samples):
        limit = None
    rounds = RoundLimits(limit, experiment.round_cost(train))
    n_actions = len(list_actions(Grid(max_samples), rounds))
    per_round = len(Grid(max_samples)) * n_actions
    if (limit or 1) * per_round > MAX_REGRESSIONS:
        raise ConfigError(
            f"a policy with {len(max_samples)} arms and up to {sum(max_samples)} samples cannot be "
            f"fitted for {limit} rounds: use max_rounds of at most {MAX_REGRESSIONS // per_round}, "
            "or leave it out"
        )
    return rounds


def fit_vote_states(
    experiment: Experiment, train: IntArray, features: Float32Array
) -> SequentialPolicy:
    """Fit the policy that decides by how many samples voted for each answer."""
    levels = make_levels(tuple(range(1, min(MAX_SAMPLES, max(experiment.levels)) + 1)))
    training = TrainingSet(
        features[train],
        experiment.response_profile[train],
        number_by_appearance(experiment.pool.group[train]),
        experiment.state_sums,
        rows=train,
        seed=experiment.seed,
    )
    round_cost = experiment.round_cost(train) / experiment.sample_cost(train)
    return fit_by_votes(training, levels, round_cost=round_cost)


def _profile_arms(evidence: Evidence) -> FloatArray:
    """Return the response profile of each question for every arm, side by side."""
    samples, found = evidence.samples, []
    for arm in range(samples.n_arms):
        own = samples.answers.keep(samples.arm == arm)
        limit = min(PROFILE_SAMPLES, int(own.n_samples.min()))
        found.append(response_profile(own, limit))
    return np.concatenate(found, axis=1)


def choose_arms(experiment: Experiment, train: IntArray) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the arms that are efficient on the training questions, and samples of each.

    Arms are added by rising cost until there are too many positions; with each goes the largest
    number of its samples that is efficient, and more while there are not too many positions.
    """
    evidence = experiment.evidence
    if evidence.samples.n_arms == 1:
        return (0,), evidence.max_samples
    kept, _ = evidence.run_levels(None).find_efficient(train)
    single = mean_arm_cost(experiment, train)
    needed: dict[int, int] = {}
    for i in kept.tolist():
        arm, n = evidence.levels[i]
        needed[arm] = max(n, needed.get(arm, 1))
    arms: list[int] = []
    for arm in sorted(needed, key=lambda one: single[one]):
        if len(Grid(tuple(needed[one] for one in (*arms, arm)))) <= MAX_POSITIONS:
            arms.append(arm)
    arms = arms or [min(needed, key=lambda one: single[one])]
    recorded = [evidence.max_samples[arm] for arm in arms]
    return tuple(arms), _grow([min(needed[arm], MAX_POSITIONS - 1) for arm in arms], recorded)


def _grow(caps: list[int], recorded: list[int]) -> tuple[int, ...]:
    """Add samples of the arms in turn, the cheapest first, while positions are few enough."""
    is_grown = True
    while is_grown:
        is_grown = False
        for arm, limit in enumerate(recorded):
            more = [*caps[:arm], caps[arm] + 1, *caps[arm + 1 :]]
            if more[arm] <= limit and len(Grid(tuple(more))) <= MAX_POSITIONS:
                caps, is_grown = more, True
    return tuple(caps)


def price_steps(costs: tuple[float, ...]) -> tuple[float, ...]:
    """Return falling prices, from one sample of the cheapest arm to nearly free samples."""
    return tuple(np.geomspace(1.0 / min(costs), LOWEST_PRICE / max(costs), N_PRICES).tolist())


def arm_levels(arms: tuple[str, ...], max_samples: tuple[int, ...]) -> tuple[Level, ...]:
    """Return the numbers of samples of each arm that can be reached."""
    counts = map(list_counts, max_samples)
    return tuple(name_level(arms, arm, n) for arm, own in enumerate(counts) for n in own[1:])
