"""Escalation: fit how many samples of an arm to draw, and when to ask another arm once.

Choices are compared on the training questions, where each vote is judged by a model of other
training questions: one that has seen the answers would find its own votes too sure. It does not
score what it fits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from adacompute.core.answers import number_by_appearance
from adacompute.core.errors import ConfigError
from adacompute.evaluation.evidence import rows_of_orders
from adacompute.evaluation.evidence_factories import arm_levels, choose_arms, mean_arm_cost
from adacompute.evaluation.experiment import Experiment, FittedPolicy
from adacompute.policies.correctness import Correctness, Ranking, describe_answers, fit_curve
from adacompute.policies.learners import assign_folds
from adacompute.policies.price_schedule import fit_price_schedule
from adacompute.policies.sequential.description import vote_accuracy
from adacompute.policies.sequential.escalation import (
    MIN_ROUNDS,
    EscalatingPolicy,
    EscalationRule,
    count_samples,
)

if TYPE_CHECKING:
    from adacompute.core.types import FloatArray, IntArray
    from adacompute.policies.sequential.arm_samples import OrderedSamples

COUNTS = (1, 2, 3, 4, 6, 8, 12, 16)
"""Numbers of samples of the first arm that are tried."""

SHARES = tuple(i / 10 for i in range(1, 10))
"""Shares of the questions, the least sure first, that another arm is tried on."""

JUDGE_FOLDS = 5
"""Folds of the training questions that votes are judged in."""

MAX_ROWS = 120_000
"""Votes that the model that judges them is fitted to, about."""


def make_escalating(experiment: Experiment, train: IntArray) -> FittedPolicy:
    """Draw samples of one arm, and ask another arm once where their vote is not sure."""
    if not experiment.pool.has_arms:
        raise ConfigError(
            "escalate asks another arm, and there is one: give samples of several arms, or use "
            "another policy"
        )
    limit = experiment.round_limit
    if limit is not None and limit < MIN_ROUNDS:
        raise ConfigError("escalate needs 2 rounds: give max_rounds of 2 or more, or leave it out")
    arms, caps = choose_arms(experiment, train)
    evidence, every = experiment.evidence.select(arms, caps), mean_arm_cost(experiment, train)
    names = tuple(experiment.arm_names[arm] for arm in arms)
    costs = tuple(every[arm] for arm in arms)
    confidence, n_orders = evidence.confidence(train, joint=True), evidence.n_permutations
    question = number_by_appearance(experiment.pool.group[train]).repeat(n_orders)
    first = [(arm, n) for arm, cap in enumerate(caps) for n in COUNTS if n <= cap]
    training = _Training(
        evidence.ordered(confidence).take(rows_of_orders(train, n_orders)), question, first
    )
    judge, chances = training.fit_judge(experiment.seed)
    choices, cost, accuracy = training.list_choices(chances, costs)
    kept, schedule = fit_price_schedule(cost, accuracy)
    policy = EscalatingPolicy(
        levels=arm_levels(names, caps),
        choices=tuple(choices[i] for i in kept.tolist()),
        judge=judge,
        arms=names,
        schedule=schedule,
        confidence=confidence,
        sample_cost=costs,
    )
    features = experiment.pool.features
    return FittedPolicy(policy, schedule.prices, features, known=evidence.run(policy, features))


class _JudgedVotes(NamedTuple):
    """The votes of orders after some samples of each arm.

    ``cost`` (M,) is what the samples cost, ``correct`` (M,) is how likely the vote is right, and
    ``vector`` (M, F) describes it.
    """

    cost: FloatArray
    correct: FloatArray
    vector: FloatArray


@dataclass(frozen=True, eq=False)
class _Training:
    """Orders of training questions, and the ``question`` of each.

    ``first`` are arms and numbers of their samples whose votes are judged.
    """

    samples: OrderedSamples
    question: IntArray
    first: list[tuple[int, int]]

    @cached_property
    def votes(self) -> list[_JudgedVotes]:
        """The votes that are judged."""
        return [self.measure(arm, n) for arm, n in self.first]

    def measure(self, arm: int, n_samples: int, later: int | None = None) -> _JudgedVotes:
        """Return the votes after samples of an arm, and after one of a later arm."""
        counts = count_samples(len(self.samples.max_samples), arm, n_samples, later)
        found = self.samples.describe(counts)
        paid = self.samples.cost[:, self.samples.columns(counts)].sum(axis=1)
        correct = vote_accuracy(found.leads, self.samples.accuracy)
        return _JudgedVotes(paid, correct, describe_answers(found.vector, sum(counts)))

    def fit_judge(self, seed: int) -> tuple[Correctness, list[FloatArray]]:
        """Return what judges votes, and how likely each vote is right by models of other folds."""
        step = max(1, len(self.votes) * len(self.question) // MAX_ROWS)
        used = np.arange(0, len(self.question), step)
        fold = assign_folds(self.question, JUDGE_FOLDS, seed=seed)
        scores = np.zeros((len(self.votes), len(fold)))
        for f in np.unique(fold):
            own, ranking = fold == f, self._fit_ranking(used[fold[used] != f])
            for score, one in zip(scores, self.votes, strict=True):
                score[own] = ranking.score(one.vector[own])
        correct, question = self._list_rows(used)
        curve = fit_curve((scores[:, used].ravel(), correct, question))
        ranking, base_rate = self._fit_ranking(used), float(correct.mean())
        judge = Correctness(ranking, curve, base_rate, is_informative=True)
        return judge, [curve.predict(score) for score in scores]

    def _fit_ranking(self, rows: IntArray) -> Ranking:
        """Fit what ranks votes to some orders."""
        correct, question = self._list_rows(rows)
        vector = np.concatenate([one.vector[rows] for one in self.votes])
        return Ranking.fit((vector, correct, question), 0)

    def _list_rows(self, rows: IntArray) -> tuple[FloatArray, IntArray]:
        """Return how likely all votes of some orders are right, and their questions."""
        correct = np.concatenate([one.correct[rows] for one in self.votes])
        return correct, np.tile(self.question[rows], len(self.votes))

    def list_choices(
        self, chances: list[FloatArray], arm_cost: tuple[float, ...]
    ) -> tuple[list[EscalationRule], FloatArray, FloatArray]:
        """Return all choices with their mean costs and accuracies."""
        choices, means = list[EscalationRule](), list[tuple[float, float]]()
        for (arm, n), chance, stopped in zip(self.first, chances, self.votes, strict=True):
            choices.append(EscalationRule(arm, n))
            means.append((float(stopped.cost.mean()), float(stopped.correct.mean())))
            for later in (b for b, cost in enumerate(arm_cost) if cost > arm_cost[arm]):
                asked = self.measure(arm, n, later)
                for sure in sorted(set(np.quantile(chance, SHARES).tolist())):
                    goes_on = chance < sure
                    cost = np.where(goes_on, asked.cost, stopped.cost)
                    correct = np.where(goes_on, asked.correct, stopped.correct)
                    choices.append(EscalationRule(arm, n, sure, later))
                    means.append((float(cost.mean()), float(correct.mean())))
        cost, accuracy = np.array(means).T
        return choices, cost, accuracy
