"""Estimators, results and sessions as users write them: checked by mypy and pyright, never run."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any, Self, assert_type

import numpy as np
from numpy.typing import NDArray

import adacompute as ada
from adacompute import research

samples = ada.read_samples("samples.parquet", grader="numeric", columns={"question_id": "id"})
assert_type(samples, ada.Samples)
assert_type(len(samples), int)
assert_type(samples.n_samples, int)
assert_type(samples.questions, list[str | None])
assert_type(samples.answers, research.Answers)
assert_type(samples.take([0, 1]), ada.Samples)
assert_type(samples.utility_table((1, 2)), ada.UtilityTable)
ada.read_samples(samples)
ada.read_samples(Path("run"), unit="money", token_prices={"m": research.TokenPrices(1.0, 2.0)})
ada.read_samples(3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

policy = ada.Sequential(max_samples=16, seed=1).fit(samples)
assert_type(policy, ada.Sequential)
assert_type(policy.max_samples, int)
assert_type(policy.policy_, ada.Policy)
assert_type(policy.frontier_, tuple[research.FrontierPoint, ...])
assert_type(policy.get_params(), dict[str, Any])
assert_type(policy.set_params(seed=2), ada.Sequential)
assert_type(policy.price_for(2.0), float)
ada.Sequential(16)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
ada.Sequential(samples=16)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
ada.Router(levels=(1, 4), features="words", classifier="gbm", budgets=[2])
for estimator in (ada.Mixture(), ada.DecidedVotes(max_samples=4)):
    assert_type(estimator.fit(samples).price_for(2), float)

result = ada.calibrate(policy, samples, budget=2.0, confidence=0.9)
assert_type(result, ada.Calibration)
assert_type(result.verdict, str)
assert_type(result.gain, float)
assert_type(result.gain_low, float)
assert_type(result.questions_needed, int)

scores = ada.evaluate([policy, ada.AdaptiveConsistency(), "mixture"], samples, budgets=[1.5, 2, 4])
assert_type(scores, ada.Scores)
assert_type(scores.rows, list[dict[str, Any]])
ada.evaluate({"a": policy, "b": "oracle"}, samples)
ada.evaluate("mixture", samples, drop_unparsed=True, max_rounds=2, levels=[1, 2], seed=3)
ada.evaluate([3], samples)  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]


def my_llm(question: str | None) -> str:
    return f"{question}?"


session = policy.start("What is 17 + 25?", budget=2.0)
assert_type(session, ada.Session)
while request := session.ask():
    assert_type(request, ada.Request)
    session.tell([my_llm(session.question) for _ in range(request.n)])
    session.tell([ada.Sample("42", mean_logprob=-0.1, completion_tokens=3)])
assert_type(session.answer, str | None)
assert_type(session.n_samples, int)
assert_type(session.agreement, float | None)
ada.Session(policy.policy_, "What is 17 + 25?", price=0.1, grader="numeric")

policy.save("mypolicy")
assert_type(ada.load_policy("mypolicy"), ada.Estimator)
app = ada.create_app({"m": policy, "n": "mypolicy"}, base_url="http://127.0.0.1/v1", budget=2.0)
lifespan: Callable[[object], Any] = app.lifespan


class OneMore(ada.Policy):
    """A policy of the user's own."""

    levels = ada.make_levels((1, 2))

    def prepare_features(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        return features

    def decide(self, state: ada.State, price: float) -> NDArray[np.int64]:
        assert_type(state.observed, research.ObservedSamples)
        assert_type(state.observed.leading, NDArray[np.int64])
        return np.where(price > 1, state.level, state.level + 1)


class Own(ada.Estimator):
    """An estimator of the user's own."""

    def __init__(self, size: int = 1) -> None:
        self.size = size

    def fit(self, samples: ada.Samples) -> Self:
        self.policy_ = OneMore()
        self.n_ = len(samples)
        return self


assert_type(Own(2).fit(samples), Own)
ada.evaluate([Own(), ada.Pretrained(OneMore(), trained_on="nothing")], samples)
ada.calibrate(Own().fit(samples), samples, budget=2)
ada.Pretrained(OneMore(), trained_on=samples)
ada.Pretrained(OneMore(), trained_on="x")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
ada.Session(OneMore(), "What is 1 + 1?", price=0.2, grader="numeric")


class YesOrNo:
    """A grader of the user's own."""

    name = "yes-or-no"

    def extract(self, text: str) -> str | None:
        return text or None

    def equal(self, left: str, right: str) -> bool:
        return left == right


grader: ada.Grader = YesOrNo()
ada.read_samples("samples.jsonl", grader=YesOrNo())
assert_type(research.grade(grader, ["yes"], "yes"), research.Grades)
assert_type(ada.load_grader("numeric"), ada.Grader)


class Echo:
    """A model of the user's own."""

    async def sample(
        self, prompt: str, n: int, *, arm: str | None = None, on_usage: Callable[..., None]
    ) -> AsyncGenerator[ada.Sample, None]:
        on_usage(arm)
        for _ in range(n):
            yield ada.Sample(prompt)


model: ada.Model = Echo()
unknown = ada.nonsense  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
