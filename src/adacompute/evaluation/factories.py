"""Families: every kind of policy, and how one is fitted to training questions.

A factory takes a experiment and some of its questions and returns a policy with the prices worth
looking at. Whatever is tuned is tuned there and on those questions alone: which settings are on the
hull, at which prices, every model. It knows nothing of the questions that are held out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from adacompute.core.errors import ConfigError, DataError
from adacompute.core.states import MAX_SAMPLES, StateMeasure, measure_states, states
from adacompute.core.types import (
    Float32Array,
    FloatArray,
    IntArray,
    Level,
    UtilityTable,
    make_levels,
)
from adacompute.evaluation.pool import Pool
from adacompute.evaluation.replay import Replay
from adacompute.policies.episode import UNLIMITED_ROUNDS
from adacompute.policies.policy import Policy
from adacompute.policies.price_schedule import PriceSchedule, fit_price_schedule
from adacompute.policies.router import fit_router, fit_value_router
from adacompute.policies.sequential import PRICE_JITTER, fit_sequential
from adacompute.policies.stopping import adaptive_grid, early_grid
from adacompute.policies.uniform import FixedRule, Rule, RulePolicy, retry_grid

PRICES = 48
"""Prices looked at where a policy turns smoothly."""

BETWEEN = 4
"""Places of the dial looked at from one setting to the next, where who goes first matters."""


@dataclass(frozen=True, eq=False)
class Experiment:
    """What all families share: the pool, its levels, and the orders of its samples."""

    pool: Pool
    levels: tuple[int, ...]
    budgets: tuple[float, ...]
    orders: int
    seed: int
    classifier: str = "gbm"
    cost_sensitive: bool = False
    rounds: int = UNLIMITED_ROUNDS
    _runs: dict[Rule, tuple[FloatArray, FloatArray]] = field(default_factory=dict, repr=False)

    @cached_property
    def table(self) -> UtilityTable:
        """Exact utilities of the levels on every question."""
        return self.pool.table(self.levels)

    @cached_property
    def dense_table(self) -> UtilityTable:
        """Exact utilities of every number of samples up to the largest level."""
        return self.pool.table(tuple(level.n_samples for level in self.dense_levels))

    @cached_property
    def replay(self) -> Replay:
        """Orders of every question's samples."""
        return Replay(self.pool, self.orders, max(self.levels), self.seed, self.rounds)

    @cached_property
    def measure_states(self) -> StateMeasure:
        """Chances of every vote state on every question, and of the last resort's being right."""
        most = min(MAX_SAMPLES, max(self.levels))
        known = measure_states(self.pool.answers, most)
        if self.pool.logprob is not None:
            known = replace(known, correct_mass=known.correct_mass + self.replay.tie_gains(most))
        if self.pool.resort is None:
            return known
        return replace(known, resort=known.mass * self.pool.resort.utility)

    @property
    def policy_levels(self) -> tuple[Level, ...]:
        """The levels."""
        return make_levels(self.levels)

    @property
    def dense_levels(self) -> tuple[Level, ...]:
        """A level a sample, for rules that look after each."""
        return make_levels(tuple(range(1, max(self.levels) + 1)))

    def sample_cost(self, rows: IntArray) -> float:
        """Mean cost of a draw on these questions; there is no pricing what costs nothing."""
        mean = float(self.pool.mean_sample_cost()[rows].mean())
        if mean <= 0:
            raise DataError(
                f"the samples of {len(rows)} questions cost nothing at all: use another unit"
            )
        return mean

    def round_cost(self, rows: IntArray) -> float:
        """Mean cost of a round on these questions, beside its draws."""
        return float(self.pool.round_costs[rows].mean())

    def dearest(self, rows: IntArray) -> float:
        """Most that a question costs on average: a round for every draw, and the resort."""
        fee, resort = self.round_cost(rows), self.pool.resort
        most = max(self.levels) * (self.sample_cost(rows) + fee)
        return most if resort is None else most + fee + float(resort.cost[rows].mean())

    def run_rules(self, rules: Sequence[Rule]) -> tuple[FloatArray, FloatArray]:
        """Cost and accuracy of each rule on all questions, (N, rules): rules learn nothing."""
        for rule in rules:
            if rule not in self._runs:
                alone = RulePolicy("rule", self.dense_levels, (rule,), PriceSchedule((1.0,)))
                result = self.replay.run(alone, 1.0)
                self._runs[rule] = result.cost, result.accuracy
        cost, accuracy = zip(*(self._runs[rule] for rule in rules), strict=True)
        return np.stack(cost, axis=1), np.stack(accuracy, axis=1)


@dataclass(frozen=True, eq=False)
class FittedPolicy:
    """A policy, and falling prices at which to look at it.

    A stepped policy has nothing between these prices: it cannot be interpolated. ``features`` are
    those that it reads, of all questions of the experiment.
    """

    policy: Policy
    prices: tuple[float, ...]
    features: Float32Array
    stepped: bool = False

    @cached_property
    def digested(self) -> Float32Array:
        """The features as the policy takes them."""
        return self.policy.prepare_features(self.features)


PolicyFactory = Callable[[Experiment, IntArray], FittedPolicy]


def _hull(
    name: str,
    experiment: Experiment,
    train: IntArray,
    rules: Sequence[Rule],
    levels: tuple[Level, ...],
) -> RulePolicy:
    """Keep the rules on the training questions' hull."""
    cost, accuracy = experiment.run_rules(rules)
    kept, dial = fit_price_schedule(cost[train].mean(axis=0), accuracy[train].mean(axis=0))
    return RulePolicy(name, levels, tuple(rules[i] for i in kept), dial)


def _uniform(name: str, experiment: Experiment, train: IntArray, *, ticket: str) -> RulePolicy:
    """Every uniform level, worth having or not, at the price the best mixture pays there."""
    rules = [FixedRule(n) for n in experiment.levels]
    best = _hull(name, experiment, train, rules, experiment.policy_levels)
    cost, _ = experiment.run_rules(rules)
    spent = cost[train].mean(axis=0)
    at = np.array([spent[rules.index(rule)] for rule in best.rules])  # type: ignore[arg-type]
    slope = -np.log(np.interp(spent, at, best.schedule.prices))
    steps = np.maximum(np.diff(slope, prepend=slope[0] - 1.0), 1e-6)  # past the hull it is flat
    prices = np.exp(-np.cumsum(steps) + steps[0] - slope[0])
    return RulePolicy(
        name,
        experiment.policy_levels,
        tuple(rules),
        PriceSchedule(tuple(prices.tolist())),
        mix_by=ticket,
    )


def fit_fixed(experiment: Experiment, train: IntArray) -> FittedPolicy:
    """The same level for every question: the largest that fits."""
    policy = _uniform("fixed", experiment, train, ticket="none")
    return FittedPolicy(policy, policy.schedule.prices, experiment.pool.features, stepped=True)


def fit_random(experiment: Experiment, train: IntArray) -> FittedPolicy:
    """A random mixture of the two levels next to the budget."""
    policy = _uniform("random", experiment, train, ticket="key")
    return FittedPolicy(policy, policy.schedule.prices, experiment.pool.features)


def _best_mixture(name: str, experiment: Experiment, train: IntArray) -> RulePolicy:
    """Uniform numbers of samples on the hull: every one, as stopping rules may stop at any.

    The hull is of exact utilities: the luck of the orders would put numbers on it that are not.
    """
    levels = experiment.dense_levels
    rules = [FixedRule(level.n_samples) for level in levels]
    if experiment.pool.logprob is not None:  # exact utilities break ties at random
        return _hull(name, experiment, train, rules, levels)
    known = experiment.dense_table.take(train)
    kept, dial = fit_price_schedule(known.costs.mean(axis=0), known.utility.mean(axis=0))
    return RulePolicy(name, levels, tuple(rules[i] for i in kept), dial)


def fit_mixture(experiment: Experiment, train: IntArray) -> FittedPolicy:
    """The best mixture of uniform numbers of samples: the baseline of every difference."""
    policy = _best_mixture("mixture", experiment, train)
    return FittedPolicy(policy, policy.schedule.prices, experiment.pool.features)


def fit_longest_first(experiment: Experiment, train: IntArray) -> FittedPolicy:
    """The best mixture, its dearer number of samples given to the longest questions."""
    best = _best_mixture("longest-first", experiment, train)
    column = experiment.pool.length_feature
    lengths = np.sort(experiment.pool.features[train, column]).tolist()
    policy = RulePolicy(
        best.name,
        best.levels,
        best.rules,
        best.schedule,
        mix_by="length",
        training_lengths=tuple(lengths),
        length_feature=column,
    )
    places = np.linspace(0, len(best.rules) - 1, BETWEEN * (len(best.rules) - 1) + 1)
    prices = tuple(best.schedule.price_at(place) for place in places)
    return FittedPolicy(policy, prices, experiment.pool.features)


def fit_retry(experiment: Experiment, train: IntArray) -> FittedPolicy:
    """Redraw what could not be read."""
    rules = retry_grid(max(experiment.levels))
    policy = _hull("retry", experiment, train, rules, experiment.dense_levels)
    return FittedPolicy(policy, policy.schedule.prices, experiment.pool.features)


def fit_adaptive_consistency(experiment: Experiment, train: IntArray) -> FittedPolicy:
    """Stop when the lead is likely to be real."""
    rules = adaptive_grid(max(experiment.levels))
    policy = _hull("adaptive-consistency", experiment, train, rules, experiment.dense_levels)
    return FittedPolicy(policy, policy.schedule.prices, experiment.pool.features)


def fit_early_stopping(experiment: Experiment, train: IntArray) -> FittedPolicy:
    """Stop when a window is unanimous."""
    rules = early_grid(max(experiment.levels))
    policy = _hull("early-stopping", experiment, train, rules, experiment.dense_levels)
    return FittedPolicy(policy, policy.schedule.prices, experiment.pool.features)


def fit_paper_router(experiment: Experiment, train: IntArray) -> FittedPolicy:
    """The paper's classifier: one for each budget asked for, and two around them."""
    table = experiment.table.take(train)
    least = float(table.costs.min(axis=1).mean()) * (1 + 1e-12)  # a mean is rounded either way
    most = max(float(table.costs.max(axis=1).mean()), least)
    inside = [b for b in experiment.budgets if least < b < most]
    around = [
        least + 0.2 * (min(inside, default=most) - least),
        (max(inside, default=least) + most) / 2,
    ]
    policy = fit_router(
        experiment.pool.features[train],
        table,
        experiment.policy_levels,
        budgets=[*inside, *around],
        classifier=experiment.classifier,
        cost_sensitive=experiment.cost_sensitive,
        seed=experiment.seed,
    )
    return FittedPolicy(policy, policy.schedule.prices, experiment.pool.features)


def fit_values_router(experiment: Experiment, train: IntArray) -> FittedPolicy:
    """Predict the utility of every level and take the best at the price."""
    policy = fit_value_router(
        experiment.pool.features[train],
        experiment.table.take(train),
        experiment.policy_levels,
        seed=experiment.seed,
    )
    return FittedPolicy(
        policy, price_grid(1.0 / experiment.sample_cost(train)), experiment.pool.features
    )


def fit_sequentially(experiment: Experiment, train: IntArray) -> FittedPolicy:
    """Price every draw by what the text and the votes say."""
    pool = experiment.pool
    words = pool.features if pool.words is None else pool.words
    most = min(MAX_SAMPLES, max(experiment.levels))
    known, each = (
        experiment.measure_states.map(lambda table: table[:, train]),
        experiment.sample_cost(train),
    )
    levels, resort_cost = make_levels(tuple(range(1, most + 1))), 0.0
    if pool.resort is not None:
        levels, resort_cost = (*levels, pool.resort.level), float(pool.resort.cost[train].mean())
    policy = fit_sequential(
        words[train],
        pool.answers.take(train),
        known,
        levels,
        group=pool.group[train],
        round_cost=experiment.round_cost(train) / each,
        resort_cost=resort_cost / each,
        seed=experiment.seed,
    )
    # Dear enough that nobody draws twice, whoever's price is shaded and whatever a draw costs.
    again = float(policy.break_even_price[states().layer(1)].max(initial=0.0)) / (
        1.0 - PRICE_JITTER
    )
    dearest = max(float(policy.break_even_price.max()), again) / each
    if resort_cost:
        dearest = max(dearest, 1.0 / resort_cost)  # no more than one answer is ever gained
    return FittedPolicy(policy, price_grid(dearest or 1.0 / each), words)


def price_grid(dearest: float) -> tuple[float, ...]:
    """Return falling prices over five orders of magnitude, for policies that change smoothly."""
    return tuple(np.geomspace(dearest, dearest * 1e-5, PRICES).tolist())


POLICY_FACTORIES: dict[str, PolicyFactory] = {
    "fixed": fit_fixed,
    "mixture": fit_mixture,
    "random": fit_random,
    "longest-first": fit_longest_first,
    "retry": fit_retry,
    "router": fit_paper_router,
    "value-router": fit_values_router,
    "adaptive-consistency": fit_adaptive_consistency,
    "early-stopping": fit_early_stopping,
    "sequential": fit_sequentially,
}

ROUTERS = ("router", "value-router")


def find_factory(policy: str | PolicyFactory) -> PolicyFactory:
    """Return the factory that is registered under a name; a factory is returned as it is."""
    if not isinstance(policy, str):
        return policy
    if policy not in POLICY_FACTORIES:
        raise ConfigError(f"there is no policy {policy!r}; there are {', '.join(POLICY_FACTORIES)}")
    return POLICY_FACTORIES[policy]
