from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from adacompute.spending.cost_meter import CostMeter

STEPS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=60)


@given(st.integers(0, 200), STEPS)
def test_the_limit_is_never_exceeded(limit: int, steps: list[tuple[int, int]]) -> None:
    meter = CostMeter(limit)
    open_: list[tuple[int, int]] = []
    for max_cost, part in steps:
        if meter.reserve(max_cost):
            open_.append((max_cost, min(part, max_cost)))
        assert meter.spent + meter.reserved <= limit
        if len(open_) > 3:
            first = open_.pop(0)
            meter.settle(first[0], actual=first[1])
    for max_cost, actual in open_:
        meter.settle(max_cost, actual=actual)
    assert meter.reserved == 0
    assert meter.spent <= limit


def test_without_a_limit_everything_fits() -> None:
    meter = CostMeter()
    assert meter.reserve(10**30)
    meter.settle(10**30, actual=5)
    assert (meter.spent, meter.reserved) == (5, 0)
