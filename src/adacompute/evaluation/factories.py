"""Factories: how each kind of policy is fitted to training questions.

A factory takes an experiment and the rows of its training questions, and returns a fitted policy
with the prices to score it at. Everything that is tuned is tuned here, and only on those rows:
which settings are efficient, at which prices they are used, and every model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from adacompute.core.errors import ConfigError
from adacompute.core.states import MAX_SAMPLES, states
from adacompute.core.types import Float32Array, IntArray, Level
from adacompute.evaluation.evidence_factories import (
    fit_vote_states,
    make_arm_mixture,
    make_fitted,
)
from adacompute.evaluation.experiment import Experiment, FittedPolicy, PolicyFactory, price_grid
from adacompute.evaluation.recorded_data import RecordedData
from adacompute.evaluation.rivals import LongestFirst, early_grid, retry_grid
from adacompute.policies.price_schedule import PriceSchedule, fit_price_schedule
from adacompute.policies.router import RouterTraining, fit_router
from adacompute.policies.rule_policy import Rule, RulePolicy
from adacompute.policies.sequential.vote_table import PRICE_JITTER
from adacompute.policies.stopping import adaptive_grid, decided_grid
from adacompute.policies.uniform import FixedRule

STEPS_PER_SETTING = 4
"""Prices from one setting to the next, where it matters which questions change first."""


def _fit_rules(
    name: str,
    experiment: Experiment,
    train: IntArray,
    rules: Sequence[Rule],
    levels: tuple[Level, ...],
) -> RulePolicy:
    """Return a policy with the rules that are efficient on the training questions."""
    kept, schedule = experiment.run_rules(rules).find_efficient(train)
    return RulePolicy(name, levels, tuple(rules[i] for i in kept), schedule)


def _as_fitted(experiment: Experiment, policy: RulePolicy) -> FittedPolicy:
    """Return a policy at the prices of its rules, whose results are known."""
    prices, known = policy.schedule.prices, experiment.run_rules(policy.rules)
    return FittedPolicy(policy, prices, experiment.pool.features, known)


def _fit_levels(name: str, experiment: Experiment, train: IntArray, *, mix_by: str) -> RulePolicy:
    """Return a policy with every level, each at the price that the best mixture has at its cost."""
    rules = [FixedRule(n) for n in experiment.levels]
    best = _fit_rules(name, experiment, train, rules, experiment.policy_levels)
    mean_cost = experiment.run_rules(rules).cost[train].mean(axis=0)
    best_cost = [mean_cost[rules.index(rule)] for rule in best.rules]  # type: ignore[arg-type]
    slope = -np.log(np.interp(mean_cost, np.array(best_cost), best.schedule.prices))
    # Beyond the best mixture the slope is flat, but the prices must still fall.
    steps = np.maximum(np.diff(slope, prepend=slope[0] - 1.0), 1e-6)
    prices = np.exp(-np.cumsum(steps) + steps[0] - slope[0])
    schedule = PriceSchedule(tuple(prices.tolist()))
    return RulePolicy(name, experiment.policy_levels, tuple(rules), schedule, mix_by=mix_by)


def make_fixed(experiment: Experiment, train: IntArray) -> FittedPolicy:
    """Give every question the same level: the largest one within the budget."""
    return _as_fitted(experiment, _fit_levels("fixed", experiment, train, mix_by="none"))


def make_random(experiment: Experiment, train: IntArray) -> FittedPolicy:
    """Mix the two levels next to the budget at random."""
    return _as_fitted(experiment, _fit_levels("random", experiment, train, mix_by="key"))


def _fit_mixture(name: str, experiment: Experiment, train: IntArray) -> RulePolicy:
    """Return the best mixture of uniform numbers of samples, not only those of the levels.

    It is chosen by exact utilities, because the replayed ones depend on the random orders.
    """
    levels = experiment.dense_levels
    rules = [FixedRule(level.n_samples) for level in levels]
    table = experiment.dense_table.take(train)
    kept, schedule = fit_price_schedule(table.costs.mean(axis=0), table.utility.mean(axis=0))
    return RulePolicy(name, levels, tuple(rules[i] for i in kept), schedule)


def make_mixture(experiment: Experiment, train: IntArray) -> FittedPolicy:
    """Mix uniform numbers of samples as well as possible: the baseline of every difference.

    Where arms or confidence are recorded, it is the best mixture over all arms, with weighted
    votes.
    """
    if experiment.weighs_votes:
        return make_arm_mixture(experiment, train, plain=False)
    return _as_fitted(experiment, _fit_mixture("mixture", experiment, train))


def make_mixture_votes(experiment: Experiment, train: IntArray) -> FittedPolicy:
    """Mix as well as possible where every sample counts once, whatever its confidence."""
    if experiment.weighs_votes:
        return make_arm_mixture(experiment, train, plain=True)
    return make_mixture(experiment, train)


def make_longest_first(experiment: Experiment, train: IntArray) -> FittedPolicy:
    """Use the best mixture, with its larger number of samples for the longest questions."""
    best = _fit_mixture("longest-first", experiment, train)
    column = experiment.pool.length_feature
    lengths = np.sort(experiment.pool.features[train, column]).tolist()
    known = best.levels, best.rules, best.schedule
    policy = LongestFirst(best.name, *known, training_lengths=tuple(lengths), length_feature=column)
    n_steps = len(best.rules) - 1
    positions = np.linspace(0, n_steps, STEPS_PER_SETTING * n_steps + 1)
    prices = tuple(best.schedule.price_at(position) for position in positions)
    return FittedPolicy(policy, prices, experiment.pool.features)


def make_retry(experiment: Experiment, train: IntArray) -> FittedPolicy:
    """Sample again while answers cannot be parsed."""
    return _make_stopping("retry", experiment, train, retry_grid(max(experiment.levels)))


def make_adaptive_consistency(experiment: Experiment, train: IntArray) -> FittedPolicy:
    """Stop when the leading answer is likely to stay in the lead."""
    rules = adaptive_grid(max(experiment.levels))
    return _make_stopping("adaptive-consistency", experiment, train, rules)


def make_early_stopping(experiment: Experiment, train: IntArray) -> FittedPolicy:
    """Stop when the answers of a window agree."""
    return _make_stopping("early-stopping", experiment, train, early_grid(max(experiment.levels)))


def make_decided_votes(experiment: Experiment, train: IntArray) -> FittedPolicy:
    """Stop when the remaining samples cannot change the vote."""
    return _make_stopping("decided-votes", experiment, train, decided_grid(max(experiment.levels)))


def _make_stopping(
    name: str, experiment: Experiment, train: IntArray, rules: Sequence[Rule]
) -> FittedPolicy:
    policy = _fit_rules(name, experiment, train, rules, experiment.dense_levels)
    return _as_fitted(experiment, policy)


def make_router(experiment: Experiment, train: IntArray) -> FittedPolicy:
    """Use the paper's classifier, fitted for each budget and for one below and one above them."""
    table = experiment.table.take(train)
    lowest = float(table.costs.min(axis=1).mean()) * (1 + 1e-12)  # a mean can be rounded down
    highest = max(float(table.costs.max(axis=1).mean()), lowest)
    inside = [budget for budget in experiment.budgets if lowest < budget < highest]
    around = [
        lowest + 0.2 * (min(inside, default=highest) - lowest),
        (max(inside, default=lowest) + highest) / 2,
    ]
    training = RouterTraining(
        budgets=[*inside, *around],
        classifier=experiment.classifier,
        seed=experiment.seed,
    )
    pool, levels = experiment.pool, experiment.policy_levels
    policy = fit_router(pool.features[train], table, levels, training)
    return FittedPolicy(policy, policy.schedule.prices, pool.features)


def make_sequential(experiment: Experiment, train: IntArray) -> FittedPolicy:
    """Decide after every sample, by the text and the votes, whether the next is worth the price."""
    pool = experiment.pool
    features = pool.features if pool.sequential_features is None else pool.sequential_features
    return _make_sequential(experiment, train, features)


def make_sequential_pooled(experiment: Experiment, train: IntArray) -> FittedPolicy:
    """Decide by the samples alone, as ``make_sequential`` does where the text is not known."""
    return _make_sequential(experiment, train, experiment.pool.features[:, :0])


make_sequential_pooled.sees_evidence = True  # type: ignore[attr-defined]


def make_sequential_votes(experiment: Experiment, train: IntArray) -> FittedPolicy:
    """Decide after every sample by the votes alone: all questions have the same prior."""
    return _make_vote_states(experiment, train, experiment.pool.features[:, :0])


def _make_sequential(
    experiment: Experiment, train: IntArray, features: Float32Array
) -> FittedPolicy:
    """Use arms and confidence where training questions show that they are of use, else votes.

    More samples than there are vote states of need fitted values in any case.
    """
    sees_more = experiment.weighs_votes and not experiment.evidence.counts_votes_alike(train)
    if sees_more or max(experiment.levels) > MAX_SAMPLES:
        return make_fitted(experiment, train, features)
    return _make_vote_states(experiment, train, features)


def _make_vote_states(
    experiment: Experiment, train: IntArray, features: Float32Array
) -> FittedPolicy:
    """Decide by how many samples voted for each answer."""
    sample_cost = experiment.sample_cost(train)
    policy = fit_vote_states(experiment, train, features)
    # At the highest price no question gets a second sample, whatever its jitter and sample cost.
    break_even = policy.votes.break_even_price
    second = float(break_even[states().layer(1)].max(initial=0.0))
    highest = max(float(break_even.max()), second / (1.0 - PRICE_JITTER)) / sample_cost
    return FittedPolicy(policy, price_grid(highest or 1.0 / sample_cost), features)


POLICY_FACTORIES: dict[str, PolicyFactory] = {
    "fixed": make_fixed,
    "mixture": make_mixture,
    "random": make_random,
    "longest-first": make_longest_first,
    "retry": make_retry,
    "router": make_router,
    "adaptive-consistency": make_adaptive_consistency,
    "early-stopping": make_early_stopping,
    "decided-votes": make_decided_votes,
    "sequential": make_sequential,
    "sequential-votes": make_sequential_votes,
}

TRAINABLE = ("mixture", "router", "adaptive-consistency", "decided-votes", "sequential")
"""Policies that can be saved and served; the others are scored only."""

ROUTER = "router"
BASELINES: dict[str, PolicyFactory] = {"mixture-votes": make_mixture_votes}
"""Rows of tables that are no policies of their own."""


@dataclass(frozen=True)
class RegisteredPolicy:
    """A policy of another package, for runs with one arm or with several.

    ``find_obstacle`` says why it cannot be scored with what was recorded; None if it can.
    """

    factory: PolicyFactory
    several_arms: bool
    find_obstacle: Callable[[RecordedData], str | None] = field(compare=False)


REGISTERED: dict[str, RegisteredPolicy] = {}
"""Policies of other packages, which are scored but not trained or served; see `registry`."""

EVIDENCE_AWARE = ("mixture", "mixture-votes", "sequential")
"""Our policies that use arms and confidence where they are recorded."""

ONLY = "only "
"""How the row of a single arm begins."""


@dataclass(frozen=True)
class OnlyArm:
    """Fits the best mixture of numbers of samples of one arm."""

    arm: str
    sees_evidence: ClassVar[bool] = True

    def __call__(self, experiment: Experiment, train: IntArray) -> FittedPolicy:
        """Fit it to training questions."""
        if self.arm not in experiment.arm_names:
            known = ", ".join(experiment.arm_names)
            raise ConfigError(f"there is no arm {self.arm!r}; there are {known}")
        arm = experiment.arm_names.index(self.arm)
        return make_arm_mixture(experiment, train, plain=False, arm=arm)


def sees_evidence(policy: str | PolicyFactory) -> bool:
    """Whether a policy uses arms and confidence where they are recorded."""
    factory = find_factory(policy)
    known = {find_factory(name) for name in EVIDENCE_AWARE}
    return factory in known or bool(getattr(factory, "sees_evidence", False))


def only_arms(arms: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the rows of single arms."""
    return tuple(f"{ONLY}{arm}" for arm in arms)


def is_single_arm(policy: str | PolicyFactory) -> bool:
    """Whether a policy is the row of a single arm."""
    return isinstance(policy, str) and policy.startswith(ONLY)


def find_trainable(policy: str) -> PolicyFactory:
    """Return the factory of a policy that can be saved and served."""
    factory = find_factory(policy)
    if policy not in TRAINABLE:
        raise ConfigError(
            f"{policy} is only scored on recorded samples, by evaluate; policies to train are "
            f"{', '.join(TRAINABLE)}"
        )
    return factory


def find_factory(policy: str | PolicyFactory) -> PolicyFactory:
    """Return the factory of a policy by its name; a factory is returned as it is."""
    if not isinstance(policy, str):
        return policy
    if policy.startswith(ONLY):
        return OnlyArm(policy.removeprefix(ONLY))
    if policy in REGISTERED:
        return REGISTERED[policy].factory
    every = POLICY_FACTORIES | BASELINES
    if policy not in every:
        known = ", ".join(POLICY_FACTORIES)
        raise ConfigError(f"there is no policy {policy!r}; there are {known}")
    return every[policy]
