"""Evidence against a claimed share: valid at every look, and enough where the claim is wrong."""

from __future__ import annotations

import numpy as np
import pytest

from adacompute.core.evidence import (
    ENOUGH,
    bound_mean,
    bound_quantile,
    bound_share,
    measure_evidence,
)


def rejects(truth: float, claimed: float, seed: int, looks: int = 400) -> bool:
    """Whether evidence is ever enough while answers come one by one."""
    right = np.cumsum(np.random.default_rng(seed).random(looks) < truth)
    counts = zip(right.tolist(), range(1, looks + 1), strict=True)
    return any(measure_evidence(one, n - one, claimed) >= ENOUGH for one, n in counts)


def test_a_claim_that_holds_is_seldom_rejected_at_any_look() -> None:
    assert sum(rejects(0.9, 0.9, seed) for seed in range(200)) <= 16


def test_a_claim_that_is_wrong_is_rejected() -> None:
    assert sum(rejects(0.75, 0.9, seed) for seed in range(50)) >= 48


def test_no_answers_are_no_evidence() -> None:
    assert measure_evidence(0, 0, 0.9) == pytest.approx(0.0)
    assert bound_share(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(("n_right", "n_wrong"), [(5, 0), (0, 5), (70, 30), (9000, 1000)])
def test_bounds_are_where_claims_begin_to_be_rejected(n_right: int, n_wrong: int) -> None:
    low, high = bound_share(n_right, n_wrong)
    assert 0 <= low <= n_right / (n_right + n_wrong) <= high <= 1
    if high < 1:
        assert measure_evidence(n_right, n_wrong, high) == pytest.approx(ENOUGH, abs=1e-6)
    if low > 0:
        assert measure_evidence(n_wrong, n_right, 1 - low) == pytest.approx(ENOUGH, abs=1e-6)


LOOKS = (*range(50, 500, 25), *range(500, 4001, 250))


def test_bounds_of_a_mean_hold_at_every_look() -> None:
    wrong = 0
    for seed in range(100):
        values = np.random.default_rng(seed).exponential(size=LOOKS[-1])
        bounds = [bound_mean(values[:n]) for n in LOOKS]
        wrong += any(not low <= 1.0 <= high for low, high in bounds)
    assert wrong <= 10


def test_bounds_of_a_quantile_hold_at_every_look() -> None:
    wrong, truth = 0, 0.9
    for seed in range(40):
        values = np.random.default_rng(seed).random(800)
        bounds = [bound_quantile(values[:n], truth) for n in range(100, 801, 100)]
        wrong += any(not low <= truth <= high for low, high in bounds)
    assert wrong <= 5


def test_few_values_have_no_bounds() -> None:
    assert bound_mean(np.arange(29.0)) == (-np.inf, np.inf)
    assert bound_quantile(np.arange(10.0), 0.95)[1] == np.inf
    low, high = bound_quantile(np.arange(1000.0), 0.5)
    assert 430 < low < 500 < high < 570
