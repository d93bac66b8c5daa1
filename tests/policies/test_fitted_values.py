"""Fitted values: exact on tiny problems, and nothing to correct where a table knows everything."""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest

from adacompute.core.answers import UNPARSED, Answers
from adacompute.core.states import StateMeasure, states, vote_keys
from adacompute.core.types import FloatArray, IntArray
from adacompute.policies.sequential import fitted_values
from adacompute.policies.sequential.arm_samples import OrderedSamples
from adacompute.policies.sequential.description import LEADER
from adacompute.policies.sequential.fitted_values import Described, describe_orders, fit_values
from adacompute.policies.sequential.induction import advantages
from test_support.episodes import number_classes
from test_support.states import measure_states

PRICES = np.array([0.3, 0.1, 0.02, 0.001])

Sample = tuple[int, float, float]
"""Answer, log-odds and cost of a recorded sample; answer 0 is correct."""


def enumerate_orders(questions: list[list[list[Sample]]]) -> tuple[OrderedSamples, int]:
    """Return every order of the samples of each question, arm by arm, and how many each has."""
    caps = tuple(len(arm) for arm in questions[0])
    rows = [
        [sample for arm in order for sample in arm]
        for arms in questions
        for order in itertools.product(*(itertools.permutations(arm) for arm in arms))
    ]
    answer = [[None if a == UNPARSED else a for a, _, _ in row] for row in rows]
    label = np.array([number_classes(row) for row in answer])
    accuracy = np.zeros((len(rows), max(1, int(label.max()) + 1)))
    for i, row in enumerate(answer):
        if 0 in row:
            accuracy[i, label[i, row.index(0)]] = 1.0
    log_odds, cost = (np.array([[one[k] for one in row] for row in rows]) for k in (1, 2))
    weight = np.ones(label.shape)
    samples = OrderedSamples(label, accuracy, log_odds, weight, cost, caps)
    return samples, len(rows) // len(questions)


@pytest.fixture
def without_penalties(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the regressions least squares; they are exact if there are as many numbers as groups."""
    for name in ("PENALTY", "INTERCEPT_PENALTY"):
        monkeypatch.setattr(fitted_values, name, 1e-9)
    monkeypatch.setattr(fitted_values, "CLIP", 1e9)


def expect(
    described: Described, caps: tuple[int, ...], prices: FloatArray
) -> dict[tuple[int, ...], FloatArray]:
    """Return the mean advantage of one more sample of each arm, (arms, M, prices), by position.

    The mean is over all orders that look alike at the position, group by group and in plain loops.
    """
    counts = list(itertools.product(*(range(cap + 1) for cap in caps)))
    shape = (len(described.correct), len(prices))
    value: dict[tuple[int, ...], FloatArray] = {}
    found: dict[tuple[int, ...], FloatArray] = {}
    for position, at in reversed(list(enumerate(counts))):
        groups: dict[tuple[float, ...], list[int]] = defaultdict(list)
        for row, vector in enumerate(described.vectors[position].round(9).tolist()):
            groups[tuple(vector)].append(row)
        right = described.correct[:, position]
        value[at] = np.repeat(right[:, None], len(prices), axis=1)
        found[at] = np.full((len(caps), *shape), np.nan)
        after = {}
        for arm in range(len(caps)):
            more = tuple(n + (a == arm) for a, n in enumerate(at))
            if more in value:
                paid = described.cost[:, counts.index(more)] - described.cost[:, position]
                after[arm] = value[more] - prices * paid[:, None]
        for rows, k in itertools.product(groups.values(), range(len(prices))):
            best = -np.inf if not any(at) else 0.0
            for arm, later in after.items():
                gain = float(np.mean([later[row, k] - right[row] for row in rows]))
                found[at][arm, rows, k] = gain
                if gain > best:
                    best = gain
                    value[at][rows, k] = later[rows, k]
    return found


def random_questions(seed: int, caps: tuple[int, ...], n: int) -> list[list[list[Sample]]]:
    rng = np.random.default_rng(seed)
    return [
        [
            [
                (int(rng.choice([UNPARSED, 0, 1, 2], p=[0.1, 0.5, 0.2, 0.2])), 0.0, 1.0 + 0.1 * q)
                for _ in range(cap)
            ]
            for cap in caps
        ]
        for q in range(n)
    ]


@pytest.mark.usefixtures("without_penalties")
@pytest.mark.parametrize("caps", [(4,), (2, 2)], ids=["one", "two"])
@pytest.mark.parametrize("seed", range(4))
def test_advantages_are_the_means_of_all_orders_that_look_alike(
    caps: tuple[int, ...], seed: int
) -> None:
    samples, n_orders = enumerate_orders(random_questions(seed, caps, 8))
    text = np.empty((len(samples.label), 0))
    described = describe_orders(samples, text, n_orders)
    fitted = fit_values(described, PRICES, caps)
    expected = expect(described, caps, PRICES)
    for position, counts in enumerate(fitted.grid.counts.tolist()):
        vector = described.vectors[position]
        found = fitted.advantages(position, vector, text)
        for arm, own in enumerate(expected[tuple(counts)]):
            if counts[arm] < caps[arm]:
                assert found[arm] == pytest.approx(own, abs=1e-5)
                for k in range(len(PRICES)):
                    for row in (0, len(vector) - 1):
                        one = fitted.advantages_of_one(position, vector[row], text[row], k)
                        assert one[arm] == pytest.approx(found[arm, row, k], abs=1e-9)


def vote_states(samples: OrderedSamples) -> IntArray:
    return states().find(vote_keys(samples.label))


def test_where_votes_tell_everything_the_table_needs_no_correction() -> None:
    """The exact table and the regression compute the same, so nothing is left to learn."""
    questions = random_questions(5, (5,), 6)
    questions = [[[(a, 0.0, 1.0) for a, _, _ in arm] for arm in arms] for arms in questions]
    samples, n_orders = enumerate_orders(questions)
    answer = np.array([[a for a, _, _ in arms[0]] for arms in questions])
    own = measure_states(Answers.of(answer.tolist(), (answer == 0).tolist()), 5)
    measure = StateMeasure(*(one.mean(axis=1, keepdims=True) for one in _tables(own)))
    table, state = advantages(measure, PRICES)[:, 0], vote_states(samples)
    described = describe_orders(samples, np.empty((len(state), 0)), n_orders)

    def exact(rows: IntArray, n_samples: int) -> FloatArray:
        return np.asarray(table[state[rows, n_samples]])

    fitted = fit_values(described, PRICES, (5,), exact)
    assert np.abs(fitted.advantage).max() < 1e-7  # values are kept in single precision
    assert np.abs(fit_values(described, PRICES, (5,)).advantage).max() > 0.01
    # A table that knows less leaves the rest to the regression.
    worse = fit_values(described, PRICES, (5,), lambda rows, n: exact(rows, n) * 0.5)
    assert np.abs(worse.advantage).max() > 0.01


def _tables(measure: StateMeasure) -> tuple[FloatArray, FloatArray]:
    return measure.mass, measure.correct_mass


def test_accuracy_and_cost_of_every_position_are_described() -> None:
    questions: list[list[list[Sample]]] = [[[(0, 0.0, 1.0), (1, 0.0, 2.0)], [(0, 0.0, 5.0)]]]
    samples, n_orders = enumerate_orders(questions)
    described = describe_orders(samples, np.empty((2, 0)), n_orders)
    # Positions: none, one of the second arm, then one and two of the first, without and with it.
    assert described.correct.tolist() == [[0, 1, 1, 1, 0.5, 1], [0, 1, 0, 0.5, 0.5, 1]]
    assert described.cost.tolist() == [[0, 5, 1, 6, 3, 8], [0, 5, 2, 7, 3, 8]]
    assert described.weight == 0.5
    (second,) = described.take(np.array([1])).cost.tolist()
    assert second == [0, 5, 2, 7, 3, 8]


def test_text_and_confidence_are_learned_from() -> None:
    """One of two questions needs a second sample: the text says which, or its log-odds do."""
    rng = np.random.default_rng(1)
    sure: list[list[Sample]] = [[(0, 2.0, 1.0), (0, 2.0, 1.0), (0, 2.0, 1.0)]]
    open_: list[list[Sample]] = [[(0, -2.0, 1.0), (0, -2.0, 1.0), (1, -2.0, 1.0)]]
    samples, n_orders = enumerate_orders([sure, open_] * 60)
    is_open = np.repeat(np.tile([0.0, 1.0], 60), n_orders)[:, None]
    noise = rng.normal(size=is_open.shape)
    silent = replace(samples, log_odds=samples.log_odds * 0)
    gain = {}
    for name, own, text in (
        ("nothing", silent, noise),
        ("text", silent, is_open),
        ("confidence", samples, noise),
    ):
        described = describe_orders(own, text, n_orders)
        fitted = fit_values(described, np.array([0.05]), (3,))
        found = fitted.advantages(1, described.vectors[1], text)[0, :, 0]
        gain[name] = found[is_open[:, 0] == 1].mean() - found[is_open[:, 0] == 0].mean()
        assert described.vectors[1][:, LEADER].any() == (name == "confidence")
    assert abs(gain["nothing"]) < 0.02
    assert gain["text"] > 0.05
    assert gain["confidence"] > 0.05


def test_copies_of_orders_count_once() -> None:
    samples, n_orders = enumerate_orders(random_questions(3, (3,), 6))
    none = np.empty((len(samples.label), 0))
    once = fit_values(describe_orders(samples, none, n_orders), PRICES, (3,))
    twice = np.repeat(np.arange(len(none)), 2)
    described = describe_orders(samples.take(twice), none[twice], 2 * n_orders)
    again = fit_values(described, PRICES, (3,))
    assert again.advantage == pytest.approx(once.advantage, abs=1e-6)
    assert again.chance == pytest.approx(once.chance, abs=1e-6)
