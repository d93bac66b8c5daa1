"""Same answer: how many samples a vote needs to end as the vote of all N, without any grade.

Rules that stop at a lead are replayed on recorded samples in random orders, and the answer at the
stop is compared with that of all N of the same order. What share of the answers is the same bounds
the change of accuracy, whatever the right answers are. A decided vote always gives the same answer;
for other rules there is a lower bound that holds for all of them at once. No grade is used.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from adacompute.core import votes
from adacompute.core.answers import UNPARSED
from adacompute.core.errors import ConfigError, DataError
from adacompute.core.types import make_levels
from adacompute.evaluation.experiment import N_PERMUTATIONS
from adacompute.evaluation.intervals import CONFIDENCE, Mean, simultaneous_band, sum_by_group
from adacompute.evaluation.pool import MAX_EXCLUDED_SHARE
from adacompute.evaluation.replay import Replay, ReplayResult
from adacompute.evaluation.scoring.frontier import name_latencies
from adacompute.policies.bundles.bundle import SAME_ANSWER
from adacompute.policies.price_schedule import PriceSchedule
from adacompute.policies.rule_policy import RulePolicy
from adacompute.policies.stopping import VoteLeadRule, lead_grid

if TYPE_CHECKING:
    from adacompute.core.types import FloatArray, IntArray, KeyArray
    from adacompute.evaluation.pool import Pool

SHARE = 0.98
"""Share of the answers that must be the same, unless another is asked for."""

NAME = "vote-lead"
"""Name of the policy."""

PRICE = 1.0
"""The price of its only setting."""

MAX_PAIRS = 1 << 24
"""Pairs of samples that are compared at once, about; each takes some bytes."""

DISJOINT, REDRAWN = "disjoint samples", "redrawn samples"
"""How the agreement of two runs was found: redrawn samples repeat, so they agree too often."""


Leads = dict[VoteLeadRule, ReplayResult]
"""Rules by rising lead with their results, whose accuracy is the share of same answers."""


def keep_complete(pool: Pool, n_samples: int) -> Pool:
    """Return the questions that have at least N samples."""
    if n_samples < 1:
        raise ConfigError(f"today's number of samples must be 1 or more, got {n_samples}")
    if pool.has_arms:
        raise DataError(
            f"there are samples of several arms ({', '.join(pool.arms)}), and without grades they "
            "cannot be compared: use the samples of the one that you run today"
        )
    counts = pool.answers.n_samples
    if not (counts >= n_samples).any():
        raise DataError(
            f"no question has {n_samples} samples, the most are {int(counts.max(initial=0))}: give "
            "a smaller number of samples, or record more"
        )
    return pool.take(counts >= n_samples)


def answer_of(answer: IntArray, n_samples: IntArray | None = None) -> IntArray:
    """Return the class that wins each vote of the first samples; ties go to the answer seen first.

    It is −1 where no sample could be parsed.

    >>> answer_of(np.array([[0, 1, 1]]), np.array([2])).tolist()
    [0]
    """
    if n_samples is not None:
        is_drawn = np.arange(answer.shape[1]) < n_samples[:, None]
        answer = np.where(is_drawn, answer, UNPARSED)
    size = max(1, MAX_PAIRS // answer.shape[1] ** 2)
    parts = [votes.winner(answer[i : i + size]) for i in range(0, len(answer), size)]
    first = np.concatenate([*parts, np.empty(0, dtype=np.int64)])
    return np.where(first < 0, UNPARSED, answer[np.arange(len(answer)), first])


def replay_leads(pool: Pool, n_samples: int, *, seed: int = 0) -> Leads:
    """Replay every lead of N samples on every question."""
    parts: dict[VoteLeadRule, list[ReplayResult]] = {rule: [] for rule in lead_grid(n_samples)}
    for _, block in Replay(pool, N_PERMUTATIONS, n_samples, seed).blocks():
        answer = block.samples.answer
        full = answer_of(answer)
        for rule, found in parts.items():
            stop, n_rounds = block.play_rule(rule)
            same = (answer_of(answer, stop) == full).reshape(len(block.pool), -1).mean(axis=1)
            found.append(replace(block.summarise(stop, n_rounds), accuracy=same))
    return {rule: ReplayResult.concatenate(found) for rule, found in parts.items()}


def bound_leads(
    leads: Leads, group: KeyArray, *, confidence: float = CONFIDENCE, seed: int = 0
) -> dict[VoteLeadRule, float]:
    """Return the lower bound of the share of same answers of each rule; all hold at once.

    A rule that cannot change an answer has a share of 1 by what it is. For the others the normal
    approximation fails near 1. So a bound is also at most the exact one for a count, as if each
    question were either never answered otherwise or as often as any question can be.
    """
    low = dict.fromkeys(leads, 1.0)
    highest = {rule: high for rule in leads if (high := largest_change(rule)) > 0}
    if highest:
        changed = 1.0 - np.stack([leads[rule].accuracy for rule in highest], axis=1)
        band = simultaneous_band(-changed, group, confidence=confidence, seed=seed)
        bounds = 1.0 - (changed.mean(axis=0) + band.margin)
        risk = (1.0 - confidence) / len(highest)
        for (rule, high), share, bound in zip(highest.items(), changed.T, bounds, strict=True):
            exact = 1.0 - high * bound_share(share / high, group, risk)
            low[rule] = max(0.0, min(float(bound), exact))
    return low


def largest_change(rule: VoteLeadRule) -> float:
    """Return a bound on how often any question may be answered otherwise than by all samples.

    By the reflection principle, an answer of c votes has led one of w > c votes by the lead L in
    C(c + w, c − L) of the C(c + w, c) orders of their votes. If both have c votes, the other must
    have been seen first to win, and it is C(2c − 1, c − L − 1) orders. The bound is the largest sum
    over the answers that fit into N votes besides the winner's. It is 0 for decided votes, and for
    a lead of half of the samples: a tie then goes to the leader, which was seen first.

    >>> largest_change(VoteLeadRule(2, 5)), largest_change(VoteLeadRule(2, 4))
    (0.1, 0.0)
    """
    lead, size = rule.lead, rule.max_samples
    largest = 0.0
    for won in range(lead, size + 1):
        best = [0.0] * (size - won + 1)
        for left in range(1, size - won + 1):
            best[left] = best[left - 1]
            for count in range(lead, min(won, left) + 1):
                share = _share_of_orders(count, won, lead)
                best[left] = max(best[left], best[left - count] + share)
        largest = max(largest, best[-1])
    return min(1.0, largest)


@cache
def _share_of_orders(count: int, won: int, lead: int) -> float:
    """Return the share of orders in which the answer that does not win has been so far ahead."""
    both = count + won
    if count < won:
        ways = math.comb(both, count - lead)
    else:
        ways = math.comb(both - 1, count - lead - 1) if count > lead else 0
    return ways / math.comb(both, count)


def bound_share(share: FloatArray, group: KeyArray, risk: float) -> float:
    """Return an upper bound on the mean of shares from 0 to 1, one independent value per group.

    It is the exact bound for a count, as if every value were 0 or 1: nothing varies more.

    >>> round(bound_share(np.zeros(300), np.arange(300, dtype=np.uint64), 0.05), 4)
    0.0099
    """
    value = sum_by_group(share, group) / sum_by_group(np.ones(len(share)), group)
    size, count = len(value), math.ceil(float(np.minimum(value, 1.0).sum()) - 1e-9)
    if count >= size:
        return 1.0
    steps = np.log(np.arange(1, size + 1))
    factorial = np.concatenate([[0.0], np.cumsum(steps)])
    k = np.arange(count + 1)
    ways = factorial[size] - factorial[k] - factorial[size - k]
    low, high = count / size, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        tail = np.exp(ways + k * math.log(middle) + (size - k) * math.log1p(-middle)).sum()
        low, high = (middle, high) if tail > risk else (low, middle)
    return high


def choose_lead(leads: Leads, low: dict[VoteLeadRule, float], share: float = SHARE) -> VoteLeadRule:
    """Return the cheapest rule whose lower bound reaches a share; the decided vote always does."""
    if not 0 < share <= 1:
        raise ConfigError(f"the share of same answers must be above 0 and at most 1, got {share:g}")
    passed = [rule for rule, bound in low.items() if bound >= share]
    return min(passed, key=lambda rule: float(leads[rule].cost.mean()))


def measure_repeats(pool: Pool, n_samples: int, *, seed: int = 0) -> tuple[float, str]:
    """Return how often two runs of N samples have the same answer, and how that was found.

    The runs are disjoint where nine out of ten questions have 2 N samples. Otherwise they are drawn
    from the recorded samples with replacement.
    """
    twice = 2 * n_samples
    enough = pool.answers.n_samples >= twice
    if enough.mean() >= 1 - MAX_EXCLUDED_SHARE:
        kept = pool.take(enough)
        answer, found_by = Replay(kept, N_PERMUTATIONS, twice, seed).samples.answer, DISJOINT
    else:
        rng = np.random.default_rng(seed)
        counts = np.repeat(pool.answers.n_samples, N_PERMUTATIONS)[:, None]
        first = np.repeat(pool.answers.offsets[:-1], N_PERMUTATIONS)[:, None]
        index = first + (rng.random((len(counts), twice)) * counts).astype(np.int64)
        answer, found_by = pool.answers.answer[index], REDRAWN
    one, other = (answer_of(half) for half in (answer[:, :n_samples], answer[:, n_samples:]))
    return float((one == other).mean()), found_by


def make_policy(rule: VoteLeadRule) -> RulePolicy:
    """Return the policy of one rule; it decides alike at any price."""
    levels = make_levels(tuple(range(1, rule.max_samples + 1)))
    return RulePolicy(NAME, levels, (rule,), PriceSchedule((PRICE,)), mix_by="none")


def measure_latencies(pool: Pool, rule: VoteLeadRule, *, seed: int = 0) -> dict[str, float | None]:
    """Return the latency of a rule and that of all N samples in parallel; None if not recorded."""
    own = parallel = None
    if pool.latency_s is not None:
        policy, found = make_policy(rule), []
        for _, block in Replay(pool, N_PERMUTATIONS, rule.max_samples, seed).blocks():
            features = policy.prepare_features(block.pool.features)
            stopped = block.measure_latency(policy, PRICE, features, 1.0)
            found.append(np.stack([stopped, block.measure_parallel_latency()]))
        own, parallel = np.concatenate(found, axis=1)
    return name_latencies("latency", own) | name_latencies("today_latency", parallel)


def compare_with_today(
    pool: Pool,
    n_samples: int,
    *,
    share: float = SHARE,
    confidence: float = CONFIDENCE,
    seed: int = 0,
) -> dict[str, Any]:
    """Choose the rule that replaces today's N samples, and return what it saves, as JSON values.

    ``pool`` needs no grades. Questions with fewer than N samples are left out.
    """
    kept = keep_complete(pool, n_samples)
    leads = replay_leads(kept, n_samples, seed=seed)
    low = bound_leads(leads, kept.group, confidence=confidence, seed=seed)
    chosen = choose_lead(leads, low, share)
    spent = Mean.of(leads[chosen].cost, kept.group).interval(confidence)
    cost = float((kept.mean_sample_cost() * n_samples + kept.round_costs).mean())
    if not cost > 0:
        raise DataError("the samples cost nothing in this unit: use another unit")
    agreement, found_by = measure_repeats(kept, n_samples, seed=seed)
    rows = {rule: _describe_lead(rule, leads[rule], low[rule], cost) for rule in leads}
    delivered = rows[chosen]
    return {
        "samples": n_samples,
        "arm": None,
        "votes": "equal",
        "cost": cost,
        **spent.named("delivered_cost"),
        "delivered_saving": delivered["saving"],
        "delivered_samples": float(leads[chosen].n_samples.mean()),
        "same_answer": delivered["same_answer"],
        "same_answer_low": low[chosen],
        "same_answer_wanted": share,
        "difference_bound": 1.0 - low[chosen],
        "lead": chosen.lead,
        "is_decided_vote": chosen.lead == n_samples,
        "repeat_agreement": agreement,
        "repeat_agreement_by": found_by,
        "verdict": SAME_ANSWER,
        "advice": "use this policy",
        "rounds": delivered["rounds"],
        **measure_latencies(kept, chosen, seed=seed),
        "questions": len(kept),
        "groups": kept.n_groups,
        "excluded": len(pool) - len(kept),
        "confidence": confidence,
        "leads": list(rows.values()),
    }


def _describe_lead(
    rule: VoteLeadRule, result: ReplayResult, low: float, today: float
) -> dict[str, float]:
    cost = float(result.cost.mean())
    return {
        "lead": rule.lead,
        "cost": cost,
        "saving": 1.0 - cost / today,
        "same_answer": float(result.accuracy.mean()),
        "same_answer_low": low,
        "rounds": float(result.n_rounds.mean()),
    }
