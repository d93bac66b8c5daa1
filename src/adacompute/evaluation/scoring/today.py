"""Today: what a user runs now, as the thing that a policy is compared with.

Today is a number of samples of one arm for every question. Each parsed sample counts once, samples
that could not be parsed abstain, and ties are broken at random; or votes are weighted, for those
who do that already. Its accuracy on a question is the exact mean over all subsets of the recorded
samples. Its samples come in one call or in as many calls as there are samples, which matters where
a prompt is paid once per call.

It does not compare anything.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from adacompute.core.errors import ConfigError
from adacompute.core.utility import estimate
from adacompute.evaluation.experiment import FittedPolicy
from adacompute.evaluation.scoring.held_out import score_held_out
from adacompute.policies.price_schedule import PriceSchedule
from adacompute.policies.rule_policy import RulePolicy
from adacompute.policies.uniform import FixedRule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from adacompute.core.types import FloatArray, IntArray
    from adacompute.evaluation.experiment import Experiment

EQUAL, WEIGHTED = "equal", "weighted"
ONE_CALL = "one"
CALLS = (ONE_CALL, "N")
"""How the samples of today are sent: in one call, or in one call each."""


@dataclass(frozen=True)
class Today:
    """Samples per question of one arm; ``arm`` is None if the run has only one.

    ``calls`` is how they are sent; None if they are sent as the samples of a policy are.
    """

    n_samples: int
    arm: str | None = None
    votes: str = EQUAL
    calls: str | None = None


def read_today(text: str | int, calls: str | None = None) -> Today:
    """Read what is run today: ``5``, ``5:weighted``, ``ARM:5``, or ``ARM`` for one sample of it.

    >>> read_today("5"), read_today("large:3:weighted").arm, read_today("large").n_samples
    (Today(n_samples=5, arm=None, votes='equal', calls=None), 'large', 1)
    """
    rest, votes = str(text).strip(), EQUAL
    if rest.endswith(f":{WEIGHTED}"):
        rest, votes = rest.removesuffix(f":{WEIGHTED}"), WEIGHTED
    arm, separator, count = rest.rpartition(":")
    if not separator and not _is_number(rest):
        arm, count = rest, "1"
    if not rest or not _is_number(count) or int(count) < 1:
        raise ConfigError(
            f"today must be a number of samples from 1, such as 5, 5:weighted, ARM:5 or ARM, got "
            f"{text!r}"
        )
    if calls is not None and calls not in CALLS:
        raise ConfigError(f"today-calls must be {' or '.join(CALLS)}, got {calls!r}")
    return Today(int(count), arm or None, votes, calls)


def find_arm(today: Today, names: Sequence[str]) -> int:
    """Return the number of the arm that is run today; of several, it must be named."""
    arm = today.arm
    if arm is None and len(names) == 1:
        return 0
    if arm is None:
        raise ConfigError(
            f"the run has the arms {', '.join(names)}: say which one runs today "
            f"(--today {names[0]}:{today.n_samples})"
        )
    if arm not in names:
        raise ConfigError(f"there is no arm {arm!r}; the run has {', '.join(names)}")
    return names.index(arm)


def _is_number(text: str) -> bool:
    return text.removeprefix("-").isdecimal()


@dataclass(frozen=True, eq=False)
class TodayScore:
    """Today on the questions of an experiment: accuracy and cost of each, (N,)."""

    experiment: Experiment
    today: Today

    @cached_property
    def arm(self) -> int:
        """Number of the arm; a run with several needs its name."""
        return find_arm(self.today, self.experiment.arm_names)

    @cached_property
    def within_recorded(self) -> TodayScore:
        """Today with at most as many samples as were recorded of its arm on every question."""
        n_recorded = self.experiment.pool.n_by_arm[self.arm]
        if self.today.n_samples <= n_recorded:
            return self
        return replace(self, today=replace(self.today, n_samples=n_recorded))

    @cached_property
    def utility(self) -> FloatArray:
        """Exact accuracy of equal votes of 1, 2, … samples, up to those of today, (N, samples)."""
        pool, levels = self.experiment.pool, tuple(range(1, self.today.n_samples + 1))
        answers = pool.answers
        if pool.arm is not None:
            answers = answers.keep(np.asarray(pool.arm == self.arm))
        return estimate(answers, levels, standard_errors=False).utility

    @cached_property
    def accuracy(self) -> FloatArray:
        """Accuracy of today on each question, (N,); weights are learned on other questions."""
        if self.today.votes == EQUAL:
            return self.utility[:, -1]
        if not self.experiment.weighs_votes:
            raise ConfigError(
                "today has weighted votes, and the run records no log-probabilities to weigh them "
                f"by: use --today {self.today.n_samples}"
            )
        return score_held_out(self.experiment, self._fit_weighted).at(0.0).result.accuracy

    def _fit_weighted(self, experiment: Experiment, train: IntArray) -> FittedPolicy:
        """Return today with votes weighted as learned on training questions."""
        confidence = experiment.evidence.confidence(train, joint=False)
        n_samples = self.today.n_samples
        every = experiment.evidence.run_arm(self.arm, confidence)
        result = every.columns(np.array([n_samples - 1]))
        rules = (FixedRule(n_samples),)
        schedule, levels = PriceSchedule((1.0,)), experiment.dense_levels
        policy = RulePolicy("today", levels, rules, schedule, mix_by="none")
        return FittedPolicy(policy, schedule.prices, experiment.pool.features, known=result)

    @cached_property
    def cost(self) -> FloatArray:
        """Cost of today on each question, (N,)."""
        return self.cost_of(self.today.n_samples)

    def cost_of(self, n_samples: int) -> FloatArray:
        """Return the cost of a number of samples that are sent as today's, on each question."""
        pool, calls = self.experiment.pool, self.today.calls
        cost = n_samples * pool.arm_cost()[:, self.arm] + self.experiment.round_costs
        if pool.prompt_cost is None or calls is None:
            return cost
        counted = 1 if pool.prompt_per_round else n_samples
        wanted = 1 if calls == ONE_CALL else n_samples
        return np.asarray(cost + (wanted - counted) * pool.prompt_cost)

    def latencies(self) -> FloatArray | None:
        """Return how long today takes in each order of the samples, drawn in parallel."""
        evidence = self.experiment.evidence
        taken = evidence.samples.latency_s
        if taken is None or self.today.n_samples > evidence.max_samples[self.arm]:
            return None
        order = evidence.order[self.arm][:, : self.today.n_samples]
        return np.asarray(taken[order].max(axis=1))
