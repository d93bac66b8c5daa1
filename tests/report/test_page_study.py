"""The study and its breakdown: gains agree with calibration, and parts add up to the whole."""

from __future__ import annotations

import numpy as np
import pytest

from adacompute.core.answers import Answers
from adacompute.evaluation.experiment import Experiment
from adacompute.evaluation.intervals import Interval
from adacompute.evaluation.pool import Pool
from adacompute.evaluation.scoring.frontier import CalibrationSettings
from adacompute.evaluation.scoring.today import Today
from adacompute.evaluation.scoring.verdict import calibrate
from adacompute.report import breakdown
from adacompute.report.study import Study, compare_savings, score_curves, study_policy
from adacompute.report.summary import slider_budgets

QUESTIONS, SAMPLES = 160, 24


@pytest.fixture(scope="module")
def study() -> Study:
    """Return a study in which a quarter each is easy, hopeless, random and responsive."""
    rng = np.random.default_rng(1)
    chance = np.tile([0.98, 0.02, 0.5, 0.7], QUESTIONS // 4)
    right = rng.random((QUESTIONS, SAMPLES)) < chance[:, None]
    answer = np.where(right, 0, 1)
    answer[:, 5][::3] = -1
    right[answer < 0] = False
    pool = Pool(
        answers=Answers.of(answer.tolist(), correct=right.tolist()),
        key=np.arange(QUESTIONS, dtype=np.uint64),
        group=np.arange(QUESTIONS, dtype=np.uint64),
        features=np.zeros((QUESTIONS, 1), dtype=np.float32),
        sample_cost=np.ones(QUESTIONS * SAMPLES),
    )
    experiment = Experiment(pool, (1, 2, 4, 8), (2.0,), n_permutations=12, seed=0)
    return study_policy(experiment, "adaptive-consistency", CalibrationSettings())


def test_one_sample_for_every_question_gains_nothing(study: Study) -> None:
    once = study.operating_point(1.0)
    assert once.cost == pytest.approx(np.ones(QUESTIONS))
    gain = study.score.gain(once.point)
    assert (gain.low, gain.value, gain.high) == pytest.approx((0.0, 0.0, 0.0), abs=1e-12)
    assert study.uniform_accuracy(once).tolist() == pytest.approx(once.accuracy.tolist())


def test_gains_agree_with_calibration(study: Study) -> None:
    known = calibrate(study.score, study.frontier.final, budget=2.5)
    point = study.operating_point(2.5)
    gain = study.score.gain(point.point)
    assert (point.price, point.point.cost) == (known["price"], known["cost"])
    assert (gain.value, gain.low, gain.high) == (
        known["gain"],
        known["gain_low"],
        known["gain_high"],
    )


def test_a_larger_budget_has_a_lower_price_and_is_never_exceeded(study: Study) -> None:
    budgets = slider_budgets(study, 2.0)
    points = [study.operating_point(budget) for budget in budgets]
    assert 2.0 in budgets
    assert budgets == sorted(set(budgets))
    prices = [point.price for point in points]
    assert prices == sorted(prices, reverse=True)
    assert all(point.cost.mean() <= point.budget + 1e-9 for point in points)


def test_levels_and_types_add_up_to_the_whole(study: Study) -> None:
    point = study.operating_point(2.0)
    for parts in (
        breakdown.share_by_level(point, study.experiment.levels),
        breakdown.by_type(study, point),
        breakdown.by_difficulty(study, point, ["10", "2"] * (QUESTIONS // 2)),
    ):
        assert sum(part["questions"] for part in parts) == QUESTIONS
        assert sum(part["share"] for part in parts) == pytest.approx(1.0)
        assert sum(part["budget_share"] for part in parts) == pytest.approx(1.0)
    types = breakdown.by_type(study, point)
    whole = sum(one["gain"] * one["share"] for one in types)
    assert whole == pytest.approx(study.score.gain(point.point).value, abs=1e-9)


def test_question_types_are_found(study: Study) -> None:
    kind = breakdown.classify_questions(study)
    names = list(breakdown.QUESTION_TYPES)
    shares = [
        (kind[start::4] == names.index(name)).mean()
        for start, name in enumerate(("easy", "hopeless", "diminishing", "responsive"))
    ]
    assert shares[0] > 0.8
    assert shares[1] > 0.95
    assert shares[3] > 0.4


def test_difficulties_are_sorted_as_numbers_and_limited(study: Study) -> None:
    point = study.operating_point(2.0)
    found = breakdown.by_difficulty(study, point, ["10", "2"] * (QUESTIONS // 2))
    assert [row["name"] for row in found] == ["2", "10"]
    assert breakdown.by_difficulty(study, point, [None] * QUESTIONS) == []
    assert breakdown.by_difficulty(study, point, [str(q) for q in range(QUESTIONS)]) == []


def test_a_difficulty_of_one_question_has_no_interval(study: Study) -> None:
    found = breakdown.by_difficulty(
        study, study.operating_point(2.0), ["one"] + ["many"] * (QUESTIONS - 1)
    )
    assert [row["gain_low"] is None for row in found] == [False, True]


def test_more_questions_narrow_the_interval(study: Study) -> None:
    rows = study.gain_by_question_count(study.operating_point(2.0))
    widths = [gain.high - gain.low for _, gain in rows]
    assert widths == sorted(widths, reverse=True)
    assert dict(rows)[QUESTIONS] == study.score.gain(study.operating_point(2.0).point)
    assert widths[0] / widths[-1] == pytest.approx((rows[-1][0] / rows[0][0]) ** 0.5)


def test_examples_match_their_titles(study: Study) -> None:
    found = breakdown.pick_examples(study, study.operating_point(2.0))
    assert all(example["gain"] > 0 for example in found["gain"])
    assert all(example["gain"] < 0 for example in found["loss"])
    assert all(example["last_accuracy"] <= breakdown.MAX_HOPELESS for example in found["hopeless"])
    assert found["hopeless"]


def test_curves_begin_at_the_mixture(study: Study) -> None:
    progress: list[str] = []
    curves = score_curves(
        study, ("retry", "early-stopping", "fixed", "oracle"), [1.5, 3], progress.append
    )
    names = ["mixture", "adaptive-consistency", "retry", "early-stopping", "fixed", "oracle"]
    assert [curve.name for curve in curves] == names
    assert progress == names[2:]
    for curve in curves[:-1]:
        assert curve.difference[0].value == pytest.approx(0.0, abs=1e-9)
        assert curve.cost == sorted(curve.cost)
    assert all(one == Interval(0.0, 0.0, 0.0) for one in curves[0].difference)


def test_what_is_saved_agrees_with_calibration(study: Study) -> None:
    assert study.saving is None
    assert compare_savings(study, ("retry",)) == []
    settings = study.frontier.settings
    saving = study_policy(study.experiment, study.name, settings, Today(5))
    known = calibrate(saving.score, saving.frontier.final, today=Today(5))["today"]
    assert saving.saving is not None
    assert saving.saving[1] == known
    rows = compare_savings(saving, ("retry", "oracle", "early-stopping", study.name))
    names = [row.pop("policy") for row in rows]
    assert names == [study.name, "mixture", "retry", "early-stopping"]
    assert rows[0] == {name: known[name] for name in rows[0]}
    assert all(row["cost"] == 5.0 for row in rows)


def test_what_is_saved_at_another_budget_agrees_with_the_point_that_saves(study: Study) -> None:
    saving = study_policy(study.experiment, study.name, study.frontier.settings, Today(5))
    assert saving.saving is not None
    delivered, known = saving.saving
    dear = saving.score.curve.read(4.9)
    same, other = saving.restate_saving([delivered, dear])
    for name in ("delivered_cost", "difference", "difference_std", "verdict", "advice"):
        assert same[name] == pytest.approx(known[name])
    assert same["difference_low"] == pytest.approx(known["difference_low"])
    assert other["delivered_cost"] == pytest.approx(4.9, rel=0.02)
    assert other["verdict"] != "saves"  # it costs about as much as today
    assert other["same_accuracy_cost"] == known["same_accuracy_cost"]


def test_unsolved_questions_are_those_without_a_correct_sample(study: Study) -> None:
    answers = study.experiment.pool.answers
    never = [not answers.correct[answers.question == q].any() for q in range(QUESTIONS)]
    point = study.operating_point(2.0)
    found = breakdown.describe_unsolved(study, point)
    assert found["questions"] == sum(never) > 0
    assert found["budget_share"] == pytest.approx(point.cost[never].sum() / point.cost.sum())
