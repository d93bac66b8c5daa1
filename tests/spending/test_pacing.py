from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from adacompute.core.errors import ConfigError, InfeasibleBudget
from adacompute.spending.pacing import Counters, Gains, Pacer, PacingState, PriceCurve


def deviation_bound(pacer: Pacer, budget: float) -> float:
    """Return the bound of the debt at a constant budget; the module of pacers has its proof."""
    curve, delay = pacer.curve, 1 + pacer.max_in_flight
    span = math.log(curve.max_budget / curve.min_budget)
    step = pacer.max_cost + 3 * pacer.gains.max_payback * budget
    return budget / pacer.gain * span + delay * step


CURVE = PriceCurve((1.0, 2.0, 4.0, 8.0), (0.8, 0.1, 0.02, 0.001))
PACER = Pacer(CURVE, max_cost=16)
TARGET = 2.0
QUICK = Gains(correction=0.05)

Cost = Callable[[float], float]


def run(
    pacer: Pacer, state: PacingState, costs: list[Cost], target: float = TARGET
) -> tuple[PacingState, list[float], list[float]]:
    """Serve questions one after another; ``costs`` map the budget that was asked for to a cost."""
    spent, debts = [], []
    for cost in costs:
        spent.append(cost(pacer.budget(state)))
        n = state.settled + 1
        state = pacer.advance(state, Counters(n, n, state.spent + spent[-1]), target)
        debts.append(state.debt)
    return state, spent, debts


def scaled(factor: float) -> Cost:
    """Return questions that cost this many times what the calibration says."""
    return lambda budget: factor * budget


@given(st.floats(0.5, 10), st.floats(0.5, 10))
def test_prices_of_the_curve_fall_with_the_budget_and_stay_on_it(a: float, b: float) -> None:
    low, high = sorted((a, b))
    assert 0.8 >= CURVE.price_for(low) >= CURVE.price_for(high) >= 0.001


def test_the_curve_agrees_with_interpolation_of_the_log_price() -> None:
    for budget in np.linspace(0.5, 9, 50).tolist():
        expected = np.exp(np.interp(budget, CURVE.budgets, np.log(CURVE.prices)))
        assert CURVE.price_for(budget) == pytest.approx(float(expected))


@pytest.mark.parametrize(
    ("budgets", "prices"),
    [
        ((), ()),
        ((1.0, 2.0), (0.1,)),
        ((2.0, 1.0), (0.2, 0.1)),
        ((1.0, 2.0), (0.1, 0.2)),
        ((0.0, 2.0), (0.2, 0.1)),
        ((1.0, 2.0), (0.1, 0.0)),
        ((1.0, math.inf), (0.2, 0.1)),
    ],
)
def test_other_curves_are_refused(budgets: tuple[float, ...], prices: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError):
        PriceCurve(budgets, prices)


@pytest.mark.parametrize("factor", [0.5, 0.7, 1.0, 1.4, 1.9])
def test_drift_is_corrected_and_its_debt_is_paid_back(factor: float) -> None:
    state, spent, debts = run(PACER, PACER.start(TARGET), [scaled(factor)] * 20_000)
    assert np.mean(spent[1000:2000]) == pytest.approx(2.0, rel=0.0101)
    assert abs(debts[-1]) < 0.1
    assert PACER.budget(state) == pytest.approx(2.0 / factor, rel=1e-3)


def test_debt_is_paid_back_by_one_percent_per_question_at_most() -> None:
    in_debt = replace(PACER.start(TARGET), settled=1000, spent=2200.0, planned=2000.0)
    state, spent, debts = run(PACER, in_debt, [scaled(1.0)] * 5_000)
    assert min(spent) >= 2.0 * 0.99 - 1e-9
    assert min(spent) == pytest.approx(1.98, abs=1e-3)
    assert debts[5000 - 1] < 120
    saved = replace(in_debt, spent=1800.0)
    _, spent, _ = run(PACER, saved, [scaled(1.0)] * 5_000)
    assert max(spent) <= 2.0 * 1.01 + 1e-9
    assert state.settled == 6000


def test_a_budget_that_cannot_be_held_does_not_wind_up() -> None:
    hopeless, after = [scaled(5.0)] * 5_000, [scaled(1.0)] * 2_000
    state, spent, debts = run(PACER, PACER.start(TARGET), hopeless)
    assert PACER.price(state) == 0.8
    assert spent[-1] == 5.0
    assert debts[-1] > 14_000
    _, spent, _ = run(PACER, state, after)
    back = next(i for i, cost in enumerate(spent) if cost >= 1.9)
    assert back < 500
    assert np.mean(spent[1000:]) == pytest.approx(2.0 * 0.99, rel=0.005)


def test_too_easy_questions_do_not_wind_up_either() -> None:
    state, _, _ = run(PACER, PACER.start(TARGET), [scaled(0.1)] * 5_000)
    assert PACER.price(state) == 0.001
    _, spent, _ = run(PACER, state, [scaled(1.0)] * 1_000)
    assert next(i for i, cost in enumerate(spent) if cost <= 2.1) < 500


def test_a_new_budget_keeps_the_correction_and_the_debt() -> None:
    state, _, _ = run(PACER, PACER.start(TARGET), [scaled(1.5)] * 300)
    changed = PACER.advance(state, Counters(state.settled, state.settled, state.spent), 3.0)
    assert changed.correction == state.correction
    assert changed.debt == state.debt != 0
    assert PACER.budget(changed) == pytest.approx(1.5 * PACER.budget(state))
    _, spent, debts = run(PACER, changed, [scaled(1.5)] * 20_000, 3.0)
    assert spent[0] == pytest.approx(1.5 * 1.5 * PACER.budget(state))
    assert abs(debts[-1]) < 0.1


def test_a_new_account_starts_at_the_counters_and_keeps_the_correction() -> None:
    old, _, _ = run(PACER, PACER.start(TARGET), [scaled(1.3)] * 500)
    counters = Counters(old.settled, old.settled, old.spent)
    new = PACER.start(TARGET, counters, correction=old.correction)
    assert (new.debt, new.settled, PACER.price(new)) == (0.0, 500, PACER.price(old))
    assert PACER.advance(new, counters, TARGET) == new


def test_replicas_that_read_the_counters_at_other_times_agree() -> None:
    rng = np.random.default_rng(0)
    n, total = 20_000, np.cumsum(rng.integers(1, 5, 20_000) * 0.9)
    reads = {step: np.arange(step, n + 1, step) for step in (1, 10, 100)}
    budgets = []
    for read in reads.values():
        state = PACER.start(TARGET)
        for m in read.tolist():
            state = PACER.advance(state, Counters(m, m, float(total[m - 1])), TARGET)
        budgets.append(PACER.budget(state))
    assert budgets[1:] == pytest.approx([budgets[0]] * 2, rel=0.01)


@pytest.mark.parametrize("in_flight", [8, 64, 256])
def test_questions_in_flight_do_not_make_the_price_oscillate(in_flight: int) -> None:
    pacer = replace(PACER, max_in_flight=in_flight)
    state, waiting, budgets = pacer.start(TARGET), [], []
    for n in range(30_000):
        waiting.append(1.6 * pacer.budget(state))
        if len(waiting) > in_flight:
            spent = state.spent + waiting.pop(0)
            state = pacer.advance(state, Counters(n + 1, state.settled + 1, spent), TARGET)
        budgets.append(pacer.budget(state))
    assert min(budgets[15 * in_flight :]) > 1.25 * 0.97  # it swings after the start, and settles
    assert budgets[-1] == pytest.approx(1.25, rel=0.0101)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Gains(correction=0.0),
        lambda: Gains(payback=-0.1),
        lambda: Gains(max_payback=1.0),
        lambda: replace(PACER, max_cost=0.0),
        lambda: replace(PACER, max_in_flight=-1),
    ],
)
def test_settings_out_of_range_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(ConfigError):
        make()


@pytest.mark.parametrize("target", [math.nan, math.inf, 0.0, -1.0])
def test_a_target_that_is_not_positive_is_refused(target: float) -> None:
    with pytest.raises(InfeasibleBudget):
        PACER.start(target)
    with pytest.raises(InfeasibleBudget):
        PACER.advance(PACER.start(TARGET), Counters(1, 1, 2.0), target)


def test_a_budget_outside_of_the_frontier_is_moved_to_its_end() -> None:
    assert PACER.start(0.5) == replace(PACER.start(TARGET), target=0.5, budget=1.0)
    assert PACER.start(50.0).budget == 8.0


# Adversaries: any costs between 0 and max_cost, but at the ends of the frontier the budget is held.


def attack(pacer: Pacer, wishes: list[float], delay: list[int], *, budget: float) -> list[float]:
    """Return the debt after each settled question when costs are chosen by an adversary.

    ``wishes`` are the costs as shares of ``max_cost``; ``delay`` are how many questions may wait
    before some are settled. Questions settle in the order in which they came.
    """
    state, waiting, debts = pacer.start(budget), [], []
    limit = pacer.gains.max_payback
    for n, wish in enumerate(wishes):
        price, cost = pacer.price(state), wish * pacer.max_cost
        if price == pacer.curve.prices[0]:
            cost = min(cost, (1 - limit) * budget)
        elif price == pacer.curve.prices[-1]:
            cost = max(cost, (1 + limit) * budget)
        waiting.append(cost)
        allowed = min(pacer.max_in_flight, delay[n % len(delay)])
        n_settled = len(waiting) - allowed
        if n_settled > 0:
            spent = state.spent + sum(waiting[:n_settled])
            del waiting[:n_settled]
            state = pacer.advance(state, Counters(n + 1, state.settled + n_settled, spent), budget)
            debts.append(state.debt)
    return debts


RUNS = st.lists(st.tuples(st.floats(0, 1), st.integers(1, 400)), min_size=1, max_size=12)
DELAYS = st.lists(st.integers(0, 20), min_size=1, max_size=5)
GAINS = st.builds(Gains, st.floats(0.02, 0.3), st.floats(0, 1), st.sampled_from([0.0, 0.01, 0.1]))


@settings(max_examples=80, deadline=None)
@example([(1.0, 400)] * 3 + [(0.0, 400)] * 8, [0], Gains(0.05, 1.0), 0, 2.0)
@example([(1.0, 400), (0.0, 400)] * 6, [20, 0], Gains(0.3, 1.0, 0.1), 20, 3.0)
@given(RUNS, DELAYS, GAINS, st.integers(0, 20), st.floats(1.2, 6.0))
def test_the_debt_stays_within_the_bound_whatever_questions_cost(
    runs: list[tuple[float, int]], delay: list[int], gains: Gains, in_flight: int, budget: float
) -> None:
    pacer = Pacer(CURVE, max_cost=16, max_in_flight=in_flight, gains=gains)
    wishes = [wish for wish, length in runs for _ in range(length)]
    debts = attack(pacer, wishes, delay, budget=budget)
    assert max(map(abs, debts), default=0.0) <= deviation_bound(pacer, budget)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0, 1), DELAYS, GAINS, st.integers(0, 20))
def test_the_bound_holds_for_costs_that_change_with_every_question(
    seed: int, share: float, delay: list[int], gains: Gains, in_flight: int
) -> None:
    pacer = Pacer(CURVE, max_cost=16, max_in_flight=in_flight, gains=gains)
    wishes = (np.random.default_rng(seed).random(1500) < share).astype(float).tolist()
    debts = attack(pacer, wishes, delay, budget=2.0)
    assert max(map(abs, debts), default=0.0) <= deviation_bound(pacer, 2.0)


def test_the_bound_is_not_much_larger_than_what_an_adversary_reaches() -> None:
    pacer = Pacer(CURVE, max_cost=16, gains=QUICK)
    debts = attack(pacer, [0.0] * 6_000 + [1.0] * 6_000, [0], budget=2.0)
    assert max(map(abs, debts)) > 0.5 * deviation_bound(pacer, 2.0)
