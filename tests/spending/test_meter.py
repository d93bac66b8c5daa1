from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from adacompute.spending.meter import Meter

STEPS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=60)


@given(st.integers(0, 200), STEPS)
def test_what_is_spent_and_reserved_never_exceeds_the_limit(
    limit: int, steps: list[tuple[int, int]]
) -> None:
    meter = Meter(limit)
    open_: list[tuple[int, int]] = []
    for most, part in steps:
        if meter.reserve(most):
            open_.append((most, min(part, most)))
        assert meter.spent + meter.reserved <= limit
        if len(open_) > 3:
            first = open_.pop(0)
            meter.settle(first[0], actual=first[1])
    for most, actual in open_:
        meter.settle(most, actual=actual)
    assert meter.reserved == 0
    assert meter.spent <= limit


def test_without_a_limit_everything_fits() -> None:
    meter = Meter()
    assert meter.reserve(10**30)
    meter.settle(10**30, actual=5)
    assert (meter.spent, meter.reserved) == (5, 0)
