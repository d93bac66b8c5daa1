"""Same answer: how many samples a vote needs to end as the vote of all N, without any grade.

Rules that stop at a lead are replayed on recorded samples in random orders, and the answer at the
stop is compared with that of all N of the same order. What share of the answers is the same bounds
the change of accuracy, whatever the right answers are. A decided vote always gives the same answer;
for other rules there is a lower bound that holds for all of them at once. No grade is used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from adacompute.core import votes
from adacompute.core.answers import UNPARSED, order_samples
from adacompute.core.errors import ConfigError, DataError
from adacompute.core.types import make_levels
from adacompute.evaluation.experiment import N_PERMUTATIONS
from adacompute.evaluation.frontier import name_latencies
from adacompute.evaluation.intervals import CONFIDENCE, Interval, Mean, sum_by_group
from adacompute.evaluation.pool import MAX_EXCLUDED_SHARE
from adacompute.evaluation.replay import Replay
from adacompute.evaluation.simultaneous import simultaneous_band
from adacompute.policies.bundle import SAME_ANSWER
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


@dataclass(frozen=True, eq=False)
class LeadResult:
    """One rule on every question, (N,): share of orders with the same answer, and what it costs."""

    rule: VoteLeadRule
    same: FloatArray
    cost: FloatArray
    n_samples: FloatArray
    n_rounds: FloatArray


@dataclass(frozen=True)
class LeadChoice:
    """A rule with the share of answers that are the same, its lower bound, and its mean cost."""

    rule: VoteLeadRule
    same_answer: float
    same_answer_low: float
    cost: Interval
    n_samples: float
    n_rounds: float


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


def replay_leads(
    pool: Pool, n_samples: int, *, n_orders: int = N_PERMUTATIONS, seed: int = 0
) -> list[LeadResult]:
    """Replay every lead of N samples on every question, by rising lead."""
    replay = Replay(pool, n_orders, n_samples, seed)
    rules = lead_grid(n_samples)
    parts: list[list[LeadResult]] = [[] for _ in rules]
    for _, block in replay.blocks():
        answer = block.samples.answer
        full = answer_of(answer)
        for rule, found in zip(rules, parts, strict=True):
            stop, n_rounds = block.play_rule(rule)
            same = (answer_of(answer, stop) == full).reshape(len(block.pool), -1).mean(axis=1)
            result = block.summarise(stop, n_rounds)
            found.append(LeadResult(rule, same, result.cost, result.n_samples, result.n_rounds))
    names = ("same", "cost", "n_samples", "n_rounds")
    return [
        LeadResult(rule, *(np.concatenate([getattr(one, name) for one in found]) for name in names))
        for rule, found in zip(rules, parts, strict=True)
    ]


def bound_leads(
    leads: list[LeadResult], group: KeyArray, *, confidence: float = CONFIDENCE, seed: int = 0
) -> list[LeadChoice]:
    """Return every rule with the lower bound of its share; all bounds hold at once.

    A rule that cannot change an answer has a share of 1 by what it is. For the others the normal
    approximation fails near 1. So a bound is also at most the exact one for a count, as if each
    question were either never answered otherwise or as often as any question can be.
    """
    highest = [largest_change(lead.rule) for lead in leads]
    unsure = [i for i, high in enumerate(highest) if high > 0]
    low = np.ones(len(leads))
    if unsure:
        changed = 1.0 - np.stack([leads[i].same for i in unsure], axis=1)
        band = simultaneous_band(-changed, group, confidence=confidence, seed=seed)
        low[unsure] -= changed.mean(axis=0) + band.quantile * band.standard_error
        risk = (1.0 - confidence) / len(unsure)
        for i, share in zip(unsure, changed.T, strict=True):
            count = bound_share(share / highest[i], group, risk)
            low[i] = min(low[i], 1.0 - highest[i] * count)
    return [
        LeadChoice(
            lead.rule,
            float(lead.same.mean()),
            float(np.clip(bound, 0.0, 1.0)),
            Mean.of(lead.cost, 0.0, group).interval(confidence),
            float(lead.n_samples.mean()),
            float(lead.n_rounds.mean()),
        )
        for lead, bound in zip(leads, low, strict=True)
    ]


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


def choose_lead(choices: list[LeadChoice], share: float = SHARE) -> LeadChoice:
    """Return the cheapest rule whose lower bound reaches a share; the decided vote always does."""
    if not 0 < share <= 1:
        raise ConfigError(f"the share of same answers must be above 0 and at most 1, got {share:g}")
    passed = [choice for choice in choices if choice.same_answer_low >= share]
    return min(passed, key=lambda choice: choice.cost.value)


def measure_repeats(
    pool: Pool, n_samples: int, *, n_orders: int = N_PERMUTATIONS, seed: int = 0
) -> tuple[float, str]:
    """Return how often two runs of N samples have the same answer, and how that was found.

    The runs are disjoint where nine out of ten questions have 2 N samples. Otherwise they are drawn
    from the recorded samples with replacement.
    """
    twice = 2 * n_samples
    enough = pool.answers.n_samples >= twice
    if enough.mean() >= 1 - MAX_EXCLUDED_SHARE:
        kept = pool.take(enough)
        known: dict[str, Any] = {"n_orders": n_orders, "length": twice, "seed": seed}
        index = order_samples(kept.answers, kept.key, **known).reshape(-1, twice)
        answer, found_by = kept.answers.answer[index], DISJOINT
    else:
        rng = np.random.default_rng(seed)
        counts = np.repeat(pool.answers.n_samples, n_orders)[:, None]
        first = np.repeat(pool.answers.offsets[:-1], n_orders)[:, None]
        index = first + (rng.random((len(counts), twice)) * counts).astype(np.int64)
        answer, found_by = pool.answers.answer[index], REDRAWN
    one, other = (answer_of(half) for half in (answer[:, :n_samples], answer[:, n_samples:]))
    return float((one == other).mean()), found_by


def make_policy(rule: VoteLeadRule) -> RulePolicy:
    """Return the policy of one rule; it decides alike at any price."""
    levels = make_levels(tuple(range(1, rule.max_samples + 1)))
    return RulePolicy(NAME, levels, (rule,), PriceSchedule((PRICE,)), mix_by="none")


def measure_latencies(
    pool: Pool, rule: VoteLeadRule, *, n_orders: int = N_PERMUTATIONS, seed: int = 0
) -> dict[str, float | None]:
    """Return the latency of a rule and that of all N samples in parallel; None if not recorded."""
    if pool.latency_s is None:
        return name_latencies("latency", None) | name_latencies("today_latency", None)
    policy, found = make_policy(rule), []
    for _, block in Replay(pool, n_orders, rule.max_samples, seed).blocks():
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
    choices = bound_leads(leads, kept.group, confidence=confidence, seed=seed)
    chosen = choose_lead(choices, share)
    cost = float((kept.mean_sample_cost() * n_samples + kept.round_costs).mean())
    if not cost > 0:
        raise DataError("the samples cost nothing in this unit: use another unit")
    agreement, found_by = measure_repeats(kept, n_samples, seed=seed)
    return {
        "samples": n_samples,
        "arm": None,
        "votes": "equal",
        "cost": cost,
        "delivered_cost": chosen.cost.value,
        "delivered_cost_low": chosen.cost.low,
        "delivered_cost_high": chosen.cost.high,
        "delivered_saving": 1.0 - chosen.cost.value / cost,
        "delivered_samples": chosen.n_samples,
        "same_answer": chosen.same_answer,
        "same_answer_low": chosen.same_answer_low,
        "same_answer_wanted": share,
        "difference_bound": 1.0 - chosen.same_answer_low,
        "lead": chosen.rule.lead,
        "is_decided_vote": chosen.rule.lead == n_samples,
        "repeat_agreement": agreement,
        "repeat_agreement_by": found_by,
        "verdict": SAME_ANSWER,
        "advice": "use this policy",
        "rounds": chosen.n_rounds,
        **measure_latencies(kept, chosen.rule, seed=seed),
        "questions": len(kept),
        "groups": len(np.unique(kept.group)),
        "excluded": len(pool) - len(kept),
        "confidence": confidence,
        "leads": [_describe_lead(one, cost) for one in choices],
    }


def _describe_lead(choice: LeadChoice, today: float) -> dict[str, float]:
    return {
        "lead": choice.rule.lead,
        "cost": choice.cost.value,
        "saving": 1.0 - choice.cost.value / today,
        "same_answer": choice.same_answer,
        "same_answer_low": choice.same_answer_low,
        "rounds": choice.n_rounds,
    }
