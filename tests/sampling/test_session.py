"""A session decides as a replay of the same samples does, however the samples are told."""

from __future__ import annotations

import itertools
import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adacompute.core.errors import BundleError, ConfigError, DataError
from adacompute.core.types import Level, hash_text, make_levels
from adacompute.datasets.example import locate_bundle
from adacompute.models.messages import Sample
from adacompute.policies.bundles.bundle import Bundle, load_bundle
from adacompute.policies.episode import UNLIMITED_ROUNDS, Episode, run_episode, start_state
from adacompute.policies.policy import SampleMatrix
from adacompute.policies.price_schedule import PriceSchedule
from adacompute.policies.rule_policy import Rule, RulePolicy
from adacompute.policies.stopping import AdaptiveConsistencyRule, VoteLeadRule
from adacompute.policies.uniform import FixedRule
from adacompute.sampling.blocks import decide, question_features
from adacompute.sampling.session import AnySample, ParsedAnswer, Request, Session
from test_support.arm_policies import escalating_policy, uniform_policy
from test_support.episodes import find_winner

RULES: dict[str, tuple[Rule, ...]] = {
    "fixed": (FixedRule(3),),
    "mixture": (FixedRule(1), FixedRule(2), FixedRule(6)),
    "adaptive-consistency": (AdaptiveConsistencyRule(0.9, 6),),
    "decided-votes": (VoteLeadRule(6, 6),),
    "vote-lead": (VoteLeadRule(2, 5),),
}
PRICE = 0.03
Recorded = list[tuple[str | None, float | None]]
SAMPLES = st.lists(
    st.tuples(
        st.sampled_from(["1", "2", "3", None]),
        st.one_of(st.none(), st.floats(-2.0, 0.0, width=32)),
    ),
    max_size=16,
).map(lambda samples: [*samples, *[("1", None)] * (16 - len(samples))])
ROUNDS = st.sampled_from([None, 1, 2, 3])


@cache
def bundles() -> dict[str, Bundle]:
    """One bundle for each rule, and a learned one."""
    made = {
        name: Bundle(
            RulePolicy(
                name,
                make_levels((1, 2, 3, 4, 5, 6)),
                rules,
                PriceSchedule(tuple(0.1 / 2**i for i in range(len(rules)))),
            )
        )
        for name, rules in RULES.items()
    }
    made["sequential"] = load_bundle(locate_bundle(Path("example")))
    return made


NAMES = st.sampled_from(sorted(bundles()))


def classes(values: list[str | None]) -> list[int]:
    known = list(dict.fromkeys(value for value in values if value is not None))
    return [-1 if value is None else known.index(value) for value in values]


def replay(
    bundle: Bundle, question: str | None, samples: Recorded, max_rounds: int | None = None
) -> tuple[int, int | None]:
    """Samples that an episode stops at, and the sample that answers."""
    policy = bundle.policy
    episode = Episode.start(
        policy,
        PRICE,
        start_state(
            key=np.array([hash_text(question or "")], dtype=np.uint64),
            features=policy.prepare_features(question_features(bundle, question)),
            cost=bundle.level_cost,
            samples=SampleMatrix(np.array([classes([v for v, _ in samples])])),
            max_rounds=max_rounds or UNLIMITED_ROUNDS,
        ),
    ).decide()
    done = run_episode(episode)
    chosen = int(find_winner(done)[0])
    return int(done.state.observed.n_samples[0]), chosen if chosen >= 0 else None


def in_form(kind: int, value: str | None, logprob: float | None) -> AnySample:
    """One sample as a text, a Sample or a parsed answer."""
    text = "nothing" if value is None else f"the answer is {value}"
    if kind == 0 and logprob is None:
        return text
    sample = Sample(text, mean_logprob=logprob)
    return sample if kind == 1 else ParsedAnswer(value, sample)


@given(
    name=NAMES,
    samples=SAMPLES,
    question=st.one_of(st.none(), st.text(max_size=40)),
    max_rounds=ROUNDS,
    data=st.data(),
)
@settings(deadline=None)
def test_any_way_of_telling_samples_decides_as_their_replay(
    name: str,
    samples: Recorded,
    question: str | None,
    max_rounds: int | None,
    data: st.DataObject,
) -> None:
    bundle = bundles()[name]
    session = Session(bundle, question, price=PRICE, grader="numeric", max_rounds=max_rounds)
    while request := session.ask():
        assert request.n >= 1
        assert session.ask() == request
        n = request.n - data.draw(st.integers(0, request.n - 1))
        told = samples[session.n_samples :][:n]
        kinds = [data.draw(st.integers(0, 2)) for _ in told]
        session.tell(in_form(kind, *one) for kind, one in zip(kinds, told, strict=True))
    n_samples, chosen = replay(bundle, session.question, samples, max_rounds)
    assert session.is_done
    assert session.n_samples == session.n_planned == n_samples
    assert session.chosen == chosen
    assert session.answers == classes([value for value, _ in samples[:n_samples]])
    assert session.answer == (None if chosen is None else samples[chosen][0])
    assert max_rounds is None or session.rounds <= max_rounds
    with pytest.raises(DataError):
        session.tell(["4"])


@given(
    name=NAMES,
    samples=st.lists(SAMPLES, min_size=2, max_size=5),
    max_rounds=st.lists(ROUNDS, min_size=5, max_size=5),
    data=st.data(),
)
@settings(deadline=None, max_examples=50)
def test_sessions_that_decide_together_decide_as_each_alone(
    name: str, samples: list[Recorded], max_rounds: list[int | None], data: st.DataObject
) -> None:
    bundle = bundles()[name]
    sessions = [
        Session(bundle, f"What is {i} + {i}?", price=PRICE, max_rounds=max_rounds[i])
        for i in range(len(samples))
    ]
    decide(session.progress for session in sessions)
    while not all(session.is_done for session in sessions):
        for session, recorded in zip(sessions, samples, strict=True):
            if not data.draw(st.booleans()) and (request := session.ask()):
                told = recorded[session.n_samples :][: request.n]
                session.tell(ParsedAnswer(value, Sample("", lp)) for value, lp in told)
        decide(session.progress for session in sessions)
    for session, recorded, rounds in zip(sessions, samples, max_rounds, strict=False):
        expected = replay(bundle, session.question, recorded, rounds)
        assert (session.n_samples, session.chosen) == expected


@given(name=NAMES, values=st.lists(st.sampled_from([None, "1", "2", "3"]), max_size=5))
@settings(deadline=None)
def test_samples_are_cancelled_only_if_they_cannot_change_the_answer(
    name: str, values: list[str | None]
) -> None:
    def told(*values: str | None) -> Session:
        session = Session(bundles()[name], "2 + 2?", price=PRICE)
        for value in values:
            if session.ask():
                session.tell([ParsedAnswer(value)])
        return session

    session = told(*values)
    missing = session.n_planned - session.n_samples
    if session.can_cancel:
        answer = session.answer
        for rest in itertools.product([None, "1", "2", "3", "9"], repeat=min(missing, 3)):
            whole = told(*values, *rest, *[rest[-1]] * (missing - len(rest)))
            assert whole.is_done
            assert whole.answer == answer
        session.finish()
        assert (session.answer, session.ask()) == (answer, None)


def fixed(n: int, **options: Any) -> Session:
    policy = RulePolicy("fixed", make_levels((1, 2, 3)), (FixedRule(n),), PriceSchedule((0.1,)))
    session = Session(policy, "2 + 2?", price=0.1, **{"grader": "numeric", **options})
    session.ask()
    return session


def test_missing_samples_are_asked_for_again_and_too_many_are_refused() -> None:
    session = fixed(3)
    assert session.ask() == Request(3)
    session.tell(["4"])
    assert session.ask() == Request(2)
    session.tell([])
    with pytest.raises(DataError, match="2 samples were asked for and 3"):
        session.tell(["4", "4", "5"])
    assert (session.n_samples, session.rounds) == (1, 1)
    session.tell(["4.0", "no number"])
    assert session.ask() is None
    assert (session.answers, session.values) == ([0, 0, -1], ["4", "4", None])
    assert (session.answer, session.chosen, session.agreement) == ("4", 0, 1.0)


def test_samples_are_told_only_after_they_were_asked_for() -> None:
    session = Session(bundles()["fixed"], "2 + 2?", price=0.1, grader="numeric")
    for _ in range(2):
        with pytest.raises(DataError, match="ask"):
            session.tell(["4"])
    assert (session.n_samples, session.rounds) == (0, 0)
    assert session.ask() == Request(3)
    session.tell(["4"])
    session.tell(["4", "5"])
    with pytest.raises(DataError, match="ask"):
        session.tell(["4"])
    assert session.ask() is None
    assert (session.n_samples, session.rounds) == (3, 1)


@pytest.mark.parametrize("wrong", ["4", [4], [None], [b"4"]])
def test_samples_of_a_wrong_type_are_refused_and_change_nothing(wrong: Any) -> None:
    session = fixed(2)
    with pytest.raises(DataError, match="sample"):
        session.tell(wrong)
    with pytest.raises(DataError, match="sample"):
        session.finish(wrong)
    assert session.ask() == Request(2)


def test_a_session_can_end_early_and_late_samples_vote() -> None:
    session = fixed(3)
    session.tell(["4"])
    session.finish(["5", "5"])
    assert session.ask() is None
    assert (session.answer, session.chosen, session.n_samples) == ("5", 1, 3)


def test_without_a_parsed_answer_nothing_wins() -> None:
    session = fixed(2)
    session.tell(["no", Sample("", finish_reason="length")])
    assert session.is_done
    assert (session.answer, session.chosen, session.agreement) == (None, None, None)


def test_answers_that_the_grader_finds_equal_are_one_class() -> None:
    session = fixed(3, grader="math")
    session.tell([r"It is \boxed{\frac{1}{2}}", r"\boxed{0.5}", r"\boxed{1/2}"])
    assert (session.answers, len(set(session.values))) == ([0, 0, 0], 1)
    assert session.parse(r"\boxed{.5}").value == session.answer


def test_a_session_without_a_grader_takes_parsed_answers_only() -> None:
    session = fixed(1, grader=None)
    with pytest.raises(ConfigError, match="grader"):
        session.tell(["4"])
    session.tell([ParsedAnswer("four")])
    assert (session.answer, session.samples) == ("four", [Sample("four")])


@pytest.mark.parametrize("options", [{}, {"budget": 2.0, "price": 0.1}, {"price": math.nan}])
def test_a_session_needs_one_budget_or_price(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Session(bundles()["sequential"], "2 + 2?", **options)


def test_a_budget_needs_a_calibrated_bundle() -> None:
    with pytest.raises(BundleError):
        Session(bundles()["fixed"], "2 + 2?", budget=2.0)
    assert Session(bundles()["sequential"], "2 + 2?", budget=2.0).ask() is not None
    with pytest.raises(ConfigError, match="max_rounds"):
        fixed(2, max_rounds=0)


def test_the_answer_so_far_is_the_vote_so_far() -> None:
    session = fixed(3)
    assert (session.answer, session.can_cancel) == (None, False)
    session.tell(["5"])
    assert (session.answer, session.can_cancel) == ("5", False)
    session.tell(["5"])
    assert (session.can_cancel, session.planned_after([-1])) == (True, None)


def test_levels_of_several_models_need_a_policy_over_arms() -> None:
    levels = (Level("1", 1), Level("2", 2, model="large"))
    policy = RulePolicy("fixed", levels, (FixedRule(2),), PriceSchedule((0.1,)))
    with pytest.raises(BundleError, match="large"):
        Session(policy, "2 + 2?", price=0.1, grader="numeric")


def test_a_uniform_number_of_samples_of_an_arm_is_one_request() -> None:
    session = Session(uniform_policy(3), None, price=0.1, grader="numeric")
    assert session.ask() == Request(3, "careful")
    session.tell(["4"])
    assert session.ask() == Request(2, "careful")
    assert session.planned_after([1, 1]) is None
    session.tell(["5", "5"])
    assert session.ask() is None
    assert (session.answer, session.rounds, session.progress.arms) == ("5", 1, [1, 1, 1])


def test_samples_of_two_arms_are_one_request_each() -> None:
    session = Session(escalating_policy(), None, price=0.1, grader="numeric")
    assert session.ask() == Request(1, "quick")
    assert session.planned_after([0]) == 2
    session.tell(["4"])
    assert session.ask() == Request(1, "careful")
    session.tell(["5"])
    assert session.ask() is None
    assert (session.answer, session.rounds, session.progress.arms) == ("5", 2, [0, 1])


def test_half_a_surrogate_pair_in_a_question_is_replaced() -> None:
    session = Session(bundles()["sequential"], "\ud83d?", budget=2.0)
    assert session.ask() is not None
    assert session.question == "??"
