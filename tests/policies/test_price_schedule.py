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


schedules = st.lists(st.floats(0.01, 5), min_size=1, max_size=6).map(falling)
settings = st.lists(
    st.tuples(
        st.integers(1, 12), st.one_of(st.integers(0, 6).map(lambda n: n / 6), st.floats(0, 1))
    ),
    min_size=1,
    max_size=7,
)


@given(schedules, st.floats(0, 1))
def test_price_at_inverts_position(schedule: PriceSchedule, share: float) -> None:
    position = share * (len(schedule.prices) - 1)
    first, rest = schedule.position(schedule.price_at(position))
    assert first + rest == pytest.approx(position, abs=1e-6)
    assert 0 <= rest < 1


@given(schedules)
def test_at_its_own_price_a_setting_is_not_mixed(schedule: PriceSchedule) -> None:
    everyone = np.linspace(0, 1, 11)
    for setting, price in enumerate(schedule.prices):
        assert (schedule.select(price, everyone[1:]) == setting).all()
        assert schedule.price_at(setting) == pytest.approx(price)


@given(schedules, st.floats(0, 1), st.floats(0, 1))
def test_a_lower_price_never_selects_a_cheaper_setting(
    schedule: PriceSchedule, a: float, b: float
) -> None:
    low, high = sorted([schedule.price_at(x * (len(schedule.prices) - 1)) for x in (a, b)])
    uniform = np.linspace(0, 1, 23)
    assert (schedule.select(low, uniform) >= schedule.select(high, uniform)).all()


@given(schedules, st.floats(0, 1))
def test_low_numbers_take_the_more_expensive_setting(schedule: PriceSchedule, share: float) -> None:
    setting = schedule.select(
        schedule.price_at(share * (len(schedule.prices) - 1)), np.linspace(0, 1, 23)
    )
    assert (np.diff(setting) <= 0).all()
    assert setting[0] - setting[-1] <= 1


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.93])
def test_the_mixed_share_is_that_of_the_position(share: float) -> None:
    schedule = PriceSchedule((0.4, 0.1, 0.01))
    uniform = mixing_uniform(np.arange(50_000, dtype=np.uint64))
    setting = schedule.select(schedule.price_at(1 + share), uniform)
    assert set(setting.tolist()) <= {1, 2}
    assert (setting == 2).mean() == pytest.approx(share, abs=0.01)


@pytest.mark.parametrize(
    ("price", "setting"), [(math.inf, 0), (5.0, 0), (1e-9, 1), (0.0, 1), (-1.0, 1)]
)
def test_prices_outside_the_schedule_select_its_ends(price: float, setting: int) -> None:
    assert PriceSchedule((0.4, 0.1)).position(price) == (setting, 0.0)


@pytest.mark.parametrize(
    "prices",
    [(), (0.1, 0.4), (0.4, 0.4), (0.4, 0.0), (0.4, -0.1), (math.nan,), (math.inf, 1.0)],
)
def test_prices_must_decrease_and_be_positive(prices: tuple[float, ...]) -> None:
    with pytest.raises(BundleError, match="must be finite, decreasing and above 0"):
        PriceSchedule(prices)


def best_at(cost: FloatArray, utility: FloatArray) -> list[set[int]]:
    """Return the best settings at all prices where the best one may change, and between them."""
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
def test_a_schedule_contains_the_upper_concave_hull(points: list[tuple[int, float]]) -> None:
    cost, utility = (np.array(column, dtype=np.float64) for column in zip(*points, strict=True))
    assume(len(np.unique(utility)) < 2 or np.diff(np.unique(utility)).min() > 1e-9)
    kept, schedule = fit_price_schedule(cost, utility)
    assert len(kept) == len(schedule.prices)
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
    kept, schedule = fit_price_schedule(cost, utility)
    for setting, price in zip(kept, schedule.prices, strict=True):
        net = utility - price * cost
        assert net[setting] >= net[kept].max() - 1e-7


def test_settings_on_a_straight_line_get_different_prices() -> None:
    kept, schedule = fit_price_schedule(np.array([1.0, 2.0, 3.0]), np.array([0.25, 0.5, 0.75]))
    assert kept.tolist() == [0, 1, 2]
    assert schedule.position(schedule.prices[1]) == (1, 0.0)


def test_a_dominating_setting_gives_a_schedule_of_one() -> None:
    kept, schedule = fit_price_schedule(np.array([2.0, 1.0]), np.array([0.5, 0.5]))
    assert kept.tolist() == [1]
    assert schedule.position(0.3) == (0, 0.0)
