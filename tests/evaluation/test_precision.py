"""Guarantees on precision: exact tests, the risk of all together, and what is said."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from adacompute.evaluation.scoring.correctness import LEARNED, EndedOrders, RankedAnswers
from adacompute.evaluation.scoring.precision import (
    Precision,
    binomial_tail,
    describe_p_correct,
    find_precision,
    reject,
)
from adacompute.policies.correctness import Ranking

if TYPE_CHECKING:
    from adacompute.core.types import FloatArray

RANKING = Ranking(np.zeros(1), np.ones(1), np.zeros(2), 0)


def rank(n_questions: int, *, signal: float, seed: int = 0, n_orders: int = 2) -> RankedAnswers:
    """Return answers whose scores tell how likely they are right, if there is a ``signal``."""
    rng = np.random.default_rng(seed)
    truth = np.repeat(rng.normal(size=n_questions) * 2, n_orders)
    paces = []
    for shift in (0.0, -0.1, 0.1):
        chance = 1 / (1 + np.exp(-truth - shift))
        correct = (rng.random(len(truth)) < chance).astype(float)
        paces.append(EndedOrders(correct, {LEARNED: signal * truth}, np.empty((len(truth), 0))))
    fold = np.arange(n_questions) % 5
    group = np.arange(n_questions, dtype=np.uint64)
    return RankedAnswers(tuple(paces), fold, group, RANKING, (1.0, 2.0, 0.5))


def enumerate_tail(right: int, size: int, chance: float) -> float:
    return sum(
        math.comb(size, k) * chance**k * (1 - chance) ** (size - k) for k in range(right, size + 1)
    )


@pytest.mark.parametrize(("right", "size"), [(0, 5), (3, 5), (5, 5), (40, 60), (1, 200)])
@pytest.mark.parametrize("chance", [0.02, 0.5, 0.9])
def test_the_binomial_tail_is_exact(right: int, size: int, chance: float) -> None:
    expected = enumerate_tail(right, size, chance)
    assert binomial_tail(right, size, chance) == pytest.approx(expected, rel=1e-9)


def test_the_binomial_tail_of_many_is_finite() -> None:
    assert binomial_tail(900_000, 1_000_000, 0.9) == pytest.approx(0.5, abs=0.01)
    assert binomial_tail(950_000, 1_000_000, 0.9) < 1e-300


def list_rejected(*p_values: float) -> list[int]:
    padded = [*p_values, *[1.0] * (10 - len(p_values))]
    return np.flatnonzero(reject(np.array(padded), 0.05)).tolist()


def test_a_share_that_passes_hands_its_risk_on_to_the_next() -> None:
    assert list_rejected(0.0125) == [0]
    assert list_rejected(0.0126) == []
    assert list_rejected(0.0125, 0.025, 0.025, 0.0375) == [0, 1, 2, 3]
    assert list_rejected(0.0125, 0.025, 0.0251, 0.0125) == [0, 1, 3]
    assert list_rejected(1.0, 1.0, 0.0, 0.0126) == []
    assert list_rejected(*[0.0125] * 10) == list(range(10))
    assert list_rejected(*[1.0] * 7, 0.01, 0.01, 0.0126) == [7, 8]


def test_the_risk_of_all_together_is_kept() -> None:
    rng = np.random.default_rng(0)
    n_runs, n_wrong = 4000, 0
    for _ in range(n_runs):  # nested tests of nothing
        sums = np.cumsum(rng.normal(size=10)) / np.sqrt(np.arange(1, 11))
        p_values = np.array([0.5 * math.erfc(one / math.sqrt(2)) for one in sums])
        n_wrong += bool(reject(p_values, 0.05).any())
    assert 0.02 < n_wrong / n_runs < 0.05 + 3 * math.sqrt(0.05 * 0.95 / n_runs)


def test_the_surest_answers_are_guaranteed_where_they_are_right() -> None:
    found = find_precision(rank(4000, signal=1.0), 0.9, confidence=0.95)
    assert found.share is not None
    assert 0.1 <= found.share <= 0.5
    assert found.observed is not None
    assert found.observed > 0.9
    assert found.threshold is not None
    assert 0.7 < found.threshold < 1
    assert str(found).startswith(f"The surest {100 * found.share:.0f} %: at least 90 % right")


def test_a_smaller_precision_holds_for_more_answers() -> None:
    ranked = rank(2000, signal=1.0)
    shares = [find_precision(ranked, t, confidence=0.95).share or 0 for t in (0.6, 0.8, 0.95)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > shares[-1]


def test_a_share_must_pass_at_every_price_which_costs_no_risk() -> None:
    score = np.arange(400, dtype=float)
    surest = score >= 360
    group, fold = np.arange(400, dtype=np.uint64), np.arange(400) % 5

    def find(n_right: list[int], target: float) -> Precision:
        paces = [
            EndedOrders((score >= 400 - n).astype(float), {LEARNED: score}, np.empty((400, 0)))
            for n in n_right
        ]
        ranked = RankedAnswers(tuple(paces), fold, group, RANKING, (1.0, 2.0, 0.5))
        return find_precision(ranked, target, confidence=0.95)

    at_limit = (0.05 / 4) ** (1 / surest.sum())  # 40 of 40 right have p = 0.0125
    assert find([40, 40, 40], at_limit - 0.002).share == 0.1
    assert find([40, 40, 40], at_limit + 0.002).share is None
    assert find([40, 40, 36], at_limit - 0.002).share is None


def test_nothing_is_guaranteed_by_scores_that_say_nothing() -> None:
    found = find_precision(rank(2000, signal=0.0), 0.55, confidence=0.95)
    assert (found.share, found.threshold, found.questions_needed) == (None, None, None)
    assert "more questions would not change that" in str(found)


def test_it_says_how_many_questions_would_be_needed() -> None:
    few = find_precision(rank(100, signal=1.0), 0.8, confidence=0.95)
    assert few.share is None
    assert few.questions_needed is not None
    assert 100 < few.questions_needed < 5000
    assert f"about {few.questions_needed:,} would be needed" in str(few)


def test_copies_of_a_question_count_once() -> None:
    ranked = rank(60, signal=1.0)
    rows = np.repeat(np.arange(120).reshape(60, 2), 20, axis=0).ravel()
    copies = RankedAnswers(
        tuple(EndedOrders.join([one], rows) for one in ranked.paces),
        np.repeat(ranked.fold, 20),
        np.repeat(ranked.group, 20),
        RANKING,
        ranked.prices,
    )
    known = find_precision(copies, 0.7, confidence=0.95)
    assert known.questions == 60
    assert known.share == find_precision(ranked, 0.7, confidence=0.95).share


def test_a_guarantee_is_seldom_wrong() -> None:
    def truth(score: FloatArray) -> FloatArray:
        return 1 / (1 + np.exp(-score))

    wrong = 0
    for seed in range(60):
        ranked = rank(300, signal=1.0, seed=seed)
        found = find_precision(ranked, 0.8, confidence=0.95)
        if found.threshold is None:
            continue
        chosen = ranked.chances[0] >= found.threshold
        wrong += truth(ranked.delivered.scores[LEARNED][chosen]).mean() < 0.8
    assert wrong <= 4


def test_the_sentence_about_probabilities_is_honest() -> None:
    ranked = rank(400, signal=1.0)
    assert "the surer half of the answers is right in" in describe_p_correct(ranked.describe())
    assert "cannot be separated from wrong ones" in describe_p_correct(
        rank(400, signal=0.0).describe()
    )
    assert str(replace(Precision(0.9, 0.95, 10), questions_needed=7)).endswith("needed.")
