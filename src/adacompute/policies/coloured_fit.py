"""Coloured fit: fit the coloured policy to training questions.

First the confidence of samples is fitted, and the power of their votes is chosen by how often votes
of training questions are correct. Then states are measured: their probability and the cost of the
next sample exactly, over all orders of the recorded samples, and the accuracy of weighted votes
over random orders, because weights are not part of the state. Sparse accuracies are shrunk.

It does not know where samples come from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from adacompute.core.answers import UNPARSED, Answers, order_samples
from adacompute.core.coloured_measure import (
    ColouredMeasure,
    ColouredSamples,
    KnownMeasures,
    measure_samples,
)
from adacompute.core.coloured_states import ColouredStates, Colours, count_states
from adacompute.core.positions import OrderedSamples, VoteTable, tabulate_votes
from adacompute.policies.confidence import (
    LIKELIHOODS,
    MIN_ACCURACY_GAIN,
    MIN_SEPARATION,
    MIN_STANDARD_ERRORS,
    MIN_STANDARD_ERRORS_OF_LENGTH,
    Confidence,
    candidate_signals,
    fit_confidence,
    measure_separation,
    select_power,
)
from adacompute.policies.plans import StateValues, make_plan

if TYPE_CHECKING:
    from adacompute.core.types import BoolArray, FloatArray, IntArray, KeyArray

MAX_FIT_STATES = 2_500
"""States up to which one arm is sampled; more samples of it would need more states."""

MAX_ARM_STATES = 24_000
"""States up to which several arms are sampled."""

STATES_PER_QUESTION, ARM_STATES_PER_QUESTION = 20, 5
"""States per training question, at most: of one arm, and of several."""

N_BINS = 2
"""Confidence bins of an arm; with more than two arms, only the first has bins."""

MAX_BINNED_ARMS = 2

SELECTION_ORDERS = 4
"""Orders of each question by which the power of votes is chosen."""

SHRINKAGE = 0.25
"""Questions of prior weight that the accuracy of a state has."""


@dataclass(frozen=True, eq=False)
class ArmSamples:
    """Recorded samples of N questions from several arms, with everything that is learned from.

    ``arm`` (S,) is the arm of each sample, ``cost`` (S,) its cost, and ``values`` (S, signals) what
    was recorded about it, under the names in ``signals``; NaN is unknown. ``latency_s`` (S,) is how
    long it took, if that is known.
    """

    answers: Answers
    key: KeyArray
    arm: IntArray
    n_arms: int
    cost: FloatArray
    signals: tuple[str, ...]
    values: FloatArray
    latency_s: FloatArray | None = None

    def order(self, max_samples: Sequence[int], n_orders: int, seed: int) -> list[IntArray]:
        """Return random orders of the samples of each arm, one array (N · orders, cap) per arm."""
        found = []
        for arm, cap in enumerate(max_samples):
            rows = np.flatnonzero(self.arm == arm)
            own = self.answers.keep(self.arm == arm)
            index = order_samples(own, self.key, n_orders=n_orders, length=cap, seed=seed + arm)
            found.append(rows[index.reshape(-1, cap)])
        return found

    def column(self, signals: Sequence[str]) -> FloatArray:
        """Return the values of some signals, (S, signals)."""
        return self.values[:, [self.signals.index(name) for name in signals]]

    def select(self, arms: Sequence[int]) -> ArmSamples:
        """Return the samples of some arms, which are numbered in this order."""
        number = np.full(self.n_arms, -1)
        number[list(arms)] = np.arange(len(arms))
        kept = number[self.arm] >= 0
        return replace(
            self,
            answers=self.answers.keep(kept),
            arm=number[self.arm[kept]],
            n_arms=len(arms),
            cost=self.cost[kept],
            values=self.values[kept],
            latency_s=None if self.latency_s is None else self.latency_s[kept],
        )

    @property
    def merged(self) -> ArmSamples:
        """The samples as if all were of one arm."""
        return replace(self, arm=np.zeros(len(self.arm), dtype=np.int64), n_arms=1)

    def in_rows(self, rows: IntArray) -> np.ndarray:
        """Return which samples belong to some questions."""
        mask = np.zeros(len(self.answers), dtype=np.bool_)
        mask[rows] = True
        return np.asarray(mask[self.answers.question])


def order_votes(
    samples: ArmSamples, index: list[IntArray], confidence: Confidence, colours: Colours
) -> VoteTable:
    """Return states and accuracies of the votes at every position of orders of the samples."""
    arm = samples.arm
    log_odds = confidence.log_odds(arm, samples.column(confidence.signals))
    colour = colours.first_colour[arm] + confidence.find_bin(arm, log_odds)
    weight = confidence.weight(log_odds)
    answers = samples.answers
    ordered = OrderedSamples(
        [answers.answer[one] for one in index],
        [colour[one] for one in index],
        [weight[one] for one in index],
        [answers.class_accuracy[one] for one in index],
    )
    return tabulate_votes(ordered, colours)


def choose_caps(
    n_samples: Sequence[int],
    n_bins: Sequence[int],
    n_questions: int,
    needed: Sequence[int] | None = None,
) -> tuple[int, ...]:
    """Return how many samples of each arm states can count: fewer of some if need be.

    Few training questions cannot tell many states apart. Of arms with the same number, the later
    one gets fewer: arms are sorted by their cost. Where ``needed`` is given, these numbers come
    first, and grow while there are not too many states, the cheapest arm first.
    """
    limit = min(MAX_ARM_STATES, ARM_STATES_PER_QUESTION * n_questions)
    if len(n_samples) == 1:
        limit = min(MAX_FIT_STATES, STATES_PER_QUESTION * n_questions)

    def fits(caps: Sequence[int]) -> bool:
        return count_states(Colours(tuple(caps), tuple(n_bins)), limit) <= limit

    if needed is not None and fits(needed):
        return _grow_caps(list(needed), n_samples, fits)
    caps = list(n_samples if needed is None else needed)
    while max(caps) > 1 and not fits(caps):
        largest = max(range(len(caps)), key=lambda arm: (caps[arm], arm))
        caps[largest] -= 1
    return tuple(caps)


def _grow_caps(
    caps: list[int], n_samples: Sequence[int], fits: Callable[[Sequence[int]], bool]
) -> tuple[int, ...]:
    """Add samples of the arms in turn, the cheapest first, while there are not too many states."""
    is_grown = True
    while is_grown:
        is_grown = False
        for arm in range(len(caps)):
            more = [*caps[:arm], caps[arm] + 1, *caps[arm + 1 :]]
            if more[arm] <= n_samples[arm] and fits(more):
                caps, is_grown = more, True
    return tuple(caps)


@dataclass(frozen=True, eq=False)
class FittedVotes:
    """Confidence, states and votes that were fitted to training questions."""

    confidence: Confidence
    colours: Colours
    accuracy: float = 0.0


def fit_votes(
    samples: ArmSamples,
    train: IntArray,
    max_samples: Sequence[int],
    *,
    seed: int,
    use: bool = True,
    joint: bool = True,
    needed: Sequence[int] | None = None,
) -> FittedVotes:
    """Fit the confidence of samples, and choose its signals and the power of votes.

    Without ``use``, or where no signal makes votes better, there are no bins and no signals. The
    power is chosen by votes of all arms together if ``joint``, else by votes of each arm alone, and
    then there are no states.
    """
    training = samples.in_rows(train) & (samples.answers.answer != UNPARSED)
    if joint:
        max_samples = choose_caps(max_samples, (1,) * samples.n_arms, len(train), needed)
    orders = [
        one.reshape(len(samples.answers), SELECTION_ORDERS, -1)[train].reshape(-1, one.shape[1])
        for one in samples.order(max_samples, SELECTION_ORDERS, seed)
    ]
    candidates = _useful_signals(samples, training) if use else [()]
    chosen, accuracy = _choose_confidence(samples, training, orders, candidates, joint=joint)
    if chosen.power == 0 and chosen.signals:
        chosen, accuracy = _choose_confidence(samples, training, orders, [()], joint=joint)
    caps = tuple(max_samples)
    if joint:
        wanted = None if needed is None else np.minimum(needed, max_samples).tolist()
        caps = choose_caps(max_samples, chosen.n_bins, len(train), wanted)
    return FittedVotes(chosen, Colours(caps, chosen.n_bins), accuracy)


def _useful_signals(samples: ArmSamples, training: BoolArray) -> list[tuple[str, ...]]:
    """Return the sets of signals that are tried; one without signals if votes alone are used.

    The length of samples of a single arm is used only beside a log-probability.
    """
    question, correct = samples.answers.question[training], samples.answers.correct[training]
    cell = question * samples.n_arms + samples.arm[training]
    values = dict(zip(samples.signals, samples.values[training].T, strict=True))
    recorded = [name for name in LIKELIHOODS if name in values and not np.isnan(values[name]).all()]
    useful = [
        name
        for name in recorded
        if measure_separation(values[name], correct, cell, question) >= MIN_SEPARATION
    ]
    if samples.n_arms == 1 and recorded and not useful:
        return [()]
    kept = [name for name in samples.signals if name not in recorded or name in useful]
    return candidate_signals(kept, samples.column(kept)[training])


def _choose_confidence(
    samples: ArmSamples,
    training: BoolArray,
    orders: list[IntArray],
    candidates: Sequence[tuple[str, ...]],
    *,
    joint: bool,
) -> tuple[Confidence, float]:
    """Return the confidence by the signals whose votes are the most accurate, and the accuracy."""
    few = samples.n_arms <= MAX_BINNED_ARMS
    n_bins = [N_BINS if few or arm == 0 else 1 for arm in range(samples.n_arms)]
    best: tuple[Confidence, float] | None = None
    for signals in candidates:
        fitted = fit_confidence(
            samples.arm[training],
            samples.column(signals)[training],
            samples.answers.correct[training],
            signals=signals,
            n_arms=samples.n_arms,
            n_bins=n_bins,
        )
        power, accuracy = _choose_power(samples, orders, fitted, joint=joint)
        if best is None or accuracy > best[1] + MIN_ACCURACY_GAIN:
            best = replace(fitted, power=power), accuracy
    if best is None:
        raise AssertionError
    return best


def _choose_power(
    samples: ArmSamples, orders: list[IntArray], confidence: Confidence, *, joint: bool
) -> tuple[float, float]:
    """Return the power of votes with the best accuracy over all positions, and the accuracy."""

    def score(power: float) -> FloatArray:
        weighted = replace(confidence, power=power)
        if joint:
            one_bin = Colours(tuple(one.shape[1] for one in orders), (1,) * samples.n_arms)
            plain = replace(weighted, cuts=((),) * samples.n_arms)
            return _by_question(order_votes(samples, orders, plain, one_bin))
        parts = [
            order_votes(samples.merged, [one], weighted.of_arm(arm), Colours((one.shape[1],), (1,)))
            for arm, one in enumerate(orders)
        ]
        return np.asarray(np.mean([_by_question(part) for part in parts], axis=0))

    has_likelihood = any(name in LIKELIHOODS for name in confidence.signals)
    return select_power(
        score, MIN_STANDARD_ERRORS if has_likelihood else MIN_STANDARD_ERRORS_OF_LENGTH
    )


def _by_question(table: VoteTable) -> FloatArray:
    """Return the mean accuracy over positions with samples, by question."""
    by_order = table.correct[:, 1:].mean(axis=1)
    return np.asarray(by_order.reshape(-1, SELECTION_ORDERS).mean(axis=1))


def measure_arms(
    samples: ArmSamples, votes: FittedVotes, rows: IntArray, known: KnownMeasures | None = None
) -> ColouredMeasure:
    """Measure the states of some questions exactly; use what is known of single questions."""
    kept, answers = samples.in_rows(rows), samples.answers.take(rows)
    arm, confidence = samples.arm[kept], votes.confidence
    log_odds = confidence.log_odds(arm, samples.column(confidence.signals)[kept])
    coloured = ColouredSamples(
        offsets=answers.offsets,
        arm=arm,
        colour=votes.colours.first_colour[arm] + confidence.find_bin(arm, log_odds),
        answer=answers.answer,
        accuracy=answers.class_accuracy,
        cost=samples.cost[kept],
    )
    return measure_samples(coloured, votes.colours, known)


def state_values(
    measure: ColouredMeasure, table: VoteTable, cluster: IntArray, weight: FloatArray
) -> StateValues:
    """Return the values of states in mixtures of clusters of the questions that were measured.

    ``cluster`` (N,) is the cluster of each of them, and ``weight`` (clusters, cells) mixes the
    clusters. ``table`` holds the votes of orders of the same questions.
    """
    n_clusters = len(weight)
    sums = measure.sum(cluster, n_clusters)
    rate = _accuracy(measure.states, table, cluster, n_clusters)
    return StateValues(sums.mass @ weight, (sums.mass * rate) @ weight, sums.cost @ weight)


def _accuracy(
    states: ColouredStates, table: VoteTable, cluster: IntArray, n_clusters: int
) -> FloatArray:
    """Return the accuracy of votes in each state and cluster, shrunk to that of all clusters."""
    n_orders = len(table.state) // len(cluster)
    group = np.repeat(cluster, n_orders)
    cell = (table.state * n_clusters + group[:, None]).ravel()
    size = len(states) * n_clusters
    shape = (len(states), n_clusters)
    visits = np.bincount(cell, minlength=size).reshape(shape) / n_orders
    correct = np.bincount(cell, table.correct.ravel(), size).reshape(shape) / n_orders
    n_samples = states.n_by_arm.sum(axis=1)
    by_size = np.bincount(n_samples, correct.sum(axis=1)) / np.maximum(
        np.bincount(n_samples, visits.sum(axis=1)), 1e-12
    )
    all_visits, all_correct = visits.sum(axis=1), correct.sum(axis=1)
    pooled = (all_correct + SHRINKAGE * by_size[n_samples]) / (all_visits + SHRINKAGE)
    return np.asarray((correct + SHRINKAGE * pooled[:, None]) / (visits + SHRINKAGE))


def plan_prices(states: ColouredStates, values: StateValues, prices: Sequence[float]) -> IntArray:
    """Return the plans of all prices, (prices, S, C)."""
    return np.stack([make_plan(states, values, price) for price in prices])
