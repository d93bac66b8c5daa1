"""Cascades: rivals over several arms, fitted to training questions and scored.

An agreement cascade samples a cheap arm and, unless its answers agree, an expensive one (Yue et
al., 2024; Chen et al., 2025). Every sample counts once.

They are rows of tables: they cannot be trained or served.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import combinations, product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from adacompute.core.answers import UNPARSED
from adacompute.evaluation.evidence_factories import choose_arms
from adacompute.evaluation.replay import ReplayResult
from adacompute.evaluation.running_votes import label_orders, leader_accuracy, running_totals
from reproduction.rival_settings import fit_settings

if TYPE_CHECKING:
    from adacompute.core.types import IntArray
    from adacompute.evaluation.evidence import Evidence
    from adacompute.evaluation.experiment import Experiment, FittedPolicy
    from adacompute.evaluation.running_votes import OrderedVotes

Settings = tuple[Sequence[tuple[Any, ...]], ReplayResult]
"""Settings of a rival and their results, (N, settings)."""

COUNTS = (1, 2, 3, 4, 6, 8)
"""Numbers of samples of an arm that are tried."""


class Cascade(NamedTuple):
    """One setting: sample the first arm, and then the second unless enough answers agree.

    ``min_agreeing`` of ``n_first`` samples must agree; 0 always stops. The ``n_second`` samples
    vote alone, or together with the first ones if they are ``pooled``.
    """

    arms: tuple[int, int]
    n_first: int
    min_agreeing: int
    n_second: int
    pooled: bool


class ModelSwitch(NamedTuple):
    """One setting: one sample of each of two arms and, if they differ, samples of the last arm.

    The last arm can be the second one again. All samples vote together.
    """

    arms: tuple[int, ...]
    n_last: int


def make_agreement_cascade(experiment: Experiment, train: IntArray) -> FittedPolicy:
    """Use the efficient cascades and model switches over the efficient arms.

    Numbers of samples of one arm are settings, too.
    """
    evidence = experiment.evidence
    arms, _ = choose_arms(experiment, train)
    parts = [evidence.remember(("arm", arm), partial(_run_single, arm=arm)) for arm in arms]
    pairs = list(combinations(arms, 2))
    parts += [
        evidence.remember(("cascade", pair), partial(run_cascades, pair=pair)) for pair in pairs
    ]
    chains = [pair for pair in pairs if evidence.max_samples[pair[1]] > 1]
    parts += [
        evidence.remember(("switch", chain), partial(run_switches, chain=chain))
        for chain in (*chains, *combinations(arms, 3))
    ]
    settings = [one for found, _ in parts for one in found]
    result = ReplayResult.side_by_side([result for _, result in parts])
    return fit_settings("agreement-cascade", experiment, train, settings, result)


make_agreement_cascade.sees_evidence = True  # type: ignore[attr-defined]


def _run_single(evidence: Evidence, *, arm: int) -> Settings:
    """Return the numbers of samples of one arm, and their results, (N, settings)."""
    levels = [(arm, n) for n in range(1, evidence.max_samples[arm] + 1)]
    return levels, evidence.run_arm(arm, None)


def run_cascades(evidence: Evidence, *, pair: tuple[int, int]) -> Settings:
    """Return all cascades from one arm to another, and their results, (N, settings)."""
    first, second = pair
    index = [evidence.order[arm] for arm in pair]
    votes = label_orders(evidence.samples.answers, np.concatenate(index, axis=1))
    n_first, n_second = evidence.max_samples[first], evidence.max_samples[second]
    counts = _counts(votes, slice(0, n_first)), _counts(votes, slice(n_first, None))
    cost = [np.cumsum(evidence.samples.cost[one], axis=1) for one in index]
    settings, results = [], []
    for n in (n for n in COUNTS if n <= n_first):
        leading = counts[0][n].max(axis=0)
        stopped = leader_accuracy(counts[0][n], votes.accuracy)
        settings.append(Cascade(pair, n, 0, 0, pooled=False))
        results.append(_summarise(evidence, [(cost[0][:, n - 1], stopped, n, 1)]))
        for k, pooled in product((k for k in COUNTS if k <= n_second), (False, True)):
            total = counts[1][k] + counts[0][n] if pooled else counts[1][k]
            decided = leader_accuracy(total, votes.accuracy)
            columns = []
            for agreeing in range(max(2, n // 2), n + 2):
                goes_on = leading < agreeing
                paid = cost[0][:, n - 1] + goes_on * cost[1][:, k - 1]
                correct = np.where(goes_on, decided, stopped)
                settings.append(Cascade(pair, n, agreeing, k, pooled))
                columns.append((paid, correct, n + k * goes_on, 1 + goes_on))
            results.append(_summarise(evidence, columns))
    return settings, ReplayResult.side_by_side(results)


def run_switches(evidence: Evidence, *, chain: tuple[int, ...]) -> Settings:
    """Return the model switches over two or three arms, and their results, (N, settings)."""
    first, second, last = (*chain, chain[-1])[:3]
    skipped = int(last == second)  # the sample that is already drawn
    later = evidence.order[last][:, skipped : skipped + max(COUNTS)]
    index = np.concatenate(
        [evidence.order[first][:, :1], evidence.order[second][:, :1], later], axis=1
    )
    votes = label_orders(evidence.samples.answers, index)
    totals = [total.copy() for total in running_totals(votes)]
    cost = np.cumsum(evidence.samples.cost[index], axis=1)
    agree = (votes.label[:, 0] == votes.label[:, 1]) & (votes.label[:, 0] != UNPARSED)
    stopped = leader_accuracy(totals[1], votes.accuracy)
    settings, columns = [], []
    for n in (n for n in COUNTS if n <= later.shape[1]):
        end = np.where(agree, 1, n + 1)
        decided = leader_accuracy(totals[n + 1], votes.accuracy)
        paid = np.take_along_axis(cost, end[:, None], axis=1)[:, 0]
        settings.append(ModelSwitch(chain, n))
        columns.append((paid, np.where(agree, stopped, decided), end + 1, 1 + ~agree))
    return settings, _summarise(evidence, columns)


def _counts(votes: OrderedVotes, columns: slice) -> dict[int, np.ndarray]:
    """Return the votes of each answer after each of the numbers of some samples."""
    part = votes._replace(label=votes.label[:, columns])
    totals = enumerate(running_totals(part), start=1)
    return {n: total.astype(np.int8) for n, total in totals if n in COUNTS}


def _summarise(evidence: Evidence, columns: Sequence[tuple[Any, ...]]) -> ReplayResult:
    """Return the results of columns of cost, accuracy, samples and rounds by order."""
    whole = [np.broadcast_arrays(*column) for column in columns]
    arrays = (np.column_stack(one).astype(np.float64) for one in zip(*whole, strict=True))
    cost, correct, n_samples, n_rounds = arrays
    return evidence.summarise(cost, correct, n_samples, n_rounds)
