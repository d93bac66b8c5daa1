"""Engine: one request for a virtual model, from its question to the draw that answers it.

question → features → policy → draws → answers → votes → the first draw of the winning class. The
decisions are the episode's, the draws the upstream's; this brings them together for one question
and keeps an account. It knows nothing of HTTP, of clients and of where accounts are kept.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from adacompute.core import votes
from adacompute.core.answers import number_classes
from adacompute.core.errors import BundleError, GraderError, ModelError
from adacompute.core.types import Float32Array, hash_text
from adacompute.features.text import FEATURE_SETS, extract
from adacompute.gateway.body import Body
from adacompute.gateway.openai_api import BadRequest, VirtualRequest, last_user
from adacompute.gateway.request_model import CallUsage, RequestModel, SampledChoice
from adacompute.graders.grader import Grader
from adacompute.models.messages import Capabilities, Prompt
from adacompute.models.openai import Upstream
from adacompute.models.scorer import HttpScorer
from adacompute.policies.bundle import Bundle
from adacompute.policies.episode import LOGPROB, UNLIMITED_ROUNDS, Episode
from adacompute.policies.policy import SampleMatrix
from adacompute.spending.token_prices import NANO, TokenPrices, Usage

GRADING_S = 5.0
"""An answer that takes longer to compare is taken as unreadable."""

QUICK = ("numeric", "choice", "exact")
"""Graders that answer in microseconds, and need no thread."""

LARGE = 50_000
"""Characters that are read within milliseconds: what is longer needs a thread."""

QuestionSource = Literal["template", "message", "none"]


@dataclass(frozen=True, eq=False)
class VirtualModel:
    """A name that clients may ask for, and how its requests are decided."""

    name: str
    model: str
    bundle: Bundle
    budget: float
    grader: Grader
    max_rounds: int | None = None
    deadline_s: float | None = None
    shadow: bool = False
    audit_share: float = 0.0
    audit_max_share: float = 0.05
    token_prices: TokenPrices | None = None
    scorer: HttpScorer | None = None
    capabilities: Capabilities = field(default_factory=Capabilities)


@dataclass(eq=False)
class Decision:
    """The account of one request."""

    id: str
    model: str
    budget: float
    price: float
    question: str | None
    question_source: QuestionSource
    features: Float32Array
    key: int
    begun: float
    answers: list[int] = field(default_factory=list)
    canonical_answers: list[str | None] = field(default_factory=list)
    rounds: int = 0
    chosen: int = -1
    samples_used: int = 0
    samples_planned: int = 0
    latency_s: float = 0.0
    decision_s: float = 0.0
    incomplete: bool = False
    is_audit: bool = False
    shadow: bool = False
    scorer_error: str | None = None
    parent: str | None = None

    @property
    def agreement(self) -> float | None:
        """Share of the readable answers that agree with the one given."""
        read = [answer for answer in self.answers if answer >= 0]
        return max(read.count(answer) for answer in set(read)) / len(read) if read else None


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a request came to: the draw that answers, the account, and the bills."""

    drawn: SampledChoice
    decision: Decision
    purse: RequestModel


class Engine:
    """Serves the requests of one virtual model; may be used by many tasks of one loop at once."""

    def __init__(self, virtual: VirtualModel, upstream: Upstream) -> None:
        if not virtual.bundle.frontier:
            raise BundleError("the policy was not calibrated: run 'adacompute calibrate' first")
        self.virtual = virtual
        self.upstream = upstream
        self._price_for = lru_cache(maxsize=256)(virtual.bundle.price_for)
        self._price_for(virtual.budget)
        self._cost = virtual.bundle.level_cost
        self._width = len(FEATURE_SETS[virtual.bundle.features])
        self._round_s = 0.0
        self._quick = virtual.grader.name in QUICK
        self._large = asyncio.Lock()

    def price(self, asked: VirtualRequest) -> tuple[float, float]:
        """The budget that holds for a request, and its price."""
        budget = self.virtual.budget if asked.budget is None else asked.budget
        try:
            return budget, self._price_for(budget)
        except BundleError as error:
            raise BadRequest(str(error), "budget") from None

    async def warm_up(self) -> None:
        """Decide on a made-up question, which draws nothing: libraries are slow the first time."""
        content = {"messages": [{"role": "user", "content": "What is 7 + 8?"}]}
        path, name = "chat/completions", self.virtual.name
        asked = VirtualRequest(Body("", content, ()), path, name, budget=None, debug=False)
        _, episode = self.open(asked)
        episode.feed(_record([0] * int(episode.target[0]))).decide()
        await self._spell("The answer is \\frac{1}{2}.", ["0.5"])

    def open(self, asked: VirtualRequest) -> tuple[Decision, Episode]:
        """Make the decision that comes before the first draw."""
        begun = time.perf_counter()
        budget, price = self.price(asked)
        question, source = self._question(asked.prompt)
        if question is not None:  # half a pair of surrogates is no text
            question = question.encode("utf-8", "replace").decode()
        features = self._features(question)
        text = question if question is not None else asked.body.text
        key = hash_text(text)
        number = hashlib.blake2b(f"{key}{time.time_ns()}".encode(), digest_size=9).hexdigest()
        decision = Decision(
            id=number,
            model=self.virtual.name,
            budget=budget,
            price=price,
            question=question,
            question_source=source,
            features=features[0],
            key=key,
            begun=time.time(),
        )
        policy = self.virtual.bundle.policy
        episode = Episode.start(
            policy,
            price,
            key=np.array([key], dtype=np.uint64),
            features=policy.prepare_features(features),
            cost=self._cost,
            samples=_record([]),
            max_rounds=self._rounds(),
        ).decide()
        decision.decision_s = time.perf_counter() - begun
        return decision, episode

    async def begin(self, asked: VirtualRequest) -> tuple[Decision, Episode]:
        """Open a request; what is large is read off the loop, one at a time."""
        if len(asked.body.text) <= LARGE:
            return self.open(asked)
        async with self._large:
            return await asyncio.to_thread(self.open, asked)

    def purse(
        self, asked: VirtualRequest, headers: Mapping[str, str], query: str = ""
    ) -> RequestModel:
        """Open a purse for a request."""
        likely = self.virtual.bundle.tie_break == LOGPROB
        return RequestModel(self.upstream, asked, self.virtual.model, headers, query, likely)

    def settled(self, episode: Episode) -> bool:
        """Whether one draw ends it, however it falls: then it can be passed on as it comes."""
        if int(episode.target[0]) != 1:
            return False
        after = (episode.feed(_record([answer])).decide() for answer in (0, -1))
        return not any(len(later.active) for later in after)

    async def run(self, purse: RequestModel, decision: Decision, episode: Episode) -> Outcome:
        """Draw and decide until the policy stops, then choose."""
        begun = time.perf_counter()
        now = asyncio.get_running_loop().time
        deadline = None if self.virtual.deadline_s is None else now() + self.virtual.deadline_s
        try:
            while len(episode.active):
                await self._round(purse, decision, episode, deadline)
                start = time.perf_counter()
                if len(decision.answers) < int(episode.target[0]):
                    break  # nothing that is missing can change the vote, or time is up
                episode = episode.feed(_record(decision.answers, purse)).decide()
                decision.decision_s += time.perf_counter() - start
                if deadline is not None and now() > deadline:
                    break
        except ModelError:
            if not purse.drawn:
                raise
            decision.incomplete = True  # what came is better than nothing
        drawn = await self._choose(purse, decision, episode)
        decision.samples_used = decision.samples_planned = len(decision.answers)
        decision.latency_s = time.perf_counter() - begun
        return Outcome(drawn, decision, purse)

    async def complete(self, outcome: Outcome) -> None:
        """Draw up to the largest level after the answer was given, for an audit."""
        decision, purse = outcome.decision, outcome.purse
        missing = self.virtual.bundle.max_samples - len(purse.drawn)
        if missing > 0:
            async for drawn in purse.buy(missing):
                for one in drawn:
                    await self._read(decision, one)
        decision.is_audit = True

    async def _round(
        self, purse: RequestModel, decision: Decision, episode: Episode, deadline: float | None
    ) -> None:
        """Buy what the policy wants, until it is there, cannot change anything, or time is up.

        The first draw has all the time that it needs: without one there is no answer.
        """
        start, wanted = time.perf_counter(), int(episode.target[0])
        decision.rounds += 1
        resort = self.virtual.bundle.policy.levels[int(episode.state.level[0])].model
        model = resort if episode.resorted[0] else None
        bought = purse.buy(wanted - len(decision.answers), model=model)
        try:
            async with asyncio.timeout_at(deadline if purse.drawn else None) as limit:
                async for drawn in bought:
                    for one in drawn:
                        await self._read(decision, one)
                    if model is None and _decided(episode, decision.answers):
                        break
                    limit.reschedule(deadline)
        except TimeoutError:
            decision.incomplete = True
            del purse.drawn[len(decision.answers) :]  # what was not read in time does not count
        finally:
            await bought.aclose()  # type: ignore[attr-defined]  # a generator
        taken = time.perf_counter() - start
        self._round_s = taken if self._round_s == 0 else 0.95 * self._round_s + 0.05 * taken

    async def _read(self, decision: Decision, drawn: SampledChoice) -> None:
        """Extract a draw's answer and give it the class of those that equal it."""
        known = [answer for answer in decision.canonical_answers if answer is not None]
        text = "" if drawn.draw.ran_out_of_tokens else drawn.draw.text
        answer = await self._spell(text, known)
        decision.canonical_answers.append(answer)
        decision.answers.append(number_classes(decision.canonical_answers)[-1])

    async def _spell(self, text: str, known: list[str]) -> str | None:
        """Extract an answer off the loop where that may be slow; None when it is too slow."""
        if self._quick and len(text) <= LARGE:
            return _spell(self.virtual.grader, text, known)
        try:
            async with asyncio.timeout(GRADING_S):
                return await asyncio.to_thread(_spell, self.virtual.grader, text, known)
        except (TimeoutError, GraderError):
            return None

    async def _choose(
        self, purse: RequestModel, decision: Decision, episode: Episode
    ) -> SampledChoice:
        """First draw of the winning class; without any answer the best score, or the first draw.

        A scorer that fails costs its scores alone: the draws are paid for.
        """
        if int(episode.state.observed.n_samples[0]) == len(decision.answers):
            decision.chosen = int(episode.winner(tie_break=self.virtual.bundle.tie_break)[0])
        else:  # the last round was cut short, and what came of it votes too
            decision.chosen = int(votes.winner(_record(decision.answers).answer)[0])
        scorer = self.virtual.scorer
        if decision.chosen < 0 and scorer is not None and decision.question is not None:
            question = decision.question
            try:
                async with asyncio.TaskGroup() as group:
                    scores = [
                        group.create_task(scorer.score(question, one.draw.text))
                        for one in purse.drawn
                    ]
            except* ModelError as failures:
                decision.scorer_error = str(failures.exceptions[0])
            else:
                decision.chosen = int(np.argmax([score.result() for score in scores]))
        return purse.drawn[max(0, decision.chosen)]

    def _rounds(self) -> int:
        """Rounds that a request may take: as allowed, and as fit into its time."""
        most = self.virtual.max_rounds or UNLIMITED_ROUNDS
        if self.virtual.deadline_s is not None and self._round_s > 0:
            most = min(most, max(1, int(self.virtual.deadline_s / self._round_s)))
        return most

    def _question(self, prompt: Prompt) -> tuple[str | None, QuestionSource]:
        template = self.virtual.bundle.template
        if template is not None and (found := template.extract_question(prompt)) is not None:
            return found, "template"
        if prompt.messages is not None and (said := last_user(prompt.messages)):
            return said, "message"
        if template is None and prompt.text:
            return prompt.text, "message"
        return None, "none"

    def _features(self, question: str | None) -> Float32Array:
        """Features of a question; of an average one where there is no text to go by."""
        bundle = self.virtual.bundle
        if question is None:
            mean = () if bundle.baseline is None else bundle.baseline.feature_mean
            return np.resize(np.asarray(mean or (0.0,), np.float32), (1, self._width))
        return extract(pa.array([question]), features=bundle.features)

    async def look(self, decision: Decision, episode: Episode, drawn: SampledChoice) -> None:
        """Take note of a single draw that answers, and of what the policy would draw after it."""
        await self._read(decision, drawn)
        decision.chosen, decision.rounds = min(0, decision.answers[0]), 1
        decision.samples_planned = int(episode.target[0])
        if decision.samples_planned == 1:
            after = episode.feed(_record(decision.answers)).decide()
            decision.samples_planned = max(1, int(after.target[0]))
        decision.samples_used = 1

    def money(self, bills: list[CallUsage]) -> float | None:
        """What calls cost in money, None without token prices."""
        token_prices = self.virtual.token_prices
        if token_prices is None:
            return None
        return sum(token_prices.cost(_usage(bill.usage)) for bill in bills) / NANO


def _usage(bill: Mapping[str, Any]) -> Usage:
    return Usage(
        prompt=int(bill.get("prompt_tokens") or 0),
        completion=int(bill.get("completion_tokens") or 0),
        cached=int((bill.get("prompt_tokens_details") or {}).get("cached_tokens") or 0),
        reasoning=int((bill.get("completion_tokens_details") or {}).get("reasoning_tokens") or 0),
    )


def _record(answers: list[int], purse: RequestModel | None = None) -> SampleMatrix:
    """Draws of one question as policies see them."""
    answer = np.array([answers], dtype=np.int64).reshape(1, -1)
    if purse is None:
        return SampleMatrix(answer)
    told = [
        math.nan if one.draw.mean_logprob is None else one.draw.mean_logprob for one in purse.drawn
    ]
    return SampleMatrix(answer, logprob=np.array([told[: len(answers)]]))


def _spell(grader: Grader, text: str, known: list[str]) -> str | None:
    """Extract an answer, spelled as one before it that equals it."""
    answer = grader.extract(text)
    if answer is None or answer in known:
        return answer
    return next((one for one in dict.fromkeys(known) if grader.equal(one, answer)), answer)


def _decided(episode: Episode, answers: list[int]) -> bool:
    """Whether the draws still to come can change neither who wins nor that it ends here.

    The worst that can come is that all of them go to the second class.
    """
    counts = np.bincount([answer for answer in answers if answer >= 0], minlength=2)
    missing = int(episode.target[0]) - len(answers)
    second, first = np.sort(counts)[-2:].tolist()
    if missing <= 0 or first - second <= missing:
        return False
    against = int(np.argsort(counts)[-2])
    worst = episode.feed(_record(answers + [against] * missing)).decide()
    return not len(worst.active)
