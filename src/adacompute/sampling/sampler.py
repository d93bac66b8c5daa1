"""Sampler: a policy that runs in your own program, over any model.

``run`` answers one question, ``map`` many of them at a bounded concurrency. The model is a name
behind a URL, a name with an OpenAI client, an asynchronous function, or any ``Model``. It keeps no
log and holds no budget beyond the price of each question.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, Self, overload

from adacompute.core.errors import ConfigError
from adacompute.graders.grader import Grader
from adacompute.models.capabilities_cache import cache_path, load_cached
from adacompute.models.messages import Capabilities, Sample, Settings
from adacompute.models.model import CallUsage, Model
from adacompute.models.openai import Upstream
from adacompute.models.templates import Template
from adacompute.policies.bundles.bundle import Bundle
from adacompute.policies.policy import Policy
from adacompute.sampling.adapters import (
    FunctionModel,
    PromptedModel,
    SampleFunction,
    call_client,
    call_upstream,
)
from adacompute.sampling.blocks import decide
from adacompute.sampling.grading import LARGE, Grading
from adacompute.sampling.loop import Decider, run_session
from adacompute.sampling.session import Session, SupportsBundle, as_bundle, find_grader

BLOCK, BLOCK_CHARS = 256, 100_000
"""Questions whose first decisions are made together, and their characters, at most."""

MAX_PER_CALL = 64
"""Samples that one call asks for at most, where the server gives any number."""


@dataclass(frozen=True)
class TotalUsage:
    """Calls of a question and their tokens.

    ``is_estimated`` is True where a server did not report all tokens of a call.
    """

    n_calls: int
    prompt_tokens: int
    completion_tokens: int
    is_estimated: bool


@dataclass(frozen=True)
class SampledAnswer:
    """The answer to a question, and the samples that it comes from.

    ``answer`` and ``chosen`` are None if no sample could be parsed; else ``samples[chosen]`` is
    the first sample with the winning answer. ``is_complete`` is False if a failure or the deadline
    left fewer samples than the policy asked for. ``p_correct`` is how likely the answer is right,
    and ``is_sure`` whether it is one of those whose precision is guaranteed; None is not known.
    """

    question: str
    answer: str | None
    chosen: int | None
    agreement: float | None
    p_correct: float | None
    is_sure: bool | None
    samples: tuple[Sample, ...]
    rounds: int
    calls: tuple[CallUsage, ...]
    is_complete: bool

    @property
    def n_samples(self) -> int:
        """Samples that were drawn."""
        return len(self.samples)

    @property
    def usage(self) -> TotalUsage:
        """Tokens of all calls together."""
        return TotalUsage(
            n_calls=len(self.calls),
            prompt_tokens=sum(call.prompt_tokens for call in self.calls),
            completion_tokens=sum(call.completion_tokens for call in self.calls),
            is_estimated=any(call.is_estimated for call in self.calls),
        )

    @property
    def text(self) -> str | None:
        """Text of the chosen sample."""
        return None if self.chosen is None else self.samples[self.chosen].text


class Sampler:
    """Answers questions with as many samples as are worth their price.

    ``policy`` is a bundle, a fitted estimator or any policy. Give a calibrated one a ``budget``,
    the mean cost per question; any other needs a ``price``. ``model`` is

    - a name, with the ``base_url`` of an OpenAI-compatible server and, if needed, an ``api_key``;
    - a name, with ``client=openai.AsyncOpenAI(...)``;
    - ``async f(prompt, n)`` that returns up to n texts or Samples;
    - any object with the method of the ``Model`` protocol.

    The first two use the prompt ``template`` and the sampling ``settings`` that the samples were
    collected with, if the bundle records them. Give them if it does not, or to use others.
    ``samples_per_call`` is how many samples one call may ask for, by default what the probe of this
    server found, or 1. Use a sampler with a ``base_url`` as an asynchronous context manager.
    """

    def __init__(
        self,
        policy: Policy | Bundle | SupportsBundle,
        *,
        model: str | SampleFunction | Model,
        budget: float | None = None,
        price: float | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        client: Any = None,  # noqa: ANN401 - openai's, which is not imported
        grader: Grader | str | None = None,
        template: Template | None = None,
        settings: Settings | None = None,
        samples_per_call: int | None = None,
        max_rounds: int | None = None,
        deadline_s: float | None = None,
    ) -> None:
        self.bundle = as_bundle(policy)
        found = find_grader(policy, grader)
        if found is None:
            raise ConfigError("the policy names no grader: give one, such as grader='numeric'")
        if samples_per_call is not None and samples_per_call < 1:
            raise ConfigError(f"samples_per_call must be 1 or more, not {samples_per_call}")
        self._grader = found
        self._grading = Grading(found)
        self._max_rounds = max_rounds
        self._deadline_s = deadline_s
        self._stack = AsyncExitStack()
        self._upstream: Upstream | None = None
        # The settings that the samples were collected with; log-probabilities if they vote.
        collected = replace(self.bundle.settings or Settings(), logprobs=self.bundle.needs_logprobs)
        self._model = self._connect(
            model,
            base_url,
            api_key,
            client,
            samples_per_call,
            template=template or self.bundle.template or Template(),
            settings=settings or collected,
            arms=self.bundle.arms,
        )
        self.price = Session(
            self.bundle, None, budget=budget, price=price, grader=found, max_rounds=max_rounds
        ).price

    async def __aenter__(self) -> Self:
        if self._upstream is not None:
            await self._stack.enter_async_context(self._upstream)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()
        await asyncio.to_thread(self._grading.close)

    async def run(self, question: str) -> SampledAnswer:
        """Answer one question; a model that fails before the first sample raises its error."""
        return await self._run(self._open(question), None)

    @overload
    async def map(
        self,
        questions: Iterable[str],
        *,
        concurrency: int = ...,
        return_exceptions: Literal[False] = ...,
    ) -> list[SampledAnswer]: ...

    @overload
    async def map(
        self, questions: Iterable[str], *, concurrency: int = ..., return_exceptions: bool
    ) -> list[SampledAnswer | Exception]: ...

    async def map(
        self, questions: Iterable[str], *, concurrency: int = 64, return_exceptions: bool = False
    ) -> list[SampledAnswer] | list[SampledAnswer | Exception]:
        """Answer many questions, ``concurrency`` of them at a time, in their order.

        The first failure cancels the others and is raised. With ``return_exceptions`` it takes the
        place of the answer instead, and the others go on.
        """
        if isinstance(questions, str):
            raise ConfigError("questions must be a list: use run for a single question")
        if concurrency < 1:
            raise ConfigError(f"concurrency must be 1 or more, not {concurrency}")
        sessions = enumerate(self._open_all(questions))
        answers: dict[int, SampledAnswer | Exception] = {}
        decider, answer = Decider(), self._try if return_exceptions else self._run

        async def work() -> None:
            for i, session in sessions:
                answers[i] = await answer(session, decider)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(concurrency):
                    group.create_task(work())
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return [answers[i] for i in range(len(answers))]

    def _open(self, question: str) -> Session:
        return Session(
            self.bundle,
            question,
            price=self.price,
            grader=self._grader,
            max_rounds=self._max_rounds,
        )

    def _open_all(self, questions: Iterable[str]) -> Iterator[Session]:
        """Open sessions, a block at a time, whose first decisions are made together."""
        block: list[Session] = []
        n_chars = 0
        for question in questions:
            block.append(self._open(question))
            n_chars += len(question)
            if len(block) == BLOCK or n_chars > BLOCK_CHARS:
                yield from _decide_first(block)
                block, n_chars = [], 0
        yield from _decide_first(block)

    async def _try(self, session: Session, decider: Decider) -> SampledAnswer | Exception:
        """Answer a question, or return its error."""
        (found,) = await asyncio.gather(self._run(session, decider), return_exceptions=True)
        if isinstance(found, BaseException) and not isinstance(found, Exception):
            raise found
        return found

    async def _run(self, session: Session, decider: Decider | None) -> SampledAnswer:
        question = session.question or ""
        if len(question) > LARGE:
            await asyncio.to_thread(session.ask)
        calls: list[CallUsage] = []
        end = await run_session(
            session,
            self._model,
            grading=self._grading,
            on_usage=calls.append,
            deadline_s=self._deadline_s,
            decider=decider,
        )
        chosen, (p_correct, is_sure) = session.chosen, session.judge()
        return SampledAnswer(
            question=question,
            answer=None if chosen is None else session.values[chosen],
            chosen=chosen,
            agreement=session.agreement,
            p_correct=p_correct,
            is_sure=is_sure,
            samples=tuple(session.samples),
            rounds=session.rounds,
            calls=tuple(calls),
            is_complete=end.is_complete,
        )

    def _connect(
        self,
        model: str | SampleFunction | Model,
        base_url: str | None,
        api_key: str | None,
        client: Any,  # noqa: ANN401 - openai's
        samples_per_call: int | None,
        **options: Any,  # noqa: ANN401 - a template, settings and arms
    ) -> Model:
        """Return the model that the arguments describe."""
        if not isinstance(model, str):
            if base_url is not None or client is not None:
                raise ConfigError("model must be a name where base_url or client is given")
            return FunctionModel(model) if not hasattr(model, "sample") else model
        if (base_url is None) == (client is None):
            raise ConfigError(f"the model {model!r} needs a base_url or a client: give one of them")
        if client is not None:
            options["samples_per_call"] = samples_per_call or 1
            return PromptedModel(partial(call_client, client), model, **options)
        known = load_cached(cache_path(), str(base_url), model) or Capabilities()
        self._upstream = Upstream(str(base_url), model, capabilities=known, api_key=api_key)
        temperature = options["settings"].temperature
        largest = known.choices(MAX_PER_CALL, temperature=temperature, seeded=False)
        options["samples_per_call"] = samples_per_call or largest
        return PromptedModel(partial(call_upstream, self._upstream), model, **options)


def _decide_first(block: list[Session]) -> list[Session]:
    """Make the first decisions of a block, except those of long texts, which need a thread."""
    decide(one.progress for one in block if len(one.question or "") <= LARGE)
    return block
