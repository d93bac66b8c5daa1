"""How likely answers are right: rankings, curves, and what is written into a bundle."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adacompute.policies.correctness import (
    Correctness,
    Curve,
    Ranking,
    correctness_from_json,
    fit_curve,
    question_weight,
)
from adacompute.policies.sequential.description import describe, width

Rng = np.random.Generator


@pytest.fixture
def rng() -> Rng:
    return np.random.default_rng(7)


def make_model(n_text: int = 2, n_arms: int = 1, **fields: Any) -> Correctness:
    """Return a model whose weights all differ."""
    size = width(n_arms) + 1 + n_text
    ranking = Ranking(
        np.linspace(-0.2, 0.4, size), np.full(size, 0.7), np.linspace(-0.3, 0.5, size + 1), n_text
    )
    curve = Curve((-2.0, 0.0, 3.0), (-1.5, 0.2, 2.0))
    known: dict[str, Any] = {"ranking": ranking, "curve": curve, "base_rate": 0.4}
    return Correctness(**known | {"is_informative": True} | fields)


def test_a_ranking_separates_what_can_be_separated(rng: Rng) -> None:
    vector = rng.normal(size=(400, 3))
    correct = (vector[:, 0] - 0.5 * vector[:, 2] + rng.normal(size=400) > 0).astype(float)
    score = Ranking.fit((vector, correct, np.arange(400)), 0).score(vector)
    assert score[correct == 1].mean() > score[correct == 0].mean() + 1


def test_rows_of_one_question_count_once(rng: Rng) -> None:
    vector, correct = rng.normal(size=(60, 2)), rng.integers(0, 2, 60).astype(float)
    once = Ranking.fit((vector, correct, np.arange(60)), 1)
    many = Ranking.fit((np.repeat(vector, 5, 0), np.repeat(correct, 5), np.repeat(range(60), 5)), 1)
    assert many.weights == pytest.approx(once.weights, abs=1e-6)
    assert question_weight(np.array([3, 3, 8])).tolist() == [0.5, 0.5, 1.0]


@pytest.mark.parametrize("shape", ["steps", "smooth"])
def test_a_curve_is_calibrated_where_scores_are_not(rng: Rng, shape: str) -> None:
    score = rng.normal(size=6000) * 2
    truth = np.where(score > 1, 0.9, 0.2) if shape == "steps" else 1 / (1 + np.exp(1 - score / 3))
    correct = (rng.random(6000) < truth).astype(float)
    found = fit_curve((score, correct, np.arange(6000))).predict(score)
    assert np.abs(found - truth).mean() < 0.02


@given(st.integers(0, 10_000), st.integers(2, 40))
def test_a_curve_rises_strictly_and_stays_inside(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    score, correct = rng.normal(size=n) * 4, rng.integers(0, 2, n).astype(float)
    at = np.linspace(-8, 8, 200)
    found = fit_curve((score, correct, np.arange(n))).predict(at)
    assert (np.diff(found) > 0).all()
    assert found[0] > 0
    assert found[-1] < 1


def test_few_questions_keep_a_curve_away_from_certainty() -> None:
    score = np.arange(6.0)
    found = fit_curve((score, (score > 2).astype(float), np.arange(6))).predict(score)
    assert found.min() > 0.05
    assert found.max() < 0.95


@pytest.mark.parametrize(("n_arms", "n_text"), [(1, 0), (1, 2), (2, 2), (3, 0)])
def test_one_question_gets_what_it_gets_among_many(rng: Rng, n_arms: int, n_text: int) -> None:
    model = make_model(n_text, n_arms)
    for counts in ([3, 0, 1][:n_arms], [1, 2, 2][:n_arms], [4, 1, 0][:n_arms]):
        n = sum(counts)
        label = np.array([[0, *rng.integers(-1, 2, n - 1)]])
        log_odds, weight = rng.normal(size=(1, n)), rng.random((1, n)) + 0.5
        text = rng.normal(size=n_text)
        vector = np.concatenate(
            [describe(label, log_odds, weight, counts).vector[0], [np.log1p(n)], text]
        )
        arms = [arm for arm, own in enumerate(counts) for _ in range(own)]
        one = model.predict_one(
            label[0].tolist(),
            (log_odds[0].tolist(), weight[0].tolist()),
            arms if n_arms > 1 else [],
            text.tolist(),
        )
        assert one == pytest.approx(float(model.predict(vector[None, :])[0]), abs=1e-12)


def test_samples_without_evidence_count_once_and_unknown_text_is_average() -> None:
    model = make_model()
    equal = model.predict_one([0, 0, 1], ([0.0] * 3, [1.0] * 3), [], [0.1, 0.2])
    assert model.predict_one([0, 0, 1], ([], []), [], [0.1, 0.2]) == equal
    average = model.predict_one([0, 0, 1], ([], []), [], model.ranking.mean[-2:].tolist())
    assert model.predict_one([0, 0, 1], ([], []), [], []) == average


def test_an_uninformative_model_says_the_base_rate() -> None:
    model = make_model(is_informative=False)
    assert model.predict(np.zeros((2, width(1) + 3))).tolist() == [0.4, 0.4]
    assert model.predict_one([0], ([], []), [], []) == 0.4


@pytest.mark.parametrize(
    ("chance", "price", "expected"),
    [
        *((0.9, 1.0, "True"), (0.7, 1.0, "False"), (0.8, 2.0, "True")),
        *((0.9, 0.4, "None"), (0.9, 2.1, "None")),
    ],
)
def test_an_answer_is_judged_only_at_prices_that_were_tested(
    chance: float, price: float, expected: str
) -> None:
    model = make_model(threshold=0.8, prices=(0.5, 2.0))
    assert str(model.is_sure(chance, price)) == expected
    assert make_model(prices=(0.5, 2.0)).is_sure(chance, price) is None


def test_a_model_is_read_as_it_was_written() -> None:
    model = make_model(n_arms=2, threshold=0.7, prices=(0.5, 2.0))
    found = correctness_from_json(copy.deepcopy(model.to_json()), 2)
    vector = np.random.default_rng(0).normal(size=(5, width(2) + 3))
    assert found.predict(vector).tolist() == model.predict(vector).tolist()
    assert (found.threshold, found.prices) == (0.7, (0.5, 2.0))


@pytest.mark.parametrize(
    "change",
    [
        {"n_text": 3},
        {"n_text": -1},
        {"n_text": True},
        {"base_rate": 1.5},
        {"base_rate": float("nan")},
        {"is_informative": 1},
        {"threshold": "0.5"},
        {"prices": [1.0]},
        {"curve": {"score": [0.0, 1.0], "log_odds": [0.0]}},
        {"curve": {"score": [1.0, 0.0], "log_odds": [0.0, 1.0]}},
        {"curve": {"score": [], "log_odds": []}},
        {"ranking": {"mean": [0.0], "scale": [1.0], "weights": [0.0, 1.0]}},
    ],
    ids=str,
)
def test_a_damaged_model_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError, KeyError)):
        correctness_from_json(make_model().to_json() | change, 1)
