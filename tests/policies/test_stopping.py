from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import pytest
from scipy.stats import beta

from adacompute.core.types import IntArray, make_levels
from adacompute.core.votes import winner
from adacompute.policies.episode import Episode, start_state
from adacompute.policies.policy import ObservedSamples, SampleMatrix
from adacompute.policies.price_schedule import PriceSchedule
from adacompute.policies.rule_policy import Rule, RulePolicy
from adacompute.policies.stopping import (
    ADAPTIVE_CAPS,
    ADAPTIVE_THRESHOLDS,
    AdaptiveConsistencyRule,
    VoteLeadRule,
    adaptive_grid,
    decided_grid,
    lead_grid,
    lead_table,
)
from test_support.episodes import find_winner

PlayRule: TypeAlias = Callable[[Rule, IntArray], IntArray]


def adaptive(answers: list[int], threshold: float, max_samples: int) -> int:
    """Adaptive-Consistency in plain Python."""
    for drawn in range(1, max_samples):
        votes = sorted(Counter(a for a in answers[:drawn] if a >= 0).values(), reverse=True)
        first, second = [*votes, 0, 0][:2]
        if 1 - beta.cdf(0.5, first + 1, second + 1) >= threshold - 1e-12:
            return drawn
    return max_samples


def test_the_lead_table_is_the_tail_of_a_beta_distribution() -> None:
    votes = np.arange(17)
    expected = 1 - beta.cdf(0.5, votes[:, None] + 1, votes[None, :] + 1)
    np.testing.assert_allclose(lead_table(16), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("threshold", [0.5, 0.7, 0.9, 0.95, 0.999])
@pytest.mark.parametrize("max_samples", [1, 4, 16])
def test_adaptive_consistency_stops_at_the_threshold(
    play_rule: PlayRule, sequences: IntArray, threshold: float, max_samples: int
) -> None:
    some = sequences[::4]
    expected = [adaptive(row, threshold, max_samples) for row in some.tolist()]
    assert play_rule(AdaptiveConsistencyRule(threshold, max_samples), some).tolist() == expected


def test_rules_stop_above_the_maximum() -> None:
    beyond = ObservedSamples(
        SampleMatrix(np.array([[0, 1, 2, 0, 1, 2]])), np.array([0]), np.array([6])
    )
    assert AdaptiveConsistencyRule(0.99, 4).target_samples(beyond).tolist() == [6]
    assert VoteLeadRule(3, 4).target_samples(beyond).tolist() == [6]


def vote_lead(answers: list[int], lead: int, max_samples: int) -> tuple[int, list[int]]:
    """Return where a vote lead stops and the samples after each round, in plain Python."""

    def has_ended(drawn: list[int], size: int) -> bool:
        votes = sorted(Counter(a for a in drawn if a >= 0).values(), reverse=True)
        ahead = [*votes, 0][0] - [*votes, 0, 0][1]
        return size >= max_samples or ahead >= lead or ahead > max_samples - size

    drawn, rounds = 0, []
    while not has_ended(answers[:drawn], drawn):
        leader = next(iter(Counter(a for a in answers[:drawn] if a >= 0).most_common(1)), (0, 0))[0]
        added = 1
        while not has_ended([*answers[:drawn], *[leader] * added], drawn + added):
            added += 1
        drawn += added
        rounds.append(drawn)
    return drawn, rounds


def play_rounds(rule: VoteLeadRule, answers: IntArray) -> tuple[Episode, list[list[int]]]:
    """Run the production episode, and note the samples of each question after each round."""
    levels = make_levels(tuple(range(1, rule.max_samples + 1)))
    size = len(answers)
    episode = Episode.start(
        RulePolicy("lead", levels, (rule,), PriceSchedule((1.0,))),
        1.0,
        start_state(
            key=np.arange(size, dtype=np.uint64),
            features=np.zeros((size, 0), dtype=np.float32),
            cost=np.ones((size, len(levels))),
            samples=SampleMatrix(answers[:, : rule.max_samples]),
        ),
    ).decide()
    rounds: list[list[int]] = [[] for _ in range(size)]
    while len(episode.active):
        for row in episode.active:
            rounds[row].append(int(episode.target[row]))
        episode = episode.feed(episode.state.observed.samples).decide()
    return episode, rounds


@pytest.mark.parametrize("max_samples", [1, 2, 3, 4, 5, 8])
def test_a_vote_lead_draws_the_least_that_could_end_it(
    sequences: IntArray, max_samples: int
) -> None:
    some = sequences[::3]
    for lead in range(1, max_samples + 1):
        ended, rounds = play_rounds(VoteLeadRule(lead, max_samples), some)
        expected = [vote_lead(row, lead, max_samples) for row in some.tolist()]
        assert ended.state.observed.n_samples.tolist() == [stop for stop, _ in expected]
        assert rounds == [counts for _, counts in expected]


@pytest.mark.parametrize("max_samples", [1, 2, 3, 4, 5, 6, 7, 10, 16])
def test_a_decided_vote_gives_the_sample_that_all_samples_give(max_samples: int) -> None:
    rng = np.random.default_rng(max_samples)
    answers = rng.integers(-1, 3, (3000, max_samples))
    answers[::2] = np.where(rng.random(answers[::2].shape) < 0.6, 0, answers[::2])
    rule = VoteLeadRule(max_samples, max_samples)
    ended, rounds = play_rounds(rule, answers)
    assert (find_winner(ended) == winner(answers)).all()
    assert (
        find_winner(ended).min() == -1 or max_samples > 5
    )  # unparsed samples alone have no answer
    assert {counts[0] for counts in rounds} == {max_samples // 2 + 1}
    if max_samples > 2:
        assert ended.state.observed.n_samples.mean() < max_samples


def test_a_lead_of_more_than_half_is_the_decided_vote(
    play_rule: PlayRule, sequences: IntArray
) -> None:
    for size in range(1, 9):
        decided = play_rule(VoteLeadRule(size, size), sequences)
        for lead in range(size // 2 + 1, size):
            assert (play_rule(VoteLeadRule(lead, size), sequences) == decided).all()
        stops = [tuple(play_rule(rule, sequences)) for rule in lead_grid(size)]
        assert len(set(stops)) == len(stops), size
        assert lead_grid(size)[-1] == decided_grid(size)[-1] == VoteLeadRule(size, size)


@pytest.mark.parametrize("max_samples", [1, 2, 5, 16])
def test_the_adaptive_grid_drops_only_thresholds_that_decide_alike(
    sequences: IntArray, max_samples: int
) -> None:
    grid = adaptive_grid(max_samples)
    rng = np.random.default_rng(1)
    row = rng.integers(0, len(sequences), 4000)
    seen = ObservedSamples(SampleMatrix(sequences), row, rng.integers(0, max_samples + 1, 4000))
    kept: dict[int, set[bytes]] = {}
    for rule in grid:
        kept.setdefault(rule.max_samples, set()).add(rule.target_samples(seen).tobytes())
    for cap in [cap for cap in ADAPTIVE_CAPS if cap <= max_samples]:
        for threshold in ADAPTIVE_THRESHOLDS:
            assert (
                AdaptiveConsistencyRule(threshold, cap).target_samples(seen).tobytes() in kept[cap]
            )
    assert AdaptiveConsistencyRule(0.5, 1) in grid
    assert len(set(grid)) == len(grid) <= 1 + len(ADAPTIVE_THRESHOLDS) * len(kept)


def test_the_adaptive_grid_is_smaller_than_all_thresholds_and_caps() -> None:
    assert len(adaptive_grid(16)) < len(ADAPTIVE_THRESHOLDS) * len(ADAPTIVE_CAPS) * 0.7
