"""Plans over coloured states: compared with brute force over all orders of recorded samples."""

from __future__ import annotations

import itertools
from collections import Counter
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adacompute.core.answers import UNPARSED, Answers
from adacompute.core.coloured_measure import ColouredSamples, measure_samples
from adacompute.core.coloured_states import ColouredStates, Colours, coloured_states
from adacompute.core.states import states
from adacompute.core.types import FloatArray
from adacompute.policies.induction import break_even_prices
from adacompute.policies.induction import occupancy as index_occupancy
from adacompute.policies.plans import STOP, ActionArray, StateValues, make_plan
from test_support.states import measure_states

Sample = tuple[int, int]
"""Answer class and bin of a recorded sample."""

Question = tuple[list[Sample], list[Sample]]
"""Recorded samples of two arms; class 0 is correct."""

sample = st.tuples(st.integers(UNPARSED, 2), st.integers(0, 1))
arm_samples = st.lists(sample, min_size=3, max_size=3)
questions = st.lists(st.tuples(arm_samples, arm_samples), min_size=1, max_size=3)
COLOURS = Colours((3, 3), (2, 2))
COSTS = (1.0, 2.5)


class Occupancy(NamedTuple):
    """Share of each state's probability that stops there (S, C), and that samples arms (A, S, C).

    Multiplied by the state probabilities of any question, they give the accuracy and the cost of
    the plan on it, without a replay.
    """

    stop: FloatArray
    go: FloatArray


def occupancy(states: ColouredStates, action: ActionArray) -> Occupancy:
    """Return how often a plan (S, C) stops and samples in each state, by one forward pass."""
    reached = np.zeros(action.shape)
    reached[0] = 1.0
    go = np.zeros((states.colours.n_arms, *action.shape))
    for n in range(states.n_layers):
        layer = states.layer(n)
        for arm, edges in enumerate(states.transitions):
            go[arm, layer] = np.where(action[layer] == arm + 1, reached[layer], 0.0)
            low, high = np.searchsorted(edges.source, [layer.start, layer.stop])
            moved = go[arm, edges.source[low:high]] * edges.weight[low:high, None]
            np.add.at(reached, edges.target[low:high], moved)  # several states share successors
    return Occupancy(reached - go.sum(axis=0), go)


def encode(rows: list[Question], costs: tuple[float, ...] = COSTS) -> ColouredSamples:
    flat = [
        (q, a, b, c) for q, arms in enumerate(rows) for a, one in enumerate(arms) for c, b in one
    ]
    question, arm, bin_, answer = (np.array(column) for column in zip(*flat, strict=True))
    counts = np.bincount(question, minlength=len(rows))
    return ColouredSamples(
        offsets=np.concatenate([[0], np.cumsum(counts)]),
        arm=arm,
        colour=2 * arm + bin_,
        answer=answer,
        accuracy=np.where(answer == 0, 1.0, 0.0),
        cost=np.array(costs)[arm],
    )


State = tuple[tuple[Any, ...], tuple[int, ...]]


def observe(seen: list[list[Sample]]) -> State:
    """Count votes by class and colour directly: the sorted vectors, and the unparsed samples."""
    votes: dict[int, Counter[int]] = {}
    unparsed = [0, 0]
    for arm, drawn in enumerate(seen):
        for answer, bin_ in drawn:
            if answer == UNPARSED:
                unparsed[arm] += 1
            else:
                votes.setdefault(answer, Counter())[2 * arm + bin_] += 1
    vectors = sorted(tuple(one[c] for c in range(4)) for one in votes.values())
    return tuple(vectors), tuple(unparsed)


def describe(row: int) -> State:
    table = coloured_states(COLOURS)
    vectors = [
        tuple(table.types[kind].tolist())
        for kind in np.flatnonzero(table.classes[row])
        for _ in range(table.classes[row, kind])
    ]
    return tuple(sorted(vectors)), tuple(table.unparsed[row].tolist())


def values_of(rows: list[Question]) -> StateValues:
    """Measure questions, with the class of the most votes as the answer; ties go to any of them."""
    measured = measure_samples(encode(rows), COLOURS)
    total = measured.sum(np.zeros(len(rows), dtype=np.int64), 1)
    table = measured.states
    state, kind = table.pairs
    votes = table.types[kind].sum(axis=1)
    most = np.zeros(len(table), dtype=np.int64)
    np.maximum.at(most, state, votes)
    leads = votes == most[state]
    ties = np.bincount(state, leads * table.classes[state, kind], minlength=len(table))
    correct = np.bincount(state, leads * total.correct[:, 0], minlength=len(table))
    share = correct / np.maximum(ties, 1)
    return StateValues(total.mass, share[:, None], total.cost)


def majority(seen: list[list[Sample]]) -> Fraction:
    votes = Counter(a for drawn in seen for a, _ in drawn if a != UNPARSED)
    if not votes:
        return Fraction(0)
    leaders = [a for a, n in votes.items() if n == max(votes.values())]
    return Fraction(int(0 in leaders), len(leaders))


def orders(rows: list[Question]) -> list[tuple[int, list[list[Sample]]]]:
    return [
        (q, [list(first), list(second)])
        for q, (one, two) in enumerate(rows)
        for first in itertools.permutations(one)
        for second in itertools.permutations(two)
    ]


def run(rows: list[Question], plan: ActionArray) -> tuple[float, float, Counter[State]]:
    """Follow a plan on every order of the samples: mean accuracy, mean cost, visits."""
    action_of = {describe(row): int(plan[row, 0]) for row in range(len(plan))}
    accuracy, cost, visits = Fraction(0), 0.0, Counter[State]()
    every = orders(rows)
    for _, order in every:
        n = [0, 0]
        while True:
            seen = [order[0][: n[0]], order[1][: n[1]]]
            state = observe(seen)
            visits[state] += 1
            action = action_of[state]
            if action == STOP:
                accuracy += majority(seen)
                break
            cost += COSTS[action - 1]
            n[action - 1] += 1
    return float(accuracy) / len(every), cost / len(every), visits


def best_value(rows: list[Question], price: float) -> float:
    """Value of the best rule that sees only states, by recursion over the orders of each."""

    def value(state_orders: list[tuple[int, list[list[Sample]]]], n: tuple[int, int]) -> float:
        # All orders here are in the same state: what they have seen cannot tell them apart.
        best = -np.inf
        if any(n):
            seen = [[order[0][: n[0]], order[1][: n[1]]] for _, order in state_orders]
            best = sum(float(majority(one)) for one in seen)
        for arm in range(2):
            if n[arm] == 3:
                continue
            after = (n[0] + (arm == 0), n[1] + (arm == 1))
            groups: dict[State, list[tuple[int, list[list[Sample]]]]] = {}
            for q, order in state_orders:
                key = observe([order[0][: after[0]], order[1][: after[1]]])
                groups.setdefault(key, []).append((q, order))
            total = sum(value(group, after) for group in groups.values())
            best = max(best, total - price * COSTS[arm] * len(state_orders))
        return float(best)

    every = orders(rows)
    return value(every, (0, 0)) / len(every)


@settings(max_examples=25, deadline=None)
@given(questions)
def test_measure_equals_counting_over_all_orders(rows: list[Question]) -> None:
    measured = measure_samples(encode(rows), COLOURS)
    total = measured.sum(np.arange(len(rows)), len(rows))
    number = {describe(row): row for row in range(len(measured.states))}
    expected = np.zeros(total.mass.shape)
    per_question = len(orders(rows)) // len(rows)
    for q, order in orders(rows):
        for n in itertools.product(range(4), repeat=2):
            expected[number[observe([order[0][: n[0]], order[1][: n[1]]])], q] += 1
    assert total.mass == pytest.approx(expected / per_question, abs=1e-12)


@settings(max_examples=15, deadline=None)
@given(questions, st.sampled_from([0.0, 0.01, 0.05, 0.2]))
def test_plan_equals_brute_force(rows: list[Question], price: float) -> None:
    values = values_of(rows)
    table = coloured_states(COLOURS)
    plan = make_plan(table, values, price)
    taken = occupancy(table, plan)
    n = len(rows)
    accuracy = float((taken.stop * values.correct).sum()) / n
    cost = float((taken.go * values.cost).sum()) / n
    followed_accuracy, followed_cost, visits = run(rows, plan)
    assert accuracy == pytest.approx(followed_accuracy, abs=1e-12)
    assert cost == pytest.approx(followed_cost, abs=1e-12)
    reached = (taken.stop + taken.go.sum(axis=0))[:, 0] * values.mass[:, 0] / n
    for row in np.flatnonzero(reached > 0):
        assert visits[describe(int(row))] / len(orders(rows)) == pytest.approx(
            reached[row], abs=1e-12
        )
    assert accuracy - price * cost == pytest.approx(best_value(rows, price), abs=1e-9)


@settings(max_examples=25, deadline=None)
@given(questions, st.lists(st.floats(0.0, 1.0), min_size=2, max_size=6))
def test_expected_cost_never_rises_with_the_price(
    rows: list[Question], prices: list[float]
) -> None:
    values = values_of(rows)
    table = coloured_states(COLOURS)
    costs = []
    for price in sorted(prices):
        taken = occupancy(table, make_plan(table, values, price))
        costs.append(float((taken.go * values.cost).sum()))
    assert (np.diff(costs) <= 1e-9).all()


def test_cost_of_the_next_sample_depends_on_the_state() -> None:
    samples = encode([([(0, 0), (0, 0), (1, 0)], [(0, 0)] * 3)])
    first_arm = np.where(samples.arm == 0, np.where(samples.answer == 1, 7.0, 1.0), 2.0)
    measured = measure_samples(
        ColouredSamples(
            samples.offsets,
            samples.arm,
            samples.colour,
            samples.answer,
            samples.accuracy,
            first_arm,
        ),
        COLOURS,
    )
    total = measured.sum(np.zeros(1, dtype=np.int64), 1)
    number = {describe(row): row for row in range(len(measured.states))}
    empty = number[(), (0, 0)]
    assert total.cost[0, empty, 0] == pytest.approx(3.0)
    # One vote of the first arm: the mean over both kinds of first samples, (4 + 4 + 1) / 3.
    one = number[((1, 0, 0, 0),), (0, 0)]
    assert total.cost[0, one, 0] == pytest.approx(3.0)
    two = number[((2, 0, 0, 0),), (0, 0)]
    assert total.cost[0, two, 0] / total.mass[two, 0] == pytest.approx(7.0)


def test_one_colour_equals_vote_states() -> None:
    rng = np.random.default_rng(0)
    n_questions, n_samples, cap = 40, 9, 6
    answer = rng.integers(UNPARSED, 4, n_questions * n_samples)
    offsets = np.arange(n_questions + 1) * n_samples
    answers = Answers(offsets, answer, answer == 0)
    none = np.zeros(len(answer), dtype=np.int64)
    coloured = ColouredSamples(
        offsets, none, none, answer, answers.class_accuracy, np.ones(len(answer))
    )
    measured = measure_samples(coloured, Colours((cap,), (1,)))
    total = measured.sum(np.zeros(n_questions, dtype=np.int64), 1)
    old = measure_states(answers, cap).map(lambda one: one.sum(axis=1, keepdims=True))
    table, every = measured.states, states()
    number = {
        (votes, int(unparsed)): i
        for i, (votes, unparsed) in enumerate(zip(every.votes, every.n_unparsed, strict=True))
    }
    same = []
    for row in range(len(table)):
        votes = [
            int(table.types[kind, 0])
            for kind in np.flatnonzero(table.classes[row])
            for _ in range(table.classes[row, kind])
        ]
        same.append(number[tuple(sorted(votes, reverse=True)), int(table.unparsed[row, 0])])
    assert total.mass == pytest.approx(old.mass[same], abs=1e-12)
    assert total.cost[0] == pytest.approx(old.mass[same], abs=1e-12)
    values = StateValues(total.mass, old.correct_mass[same], total.cost)
    limit = break_even_prices(old, np.geomspace(1.0, 1e-6, 20_001))
    for price in (0.3, 0.1, 0.03, 0.01, 0.001):
        taken = occupancy(table, make_plan(table, values, price))
        stop, go = index_occupancy(limit, np.array([price]))
        accuracy = float((stop[:, 0, 0] * old.correct_mass[:, 0]).sum())
        cost = float((go[:, 0, 0] * old.mass[:, 0]).sum())
        assert float((taken.stop * values.correct).sum()) == pytest.approx(accuracy, abs=1e-12)
        assert float((taken.go[0] * values.cost[0]).sum()) == pytest.approx(cost, abs=1e-12)
