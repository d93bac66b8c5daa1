from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from adacompute.core.errors import BundleError
from adacompute.core.types import FloatArray
from adacompute.policies.policy import mixing_uniform
from adacompute.policies.price_schedule import PriceSchedule, fit_price_schedule


def falling(steps: list[float]) -> PriceSchedule:
    return PriceSchedule(tuple(np.exp(-np.cumsum(steps)).tolist()))


dials = st.lists(st.floats(0.01, 5), min_size=1, max_size=6).map(falling)
settings = st.lists(
    st.tuples(
        st.integers(1, 12), st.one_of(st.integers(0, 6).map(lambda n: n / 6), st.floats(0, 1))
    ),
    min_size=1,
    max_size=7,
)


@given(dials, st.floats(0, 1))
def test_the_price_of_a_place_leads_back_to_that_place(dial: PriceSchedule, share: float) -> None:
    place = share * (len(dial.prices) - 1)
    first, rest = dial.position(dial.price_at(place))
    assert first + rest == pytest.approx(place, abs=1e-6)
    assert 0 <= rest < 1


@given(dials)
def test_every_setting_stands_alone_at_its_own_price(dial: PriceSchedule) -> None:
    everyone = np.linspace(0, 1, 11)
    for setting, price in enumerate(dial.prices):
        assert (dial.select(price, everyone[1:]) == setting).all()
        assert dial.price_at(setting) == pytest.approx(price)


@given(dials, st.floats(0, 1), st.floats(0, 1))
def test_a_lower_price_never_turns_a_question_back(dial: PriceSchedule, a: float, b: float) -> None:
    low, high = sorted([dial.price_at(x * (len(dial.prices) - 1)) for x in (a, b)])
    ticket = np.linspace(0, 1, 23)
    assert (dial.select(low, ticket) >= dial.select(high, ticket)).all()


@given(dials, st.floats(0, 1))
def test_low_tickets_take_the_dearer_setting(dial: PriceSchedule, share: float) -> None:
    setting = dial.select(dial.price_at(share * (len(dial.prices) - 1)), np.linspace(0, 1, 23))
    assert (np.diff(setting) <= 0).all()
    assert setting[0] - setting[-1] <= 1


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.93])
def test_between_two_settings_the_share_of_questions_is_that_of_the_place(share: float) -> None:
    dial = PriceSchedule((0.4, 0.1, 0.01))
    ticket = mixing_uniform(np.arange(50_000, dtype=np.uint64))
    setting = dial.select(dial.price_at(1 + share), ticket)
    assert set(setting.tolist()) <= {1, 2}
    assert (setting == 2).mean() == pytest.approx(share, abs=0.01)


@pytest.mark.parametrize(
    ("price", "setting"), [(math.inf, 0), (5.0, 0), (1e-9, 1), (0.0, 1), (-1.0, 1)]
)
def test_beyond_its_prices_a_dial_stays_at_its_end(price: float, setting: int) -> None:
    assert PriceSchedule((0.4, 0.1)).position(price) == (setting, 0.0)


@pytest.mark.parametrize(
    "prices",
    [(), (0.1, 0.4), (0.4, 0.4), (0.4, 0.0), (0.4, -0.1), (math.nan,), (math.inf, 1.0)],
)
def test_prices_that_do_not_fall_above_zero_are_refused(prices: tuple[float, ...]) -> None:
    with pytest.raises(BundleError, match="must be finite, decreasing and above 0"):
        PriceSchedule(prices)


def best_at(cost: FloatArray, utility: FloatArray) -> list[set[int]]:
    """Find the best settings at every price at which the best one may change, and between them."""
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = (utility[:, None] - utility) / (cost[:, None] - cost)
    at = np.unique(slope[np.isfinite(slope) & (slope > 1e-12)])
    ends = at[:1] / 2, at, (at[1:] + at[:-1]) / 2, at[-1:] * 2, [1.0]
    found = []
    for price in np.concatenate(ends):
        net = utility - price * cost
        found.append(set(np.flatnonzero(net >= net.max() - 1e-12).tolist()))
    return found


@given(settings)
def test_a_dial_turns_through_the_upper_concave_hull(points: list[tuple[int, float]]) -> None:
    cost, utility = (np.array(column, dtype=np.float64) for column in zip(*points, strict=True))
    assume(len(np.unique(utility)) < 2 or np.diff(np.unique(utility)).min() > 1e-9)
    kept, dial = fit_price_schedule(cost, utility)
    assert len(kept) == len(dial.prices)
    assert (np.diff(cost[kept]) > 0).all()
    assert (np.diff(utility[kept]) > 0).all()
    best = best_at(cost, utility)
    worth = {(cost[i], utility[i]) for i in kept}
    alone = {next(iter(at)) for at in best if len(at) == 1}
    assert all((cost[i], utility[i]) in worth for i in alone)
    assert all(any(i in at for at in best) for i in kept.tolist())


@given(settings)
def test_at_its_price_no_other_setting_is_better(points: list[tuple[int, float]]) -> None:
    cost, utility = (np.array(column, dtype=np.float64) for column in zip(*points, strict=True))
    assume(len(np.unique(utility)) < 2 or np.diff(np.unique(utility)).min() > 1e-9)
    kept, dial = fit_price_schedule(cost, utility)
    for setting, price in zip(kept, dial.prices, strict=True):
        net = utility - price * cost
        assert net[setting] >= net[kept].max() - 1e-7


def test_settings_on_a_straight_line_get_prices_of_their_own() -> None:
    kept, dial = fit_price_schedule(np.array([1.0, 2.0, 3.0]), np.array([0.25, 0.5, 0.75]))
    assert kept.tolist() == [0, 1, 2]
    assert dial.position(dial.prices[1]) == (1, 0.0)


def test_one_setting_that_nothing_improves_on_is_a_dial_of_one() -> None:
    kept, dial = fit_price_schedule(np.array([2.0, 1.0]), np.array([0.5, 0.5]))
    assert kept.tolist() == [1]
    assert dial.position(0.3) == (0, 0.0)
