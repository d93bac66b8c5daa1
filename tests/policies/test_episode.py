from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from adacompute.core.errors import DataError
from adacompute.core.types import IntArray, make_levels
from adacompute.evaluation.rivals import EarlyStoppingRule
from adacompute.policies.episode import Episode, run_episode, start_state
from adacompute.policies.policy import NO_LEVEL, SampleMatrix
from adacompute.policies.price_schedule import PriceSchedule
from adacompute.policies.rule_policy import Rule, RulePolicy
from adacompute.policies.stopping import AdaptiveConsistencyRule
from adacompute.policies.uniform import FixedRule
from test_support.episodes import find_winner

MAX_SAMPLES = 6
records = st.integers(1, 5).flatmap(
    lambda n: arrays(np.int64, (n, MAX_SAMPLES), elements=st.integers(-1, 2))
)
ADAPTIVE = AdaptiveConsistencyRule(0.8, MAX_SAMPLES)


def begin(answer: IntArray, rule: Rule = ADAPTIVE, *, rounds: int = 99) -> Episode:
    levels = make_levels(tuple(range(1, MAX_SAMPLES + 1)))
    return Episode.start(
        RulePolicy("rule", levels, (rule,), PriceSchedule((1.0,))),
        1.0,
        start_state(
            key=np.arange(len(answer), dtype=np.uint64),
            features=np.empty((len(answer), 0), dtype=np.float32),
            cost=np.tile(2.0 * np.arange(1, MAX_SAMPLES + 1), (len(answer), 1)),
            samples=SampleMatrix(answer),
            max_rounds=rounds,
        ),
    )


@given(records)
def test_feeding_samples_step_by_step_equals_a_replay(answer: IntArray) -> None:
    episode = begin(np.empty((len(answer), 0), dtype=np.int64)).decide()
    while len(episode.active):
        upto = int(episode.target.max())
        episode = episode.feed(SampleMatrix(answer[:, :upto])).decide()
    replayed = run_episode(begin(answer).decide())
    assert episode.state.observed.n_samples.tolist() == replayed.state.observed.n_samples.tolist()
    assert find_winner(episode).tolist() == find_winner(replayed).tolist()


@given(records)
def test_a_block_equals_its_questions_one_by_one(answer: IntArray) -> None:
    block = run_episode(begin(answer).decide())
    for i in range(len(answer)):
        alone = run_episode(begin(answer[i : i + 1]).decide())
        assert alone.state.observed.n_samples[0] == block.state.observed.n_samples[i]
        assert find_winner(alone)[0] == find_winner(block)[i]
        assert alone.state.level[0] == block.state.level[i]


@given(records)
def test_the_winner_is_the_first_sample_of_the_leading_class(answer: IntArray) -> None:
    ended = run_episode(begin(answer).decide())
    for row, size, won in zip(
        answer.tolist(),
        ended.state.observed.n_samples.tolist(),
        find_winner(ended).tolist(),
        strict=True,
    ):
        votes = Counter(a for a in row[:size] if a >= 0)
        if votes:
            assert votes[row[won]] == max(votes.values())
            assert row.index(row[won]) == won
            ahead = [a for a in votes if votes[a] == votes[row[won]]]
            assert won == min(row.index(a) for a in ahead)
        else:
            assert won == -1


def test_a_stopped_question_is_inactive_and_keeps_its_samples() -> None:
    answer = np.array([[0, 0, 0, 0, 0, 0], [0, 1, 0, 1, 0, 1]])
    episode = begin(answer).decide()
    opened = []
    while len(episode.active):
        opened.append(episode.active.tolist())
        episode = episode.feed(episode.state.observed.samples).decide()
    assert opened == [[0, 1], [0, 1], [1], [1], [1], [1]]
    assert episode.state.observed.n_samples.tolist() == [2, 6]
    assert episode.target.tolist() == [2, 6]
    assert episode.state.rounds_left.tolist() == [97, 93]


def test_costs_are_relative_to_the_current_level() -> None:
    episode = begin(np.zeros((1, MAX_SAMPLES), dtype=np.int64), FixedRule(4)).decide()
    assert episode.state.cost.tolist() == [[2, 4, 6, 8, 10, 12]]
    assert episode.target.tolist() == [4]
    fed = episode.feed(episode.state.observed.samples)
    assert fed.state.cost.tolist() == [[0, 0, 0, 0, 2, 4]]
    assert fed.state.level.tolist() == [3]


def test_the_number_of_rounds_is_limited() -> None:
    split = np.tile([0, 1, 2, 0, 1, 2], (2, 1))
    for rounds, drawn in ((0, 0), (1, 2), (2, 4), (9, 6)):
        ended = run_episode(begin(split, EarlyStoppingRule(2, MAX_SAMPLES), rounds=rounds).decide())
        assert ended.state.observed.n_samples.tolist() == [drawn, drawn]
        assert ended.state.rounds_left.tolist() == [max(0, rounds - 3)] * 2


def test_a_question_without_samples_has_no_level_and_no_answer() -> None:
    ended = begin(np.zeros((1, MAX_SAMPLES), dtype=np.int64), rounds=0).decide()
    assert ended.state.level.tolist() == [NO_LEVEL]
    assert find_winner(ended).tolist() == [-1]
    assert ended.feed(ended.state.observed.samples).state.cost.tolist() == ended.cost.tolist()


@given(records, st.integers(1, 3))
def test_a_repeated_episode_equals_separate_episodes(answer: IntArray, times: int) -> None:
    rows = np.repeat(answer, times, axis=0)
    rows[1::2] = rows[1::2, ::-1]
    once = begin(answer)
    once = Episode.start(
        once.policy,
        once.price,
        start_state(
            key=once.state.key,
            features=once.state.features,
            cost=once.cost,
            samples=SampleMatrix(rows),
        ),
    )
    repeated = run_episode(once.decide().repeat(times))
    from_start = run_episode(begin(rows).decide())
    assert (
        repeated.state.observed.n_samples.tolist() == from_start.state.observed.n_samples.tolist()
    )
    assert find_winner(repeated).tolist() == find_winner(from_start).tolist()
    assert repeated.state.key.tolist() == np.repeat(once.state.key, times).tolist()


def test_a_started_episode_has_no_winner() -> None:
    once = begin(np.zeros((1, MAX_SAMPLES), dtype=np.int64))
    longer = once.feed(SampleMatrix(np.zeros((3, MAX_SAMPLES), dtype=np.int64)))
    assert find_winner(longer).tolist() == [-1]


def test_an_episode_with_samples_cannot_be_repeated() -> None:
    answer = np.zeros((2, MAX_SAMPLES), dtype=np.int64)
    with_draws = begin(answer, FixedRule(4)).decide().feed(SampleMatrix(answer))
    for episode in (with_draws, begin(answer, rounds=0).decide()):
        with pytest.raises(DataError, match="cannot be repeated"):
            episode.repeat(2)


def test_too_few_samples_are_rejected() -> None:
    episode = begin(np.zeros((2, MAX_SAMPLES), dtype=np.int64), FixedRule(4)).decide()
    with pytest.raises(DataError, match="4 samples are needed, got 3"):
        episode.feed(SampleMatrix(np.zeros((2, 3), dtype=np.int64)))
