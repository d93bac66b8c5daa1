"""How likely answers are right, measured on questions that were held out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from adacompute.evaluation.experiment import Experiment
from adacompute.evaluation.factories import find_factory
from adacompute.evaluation.scoring.correctness import (
    AGREEMENT,
    LEARNED,
    RankedAnswers,
    measure_calibration,
    rank_answers,
)
from adacompute.evaluation.scoring.frontier import CalibrationSettings, PriceFrontier
from adacompute.evaluation.scoring.policy_score import score_policy
from adacompute.evaluation.scoring.verdict import calibrate
from adacompute.policies.bundles.bundle import Bundle
from adacompute.sampling.session import ParsedAnswer, Session


def rank(experiment: Experiment, name: str, budget: float = 3.0) -> RankedAnswers:
    experiment = replace(experiment, max_assignments=1)
    final = experiment.fit_final(find_factory(name))
    frontier = PriceFrontier(score_policy(experiment, name), final, CalibrationSettings())
    found = rank_answers(frontier, frontier.find(budget))
    assert found is not None
    return found


@pytest.fixture(scope="module")
def ranked(telling: Experiment) -> RankedAnswers:
    return rank(telling, "sequential")


@pytest.mark.parametrize("name", ["sequential", "mixture", "adaptive-consistency"])
def test_every_policy_that_votes_says_how_sure_it_is(telling: Experiment, name: str) -> None:
    found = rank(telling, name)
    assert found.is_informative
    assert found.area.value > found.measure_area(AGREEMENT).value - 0.02
    error = measure_calibration(found.chances[0], found.delivered.correct)
    assert error < 0.06
    surest, *_, every = (one.value for one in found.trace(LEARNED))
    assert surest > every == pytest.approx(found.base_rate)


def test_the_accuracy_of_all_answers_is_that_of_the_curve(ranked: RankedAnswers) -> None:
    assert ranked.trace(LEARNED)[-1].value == pytest.approx(ranked.delivered.correct.mean())
    low, high = ranked.trace(LEARNED)[4].low, ranked.trace(LEARNED)[4].high
    assert low < ranked.trace(LEARNED)[4].value < high


def test_a_question_is_not_judged_by_its_own_answers(ranked: RankedAnswers) -> None:
    own = ranked.fold[ranked.question] == 0
    turned = [
        replace(one, correct=np.where(own, 1 - one.correct, one.correct)) for one in ranked.paces
    ]
    changed = replace(ranked, paces=tuple(turned))
    assert (changed.chances[0][own] == ranked.chances[0][own]).all()
    assert (changed.chances[0][~own] != ranked.chances[0][~own]).any()


def test_shuffled_grades_tell_nothing(telling: Experiment) -> None:
    answers = telling.pool.answers
    shuffled = np.random.default_rng(3).permutation(answers.correct)
    pool = replace(telling.pool, answers=replace(answers, correct=shuffled))
    found = rank(Experiment(pool, (1, 2, 4, 8), (2.0,), n_permutations=8), "mixture", 2.0)
    model = found.fit()
    assert not model.is_informative
    assert set(model.predict(np.zeros((3, len(model.ranking.mean))))) == {found.base_rate}


def test_a_session_says_what_was_fitted(telling: Experiment) -> None:
    experiment = replace(telling, max_assignments=1)
    name = "adaptive-consistency"
    final = experiment.fit_final(find_factory(name))
    known = calibrate(
        score_policy(experiment, name),
        final,
        budget=3.0,
        settings=CalibrationSettings(min_precision=0.6),
    )
    model, price = known["correctness"], known["price"]
    bundle = Bundle(final.policy, correctness=model)

    def ask(values: list[str]) -> Session:
        session = Session(bundle, None, price=price)
        while request := session.ask():
            n = session.n_samples
            session.tell([ParsedAnswer(values[i]) for i in range(n, n + request.n)])
        return session

    agreed, split = ask(["7"] * 16), ask([str(i) for i in range(16)])
    assert agreed.p_correct is not None
    assert split.p_correct is not None
    assert agreed.p_correct > split.p_correct
    assert known["precision"]["share"] is not None
    assert agreed.is_sure is (agreed.p_correct >= model.threshold)
    agreed.progress.bundle = Bundle(final.policy)
    assert agreed.p_correct is None


def test_many_questions_are_judged_in_few_orders(
    telling: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adacompute.evaluation.scoring.correctness.MAX_ROWS", 1500)
    assert len(rank(telling, "mixture").question) == 240 * 2


def test_the_calibration_error_counts_every_bin() -> None:
    chance = np.linspace(0, 1, 100)
    assert measure_calibration(chance, chance) == 0
    assert measure_calibration(chance, chance + 0.1) == pytest.approx(0.1)
