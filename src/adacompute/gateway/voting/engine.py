"""Engine: one request for a virtual model, from its question to the sample that answers it.

It finds the question in the prompt, opens a session on it, runs the loop of the sampling layer over
the request, and chooses the sample to answer with. It knows nothing of HTTP, of clients, or of
where decisions are logged.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from functools import lru_cache

from adacompute.core.errors import BundleError, InfeasibleBudget
from adacompute.core.signals import SCORE
from adacompute.core.types import hash_bytes, hash_text
from adacompute.gateway.accounting.call_log import CallRecorder
from adacompute.gateway.requests.fields import COMPLETIONS
from adacompute.gateway.requests.openai_requests import VirtualRequest
from adacompute.gateway.requests.refusals import BadRequest
from adacompute.gateway.voting.choice import Chooser
from adacompute.gateway.voting.decision import Decision, Outcome, is_among
from adacompute.gateway.voting.questions import Question, QuestionReader
from adacompute.gateway.voting.request_model import RequestModel, Target
from adacompute.gateway.voting.virtual_model import VirtualModel
from adacompute.models.formats.body import Body
from adacompute.models.formats.responses_format import RESPONSES
from adacompute.models.messages import Sample
from adacompute.models.model import CallUsage
from adacompute.models.openai import Upstream
from adacompute.policies.bundles.arm_settings import edit_request
from adacompute.policies.bundles.bundle_checks import TODAY_PRICE
from adacompute.sampling.blocks import question_features
from adacompute.sampling.grading import LARGE, Grading
from adacompute.sampling.loop import run_session
from adacompute.sampling.session import ParsedAnswer, Session
from adacompute.spending.pacing import Pacer, PriceCurve
from adacompute.spending.shared_pacing import SharedPacer

_SMOOTHING = 0.05


class Engine:
    """Serves the requests of one virtual model; many tasks of one loop may use it at once.

    ``upstreams`` has the clients of the model (None) and of arms that another upstream serves.
    ``pacer`` holds the mean cost of its requests at the budget, except of those that set their own;
    it is None if the budget is not held. ``replica`` is the name under which this process counts
    there; no other process may have it.
    """

    def __init__(
        self,
        virtual: VirtualModel,
        upstreams: Mapping[str | None, Upstream],
        grading: Grading | None = None,
        replica: str = "process",
    ) -> None:
        if not virtual.bundle.frontier:
            raise BundleError("the policy was not calibrated: run 'adacompute fit' first")
        self.virtual = virtual
        self.upstreams = upstreams
        self._pooled = virtual.bundle.pooled
        self._price_for = lru_cache(maxsize=256)(self._find_prices)
        self.grading = grading or Grading(virtual.grader)
        self._price_for(virtual.budget)
        bundle = virtual.bundle
        self._curve = PriceCurve.of(bundle.calibrated_prices)
        self._pooled_curve = PriceCurve.of((self._pooled or bundle).calibrated_prices)
        self.pacer: SharedPacer | None = None
        if virtual.pacing:
            pacer = Pacer(self._curve, max_cost=float(bundle.level_cost.max()))
            key = f"pacing/{virtual.name}/{bundle.unit}"
            self.pacer = SharedPacer(key, replica, pacer, virtual.budget)
        self._questions = QuestionReader(virtual.bundle)
        self._chooser = Chooser(virtual.scorer)
        self._round_s = 0.0
        self._large = asyncio.Lock()

    async def warm_up(self) -> None:
        """Decide on a made-up question without sampling: libraries are slow the first time."""
        await self.grading.start()
        body = Body.parse(b'{"messages": [{"role": "user", "content": "What is 7 + 8?"}]}')
        if body is None:
            raise AssertionError
        path, name = "chat/completions", self.virtual.name
        request = VirtualRequest(body, path, name, budget=None, debug=False)
        session = self.open(request).session
        sample = Sample("0.5", mean_logprob=0.0, signals={SCORE: 0.0})
        session.tell([ParsedAnswer("0.5", sample)] * session.n_planned)
        session.ask()
        await self.grading.parse(session, Sample("The answer is \\frac{1}{2}."))

    async def begin(self, request: VirtualRequest) -> Decision:
        """Open a request; large ones are opened in a thread, one at a time."""
        if len(request.body.data) <= LARGE:
            question = await self._questions.read(request.prompt)
            decision = self.open(request, question)
        else:
            async with self._large:
                decision = await asyncio.to_thread(self.open, request)
        if decision.pacer is not None:
            decision.pacer.begin()
        return decision

    def open(self, request: VirtualRequest, question: Question | None = None) -> Decision:
        """Make the first decision; ``question`` is found in the request by default."""
        start = time.perf_counter()
        budget, price, pooled_price = self._price(request)
        pacer = None if request.budget is not None else self.pacer
        if pacer is not None:
            budget = pacer.target
            planned = pacer.budget()
            price = self._curve.price_for(planned)
            pooled_price = self._pooled_curve.price_for(planned)
        question = question or self._questions.find(request.prompt)
        text, bundle = question.text, self.virtual.bundle
        if text is None and self._pooled is not None:
            bundle, price = self._pooled, pooled_price
        body = hash_bytes(request.body.data)
        number = hashlib.blake2b(f"{body}{time.time_ns()}".encode(), digest_size=9).hexdigest()
        # Without a question, requests are mixed: the same prompt must not always get the least.
        key = hash_text(number if text is None else text)
        today = self.virtual.as_today if is_among(number, self.virtual.today_share) else None
        if today is not None:
            bundle, price, pacer = today, TODAY_PRICE, None
        features = question.features
        if features is None:
            features = question_features(self.virtual.bundle, text)
        session = Session(
            bundle,
            text,
            price=price,
            grader=self.virtual.grader,
            max_rounds=self._max_rounds(),
            key=key,
            features=features,
        )
        session.ask()
        return Decision(
            id=number,
            model=self.virtual.name,
            budget=budget,
            question_source=question.source,
            features=features[0],
            session=session,
            started_at=time.time(),
            prepare_s=time.perf_counter() - start - session.progress.decision_s,
            pacer=pacer,
            is_today=today is not None,
        )

    def request_model(
        self,
        request: VirtualRequest,
        headers: Mapping[str | None, Mapping[str, str]],
        query: str = "",
        recorder: CallRecorder | None = None,
        question: str | None = None,
    ) -> RequestModel:
        """Return the model as a request samples it; ``recorder`` records its calls.

        ``headers`` are those of each upstream. ``question`` is needed where arms have prompts of
        their own.
        """
        bundle = self.virtual.bundle
        return RequestModel(
            {arm: Target(one, headers[arm]) for arm, one in self.upstreams.items()},
            request,
            self.virtual.model,
            query,
            want_logprobs=bundle.needs_logprobs,
            answer_field=self.answer_field(request),
            arms=edit_request(
                bundle.arms,
                question,
                is_chat=request.path != COMPLETIONS,
                is_response=request.path == RESPONSES,
            ),
            max_output_tokens=self.virtual.max_output_tokens,
            recorder=recorder,
        )

    @property
    def lacks_logprobs(self) -> bool:
        """Whether the policy decides by log-probabilities that the upstream does not return."""
        if not self.virtual.bundle.needs_logprobs:
            return False
        found = {one.capabilities.logprobs for one in self.upstreams.values()}
        return not found.isdisjoint({"missing", "rejected"})

    @property
    def upstream(self) -> Upstream:
        """The client of the model itself."""
        return self.upstreams[None]

    def answer_field(self, request: VirtualRequest) -> str | None:
        """Return the pointer to what is graded of an answer; None if it is the whole text."""
        return self.virtual.answer_field if request.wants_json else None

    def ends_after_one_sample(self, decision: Decision) -> bool:
        """Whether one sample ends the request, whatever it is: then it can be streamed live."""
        session = decision.session
        if session.n_planned != 1 or self.virtual.bundle.arms:
            return False
        return all(session.planned_after([answer]) is None for answer in (0, -1))

    async def run(
        self, model: RequestModel, decision: Decision, remaining_s: float = math.inf
    ) -> Outcome:
        """Sample and decide until the policy stops or no time remains, then choose."""
        start, session = time.perf_counter(), decision.session
        deadline_s = min(remaining_s, self.virtual.deadline_s or math.inf)
        end = await run_session(
            session,
            self._chooser.with_scores(model, decision),
            grading=self.grading,
            on_usage=model.calls.append,
            deadline_s=deadline_s if deadline_s < math.inf else None,
        )
        for taken_s in end.round_s:
            self._note_round(taken_s)
        decision.is_incomplete = not end.is_complete
        sample = await self._chooser.choose(decision, model.recorder)
        decision.latency_s = time.perf_counter() - start
        return Outcome(sample, decision, model)

    async def run_cheapest(self, model: RequestModel, decision: Decision) -> Outcome:
        """Answer with one sample of the cheapest arm, whatever the policy planned."""
        start, session = time.perf_counter(), decision.session
        arm = self.virtual.bundle.cheapest_arm
        samples = model.sample("", 1, arm=arm, on_usage=model.calls.append)
        async with aclosing(samples):
            session.finish([await self.grading.parse(session, one) async for one in samples])
        decision.is_incomplete = True
        sample = await self._chooser.choose(decision, model.recorder)
        decision.latency_s = time.perf_counter() - start
        return Outcome(sample, decision, model)

    async def record_single_sample(self, decision: Decision, sample: Sample) -> None:
        """Record the only sample of a request."""
        parsed = await self.grading.parse(decision.session, sample)
        decision.session.finish([parsed])
        decision.chosen = -1 if parsed.value is None else 0
        decision.judge()

    def cost(self, calls: Sequence[CallUsage]) -> float | None:
        """Cost of calls in money; None without token prices."""
        costs = [call.cost for call in calls if call.cost is not None]
        has_prices = bool(self.virtual.price_list) and len(costs) == len(calls)
        return math.fsum(costs) if has_prices else None

    def request_cost(self, decision: Decision, model: RequestModel) -> float:
        """Cost of a request in the unit of the bundle, at the mean cost where it is not known."""
        n_samples = max(model.n_received, decision.samples_used)
        match self.virtual.bundle.unit:
            case "samples":
                return float(n_samples)
            case "tokens":
                return float(sum(call.completion_tokens for call in model.calls))
            case "money" if (cost := self.cost(model.calls)) is not None:
                return cost
        return n_samples * self.virtual.bundle.sample_cost

    def _find_prices(self, budget: float) -> tuple[float, float]:
        """Return the prices of a budget for questions with a text and for those without."""
        bundle = self.virtual.bundle
        return bundle.price_for(budget), bundle.pooled_price_for(budget)

    def _price(self, request: VirtualRequest) -> tuple[float, float, float]:
        """Return the budget of a request, and its prices with and without a question's text."""
        budget = self.virtual.budget if request.budget is None else request.budget
        try:
            return budget, *self._price_for(budget)
        except (BundleError, InfeasibleBudget) as error:
            raise BadRequest(str(error), "budget") from None

    def _max_rounds(self) -> int | None:
        """Rounds that a request may take: as configured, and as fit into its deadline."""
        limit, deadline_s = self.virtual.max_rounds, self.virtual.deadline_s
        if deadline_s is None or self._round_s == 0:
            return limit
        in_time = max(1, int(deadline_s / self._round_s))
        return in_time if limit is None else min(limit, in_time)

    def _note_round(self, taken_s: float) -> None:
        """Keep a moving average of the time that a round takes."""
        before = taken_s if self._round_s == 0 else self._round_s
        self._round_s = (1 - _SMOOTHING) * before + _SMOOTHING * taken_s
