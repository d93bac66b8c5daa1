"""Experiment: what all factories share, and what a factory returns.

An experiment is a pool of recorded samples with the levels, budgets and random orders that policies
are fitted and scored with. It does not know any policy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from weakref import WeakKeyDictionary

import numpy as np

from adacompute.core.errors import ConfigError, DataError
from adacompute.core.progress import no_progress
from adacompute.core.state_sums import StateSums
from adacompute.core.states import MAX_SAMPLES
from adacompute.core.types import (
    Float32Array,
    FloatArray,
    IntArray,
    Level,
    UtilityTable,
    make_levels,
)
from adacompute.evaluation.evidence import ArmUse, Evidence, arm_samples
from adacompute.evaluation.kept_results import KeptResults, Memory, hash_value
from adacompute.evaluation.pool import Pool
from adacompute.evaluation.replay import Replay, ReplayResult
from adacompute.policies.confidence import LENGTH
from adacompute.policies.episode import UNLIMITED_ROUNDS
from adacompute.policies.policy import Policy
from adacompute.policies.rule_policy import Rule
from adacompute.policies.sequential.prior import response_profile

N_PRICES = 48
"""Prices of a policy that changes smoothly with the price."""

N_PERMUTATIONS = 40
"""Random orders of the samples of each question."""

MIN_ORDERS, MAX_ORDERS = 4, 400_000
"""Random orders of each question, and of all questions, where arms or confidence are used."""

N_ASSIGNMENTS, MAX_ASSIGNED = 3, 4096
"""Assignments of questions to folds that scores are means of; one suffices for more questions."""

DEFAULT_ARM = "default"


@dataclass(frozen=True, eq=False)
class Experiment:
    """What all factories share: the pool, its levels, and the random orders of its samples.

    Without ``use_confidence``, what was recorded about the confidence of samples is ignored.
    Questions are assigned to folds ``max_assignments`` times (by default three), or once if there
    are many.
    ``kept`` is where results are kept that other processes may need. ``progress`` gets how many
    of the fits and replays of a step are done.
    """

    pool: Pool
    levels: tuple[int, ...]
    budgets: tuple[float, ...] = ()
    n_permutations: int = N_PERMUTATIONS
    seed: int = 0
    classifier: str = "gbm"
    max_rounds: int = UNLIMITED_ROUNDS
    use_confidence: bool = True
    max_assignments: int | None = None
    kept: KeptResults | None = field(default=None, repr=False, compare=False)
    progress: Callable[[str], None] = field(default=no_progress, repr=False, compare=False)
    _rule_results: dict[Rule, ReplayResult] = field(default_factory=dict, init=False, repr=False)
    _over_arms: WeakKeyDictionary[FittedPolicy, ReplayResult] = field(
        default_factory=WeakKeyDictionary, init=False, repr=False
    )
    """Results of policies over arms at their settings, for as long as the policies are used."""

    memory: Memory = field(default_factory=Memory, init=False, repr=False, compare=False)
    """Scores and fits of policies that were computed already."""

    @cached_property
    def key(self) -> str:
        """Hash of the samples and of all options, by which results are kept."""
        return hash_value(self)

    @cached_property
    def key_at_any_budget(self) -> str:
        """Hash of all but the budgets, for results that do not depend on them."""
        return replace(self, budgets=()).key

    def fit_final(self, factory: PolicyFactory) -> FittedPolicy:
        """Return a policy fitted to all questions; it is fitted once."""
        every = np.arange(len(self.pool))
        return self.memory.remember(("final fit", factory), lambda: factory(self, every))

    @property
    def n_assignments(self) -> int:
        """How many assignments of questions to folds scores are means of."""
        return (self.max_assignments or N_ASSIGNMENTS) if len(self.pool) <= MAX_ASSIGNED else 1

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
        """Random orders of the samples of every question."""
        return Replay(self.pool, self.n_permutations, max(self.levels), self.seed, self.max_rounds)

    @cached_property
    def state_sums(self) -> StateSums:
        """Sums of the vote states of groups of questions."""
        return StateSums(self.pool.answers, min(MAX_SAMPLES, max(self.levels)))

    @cached_property
    def weighs_votes(self) -> bool:
        """Whether votes of the baseline are weighted: signals or arms are recorded."""
        return self.pool.has_arms or (self.use_confidence and _has_signals(self.pool))

    @property
    def arm_names(self) -> tuple[str, ...]:
        """Names of the arms; a single one has the name ``DEFAULT_ARM`` if it has none."""
        return self.pool.arms or (DEFAULT_ARM,)

    @cached_property
    def evidence(self) -> Evidence:
        """Samples of all arms in random orders."""
        n_orders = min(self.n_permutations, max(MIN_ORDERS, MAX_ORDERS // max(1, len(self.pool))))
        return Evidence(
            samples=arm_samples(self.pool),
            max_samples=tuple(min(max(self.levels), n) for n in self.pool.n_by_arm),
            n_permutations=n_orders,
            seed=self.seed,
            use_confidence=self.use_confidence,
            round_cost=self.round_costs,
        )

    @cached_property
    def response_profile(self) -> FloatArray:
        """Response profile of each question, as the sequential policy predicts it."""
        return response_profile(self.pool.answers, min(MAX_SAMPLES, max(self.levels)))

    @property
    def policy_levels(self) -> tuple[Level, ...]:
        """The levels as policies take them."""
        return make_levels(self.levels)

    @property
    def dense_levels(self) -> tuple[Level, ...]:
        """One level per sample, for rules that decide after every sample."""
        return make_levels(tuple(range(1, max(self.levels) + 1)))

    @property
    def round_limit(self) -> int | None:
        """Maximum number of rounds per question; None if it is not limited."""
        return None if self.max_rounds >= UNLIMITED_ROUNDS else self.max_rounds

    def sample_cost(self, rows: IntArray) -> float:
        """Return the mean cost of a sample of these questions, which must be above 0."""
        mean = float(self.pool.mean_sample_cost()[rows].mean())
        if mean <= 0:
            raise DataError(
                f"the samples of {len(rows)} questions cost nothing in this unit: use another unit"
            )
        return mean

    @property
    def round_costs(self) -> FloatArray:
        """Cost of a round of each question besides its samples, (N,); several arms ignore it."""
        return np.zeros(len(self.pool)) if self.pool.has_arms else self.pool.round_costs

    def round_cost(self, rows: IntArray) -> float:
        """Return the mean of ``round_costs`` of these questions."""
        return float(self.round_costs[rows].mean())

    def run(self, fitted: FittedPolicy, prices: Sequence[float] | None = None) -> ReplayResult:
        """Replay a policy on every question and every order, (N, prices).

        Without falling ``prices``, it is replayed at its own.
        """
        every = self.sample_cost(np.arange(len(self.pool)))
        blocks = self.run_blocks([fitted], [every], prices)
        return ReplayResult.concatenate([result for _, (result,) in blocks])

    def run_blocks(
        self,
        policies: Sequence[FittedPolicy],
        sample_costs: Sequence[float],
        prices: Sequence[float] | None = None,
    ) -> Iterator[tuple[IntArray, list[ReplayResult]]]:
        """Yield the rows of blocks of questions, and what ``run`` returns of each policy for them.

        ``sample_costs`` are the costs of a sample that the policies decide by.
        """
        wanted = [tuple(prices or fitted.prices) for fitted in policies]
        known = list(map(self._look_up, policies, wanted))
        runs = list(zip(policies, wanted, known, sample_costs, strict=True))
        for rows, block in self.replay.blocks():
            results = [
                block.run(fitted.policy, own, fitted.prepared_features[rows], sample_cost)
                if found is None
                else found.take(rows)
                for fitted, own, found, sample_cost in runs
            ]
            yield rows, results

    def _look_up(self, fitted: FittedPolicy, prices: tuple[float, ...]) -> ReplayResult | None:
        """Return the results of a policy at prices; None if its decisions must be replayed.

        A policy over arms has results at the settings of its schedule; in between it is mixed.
        """
        policy = fitted.policy
        if fitted.known is not None and prices == fitted.prices:
            return fitted.known
        if not policy.arms or policy.schedule is None:
            return None
        if fitted not in self._over_arms:
            known = fitted.known if fitted.prices == policy.schedule.prices else None
            results = known or self._select_evidence(policy).run(policy, fitted.features)
            self._over_arms[fitted] = results
        return self._over_arms[fitted].at_prices(prices, policy.schedule)

    def _select_evidence(self, policy: Policy) -> Evidence:
        """Return the samples of the arms of a policy, up to as many as it can take."""
        if not policy.plans_for(self.round_limit):
            raise ConfigError(
                f"the policy was not fitted for max_rounds {self.round_limit}: fit it again, or "
                "use another number of rounds"
            )
        arms = tuple(self.arm_names.index(name) for name in policy.arms)
        return self.evidence.select(arms, policy.max_by_arm)

    def find_ends(
        self, fitted: FittedPolicy, prices: Sequence[float], sample_cost: float, n_orders: int
    ) -> tuple[Evidence, list[IntArray]]:
        """Return some orders of every question, and the samples of each arm they take at prices."""
        policy = fitted.policy
        if policy.arms:
            evidence = replace(self._select_evidence(policy), n_permutations=n_orders)
            ends = evidence.count_ends(policy, fitted.features, self.pool.key, prices)
            return evidence, ends
        parts: list[list[IntArray]] = [[] for _ in prices]
        for rows, block in replace(self.replay, n_permutations=n_orders).blocks():
            features = fitted.prepared_features[rows]
            for part, price in zip(parts, prices, strict=True):
                part.append(block.count_samples(policy, price, features, sample_cost)[0])
        ends = [np.concatenate(part)[:, None] for part in parts]
        return replace(self.evidence, n_permutations=n_orders), ends

    def measure_latency(self, fitted: FittedPolicy, price: float) -> FloatArray | None:
        """Return how long orders of questions take at a price, in seconds; None if not known."""
        policy = fitted.policy
        if policy.arms:
            evidence = self._select_evidence(policy)
            return evidence.measure_latency(policy, price, fitted.features)
        if self.pool.latency_s is None:
            return None
        rows, block = next(self.replay.blocks())  # enough questions for percentiles
        sample_cost = self.sample_cost(np.arange(len(self.pool)))
        return block.measure_latency(policy, price, fitted.prepared_features[rows], sample_cost)

    def measure_arms(self, fitted: FittedPolicy) -> ArmUse | None:
        """Return how a policy over several arms uses each of them; None for other policies."""
        policy = fitted.policy
        if len(policy.arms) <= 1 or policy.schedule is None or not policy.max_by_arm:
            return None
        return self._select_evidence(policy).measure_arms(policy, fitted.features)

    def run_rules(self, rules: Sequence[Rule]) -> ReplayResult:
        """Return the results of each rule on all questions, (N, rules).

        Rules are not fitted, so their results are computed once and kept.
        """
        missing = [rule for rule in rules if rule not in self._rule_results]
        parts: dict[Rule, list[ReplayResult]] = {rule: [] for rule in missing}
        for _, block in self.replay.blocks() if missing else ():
            for rule, results in parts.items():
                results.append(block.summarise(*block.play_rule(rule)))
        for rule, results in parts.items():
            self._rule_results[rule] = ReplayResult.concatenate(results)
        return ReplayResult.side_by_side([self._rule_results[rule] for rule in rules])


def _has_signals(pool: Pool) -> bool:
    """Whether some signal besides the length was recorded with the samples."""
    return pool.signals is not None and any(
        name != LENGTH and not np.isnan(column).all()
        for name, column in zip(pool.signal_names, pool.signals.T, strict=True)
    )


@dataclass(frozen=True, eq=False)
class FittedPolicy:
    """A policy and the falling prices to score it at.

    ``features`` are the features that the policy uses, of all questions of the experiment.
    ``known`` are the results at the prices on all questions, if they were computed before.
    """

    policy: Policy
    prices: tuple[float, ...]
    features: Float32Array
    known: ReplayResult | None = None

    @cached_property
    def prepared_features(self) -> Float32Array:
        """The features in the form that the policy decides by."""
        return self.policy.prepare_features(self.features)


PolicyFactory = Callable[[Experiment, IntArray], FittedPolicy]


def price_grid(highest: float) -> tuple[float, ...]:
    """Return falling prices over five orders of magnitude, for policies that change smoothly."""
    return tuple(np.geomspace(highest, highest * 1e-5, N_PRICES).tolist())
