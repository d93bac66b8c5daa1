"""Fitted values of a policy: one decision in two forms, saved tables, and damaged ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adacompute.core.answers import UNPARSED, Answers
from adacompute.core.errors import BundleError, DataError
from adacompute.core.states import StateMeasure
from adacompute.core.types import FloatArray, IntArray, Level
from adacompute.policies.bundles.bundle import Bundle, load_bundle, save_bundle
from adacompute.policies.bundles.bundle_files import TABLES, unpack_tables
from adacompute.policies.bundles.sequential_tables import from_spec, to_spec
from adacompute.policies.confidence import equal_confidence
from adacompute.policies.policy import SampleEvidence, SeenSamples
from adacompute.policies.price_schedule import PriceSchedule
from adacompute.policies.sequential.advantage_fit import TrainingOrders, fit_advantages
from adacompute.policies.sequential.arm_samples import Grid, OrderedSamples, list_counts
from adacompute.policies.sequential.fitted_values import (
    FREE,
    FittedValues,
    RoundLimits,
    n_described,
    table_shapes,
)
from adacompute.policies.sequential.fitted_values import (
    TABLES as VALUE_TABLES,
)
from adacompute.policies.sequential.induction import break_even_prices
from adacompute.policies.sequential.policy import SequentialPolicy
from adacompute.policies.sequential.prior import Prior, pooled_prior
from adacompute.policies.sequential.vote_table import VoteTable
from adacompute.policies.spec import PolicySpec
from adacompute.sampling.session import ParsedAnswer, Request, Session
from adacompute.storage.array_files import pack_arrays
from test_support.episodes import number_classes
from test_support.states import measure_states

PRICES = (0.5, 0.1, 0.03, 0.01, 0.001)
N_CELLS, N_ROWS = 3, 40
FEATURES = np.zeros((1, 2), dtype=np.float32)
Change = Callable[[dict[str, FloatArray]], object]
"""Changes the tables of a saved policy."""

SHAPES: list[tuple[tuple[int, ...], int]] = [
    ((6,), 4),
    ((6,), 6),
    ((6,), 0),
    ((3, 3), 0),
    ((2, 1, 2), 0),
]
"""Largest numbers of samples of each arm, and samples in the table of votes."""


def make_orders(seed: int, caps: tuple[int, ...], *, equal: bool = False) -> OrderedSamples:
    """Random samples; if ``equal``, every sample counts once, so that answers are often tied."""
    rng, size = np.random.default_rng(seed), sum(caps)
    answer = rng.choice([UNPARSED, 0, 1, 2, 3], (N_ROWS, size), p=[0.15, 0.4, 0.2, 0.15, 0.1])
    label = [number_classes(None if a == UNPARSED else a for a in row) for row in answer.tolist()]
    log_odds = rng.normal(size=(N_ROWS, size))
    return OrderedSamples(
        label=np.array(label),
        accuracy=rng.random((N_ROWS, 5)),
        log_odds=log_odds,
        weight=np.ones((N_ROWS, size)) if equal else np.exp(log_odds),
        cost=rng.uniform(0.5, 1.5, (N_ROWS, size)),
        max_samples=caps,
    )


def make_values(
    rng: np.random.Generator, caps: tuple[int, ...], n_text: int, rounds: RoundLimits = FREE
) -> FittedValues:
    """Random regressions, of numbers that are saved exactly; lower prices have more to gain."""
    shapes = table_shapes(Grid(caps), rounds, n_described(len(caps), n_text), len(PRICES))
    tables = [rng.normal(0.0, 0.3, shapes[name]) for name in VALUE_TABLES]
    tables[-1] = 3 * tables[-1]
    tables[-1][:, :, :, 0] += np.linspace(-0.5, 0.5, len(PRICES))
    found = (one.astype(np.float32).astype(np.float64) for one in tables)
    return FittedValues(caps, rounds, *found)


def make_table(rng: np.random.Generator, prior: Prior, n_samples: int) -> VoteTable:
    """Vote states of random questions, of which every cell has some."""
    measures = []
    for share in np.linspace(0.3, 0.8, len(prior.cell_centre)):
        rest = (0.95 - share) / 2
        answer = rng.choice([UNPARSED, 0, 1, 2], (12, 8), p=[0.05, share, rest, rest])
        own = measure_states(Answers.of(answer.tolist(), (answer == 0).tolist()), n_samples)
        measures.append(own.map(lambda one: one.mean(axis=1, keepdims=True)))
    names = ("mass", "correct_mass")
    both = [np.hstack([getattr(one, name) for one in measures]) for name in names]
    measure = StateMeasure(*(one.astype(np.float32).astype(np.float64) for one in both))
    return VoteTable(break_even_prices(measure).astype(np.float32), measure)


def make_levels_of_arms(caps: tuple[int, ...]) -> tuple[Level, ...]:
    return tuple(
        Level(f"{arm} × {n}", n, None if len(caps) == 1 else str(arm))
        for arm, cap in enumerate(caps)
        for n in list_counts(cap)[1:]
    )


def make_policy(
    seed: int,
    caps: tuple[int, ...],
    n_table: int = 0,
    *,
    uniform: bool = False,
    rounds: RoundLimits = FREE,
) -> SequentialPolicy:
    """A policy with random tables; if ``uniform``, with a uniform choice at some prices."""
    rng = np.random.default_rng(seed)
    prior = Prior(
        mean=np.zeros(2, dtype=np.float32),
        scale=np.ones(2, dtype=np.float32),
        slope=np.eye(2, dtype=np.float32),
        cell_centre=rng.normal(size=(N_CELLS, 2)).astype(np.float32),
    )
    chosen = np.zeros((len(PRICES), 2), dtype=np.int64)
    if uniform:
        chosen[1], chosen[3] = (len(caps) - 1, caps[-1]), (0, 1)
    return SequentialPolicy(
        arms=tuple(f"arm {i}" for i in range(len(caps))),
        levels=make_levels_of_arms(caps),
        confidence=equal_confidence(len(caps)),
        prior=prior,
        schedule=PriceSchedule(PRICES),
        values=make_values(rng, caps, 2, rounds),
        uniform=chosen,
        sample_cost=tuple(np.linspace(1.0, 2.0, len(caps)).tolist()),
        table=make_table(rng, prior, n_table) if n_table else None,
    )


class Walk(NamedTuple):
    """Where one order ends, and in how many rounds."""

    position: int
    n_rounds: int


def walk(
    policy: SequentialPolicy,
    orders: OrderedSamples,
    row: int,
    price: float,
    cell: int = 0,
    key: int = 1,
) -> Walk:
    """Ask ``next_level`` after every round of one order."""
    values = policy.fitted
    start = np.cumsum((0, *policy.max_by_arm)).tolist()
    arm, answer, evidence = list[int](), list[int](), SampleEvidence([], [])
    rounds_left = values.rounds.limit or 1000
    for n_rounds in range(sum(policy.max_by_arm) + 1):
        known: dict[str, Any] = {"price": price, "key": key, "cell": cell}
        left = rounds_left - n_rounds
        found = policy.next_level(SeenSamples(arm, answer, evidence), **known, rounds_left=left)
        if found is None or left == 0:
            position = values.grid.find([arm.count(a) for a in range(len(policy.arms))])
            return Walk(position, n_rounds)
        level, total = found
        own = policy.arm_of_level(level)
        assert total > len(arm)
        while len(arm) < total:
            column = start[own] + arm.count(own)
            arm.append(own)
            answer.append(int(orders.label[row, column]))
            evidence.add(float(orders.log_odds[row, column]), float(orders.weight[row, column]))
        assert arm.count(own) == policy.levels[level].n_samples
    raise AssertionError("the policy does not stop")


def check_two_forms(policy: SequentialPolicy, orders: OrderedSamples) -> IntArray:
    """Compare decisions about single questions with those about all at once; return the ends."""
    cell = np.arange(N_ROWS) % len(policy.prior.cell_centre)
    ends = policy.find_ends(orders, cell)
    assert ends.position.shape == (N_ROWS, len(PRICES))
    for setting, price in enumerate(PRICES):
        for row in range(N_ROWS):
            found = walk(policy, orders, row, price, int(cell[row]))
            assert found.position == ends.position[row, setting]
            assert found.n_rounds == ends.n_rounds[row, setting]
    return ends.position


def find(
    policy: SequentialPolicy, orders: OrderedSamples, cell: IntArray | None = None
) -> IntArray:
    """Return the positions at which orders end."""
    cell = np.zeros(N_ROWS, np.int64) if cell is None else cell
    return policy.find_ends(orders, cell).position


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    shape=st.sampled_from(SHAPES),
    uniform=st.booleans(),
    equal=st.booleans(),
    rounds=st.sampled_from(
        [FREE, RoundLimits(1), RoundLimits(2), RoundLimits(3), RoundLimits(None, 0.5)]
    ),
)
def test_one_decision_in_two_forms(
    *,
    seed: int,
    shape: tuple[tuple[int, ...], int],
    uniform: bool,
    equal: bool,
    rounds: RoundLimits,
) -> None:
    caps, n_table = shape
    if len(caps) > 1 and equal:
        return
    n_table = n_table if rounds.are_free else 0
    policy = make_policy(seed, caps, n_table, uniform=uniform, rounds=rounds)
    check_two_forms(policy, make_orders(seed + 1, caps, equal=equal))


def test_one_decision_in_two_forms_where_answers_of_several_arms_are_tied() -> None:
    for seed in range(3):
        for caps in ((3, 3), (2, 1, 2)):
            check_two_forms(make_policy(seed, caps), make_orders(seed + 1, caps, equal=True))


@pytest.mark.parametrize(("caps", "n_table"), SHAPES)
def test_these_policies_end_at_many_positions(caps: tuple[int, ...], n_table: int) -> None:
    """The comparison of both forms would mean little if all questions had the same end."""
    end = find(make_policy(3, caps, n_table), make_orders(4, caps))
    assert len(np.unique(end)) > sum(caps) // 2
    assert (end > 0).all()  # one sample is always drawn


def test_between_two_prices_each_question_takes_one_of_both() -> None:
    policy, orders = make_policy(5, (3, 3)), make_orders(6, (3, 3))
    end, price = find(policy, orders), 0.018
    assert policy.schedule is not None
    chosen = [policy.schedule.select_one(price, key) for key in range(N_ROWS)]
    assert set(chosen) == {2, 3}
    for row, setting in enumerate(chosen):
        assert walk(policy, orders, row, price, key=row).position == end[row, setting]


def test_uniform_choices_are_drawn_at_once_for_every_question() -> None:
    policy, orders = make_policy(7, (2, 3), uniform=True), make_orders(8, (2, 3))
    known: dict[str, Any] = {"price": PRICES[1], "key": 1, "cell": 0, "rounds_left": 9}
    assert policy.next_level(SeenSamples([], [], SampleEvidence([], [])), **known) == (4, 3)
    end = find(policy, orders)
    assert (end[:, 1] == policy.fitted.grid.find((0, 3))).all()
    assert (end[:, 3] == policy.fitted.grid.find((1, 0))).all()
    cell, keys = np.zeros((1, 1)), np.ones(1, np.uint64)
    first = [policy.first_levels(PRICES[setting], cell, keys) for setting in (1, 3)]
    assert [None if one is None else one.tolist() for one in first] == [[4], [0]]


def fit_one(seed: int, *, signal: float) -> tuple[SequentialPolicy, OrderedSamples]:
    """Fit a policy of one arm to orders, where ``signal`` is what log-odds tell of correctness."""
    caps = (5,)
    rng = np.random.default_rng(seed)
    orders = make_orders(seed, caps)
    accuracy = rng.random(orders.accuracy.shape) < 0.5
    right = np.take_along_axis(accuracy, np.maximum(orders.label, 0), axis=1)
    log_odds = orders.log_odds + signal * right
    orders = replace(orders, accuracy=accuracy.astype(float), log_odds=log_odds)
    prior = pooled_prior(0)
    every = np.arange(N_ROWS // 4)
    training = TrainingOrders(orders, every, every.astype(np.uint64), 4, np.array(PRICES))
    known = {
        "arms": ("",),
        "levels": make_levels_of_arms(caps),
        "confidence": equal_confidence(1),
        "sample_cost": (1.0,),
    }
    table = make_table(rng, prior, 4)
    return fit_advantages(training, prior, every * 0, table, known), orders


def test_fitted_policy_decides_alike_in_both_forms() -> None:
    policy, orders = fit_one(2, signal=2.0)
    end = check_two_forms(policy, orders)
    assert (np.diff(end.mean(axis=0)) >= 0).all()
    assert end[:, -1].mean() > end[:, 0].mean() + 1


@pytest.mark.parametrize(("caps", "n_table"), SHAPES)
def test_saved_policy_decides_alike(caps: tuple[int, ...], n_table: int, tmp_path: Any) -> None:
    policy, orders = make_policy(9, caps, n_table, uniform=True), make_orders(10, caps)
    other = make_policy(11, caps, n_table)
    none = pooled_prior(2)
    pooled = replace(
        other,
        prior=none,
        values=make_values(np.random.default_rng(1), caps, 0),
        table=other.table and make_table(np.random.default_rng(2), none, n_table),
    )
    policy = replace(policy, pooled=pooled)
    save_bundle(Bundle(policy), tmp_path / "bundle")
    again = load_bundle(tmp_path / "bundle").policy
    assert isinstance(again, SequentialPolicy)
    assert again.pooled is not None
    assert (again.arms, again.levels) == (policy.arms, policy.levels)
    assert again.sample_cost == policy.sample_cost
    cell = np.arange(N_ROWS) % N_CELLS
    assert (find(again, orders, cell) == find(policy, orders, cell)).all()
    assert (find(again.pooled, orders) == find(pooled, orders)).all()
    assert (find(policy, orders, cell) != find(pooled, orders)).any()


def test_fitted_policy_decides_alike_after_its_tables_are_rounded(tmp_path: Any) -> None:
    policy, orders = fit_one(3, signal=1.0)
    save_bundle(Bundle(policy), tmp_path / "bundle")
    again = load_bundle(tmp_path / "bundle").policy
    assert isinstance(again, SequentialPolicy)
    same = find(again, orders) == find(policy, orders)
    assert same.mean() > 0.99  # advantages that round to 0 may fall on either side


def damage(change: Change, n_table: int = 0) -> PolicySpec:
    """Return a saved policy whose tables were changed."""
    spec = to_spec(make_policy(1, (2,) if n_table else (2, 1), n_table))
    tables = unpack_tables(spec.files[TABLES])
    change(tables)
    content = json.loads(json.dumps(spec.content))
    return PolicySpec(spec.levels, content, {TABLES: pack_arrays(tables)})


def cut(name: str, axis: int = 0) -> Change:
    """Leave out the last entries of a table along an axis."""

    def change(tables: dict[str, FloatArray]) -> None:
        tables[name] = tables[name].take(range(tables[name].shape[axis] - 1), axis)

    return change


def put(name: str, place: tuple[int, ...], value: float) -> Change:
    """Change one number of a table."""

    def change(tables: dict[str, FloatArray]) -> None:
        tables[name][place] = value

    return change


def test_tables_that_were_not_changed_are_read() -> None:
    for n_table in (0, 2):
        from_spec(damage(lambda _: None, n_table))


@pytest.mark.parametrize(
    "change",
    [
        *(cut(f"value_{name}", axis) for name in ("mean", "scale", "chance") for axis in (0, 1)),
        *(cut("value_advantage", axis) for axis in range(5)),
        cut("uniform"),
        cut("uniform", 1),
        cut("mean"),
        cut("scale"),
        cut("slope", 1),
        cut("cell_centre", 1),
        lambda tables: tables.update(cell_centre=np.zeros((0, 2), dtype=np.float32)),
        lambda tables: tables.update(cell_centre=np.zeros(3, dtype=np.float32)),
        lambda tables: tables.update(uniform=tables["uniform"] * 1.0),
        put("value_advantage", (0, 0, 0, 0, 0), np.nan),
        put("value_chance", (1, 0), np.inf),
        put("cell_centre", (0, 0), np.nan),
        put("uniform", (0, 0), 2),
        put("uniform", (0, 0), -1),
        put("uniform", (0, 1), 3),
        put("uniform", (0, 1), -1),
    ],
)
def test_damaged_tables_are_refused(change: Change) -> None:
    with pytest.raises(BundleError):
        from_spec(damage(change))


@pytest.mark.parametrize("name", ["break_even_price", "mass", "correct_mass"])
def test_damaged_tables_of_votes_are_refused(name: str) -> None:
    for axis in (0, 1):
        with pytest.raises(BundleError):
            from_spec(damage(cut(name, axis), 2))
    with pytest.raises(BundleError, match="finite"):
        from_spec(damage(put(name, (0, 0), np.nan), 2))
    with pytest.raises(BundleError, match="damaged"):
        from_spec(damage(lambda tables: tables.pop(name), 2))


@pytest.mark.parametrize("n_samples", [-1, 1, 3, 17, 10**11])
def test_table_of_votes_must_have_its_number_of_samples(n_samples: int) -> None:
    spec = damage(lambda _: None, 2)
    content = {**spec.content, "table_samples": n_samples}
    with pytest.raises(BundleError, match=rf"{n_samples} samples"):
        from_spec(PolicySpec(spec.levels, content, dict(spec.files)))


@pytest.mark.parametrize(
    ("entry", "value", "message"),
    [
        ("max_samples", [10**6, 10**6], "cannot have"),
        ("max_samples", [0, 3], "cannot have"),
        ("max_samples", [3], "cannot have"),
        ("max_samples", [2, 2], "levels"),
        ("max_samples", [10**15, 1], "cannot have"),
        ("prices", [0.5, 0.1], "prices"),
        ("prices", np.geomspace(1, 1e-9, 300).tolist(), "at most 256 prices"),
        ("max_rounds", 0, "rounds"),
        ("max_rounds", 2, "prices"),
        ("arm_cost", [1.0, 0.0], "costs"),
    ],
)
def test_entries_that_do_not_fit_the_tables_are_refused(
    entry: str, value: object, message: str
) -> None:
    spec = damage(lambda _: None)
    content = {**spec.content, "values": {**spec.content["values"], entry: value}}
    with pytest.raises(BundleError, match=message):
        from_spec(PolicySpec(spec.levels, content, dict(spec.files)))


def test_a_table_of_votes_is_of_one_arm() -> None:
    spec = damage(lambda _: None)
    with pytest.raises(BundleError, match="one arm"):
        from_spec(PolicySpec(spec.levels, {**spec.content, "table_samples": 2}, dict(spec.files)))


def test_rounds_take_as_long_as_their_slowest_samples() -> None:
    """One sample at a time takes the sum; everything in one round takes the largest."""
    orders = make_orders(4, (6,))
    latency_s = np.random.default_rng(0).uniform(1.0, 2.0, orders.label.shape)
    cell = np.zeros(N_ROWS, np.int64)
    for rounds, combine in ((FREE, np.sum), (RoundLimits(1), np.max)):
        ends = make_policy(3, (6,), rounds=rounds).find_ends(orders, cell, latency_s)
        assert ends.latency_s is not None
        for row, n in enumerate(ends.position[:, 2].tolist()):
            assert ends.latency_s[row, 2] == pytest.approx(combine(latency_s[row, :n]))


def test_a_policy_without_a_table_and_without_values_is_refused() -> None:
    spec = damage(lambda _: None)
    content = {**spec.content, "values": None}
    for levels in ((), spec.levels):
        with pytest.raises(BundleError):
            from_spec(PolicySpec(levels, content, dict(spec.files)))


def count_rounds(bundle: Bundle, key: int) -> int:
    """Return the rounds of a session with random answers."""
    session = Session(bundle, None, price=PRICES[2], key=key, features=FEATURES)
    answers = np.random.default_rng(key).integers(0, 3, 8)
    while request := session.ask():
        start = session.n_samples
        session.tell([ParsedAnswer(str(one)) for one in answers[start : start + request.n]])
    return session.rounds


def test_a_session_takes_no_more_rounds_than_its_bundle_is_for() -> None:
    rounds = []
    for seed in range(6):
        policy = make_policy(seed, (8,), rounds=RoundLimits(2))
        both = Bundle(policy), Bundle(policy, max_rounds=2)
        rounds += [[count_rounds(one, key) for one in both] for key in range(10)]
    free, limited = np.array(rounds).max(axis=0).tolist()
    assert (free > 2, limited) == (True, 2)


def test_a_limit_that_no_question_reaches_is_none() -> None:
    free, limited = make_policy(3, (8,)), make_policy(3, (8,), rounds=RoundLimits(2))
    assert [free.plans_for(n) for n in (None, 7, 8, 1000)] == [True, False, True, True]
    assert [limited.plans_for(n) for n in (None, 1, 2, 8)] == [False, False, True, False]


def test_foreseeing_needs_all_samples_of_the_open_request() -> None:
    policy = make_policy(3, (20,), uniform=True)
    session = Session(Bundle(policy), None, price=PRICES[1], key=5, features=FEATURES)
    assert session.ask() == Request(20, None)
    with pytest.raises(DataError, match="20 samples are needed, got 17"):
        session.planned_after([0] * 17)
