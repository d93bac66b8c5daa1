"""Description: compared with plain Python, and under changes that must not matter."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adacompute.core.answers import UNPARSED
from adacompute.core.types import FloatArray, IntArray
from adacompute.policies.sequential.description import (
    LEADER,
    describe,
    describe_one,
    vote_accuracy,
    width,
)
from test_support.episodes import number_classes

N_ANSWERS = 4


class Row(NamedTuple):
    """Samples of one question, arm after arm, and how many are of each arm."""

    label: list[int]
    log_odds: list[float]
    weight: list[float]
    counts: tuple[int, ...]


@st.composite
def rows(draw: st.DrawFn, max_arms: int = 3) -> Row:
    counts = draw(st.lists(st.integers(0, 4), min_size=1, max_size=max_arms))
    size = sum(counts)

    def several(values: st.SearchStrategy) -> list:  # type: ignore[type-arg]
        return draw(st.lists(values, min_size=size, max_size=size))

    log_odds = several(st.integers(-8, 8).map(lambda one: one / 2))
    weight = several(st.sampled_from([0.25, 0.5, 1.0, 1.0, 1.0, 4.0]))
    answer = several(st.sampled_from([None, *range(N_ANSWERS)]))
    return Row(number_classes(answer), log_odds, weight, tuple(counts))


def run(row: Row) -> tuple[FloatArray, IntArray]:
    """Describe one question: its vector, and the answers that lead."""
    found = describe(
        np.array([row.label], dtype=np.int64).reshape(1, -1),
        np.array([row.log_odds]).reshape(1, -1),
        np.array([row.weight]).reshape(1, -1),
        row.counts,
    )
    return found.vector[0], np.flatnonzero(found.leads[0])


def describe_slowly(row: Row) -> dict[str, float | list[float]]:
    """Describe one question with at least one parsed sample, number by number."""
    weight: dict[int, float] = defaultdict(float)
    votes, best = Counter[int](), dict[int, float]()
    for label, log_odds, one in zip(row.label, row.log_odds, row.weight, strict=True):
        if label != UNPARSED:
            weight[label] += one
            votes[label] += 1
            best[label] = max(log_odds, best.get(label, log_odds))
    ranked = sorted(weight, key=lambda one: (-weight[one], one))
    leader, others = ranked[0], ranked[1:]
    n, total = len(row.label), sum(weight.values())
    share, votes_of = weight[leader] / total, votes[leader] / n
    second = weight[others[0]] / total if others else 0.0
    second_votes = votes[others[0]] / n if others else 0.0
    parsed = [s for label, s in zip(row.label, row.log_odds, strict=True) if label != UNPARSED]
    lead = (share - second) - (votes_of - second_votes)
    starts = np.cumsum((0, *row.counts))
    arms = [row.label[a:b] for a, b in pairwise(starts)]
    return {
        "start": [0.0, share, second, votes_of, second_votes, share**2, best[leader]],
        "mean": sum(parsed) / len(parsed),
        "alone": [float(not others), best[leader] * (not others), share * best[leader]],
        "against": max((best[one] for one in others), default=0.0),
        "answers": [len(weight) / n, 1 - len(parsed) / n],
        "weights": [lead, lead**2, share - votes_of, (share - votes_of) * best[leader]],
        "arms": [one.count(leader) / max(1, len(one)) for one in arms] if len(arms) > 1 else [],
    }


@settings(max_examples=300)
@given(rows())
def test_vector_is_what_counting_by_hand_gives(row: Row) -> None:
    vector, leads = run(row)
    assert vector.shape == (width(len(row.counts)),)
    if all(label == UNPARSED for label in row.label):
        assert vector[0] == 1.0
        assert not leads.size
        return
    slow = describe_slowly(row)
    assert vector == pytest.approx(np.hstack(list(slow.values())), abs=1e-9)
    assert vector[LEADER] == slow["start"][LEADER]  # type: ignore[index]


@settings(max_examples=300)
@given(rows(), st.randoms(use_true_random=False))
def test_vector_of_one_question_is_that_of_a_row(row: Row, random: object) -> None:
    """Its samples come in any order of the arms, but each arm's in their own."""
    arm = [a for a, n in enumerate(row.counts) for _ in range(n)]
    turns = arm.copy()
    random.shuffle(turns)  # type: ignore[attr-defined]
    starts = np.cumsum((0, *row.counts)).tolist()
    seen = [0] * len(row.counts)
    order = []
    for a in turns:
        order.append(starts[a] + seen[a])
        seen[a] += 1
    label, log_odds, weight = (
        [one[i] for i in order] for one in (row.label, row.log_odds, row.weight)
    )
    found = describe_one(label, log_odds, weight, turns, row.counts)
    vector, _ = run(row)
    assert found == pytest.approx(vector, abs=1e-12)


@settings(max_examples=200)
@given(rows(), st.lists(st.floats(0.0, 1.0), min_size=N_ANSWERS, max_size=N_ANSWERS))
def test_accuracy_of_the_vote_is_that_of_weighted_votes(row: Row, accuracy: list[float]) -> None:
    label, weight = np.array([row.label], dtype=np.int64), np.array([row.weight])
    if not row.label:
        return
    found = describe(label, np.zeros(label.shape), weight, row.counts)
    own = np.array([accuracy])
    totals = {a: weight[label == a].sum() for a in row.label if a != UNPARSED}
    leaders = [own[0][a] for a, total in totals.items() if total == max(totals.values())]
    expected = [np.mean(leaders) if leaders else 0.0]
    assert vote_accuracy(found.leads, own) == pytest.approx(expected)


@settings(max_examples=200)
@given(rows(), st.permutations(range(N_ANSWERS)), st.randoms(use_true_random=False))
def test_names_of_answers_and_order_within_an_arm_do_not_matter(
    row: Row, name: list[int], random: object
) -> None:
    total = Counter[int]()
    # Answers are told apart by their weights, so that none are tied.
    distinct = [one * (1 + 0.01 * label) for label, one in zip(row.label, row.weight, strict=True)]
    row = row._replace(weight=distinct)
    for label, one in zip(row.label, distinct, strict=True):
        if label != UNPARSED:
            total[label] += one  # type: ignore[assignment]
    if len({round(one, 6) for one in total.values()}) < len(total):
        return
    starts = np.cumsum((0, *row.counts)).tolist()
    order = []
    for a, b in pairwise(starts):
        part = list(range(a, b))
        random.shuffle(part)  # type: ignore[attr-defined]
        order += part
    renamed = Row(
        [row.label[i] if row.label[i] == UNPARSED else name[row.label[i]] for i in order],
        [row.log_odds[i] for i in order],
        [row.weight[i] for i in order],
        row.counts,
    )
    vector, leads = run(row)
    other, other_leads = run(renamed)
    assert other == pytest.approx(vector, abs=1e-9)
    assert sorted(name[one] for one in leads.tolist()) == other_leads.tolist()


def test_tied_answers_lead_together_in_spite_of_rounding() -> None:
    label = np.array([[0, 0, 0, 1]])
    weight = np.array([[0.1, 0.1, 0.1, 0.3]])  # 0.1 + 0.1 + 0.1 is not 0.3
    found = describe(label, label * 0.0, weight, (4,))
    assert found.leads.tolist() == [[True, True]]
    assert vote_accuracy(found.leads, np.array([[1.0, 0.0, 0.0]])).tolist() == [0.5]
    weight[0, 3] = 0.301
    assert describe(label, label * 0.0, weight, (4,)).leads.tolist() == [[False, True]]


def test_rows_are_described_independently() -> None:
    rng = np.random.default_rng(0)
    label, log_odds = rng.integers(UNPARSED, 4, (50, 6)), rng.normal(size=(50, 6))
    weight = rng.choice([0.5, 1.0, 2.0], (50, 6))
    whole = describe(label, log_odds, weight, (4, 2))
    for i in range(50):
        one = slice(i, i + 1)
        alone = describe(label[one], log_odds[one], weight[one], (4, 2))
        assert (alone.vector[0] == whole.vector[i]).all()
        n = alone.leads.shape[1]
        assert (alone.leads[0] == whole.leads[i, :n]).all()
        assert not whole.leads[i, n:].any()


def test_question_without_samples_has_a_vector_of_its_own() -> None:
    none = np.empty((3, 0))
    found = describe(none.astype(np.int64), none, none, (0, 0))
    assert (found.vector[:, 0] == 1.0).all()
    assert not found.vector[:, 1:].any()
    assert not found.leads.any()
    assert vote_accuracy(found.leads, np.ones((3, 2))).tolist() == [0.0] * 3
