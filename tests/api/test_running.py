"""Fitted policies run in the user's own program: by ask and tell, and by a sampler."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest

import adacompute as ada

QUESTION = "What is 17 + 25?"


class FirstWord:
    """A grader of the user's own."""

    name = "first-word"

    def extract(self, text: str) -> str | None:
        return next(iter(text.split()), None)

    def equal(self, left: str, right: str) -> bool:
        return left == right


class TwoSamples(ada.Policy):
    """A policy of the user's own."""

    levels = ada.make_levels((1, 2))

    def prepare_features(self, features: Any) -> Any:
        return features[:, :0]

    def decide(self, state: ada.State, price: float) -> Any:
        return np.full(len(state), 1 if price < 1 else 0)


@pytest.fixture(scope="module")
def policy(hundred: ada.Samples) -> ada.Estimator:
    fitted = ada.AdaptiveConsistency(max_samples=8).fit(hundred)
    ada.calibrate(fitted, hundred, budget=3.0)
    return fitted


def answer_with(session: ada.Session, texts: list[str]) -> None:
    """Tell a session these texts in turn, until it is done."""
    left = iter(texts)
    while request := session.ask():
        session.tell([next(left) for _ in range(request.n)])


def test_ask_and_tell(policy: ada.Estimator) -> None:
    session = policy.start(QUESTION, budget=3.0)
    assert session.question == QUESTION
    assert session.price == policy.price_for(3.0)
    answer_with(session, ["It is 42."] * 8)
    assert session.answer == "42"
    assert 1 <= session.n_samples <= 8
    assert session.agreement == 1.0


def test_a_larger_budget_takes_no_fewer_samples(policy: ada.Estimator) -> None:
    texts = ["= 42", "= 41", "= 40", "= 42", "= 39", "= 42", "= 38", "= 42"]
    taken = []
    for budget in (2.0, 3.0, 4.5, 6.0):
        session = policy.start(QUESTION, budget=budget)
        answer_with(session, texts)
        taken.append(session.n_samples)
    assert taken == sorted(taken)
    assert taken[0] < taken[-1]


def test_a_price_needs_no_calibration(hundred: ada.Samples) -> None:
    fitted = ada.Mixture(max_samples=4, evidence="votes").fit(hundred)
    session = fitted.start(QUESTION, price=fitted.prices_[-1])
    answer_with(session, ["1", "2", "2", "3"])
    assert (session.answer, session.n_samples) == ("2", 4)
    with pytest.raises(ada.NotFittedError, match="calibrate"):
        fitted.start(QUESTION, budget=2.0)
    with pytest.raises(ada.ConfigError, match="price"):
        fitted.start(QUESTION)


def test_max_rounds_is_a_limit(policy: ada.Estimator) -> None:
    session = policy.start(QUESTION, budget=6.0, max_rounds=2)
    answer_with(session, [str(i) for i in range(8)])
    assert session.rounds <= 2


def test_a_loaded_policy_runs_as_the_fitted_one(policy: ada.Estimator, tmp_path: Any) -> None:
    policy.save(tmp_path / "policy")
    loaded = ada.load_policy(tmp_path / "policy")
    for texts in (["1"] * 8, [str(i) for i in range(8)], ["1", "2"] * 4):
        one, other = (each.start(QUESTION, budget=3.0) for each in (policy, loaded))
        answer_with(one, texts)
        answer_with(other, texts)
        assert (one.answer, one.n_samples) == (other.answer, other.n_samples)


def test_graders_of_the_users_own_parse(hundred: ada.Samples, tmp_path: Any) -> None:
    samples = ada.read_samples(hundred, grader=FirstWord())
    fitted = ada.AdaptiveConsistency(max_samples=4).fit(samples)
    ada.calibrate(fitted, samples, budget=2.0)
    session = fitted.start(QUESTION, budget=2.0)
    answer_with(session, ["yes it is", "yes", "no", "yes"])
    assert session.answer == "yes"
    fitted.save(tmp_path / "policy")
    nameless = ada.load_policy(tmp_path / "policy")
    with pytest.raises(ada.ConfigError, match="first-word"):
        nameless.start(QUESTION, budget=2.0)
    loaded = ada.load_policy(tmp_path / "policy", grader=FirstWord())
    answer_with(loaded.start(QUESTION, budget=2.0), ["yes"] * 4)


def test_any_policy_has_sessions() -> None:
    session = ada.Session(TwoSamples(), QUESTION, price=0.1, grader=FirstWord())
    answer_with(session, ["a b", "a c"])
    assert (session.answer, session.n_samples) == ("a", 2)
    pretrained = ada.Pretrained(TwoSamples(), trained_on="nothing")
    started = pretrained.start(QUESTION, price=0.1)
    assert started.ask() == ada.Request(2)


def test_an_estimator_of_the_users_own_runs_after_calibration(hundred: ada.Samples) -> None:
    class Own(ada.Estimator):
        def fit(self, samples: ada.Samples) -> Own:
            assert len(samples)
            self.policy_ = TwoSamples()
            return self

    own = Own().fit(hundred)
    with pytest.warns(UserWarning, match=r"2\.5"):  # it always takes two samples
        ada.calibrate(own, hundred, budget=2.5)
    session = own.start(QUESTION, budget=2.5)
    answer_with(session, ["= 42", "42"])
    assert session.answer == "42"
    own.fit(hundred)
    with pytest.raises(ada.NotFittedError, match="calibrate"):
        own.start(QUESTION, budget=2.5)
    assert not hasattr(own, "frontier_")


def test_a_policy_with_more_samples_than_recorded_is_refused(hundred: ada.Samples) -> None:
    table = hundred.to_arrow()
    few = ada.read_samples(table.filter(pc.less(table["sample"], 8)))

    class Sixteen(TwoSamples):
        levels = ada.make_levels((1, 16))

    policy = ada.Pretrained(Sixteen(), trained_on="nothing")
    with pytest.raises(ada.AdaComputeError, match="16"):
        ada.calibrate(policy, few, budget=2.0)
    with pytest.raises(ada.AdaComputeError, match="16"):
        ada.evaluate(policy, few, budgets=[2.0])


def test_a_sampler_takes_estimators(policy: ada.Estimator) -> None:
    asked: list[str] = []

    async def model(prompt: str, n: int) -> list[str]:
        asked.append(prompt)
        return ["It is 42."] * n

    async def run() -> tuple[ada.SampledAnswer, list[ada.SampledAnswer]]:
        async with ada.Sampler(policy, model=model, budget=3.0) as sampler:
            return await sampler.run(QUESTION), await sampler.map(["a?", "b?"], concurrency=2)

    one, many = asyncio.run(run())
    assert one.answer == "42"
    assert one.n_samples == len(one.samples) >= 1
    assert [each.question for each in many] == ["a?", "b?"]
    assert set(asked) == {QUESTION, "a?", "b?"}


def test_a_sampler_takes_the_estimators_grader(hundred: ada.Samples) -> None:
    samples = ada.read_samples(hundred, grader=FirstWord())
    fitted = ada.AdaptiveConsistency(max_samples=4).fit(samples)
    ada.calibrate(fitted, samples, budget=2.0)

    async def model(prompt: str, n: int) -> list[str]:
        return [f"yes {prompt}"] * n

    sampler = ada.Sampler(fitted, model=model, budget=2.0)
    assert asyncio.run(sampler.run(QUESTION)).answer == "yes"
    with pytest.raises(ada.AdaComputeError, match="calibrate"):
        ada.Sampler(fitted.fit(samples), model=model, budget=2.0)


@pytest.fixture(scope="module")
def weighted(hundred: ada.Samples) -> tuple[ada.Estimator, ada.Calibration]:
    """Return a policy that weighs votes by log-probability, calibrated for 2 samples."""
    fitted = ada.Sequential(max_samples=8).fit(hundred)
    return fitted, ada.calibrate(fitted, hundred, budget=2.0)


@pytest.mark.slow
def test_policies_of_confidence_cost_what_calibrate_says(
    weighted: tuple[ada.Estimator, ada.Calibration], hundred: ada.Samples
) -> None:
    policy, result = weighted
    rows = hundred.to_arrow().to_pylist()
    counts = []
    for start in range(0, len(rows), 48):
        recorded = iter(rows[start : start + 48])
        session = policy.start(rows[start]["question"], budget=2.0)
        while request := session.ask():
            session.tell(
                ada.Sample(
                    row["completion"],
                    mean_logprob=row["mean_logprob"],
                    completion_tokens=row["completion_tokens"],
                )
                for row, _ in zip(recorded, range(request.n), strict=False)
            )
        counts.append(session.n_samples)
    assert result.cost == pytest.approx(2.0)
    assert result.cost_low - 0.1 < np.mean(counts) < result.cost_high + 0.1


@pytest.mark.slow
def test_samples_without_the_confidence_that_a_policy_uses_give_a_warning(
    weighted: tuple[ada.Estimator, ada.Calibration],
) -> None:
    session = weighted[0].start(QUESTION, budget=2.0)
    assert session.ask()
    with pytest.warns(UserWarning, match="mean_logprob") as caught:
        session.tell(["It is 42."])
    assert [Path(one.filename) for one in caught] == [Path(__file__)]
