from __future__ import annotations

from adacompute.sampling.circuit_breaker import CircuitBreaker


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def make() -> tuple[CircuitBreaker, Clock]:
    clock = Clock()
    breaker = CircuitBreaker(max_failures=3, pause_s=1.0, max_pause_s=4.0, clock=clock)
    return breaker, clock


def test_it_opens_after_failures_in_a_row() -> None:
    breaker, _ = make()
    assert [breaker.record(is_failure=True) for _ in range(2)] == [False, False]
    assert not breaker.record(is_failure=False)
    assert [breaker.record(is_failure=True) for _ in range(4)] == [False, False, True, False]
    assert breaker.is_open


def test_one_probe_at_a_time_after_pauses_that_double() -> None:
    breaker, clock = make()
    for _ in range(3):
        breaker.record(is_failure=True)
    starts = []
    for step in range(40):
        clock.now_s = step * 0.5
        if breaker.start_probe():
            assert not breaker.start_probe()
            assert not breaker.end_probe(is_failure=True)
            starts.append(clock.now_s)
    assert starts == [1.0, 3.0, 7.0, 11.0, 15.0, 19.0]


def test_a_probe_that_succeeds_closes_it() -> None:
    breaker, clock = make()
    for _ in range(3):
        breaker.record(is_failure=True)
    clock.now_s = 1.0
    assert breaker.start_probe()
    assert breaker.end_probe(is_failure=False)
    assert not breaker.is_open
    assert not breaker.start_probe()
    assert [breaker.record(is_failure=True) for _ in range(3)] == [False, False, True]


def test_a_probe_that_never_ends_is_followed_by_another() -> None:
    breaker, clock = make()
    for _ in range(3):
        breaker.record(is_failure=True)
    clock.now_s = 1.0
    assert [breaker.start_probe(), breaker.start_probe()] == [True, False]
    clock.now_s = 2.0
    assert breaker.start_probe()
