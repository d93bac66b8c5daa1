"""Rivals: methods of the literature for one model, fitted to training questions and scored.

Weighted consistency (Taubenfeld et al., 2025) weights votes by the likelihood of their samples.
Bayesian stopping (Huang, Ma and Zhou, 2026) stops when the leading answer is likely the most
frequent one. Confidence stopping (Aghazadeh et al., 2025) stops when an answer is likely correct.
Shortest majority (Hassid et al., 2025) lets the samples vote that end first.

They are rows of tables: they cannot be trained or served. None of them looks at the question.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from adacompute.core.votes import tally
from adacompute.evaluation.replay import ReplayResult
from adacompute.evaluation.running_votes import (
    OrderedVotes,
    label_orders,
    leader_accuracy,
    running_totals,
    weighted_accuracies,
)
from adacompute.policies.confidence import LENGTH
from reproduction.mode_posterior import measure_modes, vote_state_numbers
from reproduction.rival_settings import CAPS, fit_settings, fit_stopping

if TYPE_CHECKING:
    from adacompute.core.types import FloatArray, IntArray
    from adacompute.evaluation.evidence import Evidence
    from adacompute.evaluation.experiment import Experiment, FittedPolicy

LOGPROB = "mean_logprob"
TEMPERATURES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, math.inf)
THRESHOLDS = (
    *(0.1, 0.2, 0.3, 0.4, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9),
    *(0.94, 0.97, 0.985, 0.995, math.inf),
)
"""Probabilities at which a rule stops; it never stops at the last one before its cap."""

MAX_EXPONENT = 600.0
"""Weights are at least exp(−600), so that every parsed sample votes."""


def make_weighted_consistency(experiment: Experiment, train: IntArray) -> FittedPolicy:
    """Mix numbers of samples whose votes are weighted by their mean log-probability.

    The temperature is the one with the most accurate votes on the training questions.
    """
    evidence = experiment.evidence
    by_temperature = evidence.remember("weighted-consistency", _weigh_by_temperature)
    mean = [result.accuracy[train].mean() for result in by_temperature]
    best = int(np.argmax(mean))
    result = by_temperature[best]
    settings = [(n, TEMPERATURES[best]) for n in range(1, result.cost.shape[1] + 1)]
    return fit_settings("weighted-consistency", experiment, train, settings, result)


make_weighted_consistency.sees_evidence = True  # type: ignore[attr-defined]


def _weigh_by_temperature(evidence: Evidence) -> list[ReplayResult]:
    """Return the results of every number of samples, (N, n), at each temperature."""
    index, votes = evidence.order[0], evidence.labels(0)
    logprob = evidence.samples.column((LOGPROB,))[:, 0]
    logprob = np.where(np.isnan(logprob), np.nanmean(logprob), logprob)[index]
    cost = np.cumsum(evidence.samples.cost[index], axis=1)
    n_samples = np.broadcast_to(np.arange(1.0, index.shape[1] + 1), index.shape)
    found = []
    for temperature in TEMPERATURES:
        correct = weighted_accuracies(votes, weigh_likelihoods(logprob, temperature))
        found.append(evidence.summarise(cost, correct, n_samples, np.ones(index.shape)))
    return found


def weigh_likelihoods(logprob: FloatArray, temperature: float) -> FloatArray:
    """Return the softmax of log-probabilities within each row, up to a factor of the row."""
    exponent = (logprob - logprob.max(axis=1, keepdims=True)) / temperature
    return np.asarray(np.exp(np.maximum(exponent, -MAX_EXPONENT)))


def make_bayesian_stopping(experiment: Experiment, train: IntArray) -> FittedPolicy:
    """Stop when the leading answer is likely the most frequent one.

    The prior is that a question's answers are distributed as those of one of the training
    questions.
    """
    evidence = experiment.evidence
    cap = evidence.max_samples[0]
    counts = evidence.samples.answers.count_classes().n_samples
    modes = evidence.remember("modes", lambda _: measure_modes(counts, cap))
    state, correct = evidence.remember("vote states", _find_vote_states)
    parsed = train[counts[train].sum(axis=1) > 0]
    posterior = np.append(modes.posterior(parsed), 0.0)  # −1: no parsed sample
    return fit_stopping(
        "bayesian-stopping", experiment, train, THRESHOLDS, (posterior[state], correct)
    )


def _find_vote_states(evidence: Evidence) -> tuple[IntArray, FloatArray]:
    """Return the numbers of the vote states and the accuracy of plain votes, both (M, n)."""
    votes = evidence.labels(0)
    counted = tally(votes.label)
    first, second = counted.leading, counted.runner_up
    numbers = vote_state_numbers(votes.label.shape[1])
    state = numbers[first, second, counted.n_parsed - first - second]
    return state, weighted_accuracies(votes)


def make_confidence_stopping(experiment: Experiment, train: IntArray) -> FittedPolicy:
    """Stop when the most likely answer is likely correct, by calibrated confidences."""
    evidence, samples = experiment.evidence, experiment.evidence.samples
    votes = evidence.labels(0)
    confidence = evidence.confidence(train, joint=False)
    log_odds = confidence.log_odds(samples.arm, samples.column(confidence.signals))
    table = combine_confidences(votes, log_odds[evidence.order[0]])
    return fit_stopping("confidence-stopping", experiment, train, THRESHOLDS, table)


make_confidence_stopping.sees_evidence = True  # type: ignore[attr-defined]


def combine_confidences(votes: OrderedVotes, log_odds: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the probability of the likeliest answer and its accuracy after each sample, (M, n).

    Candidates are the answers seen so far and one that was not, all equally likely at first. A
    sample is right with its probability; otherwise each other candidate is as likely to be right.
    """
    posterior, correct = np.zeros(log_odds.shape), np.zeros(log_odds.shape)
    totals = zip(running_totals(votes), running_totals(votes, log_odds), strict=True)
    for n, (all_counts, all_totals) in enumerate(totals):
        count, total = all_counts[: n + 1], all_totals[: n + 1]
        seen = count > 0
        n_others = np.maximum(seen.sum(axis=0), 1)
        score = np.where(seen, total + count * np.log(n_others), -np.inf)
        leading = score.max(axis=0)
        best = np.maximum(leading, 0.0)  # 0 is the score of the answer not seen
        mass = np.exp(score - best).sum(axis=0) + np.exp(-best)
        posterior[:, n] = np.exp(leading - best) / mass
        correct[:, n] = leader_accuracy(score, votes.accuracy, seen)
    return posterior, correct


def make_shortest_majority(experiment: Experiment, train: IntArray) -> FittedPolicy:
    """Start k samples at once, stop when the m shortest have ended, and let these vote."""
    evidence = experiment.evidence
    caps = [n for n in CAPS if n <= evidence.max_samples[0]]
    settings = [(m, k) for k in caps for m in caps if m <= k]
    result = evidence.remember("shortest-majority", lambda one: run_shortest(one, settings))
    return fit_settings("shortest-majority", experiment, train, settings, result)


def run_shortest(evidence: Evidence, settings: list[tuple[int, int]]) -> ReplayResult:
    """Return the results of the m shortest of k samples, (N, settings)."""
    samples, index = evidence.samples, evidence.order[0]
    length = np.expm1(samples.column((LENGTH,))[:, 0])
    rate, found = cost_of_length(evidence, length), {}
    for k in sorted({k for _, k in settings}):
        rank = np.argsort(length[index[:, :k]], axis=1, kind="stable")
        own = np.take_along_axis(index[:, :k], rank, axis=1)
        votes, size, whole = (
            label_orders(samples.answers, own),
            length[own],
            samples.cost[own].sum(axis=1),
        )
        for m, total in enumerate(running_totals(votes), start=1):
            if (m, k) in settings:
                # Answers are numbered by their shortest sample: of tied ones, the first wins.
                accuracy = votes.accuracy[total.argmax(axis=0), np.arange(len(index))]
                correct = np.where(total.any(axis=0), accuracy, 0.0)
                cancelled = (size[:, m:] - size[:, m - 1 : m]).sum(axis=1)
                n_samples = np.full(len(index), float(k))
                found[m, k] = evidence.summarise(
                    whole - rate * cancelled, correct, n_samples, np.ones(len(index))
                )
    return ReplayResult.side_by_side([found[setting] for setting in settings])


def cost_of_length(evidence: Evidence, length: FloatArray) -> float:
    """Return what one more token costs, from samples of the same questions; 0 if nothing.

    In samples it is 0, in tokens 1, and in money the price of a token of the completion.
    """
    answers = evidence.samples.answers
    deviation = []
    for values in (length, evidence.samples.cost):
        mean = np.bincount(answers.question, values) / np.maximum(1, answers.n_samples)
        deviation.append(values - mean[answers.question])
    spread = float((deviation[0] ** 2).sum())
    return max(0.0, float((deviation[0] * deviation[1]).sum()) / spread) if spread > 0 else 0.0
