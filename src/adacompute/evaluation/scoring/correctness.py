"""Correctness: fit how likely answers are right, and measure it on questions that were held out.

A policy is replayed to its end at the price that it is delivered with, and at prices for a fifth
less and a quarter more, between which pacing moves it. What it has seen there is described, and a
ranking is fitted to the training questions of each fold. Curves are fitted to held-out scores, and
each question is judged by a curve that was fitted to the other folds. The same is done for the
agreement of votes and for mean log-probabilities, to compare with.

It decides nothing about answers that are not sure.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from adacompute.evaluation.evidence import rows_of_orders
from adacompute.evaluation.intervals import CONFIDENCE, Interval, Mean
from adacompute.policies.confidence import SIGNALS, equal_confidence
from adacompute.policies.correctness import Correctness, Curve, Ranking, describe_answers, fit_curve
from adacompute.policies.sequential.description import UNPARSED_SHARE, VOTE_SHARE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from adacompute.core.types import BoolArray, FloatArray, IntArray, KeyArray
    from adacompute.evaluation.experiment import Experiment, FittedPolicy
    from adacompute.evaluation.scoring.frontier import PriceFrontier
    from adacompute.evaluation.scoring.held_out import CurvePoint, FoldResult
    from adacompute.evaluation.scoring.policy_score import PolicyScore

PACES = (1.0, 0.8, 1.25)
"""Mean costs that answers are judged at, as multiples of the delivered one."""

N_ORDERS, MAX_ROWS = 8, 120_000
"""Random orders of each question, and of all questions at all paces."""

N_BINS = 10
"""Equally filled bins of the calibration error."""

SHARES = tuple(i / 10 for i in range(1, 11))
"""Shares of the questions, the surest first, that accuracy is given for and precision tested."""

CHANCE_AREA = 0.5
"""Area under the ROC curve of a score that says nothing."""

UNKNOWN_LOGPROB = -100.0
"""Mean log-probability of answers of which none is known."""

AGREEMENT, LOGPROB, LEARNED = "agreement", "mean log-probability", "p_correct"


@dataclass(frozen=True, eq=False)
class EndedOrders:
    """M orders of questions where a policy ended them, question after question.

    ``correct`` is how likely the answer is right: 1, 0, or between them if answers are tied.
    ``scores`` say how sure an answer is, by name. ``vector`` (M, F) describes what was seen, lastly
    in ``n_text`` columns of the text; it is empty once there is a score of it.
    """

    correct: FloatArray
    scores: dict[str, FloatArray]
    vector: FloatArray
    n_text: int = 0

    def judge(self, ranking: Ranking, rows: IntArray) -> EndedOrders:
        """Return these orders with the score of a ranking."""
        scores = {LEARNED: ranking.score(self.vector[rows])}
        scores |= {name: one[rows] for name, one in self.scores.items()}
        return EndedOrders(self.correct[rows], scores, np.empty((len(rows), 0)))

    @staticmethod
    def join(parts: Sequence[EndedOrders], rows: IntArray) -> EndedOrders:
        """Return the rows of several parts, one after another, in another order."""
        correct = np.concatenate([one.correct for one in parts])[rows]
        scores = {
            name: np.concatenate([one.scores[name] for one in parts])[rows]
            for name in parts[0].scores
        }
        return EndedOrders(correct, scores, np.empty((len(rows), 0)))


def replay_ends(
    experiment: Experiment, fitted: FittedPolicy, prices: Sequence[float], sample_cost: float
) -> list[EndedOrders]:
    """Return the ends of some orders of every question at each price."""
    n_orders = max(1, min(N_ORDERS, MAX_ROWS // (len(PACES) * len(experiment.pool))))
    evidence, ends = experiment.find_ends(fitted, prices, sample_cost, n_orders)
    confidence = fitted.policy.confidence or equal_confidence(1)
    text = np.repeat(fitted.policy.describe_text(fitted.prepared_features), n_orders, axis=0)
    found = []
    for counts in ends:
        vector, correct = evidence.describe_ends(confidence, counts)
        scores = {AGREEMENT: find_agreement(vector)}
        if (logprob := evidence.average_signal(SIGNALS[0], counts)) is not None:
            scores[LOGPROB] = np.nan_to_num(logprob, nan=UNKNOWN_LOGPROB)
        whole = describe_answers(vector, counts.sum(axis=1), text)
        found.append(EndedOrders(correct, scores, whole, text.shape[1]))
    return found


def fit_ranking(ends: Sequence[EndedOrders], rows: IntArray, group: IntArray) -> Ranking:
    """Fit a ranking to orders at all paces; ``group`` numbers the question of each."""
    vector = np.concatenate([one.vector[rows] for one in ends])
    correct = np.concatenate([one.correct[rows] for one in ends])
    return Ranking.fit((vector, correct, np.tile(group[rows], len(ends))), ends[0].n_text)


@dataclass(frozen=True, eq=False)
class RankedAnswers:
    """Held-out scores of the answers to N questions, at each pace.

    ``paces`` has one entry per pace. ``fold`` (N,) is where a question was held out, and copies
    share a ``group`` (N,). ``ranking`` is fitted to all questions, and ``prices`` are those of the
    final policy at each pace.
    """

    paces: tuple[EndedOrders, ...]
    fold: IntArray
    group: KeyArray
    ranking: Ranking
    prices: tuple[float, ...]

    @property
    def delivered(self) -> EndedOrders:
        """The answers at the delivered price."""
        return self.paces[0]

    @cached_property
    def question(self) -> IntArray:
        """The question of each order."""
        n_orders = len(self.delivered.correct) // len(self.fold)
        return np.repeat(np.arange(len(self.fold)), n_orders)

    @cached_property
    def _copies(self) -> IntArray:
        """The number of the group of each order's question."""
        return np.unique(self.group, return_inverse=True)[1][self.question]

    def calibrate(self, name: str = LEARNED) -> list[FloatArray]:
        """Return the probabilities of a score at each pace, each by a curve of the other folds."""
        found = [np.zeros(len(one.correct)) for one in self.paces]
        for f in np.unique(self.fold):
            own = self.fold[self.question] == f
            curve = self._fit_curve(name, ~own)
            for chance, one in zip(found, self.paces, strict=True):
                chance[own] = curve.predict(one.scores[name][own])
        return found

    def _fit_curve(self, name: str, used: BoolArray) -> Curve:
        """Fit a curve to the orders that are used, at all paces."""
        score = np.concatenate([one.scores[name][used] for one in self.paces])
        correct = np.concatenate([one.correct[used] for one in self.paces])
        return fit_curve((score, correct, np.tile(self._copies[used], len(self.paces))))

    @cached_property
    def chances(self) -> list[FloatArray]:
        """How likely each answer is right, by models of other questions, at each pace."""
        return self.calibrate()

    @cached_property
    def base_rate(self) -> float:
        """Share of right answers at the delivered price."""
        return float(self.delivered.correct.mean())

    @cached_property
    def area(self) -> Interval:
        """Area under the ROC curve of what was learned, with its interval."""
        return self.measure_area(LEARNED)

    @property
    def is_informative(self) -> bool:
        """Whether what was learned separates right answers from wrong ones."""
        return self.area.low > CHANCE_AREA

    def measure_area(self, name: str) -> Interval:
        """Return the area under the ROC curve of a score: how likely right answers rank higher.

        Answers are compared with those of the same fold: a fold with many right answers leaves few
        for the training of its scores, so they are lower than those of other folds.
        """
        return self._bound(*self.find_area(name))

    def find_area(self, name: str) -> tuple[float, FloatArray]:
        """Return the mean area over the folds, and the influence of each order on it."""
        score, correct = self.delivered.scores[name], self.delivered.correct
        fold, value = self.fold[self.question], 0.0
        influence = np.zeros(len(score))
        for f in np.unique(fold):
            rows = np.flatnonzero(fold == f)
            area, influence[rows] = _measure_area(score[rows], correct[rows])
            value += area * len(rows) / len(score)
        return value, influence

    def trace(self, name: str) -> list[Interval]:
        """Return the accuracy of the surest answers of each fold, for each of the shares."""
        score, correct = self.delivered.scores[name], self.delivered.correct
        fold, found = self.fold[self.question], []
        above, tied = np.zeros((2, len(score)))
        for f in np.unique(fold):
            rows = np.flatnonzero(fold == f)
            _, place, size = np.unique(-score[rows], return_inverse=True, return_counts=True)
            above[rows] = ((np.cumsum(size) - size) / len(rows))[place]
            tied[rows] = (size / len(rows))[place]
        for share in SHARES:  # of tied answers, as many as are needed
            kept = np.clip((share - above) / tied, 0.0, 1.0) / share
            accuracy = float((kept * correct).mean())
            found.append(self._bound(accuracy, kept * (correct - accuracy)))
        return found

    def _bound(self, value: float, influence: FloatArray) -> Interval:
        """Return a value with its interval, from the influence of each order on it."""
        by_question = np.bincount(self.question, influence) * len(self.fold) / len(influence)
        margin = Mean.of(by_question, self.group).margin(0.5 + CONFIDENCE / 2)
        return Interval(value, value - margin, value + margin)

    def draw(self) -> tuple[list[FloatArray], list[BoolArray]]:
        """Return the probability of one order of each independent question, and if it is right.

        Both are given for each pace. Of copies, one is taken; tied answers are drawn.
        """
        _, first = np.unique(self.group, return_index=True)
        rows = first * (len(self.question) // len(self.fold))
        drawn = np.random.default_rng(len(rows)).random(len(rows))
        rights = [drawn < one.correct[rows] for one in self.paces]
        return [one[rows] for one in self.chances], rights

    def fit(self, threshold: float | None = None) -> Correctness:
        """Return the model that is delivered, with the curve of held-out scores."""
        curve = self._fit_curve(LEARNED, np.ones(len(self.question), dtype=np.bool_))
        return Correctness(
            self.ranking,
            curve,
            self.base_rate,
            self.is_informative,
            threshold,
            (min(self.prices), max(self.prices)),
        )

    def describe(self) -> dict[str, Any]:
        """Return what a calibration says of the probabilities."""
        return {
            "is_informative": self.is_informative,
            "base_rate": self.base_rate,
            **self.area.clip(0.0, 1.0).named("area"),
            "calibration_error": measure_calibration(self.chances[0], self.delivered.correct),
            "curves": [
                {"score": name, "share": share, **found.clip(0.0, 1.0).named("accuracy")}
                for name in self.delivered.scores
                for share, found in zip(SHARES, self.trace(name), strict=True)
            ],
        }


def rank_answers(frontier: PriceFrontier, point: CurvePoint) -> RankedAnswers | None:
    """Score the answers to held-out questions at a point and at other paces.

    None if the policy is not of the arms that were recorded. The questions are split as in the
    first assignment to folds.
    """
    score, experiment = frontier.score, frontier.score.experiment
    if experiment.pool.has_arms and not frontier.final.policy.arms:
        return None
    curve, every = score.curve, np.arange(len(experiment.pool))
    settings = [curve.find_setting(pace * point.cost) for pace in PACES]
    prices = [frontier.rough_price(setting) for setting in settings]
    final = replay_ends(experiment, frontier.final, prices, experiment.sample_cost(every))
    n_orders = len(final[0].correct) // len(every)
    group = np.repeat(np.unique(score.group, return_inverse=True)[1], n_orders)
    fold, parts = np.zeros(len(every), dtype=np.int64), []
    folds = curve.folds[: len(curve.folds) // curve.n_assignments]
    for f, one in enumerate(folds):
        fold[one.held_out] = f
        parts.append(_judge_fold(score, one, settings, group))
    place = np.argsort(np.concatenate([one.held_out for one in folds]), kind="stable")
    rows = rows_of_orders(place, n_orders)
    paces = [EndedOrders.join(one, rows) for one in zip(*parts, strict=True)]
    ranking = fit_ranking(final, rows_of_orders(every, n_orders), group)
    return RankedAnswers(tuple(paces), fold, score.group, ranking, tuple(prices))


def _judge_fold(
    score: PolicyScore, fold: FoldResult, settings: Sequence[float], group: IntArray
) -> list[EndedOrders]:
    """Return the ends of held-out questions at settings, with scores learned from the others."""
    experiment = score.experiment
    n_questions = len(experiment.pool)
    train = np.setdiff1d(np.arange(n_questions), fold.held_out)
    fitted = fold.fitted or score.factory(experiment, train)
    prices = [fold.price_at(setting) for setting in settings]
    ends = replay_ends(experiment, fitted, prices, experiment.sample_cost(train))
    n_orders = len(group) // n_questions
    ranking = fit_ranking(ends, rows_of_orders(train, n_orders), group)
    held_out = rows_of_orders(fold.held_out, n_orders)
    return [one.judge(ranking, held_out) for one in ends]


def measure_calibration(chance: FloatArray, correct: FloatArray) -> float:
    """Return the mean distance of probability and accuracy over equally filled bins.

    >>> measure_calibration(np.repeat([0.2, 0.8], 50), np.repeat([0.1, 0.8], 50))
    0.05
    """
    bins = np.array_split(np.argsort(chance, kind="stable"), N_BINS)
    gaps = [len(own) * abs(float((chance[own] - correct[own]).mean())) for own in bins if len(own)]
    return round(sum(gaps) / len(chance), 12)


def _measure_area(score: FloatArray, correct: FloatArray) -> tuple[float, FloatArray]:
    """Return the area under the ROC curve of rows, and the influence of each row.

    Rows may be partly right; equal scores share.
    """
    _, place = np.unique(score, return_inverse=True)
    right, wrong = np.bincount(place, correct), np.bincount(place, 1 - correct)
    n_right, n_wrong = right.sum(), wrong.sum()
    if not n_right or not n_wrong:
        return CHANCE_AREA, np.zeros(len(score))
    below = (np.cumsum(wrong) - wrong / 2) / n_wrong
    above = 1 - (np.cumsum(right) - right / 2) / n_right
    area = float((right * below).sum() / n_right)
    of_right = correct * (below[place] - area) / (n_right / len(score))
    of_wrong = (1 - correct) * (above[place] - area) / (n_wrong / len(score))
    return area, np.asarray(of_right + of_wrong)


def find_agreement(vector: FloatArray) -> FloatArray:
    """Return the share of parsed answers that are the leading one, from descriptions."""
    parsed = 1.0 - vector[:, UNPARSED_SHARE]
    return np.asarray(vector[:, VOTE_SHARE] / np.where(parsed > 0, parsed, 1.0))
