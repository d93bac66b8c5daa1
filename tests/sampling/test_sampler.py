"""The sampler and the loop that it shares with the gateway, over models of every kind."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from adacompute.core.errors import (
    ConfigError,
    ModelError,
    ModelTimeout,
    RateLimited,
    RequestRejected,
)
from adacompute.core.types import make_levels
from adacompute.datasets.example import locate_bundle
from adacompute.models.messages import Sample, Settings
from adacompute.models.model import CallUsage, OnUsage
from adacompute.models.templates import Template
from adacompute.policies.bundles.bundle import Bundle, load_bundle
from adacompute.policies.price_schedule import PriceSchedule
from adacompute.policies.rule_policy import Rule, RulePolicy
from adacompute.policies.stopping import AdaptiveConsistencyRule
from adacompute.policies.uniform import FixedRule
from adacompute.sampling.adapters import FunctionModel, PromptedModel, call_client
from adacompute.sampling.sampler import SampledAnswer, Sampler
from adacompute.sampling.session import Session
from adacompute.testing.fake_openai import FakeSettings, serve_fake

Model = Callable[[str, int], Awaitable[Iterable[str | Sample]]]
QUESTIONS = [f"What is {i} + {i % 7}?" for i in range(200)]


def rule_bundle(rule: Rule) -> Bundle:
    policy = RulePolicy("rule", make_levels((1, 2, 3, 4)), (rule,), PriceSchedule((0.1,)))
    return Bundle(policy, grader="numeric")


def sampler(rule: Rule, model: Any, **options: Any) -> Sampler:
    return Sampler(rule_bundle(rule), model=model, price=0.1, **options)


def text_of(question: str, number: int) -> str:
    """A text that depends on nothing but the question and the number of the sample."""
    return f"The answer is {(hash(question) >> number) % 3}"


def scripted(*replies: list[str]) -> tuple[Model, list[int]]:
    """A function that gives these replies in turn, and how many samples each call asked for."""
    left, asked = list(replies), list[int]()

    async def model(prompt: str, n: int) -> list[str]:
        del prompt
        asked.append(n)
        return left.pop(0)

    return model, asked


def run(sampler: Sampler, question: str = "2 + 2?") -> SampledAnswer:
    return asyncio.run(sampler.run(question))


@pytest.mark.parametrize("concurrency", [1, 7, 64])
@pytest.mark.parametrize("rule", [FixedRule(3), AdaptiveConsistencyRule(0.9, 4), None])
def test_map_decides_as_sessions_of_their_own(rule: Rule | None, concurrency: int) -> None:
    example = load_bundle(locate_bundle(Path("example")))
    bundle = example if rule is None else rule_bundle(rule)
    drawn: dict[str, int] = {}

    async def model(prompt: str, n: int) -> list[str]:
        start = drawn.get(prompt, 0)
        drawn[prompt] = start + n
        return [text_of(prompt, i) for i in range(start, start + n)]

    async def answers() -> list[SampledAnswer]:
        async with Sampler(bundle, model=model, price=0.02) as own:
            return await own.map(QUESTIONS, concurrency=concurrency)

    found = asyncio.run(answers())
    assert [answer.question for answer in found] == QUESTIONS
    for answer in found:
        session = Session(bundle, answer.question, price=0.02)
        while request := session.ask():
            texts = [text_of(answer.question, session.n_samples + i) for i in range(request.n)]
            session.tell(texts)
        assert (answer.answer, answer.n_samples, answer.chosen, answer.agreement) == (
            session.answer,
            session.n_samples,
            session.chosen,
            session.agreement,
        )
        assert answer.is_complete
        assert answer.rounds == session.rounds


def test_missing_samples_are_asked_for_again_and_surplus_ones_are_used() -> None:
    few, asked = scripted(["4"], ["5", "5"])
    found = run(sampler(FixedRule(3), few))
    assert (found.answer, found.rounds, asked) == ("5", 1, [3, 2])
    many, asked = scripted(["4"] * 3)
    found = run(sampler(AdaptiveConsistencyRule(0.9, 4), many))
    assert asked == [1]  # the others came with the first call
    assert (found.n_samples, found.answer, found.rounds) == (3, "4", 3)
    many, _ = scripted(["4", "5", "5"])
    assert run(sampler(FixedRule(1), many)).answer == "5"  # all samples vote


def test_a_model_without_samples_is_an_error_or_ends_the_question() -> None:
    none, _ = scripted([])
    with pytest.raises(ModelError, match="no samples"):
        run(sampler(FixedRule(2), none))
    then_none, _ = scripted(["4"], [])
    found = run(sampler(FixedRule(2), then_none))
    assert (found.answer, found.is_complete) == ("4", False)


def test_the_first_failure_cancels_the_others() -> None:
    under_way: set[str] = set()

    async def model(prompt: str, n: int) -> list[str]:
        if prompt == QUESTIONS[5]:
            raise ModelError("broken")
        under_way.add(prompt)
        try:
            await asyncio.sleep(30)
        finally:
            under_way.discard(prompt)
        return ["4"] * n

    start = time.monotonic()
    with pytest.raises(ModelError, match="broken"):
        asyncio.run(sampler(FixedRule(1), model).map(QUESTIONS, concurrency=8))
    assert time.monotonic() - start < 10
    assert not under_way


def test_failures_can_take_the_place_of_answers() -> None:
    async def model(prompt: str, n: int) -> list[str]:
        if prompt == QUESTIONS[1]:
            raise KeyError(prompt)
        return ["4"] * n

    own = sampler(FixedRule(2), model)
    found = asyncio.run(own.map(QUESTIONS[:3], return_exceptions=True))
    assert isinstance(found[1], KeyError)
    assert [one.answer for one in (found[0], found[2]) if isinstance(one, SampledAnswer)] == [
        "4"
    ] * 2


def test_no_more_questions_are_under_way_than_allowed() -> None:
    under_way, peak = 0, 0

    async def model(prompt: str, n: int) -> list[str]:
        nonlocal under_way, peak
        del prompt
        under_way += 1
        peak = max(peak, under_way)
        await asyncio.sleep(0.001)
        under_way -= 1
        return ["4"] * n

    own = sampler(AdaptiveConsistencyRule(0.9, 4), model)
    assert len(asyncio.run(own.map(QUESTIONS, concurrency=5))) == len(QUESTIONS)
    assert peak == 5
    assert asyncio.run(own.map([])) == []
    for wrong in ({"questions": "2 + 2?"}, {"questions": [], "concurrency": 0}):
        with pytest.raises(ConfigError):
            asyncio.run(own.map(**wrong))


class Slow:
    """A model whose samples arrive one by one after these times, and which counts cancellations."""

    def __init__(self, *arrivals: tuple[float, str]) -> None:
        self.arrivals = arrivals
        self.cancelled = 0

    async def sample(
        self, prompt: str, n: int, *, arm: str | None = None, on_usage: OnUsage
    ) -> AsyncGenerator[Sample, None]:
        del prompt, n, arm
        came = 0
        try:
            for wait_s, text in self.arrivals:
                await asyncio.sleep(wait_s)
                came += 1
                yield Sample(text)
        finally:
            self.cancelled += len(self.arrivals) - came
            on_usage(CallUsage({"completion_tokens": 1}))


def test_samples_that_cannot_change_the_answer_are_cancelled() -> None:
    model = Slow((0, "4"), (0, "4"), (30, "5"))
    start = time.monotonic()
    found = run(sampler(FixedRule(3), model))
    assert time.monotonic() - start < 10
    assert (found.answer, found.n_samples, found.is_complete, model.cancelled) == ("4", 2, True, 1)
    assert found.usage.completion_tokens == 1  # what was cancelled is accounted for too


def test_a_deadline_ends_a_question_but_not_before_its_first_sample() -> None:
    model = Slow((0.2, "4"), (30, "5"), (30, "5"))
    found = run(sampler(FixedRule(3), model, deadline_s=0.05))
    assert (found.answer, found.n_samples, found.is_complete) == ("4", 1, False)
    late = Slow((0.2, "4"))
    found = run(sampler(AdaptiveConsistencyRule(0.9, 4), late, deadline_s=0.05))
    assert (found.n_samples, found.rounds) == (1, 1)  # no second round begins


def test_a_time_out_of_the_model_is_not_the_deadline() -> None:
    async def model(prompt: str, n: int) -> list[str]:
        raise TimeoutError(prompt, n)

    for options in ({}, {"deadline_s": 30.0}):
        with pytest.raises(TimeoutError):
            run(sampler(FixedRule(1), model, **options))


def test_a_slow_grader_parses_in_a_thread_and_counts_as_unparsed_if_too_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Grader:
        name = "mine"

        def extract(self, text: str) -> str | None:
            time.sleep(float(text))
            return text

        def equal(self, left: str, right: str) -> bool:
            return left == right

    monkeypatch.setattr("adacompute.sampling.grading.TIMEOUT_S", 0.1)
    model, _ = scripted(["0.001", "0.5", "0.001"])
    found = run(sampler(FixedRule(3), model, grader=Grader()))
    assert (found.answer, found.n_samples, found.agreement) == ("0.001", 3, 1.0)


@pytest.mark.parametrize(
    "options",
    [
        {"model": "m"},
        {"model": "m", "base_url": "http://127.0.0.1:9/v1", "client": object()},
        {"model": scripted()[0], "base_url": "http://127.0.0.1:9/v1"},
        {"model": scripted()[0], "samples_per_call": 0},
        {"model": scripted()[0], "price": None},
    ],
)
def test_arguments_that_do_not_fit_together_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Sampler(rule_bundle(FixedRule(1)), **{"price": 0.1, **options})


def test_a_server_is_sampled_through_our_own_client() -> None:
    async def main(url: str) -> list[SampledAnswer]:
        options: dict[str, Any] = {"settings": Settings(max_tokens=20)}
        async with sampler(FixedRule(3), "m", base_url=url, **options) as own:
            return await own.map(QUESTIONS[:10])

    with serve_fake(FakeSettings(completion_tokens=5)) as fake:
        found = asyncio.run(main(fake.base_url))
        stats = fake.stats()
    assert all(answer.n_samples <= 3 for answer in found)
    assert sum(answer.usage.n_calls for answer in found) == stats["calls"] == 30
    assert stats["tokens"] <= sum(answer.usage.completion_tokens for answer in found)


@pytest.mark.parametrize("given", [None, Settings(temperature=1.0, max_tokens=30)])
def test_settings_are_those_of_the_bundle_unless_others_are_given(given: Settings | None) -> None:
    bodies: list[dict[str, Any]] = []

    async def create(**body: Any) -> dict[str, Any]:
        bodies.append(body)
        return {"choices": [{"text": "4", "finish_reason": "stop"}], "usage": {}}

    endpoint = SimpleNamespace(create=create)
    client = SimpleNamespace(completions=endpoint, chat=SimpleNamespace(completions=endpoint))
    collected = Settings(temperature=0.3, max_tokens=20, stop=("Q:",))
    bundle = replace(rule_bundle(FixedRule(1)), settings=collected, template=Template(chat=False))
    own = Sampler(bundle, model="m", price=0.1, client=client, settings=given)
    asyncio.run(own.run("2 + 2?"))
    used = given or collected
    (body,) = bodies
    assert (body["temperature"], body["max_tokens"]) == (used.temperature, used.max_tokens)
    assert tuple(body.get("stop", ())) == used.stop


@pytest.mark.parametrize("n", ["native", "ignored"])
def test_several_samples_per_call_are_asked_for_and_counted(n: Any) -> None:
    async def main(url: str) -> SampledAnswer:
        own = sampler(FixedRule(4), "m", base_url=url, samples_per_call=4)
        async with own:
            return await own.run("2 + 2?")

    with serve_fake(FakeSettings(n=n)) as fake:
        found, stats = asyncio.run(main(fake.base_url)), fake.stats()
    assert found.n_samples >= 3
    assert stats["calls"] == (1 if n == "native" else 4)


def test_a_rejected_request_is_an_error() -> None:
    async def main(url: str) -> SampledAnswer:
        own = sampler(FixedRule(2), "m", base_url=url, samples_per_call=2)
        async with own:
            return await own.run("2 + 2?")

    with serve_fake(FakeSettings(n="rejected")) as fake, pytest.raises(RequestRejected):
        asyncio.run(main(fake.base_url))


def test_the_official_client_is_sampled() -> None:
    openai = pytest.importorskip("openai", reason="needs the official client")

    async def main(url: str, n: int = 3) -> SampledAnswer:
        async with openai.AsyncOpenAI(base_url=url, api_key="k", max_retries=0) as client:
            extra = Settings(max_tokens=20, extra={"top_k": 3})
            own = sampler(FixedRule(n), "m", client=client, samples_per_call=2, settings=extra)
            return await own.run("2 + 2?")

    with serve_fake(FakeSettings(n="native", completion_tokens=5)) as fake:
        found, stats = asyncio.run(main(fake.base_url)), fake.stats()
    assert (found.n_samples, stats["calls"]) == (3, 2)
    assert found.usage.completion_tokens == stats["tokens"]
    for fault, kind in (("429", RateLimited), ("500", ModelError)):
        with serve_fake(FakeSettings(fault_script=(fault,) * 9)) as fake, pytest.raises(kind):
            asyncio.run(main(fake.base_url))
    with serve_fake(FakeSettings(n="rejected")) as fake, pytest.raises(RequestRejected):
        asyncio.run(main(fake.base_url, 2))


def test_errors_of_a_client_are_translated_and_its_calls_accounted_for() -> None:
    class APITimeoutError(Exception):
        __module__ = "openai"

    class Completions:
        def __init__(self, reply: Any) -> None:
            self.reply = reply

        async def create(self, **body: Any) -> Any:
            assert body["model"] in {"m", "other"}
            if isinstance(self.reply, Exception):
                raise self.reply
            return self.reply

    class Client:
        def __init__(self, reply: Any) -> None:
            self.chat = self
            self.completions = Completions(reply)

    async def main(reply: Any) -> list[CallUsage]:
        calls: list[CallUsage] = []
        call = partial(call_client, Client(reply))
        model = PromptedModel(call, "m", settings=Settings(max_tokens=9))
        async for _ in model.sample("2?", 1, arm="other", on_usage=calls.append):
            pass
        return calls

    part = {"choices": [{"message": {"content": "4"}}], "usage": {"prompt_tokens": 3}}
    (bound,) = asyncio.run(main(part))
    assert (bound.completion_tokens, bound.is_estimated, bound.prompt_tokens > 3) == (9, True, True)
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    assert asyncio.run(main({**part, "usage": usage})) == [CallUsage(usage, n_samples=1)]
    with pytest.raises(ModelTimeout):
        asyncio.run(main(APITimeoutError("slow")))
    with pytest.raises(ModelError, match="parsed"):
        asyncio.run(main({"choices": "none"}))
    with pytest.raises(KeyError):
        asyncio.run(main(KeyError("a fault of its own")))


def test_a_function_gets_the_arm_by_name_and_its_failures_are_accounted_for() -> None:
    async def model(prompt: str, n: int, *, arm: str) -> list[str]:
        if arm == "broken":
            raise ModelError(prompt)
        return [arm] * n

    async def main(arm: str) -> list[str]:
        samples = FunctionModel(model).sample("2?", 2, arm=arm, on_usage=calls.append)
        return [sample.text async for sample in samples]

    calls: list[CallUsage] = []
    assert asyncio.run(main("large")) == ["large"] * 2
    with pytest.raises(ModelError):
        asyncio.run(main("broken"))
    assert len(calls) == 2
