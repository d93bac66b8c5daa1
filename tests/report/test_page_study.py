"""What the page says is right: gains are paired, calibration agrees, parts make up the whole."""

from __future__ import annotations

import numpy as np
import pytest

from adacompute.core.answers import Answers
from adacompute.evaluation.factories import Experiment
from adacompute.evaluation.pool import Pool
from adacompute.evaluation.verdict import calibrate
from adacompute.report import breakdown
from adacompute.report.study import Study, draw_lines, study_policy
from adacompute.report.summary import place_stops

QUESTIONS, SAMPLES = 160, 24


@pytest.fixture(scope="module")
def study() -> Study:
    """A quarter each is easy, hopeless, a coin, and responsive."""
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
    return study_policy(experiment, "adaptive-consistency")


def test_where_all_draw_once_nothing_is_gained(study: Study) -> None:
    once = study.stop(1.0)
    assert once.cost == pytest.approx(np.ones(QUESTIONS))
    assert study.gains([once])[:, 0] == pytest.approx(0.0, abs=1e-12)
    assert study.mixture.accuracy[0, 0] == pytest.approx(study.own.accuracy[0, 0])


def test_calibration_says_the_same(study: Study) -> None:
    known = calibrate(study.experiment, study.name, budget=2.5, sweep=study.sweep)
    stop = study.stop(2.5)
    gain = study.interval(study.gains([stop])[:, 0])
    assert float(stop.cost.mean()) == pytest.approx(known["cost"], abs=0.05)
    assert gain.value == pytest.approx(known["gain"], abs=0.004)
    assert gain.high - gain.low == pytest.approx(known["gain_high"] - known["gain_low"], rel=0.15)


def test_a_larger_budget_has_a_lower_price_and_is_never_exceeded(study: Study) -> None:
    budgets = place_stops(study, 2.0)
    stops = [study.stop(budget) for budget in budgets]
    assert 2.0 in budgets
    assert budgets == sorted(set(budgets))
    prices = [stop.price for stop in stops]
    assert prices == sorted(prices, reverse=True)
    assert all(stop.cost.mean() <= stop.budget + 1e-9 for stop in stops)


def test_levels_and_kinds_make_up_the_whole(study: Study) -> None:
    stop = study.stop(2.0)
    for parts in (
        breakdown.share_levels(stop, study.experiment.levels),
        breakdown.by_kind(study, stop),
        breakdown.by_difficulty(study, stop, ["10", "2"] * (QUESTIONS // 2)),
    ):
        assert sum(part["questions"] for part in parts) == QUESTIONS
        assert sum(part["share"] for part in parts) == pytest.approx(1.0)
        assert sum(part["budget_share"] for part in parts) == pytest.approx(1.0)
    kinds = breakdown.by_kind(study, stop)
    whole = sum(kind["gain"] * kind["share"] for kind in kinds)
    assert whole == pytest.approx(float(study.gains([stop])[0, 0]), abs=1e-9)


def test_kinds_are_found(study: Study) -> None:
    kind = breakdown.sort_kinds(study)
    names = list(breakdown.KINDS)
    shares = [
        (kind[start::4] == names.index(name)).mean()
        for start, name in enumerate(("easy", "hopeless", "diminishing", "responsive"))
    ]
    assert shares[0] > 0.8
    assert shares[1] > 0.95
    assert shares[3] > 0.4


def test_difficulties_are_sorted_as_numbers_and_shown_only_if_few(study: Study) -> None:
    stop = study.stop(2.0)
    found = breakdown.by_difficulty(study, stop, ["10", "2"] * (QUESTIONS // 2))
    assert [row["name"] for row in found] == ["2", "10"]
    assert breakdown.by_difficulty(study, stop, [None] * QUESTIONS) == []
    assert breakdown.by_difficulty(study, stop, [str(q) for q in range(QUESTIONS)]) == []


def test_a_difficulty_of_one_question_has_no_interval(study: Study) -> None:
    found = breakdown.by_difficulty(study, study.stop(2.0), ["one"] + ["many"] * (QUESTIONS - 1))
    assert [row["gain_low"] is None for row in found] == [False, True]


def test_more_questions_narrow_the_interval(study: Study) -> None:
    rows = study.by_number(study.stop(2.0))
    widths = [gain.high - gain.low for _, gain in rows]
    assert widths == sorted(widths, reverse=True)
    here = study.interval(study.gains([study.stop(2.0)])[:, 0])
    known = dict(rows)[QUESTIONS]
    assert known.high - known.low == pytest.approx(here.high - here.low, rel=0.2)


def test_examples_gain_lose_and_are_hopeless(study: Study) -> None:
    found = breakdown.pick_examples(study, study.stop(2.0))
    assert all(example["gain"] > 0 for example in found["gain"])
    assert all(example["gain"] < 0 for example in found["lose"])
    assert all(example["last"] <= breakdown.HOPELESS for example in found["hopeless"])
    assert found["hopeless"]


def test_lines_begin_where_the_mixture_begins(study: Study) -> None:
    said: list[str] = []
    lines = draw_lines(study, ("retry", "early-stopping", "fixed", "oracle"), [1.5, 3], said.append)
    names = ["mixture", "adaptive-consistency", "retry", "early-stopping", "fixed", "oracle"]
    assert [line.name for line in lines] == names
    assert said == names[2:]
    for line in lines[:-1]:
        assert line.difference[0, 0] == pytest.approx(0.0, abs=1e-9)
    assert lines[0].difference == pytest.approx(0.0, abs=1e-12)
