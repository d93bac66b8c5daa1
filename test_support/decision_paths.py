"""Decision paths: each way in which this package decides, run on the same recorded samples.

A replay, a session, a sampler, a gateway and a batch take a fitted variant of a golden set, and
return what was decided as lines of integers. All of them but the replay, which has random orders,
get the samples of a question in recorded order, in the format of an OpenAI server. It does not
judge decisions.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from adacompute.batch.calls import BatchArm
from adacompute.batch.job import BatchJob, BatchSettings
from adacompute.batch.passes import Span
from adacompute.batch.planning.local import make_plan, prepare_batch
from adacompute.batch.planning.plan import CostCurve
from adacompute.batch.planning.plan_output import write_first_actions
from adacompute.batch.processes import WorkerProcesses
from adacompute.batch.questions import QuestionSource, open_questions
from adacompute.evaluation.experiment import Experiment, FittedPolicy, PolicyFactory
from adacompute.evaluation.factories import find_factory
from adacompute.gateway.app import build
from adacompute.gateway.settings.config import make_config
from adacompute.gateway.voting.model_loading import load_models
from adacompute.graders.grader import load_grader
from adacompute.models.calls import UNTRACKED, CallTracker
from adacompute.models.formats.openai_format import parse_samples, sampled_usage
from adacompute.models.messages import Capabilities, Reply, Sample, Settings
from adacompute.models.openai import ParsedReply, Upstream
from adacompute.models.templates import Template
from adacompute.policies.bundles.bundle import Bundle, load_bundle, save_bundle
from adacompute.sampling.sampler import Sampler
from adacompute.sampling.session import Session
from adacompute.spending.call_costs import CallCosts
from test_support.gateways import send, serve_app
from test_support.golden_sets import (
    BUDGET,
    N_PERMUTATIONS,
    PRICES,
    SETS,
    VARIANTS,
    Question,
    calibrate,
    fit,
    load_served,
    open_experiment,
    read_questions,
)
from test_support.scripted import ReceivedRequest, ScriptedReply, ScriptedServer, serve_scripted

Decided = dict[str, dict[str, Any]]
"""What was decided, by price or budget: lines of integers and other fields."""

N_SESSIONS, N_SERVED = 30, 20
"""Questions of each set that sessions decide on, and those of the slower paths."""

PLAN_BUDGETS = (1.1, 1.5, 2.0, 3.0, 4.0)
EXACT = ("price", "cost", "verdict")
MEASURED = (
    *("accuracy", "accuracy_low", "accuracy_high", "gain", "gain_low", "gain_high"),
    *("cost_low", "cost_high"),
)
"""What is stored of a calibration: fields that must not change at all, and measured ones."""

MODEL = "model"
CAPABLE = Capabilities(n="native", usage="all", logprobs="returned")


class RecordedQuestions:
    """A model that returns the samples of each question in recorded order."""

    def __init__(self, questions: Iterable[Question]) -> None:
        self._samples = {question.text: question.samples for question in questions}
        self._next: dict[tuple[str, str], int] = {}
        self.trace: dict[str, str] = {}

    def reply(self, text: str, arm: str, n: int) -> dict[str, Any]:
        """Return the next samples of a question as a chat completion."""
        first = self._next.get((text, arm), 0)
        self._next[text, arm] = first + n
        arms = list(self._samples[text])
        self.trace[text] = self.trace.get(text, "") + str(arms.index(arm)) * n
        rows = self._samples[text][arm][first : first + n]
        choices = [_choice(i, row, len(self.trace[text]) - n + i) for i, row in enumerate(rows)]
        n_tokens = sum(row["completion_tokens"] or 1 for row in rows)
        usage = {"prompt_tokens": 9, "completion_tokens": n_tokens, "total_tokens": 9 + n_tokens}
        return {"id": "x", "object": "chat.completion", "choices": choices, "usage": usage}

    def answer(self, body: bytes) -> dict[str, Any]:
        """Return the reply to a request in the format of OpenAI."""
        request = json.loads(body)
        text = request["messages"][-1]["content"]
        return self.reply(text, request["model"], int(request.get("n") or 1))

    def sample(self, text: str, arm: str | None, n: int) -> list[Sample]:
        """Return the next samples of a question."""
        return parse_samples(self.reply(text, arm or MODEL, n), usage_counts=CAPABLE.usage)


def _choice(index: int, row: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Return a choice; as many spaces as there were samples before it mark it."""
    text = (row["answer"] or "") + " " * (number + 1)
    found: dict[str, Any] = {"index": index, "finish_reason": "stop"}
    found["message"] = {"role": "assistant", "content": text}
    if row["mean_logprob"] is not None:
        found["logprobs"] = {"content": [{"token": text, "logprob": row["mean_logprob"]}]}
    return found


def _number(text: str | None) -> int:
    """Return which sample of its question a text is, from its spaces; −1 if there is no text."""
    return -1 if text is None else len(text) - len(text.rstrip(" ")) - 1


def join(numbers: Iterable[Any]) -> str:
    """Write numbers in one line."""
    return " ".join(map(str, numbers))


def label_prices(name: str) -> dict[str, float]:
    """Return the prices of a set by their labels."""
    return {f"{label:g}": price for label, price in zip(PRICES, SETS[name].prices, strict=True)}


def run_replay(name: str, variant: str) -> Decided:
    """Replay a variant in one random order of the samples of every question."""
    experiment, bundle = open_experiment(name, variant), load_bundle(fit(name, variant))
    policy, pool, prices = bundle.policy, experiment.pool, SETS[name].prices
    words = VARIANTS[variant].policy == "sequential"
    features = pool.sequential_features if words else pool.features
    if features is None:
        raise TypeError("a pool of samples has features for sequential policies")
    replayed = prices
    if policy.arms and policy.schedule is not None:  # a question gets one setting, and no mixture
        known = policy.schedule
        replayed = tuple(known.prices[known.position(price)[0]] for price in prices)
    return _replay(name, experiment, FittedPolicy(policy, prices, features), replayed)


def _replay(
    name: str, experiment: Experiment, fitted: FittedPolicy, prices: Sequence[float]
) -> Decided:
    result = experiment.run(fitted, prices)
    return {
        label: {
            "samples": join(result.n_samples[:, i].astype(int)),
            "rounds": join(result.n_rounds[:, i].astype(int)),
            "cost": float(result.cost[:, i].sum()),
            "accuracy": float(result.accuracy[:, i].mean()),
        }
        for i, label in enumerate(label_prices(name))
    }


def run_rival(name: str, rival: str | PolicyFactory) -> Decided:
    """Fit a rival, which can only be replayed; return its efficient settings on all questions.

    A rival with a price is replayed at the prices of the set, as a variant is.
    """
    variant = "mixture-confidence" if "mixture-confidence" in SETS[name].variants else "mixture"
    one_order = open_experiment(name, variant)
    experiment = replace(one_order, n_permutations=N_PERMUTATIONS)
    fitted = find_factory(rival)(experiment, np.arange(len(experiment.pool)))
    if fitted.known is None:
        return _replay(name, one_order, fitted, SETS[name].prices)
    samples = (fitted.known.n_samples * N_PERMUTATIONS).round().astype(int)
    return {
        repr(price): {
            "samples": join(samples[:, i]),
            "cost": float(fitted.known.cost[:, i].sum()),
            "accuracy": float(fitted.known.accuracy[:, i].mean()),
        }
        for i, price in enumerate(fitted.prices)
    }


def run_calibration(name: str, variant: str) -> Decided:
    """Calibrate a variant; return the price, the verdict, and what they were found from."""
    found = calibrate(name, variant)
    return {f"budget {BUDGET:g}": {field: found[field] for field in (*EXACT, *MEASURED)}}


def run_sessions(name: str, variant: str) -> Decided:
    """Ask and tell a session per question and price."""
    questions, bundle = read_questions(name, N_SESSIONS), load_served(name, variant)
    decided: Decided = {}
    for label, price in label_prices(name).items():
        recorded, ended = RecordedQuestions(questions), []
        for question in questions:
            session = Session(bundle, question.text, price=price, max_rounds=bundle.max_rounds)
            while request := session.ask():
                session.tell(recorded.sample(question.text, request.arm, request.n))
            chosen = -1 if session.chosen is None else session.chosen
            ended.append((session.n_samples, chosen, session.rounds))
        decided[label] = _describe(name, recorded, questions, ended)
    return decided


def run_sampler(name: str, variant: str) -> Decided:
    """Answer questions with a sampler, many at a time, at every price."""
    questions, bundle = read_questions(name, N_SERVED), load_served(name, variant)
    decided: Decided = {}
    for label, price in label_prices(name).items():
        recorded = RecordedQuestions(questions)

        async def draw(
            prompt: str, n: int, arm: str | None = None, recorded: RecordedQuestions = recorded
        ) -> list[Sample]:
            return recorded.sample(prompt, arm, n)

        sampler = Sampler(bundle, model=draw, price=price, max_rounds=bundle.max_rounds)
        answers = asyncio.run(_answer_all(sampler, [one.text for one in questions]))
        ended = [(a.n_samples, -1 if a.chosen is None else a.chosen, a.rounds) for a in answers]
        decided[label] = _describe(name, recorded, questions, ended)
    return decided


async def _answer_all(sampler: Sampler, texts: list[str]) -> list[Any]:
    async with sampler:
        return await sampler.map(texts)


def _describe(
    name: str,
    recorded: RecordedQuestions,
    questions: Sequence[Question],
    ended: Sequence[tuple[int, ...]],
    fields: Sequence[str] = ("samples", "winner", "rounds"),
) -> dict[str, Any]:
    """Return what was decided on each question, with the arms in turn if there are several."""
    found = dict(zip(fields, map(join, zip(*ended, strict=True)), strict=True))
    if SETS[name].arms:
        found["arms"] = join(recorded.trace[one.text] for one in questions)
    return found


class DecidingGateway:
    """A gateway that serves all variants of a set, and its upstream with recorded samples."""

    def __init__(self, name: str, upstream: ScriptedServer) -> None:
        self.name, self.upstream, self.port = name, upstream, 0

    def run(self, variant: str) -> Decided:
        """Send each question at one of the prices, in turn."""
        decided: Decided = {}
        questions = read_questions(self.name, N_SERVED)
        recorded = RecordedQuestions(questions)
        self.upstream.answer(lambda request: _write(recorded, request))
        for i, label in enumerate(label_prices(self.name)):
            own = questions[i :: len(PRICES)]
            budget = (i + 1) * SETS[self.name].sample_cost
            ended = [self._ask(variant, one.text, budget) for one in own]
            decided[label] = _describe(self.name, recorded, own, ended)
        return decided

    def _ask(self, model: str, text: str, budget: float) -> tuple[int, ...]:
        """Return the samples, the winner and the rounds of one request."""
        body = {
            "model": model,
            "messages": [{"role": "user", "content": text}],
            "adacompute": {"budget": budget, "debug": True},
        }
        reply = send(self.port, "POST", "/v1/chat/completions", body=json.dumps(body).encode())
        if reply.status != 200:
            raise ValueError(f"{model} was not served: {reply.body!r}")
        debug = json.loads(reply.values("x-adacompute-debug")[0])
        content = json.loads(reply.body)["choices"][0]["message"]["content"]
        chosen = _number(content) if any(one is not None for one in debug["answers"]) else -1
        return int(reply.values("x-adacompute-samples")[0]), chosen, debug["rounds"]


def _write(recorded: RecordedQuestions, request: ReceivedRequest) -> ScriptedReply:
    document = json.dumps(recorded.answer(request.body)).encode()
    return ScriptedReply(200, [("Content-Type", "application/json")], [document])


@contextmanager
def serve_deciding(name: str) -> Iterator[DecidingGateway]:
    """Serve all variants of a set while the context is open."""
    with serve_scripted() as upstream, tempfile.TemporaryDirectory() as directory:
        models = {}
        for variant in SETS[name].variants:
            path = Path(directory, variant)
            save_bundle(load_served(name, variant), path)
            budget = len(PRICES) * SETS[name].sample_cost
            models[variant] = {"bundle": str(path), "budget": budget, "pacing": False}
        config = make_config({"base_url": upstream.base_url, "probe": False, "models": models})
        loaded = load_models(config)
        capable = {key: replace(one, capabilities=CAPABLE) for key, one in loaded.items()}
        gateway = DecidingGateway(name, upstream)
        with serve_app(build(config, capable)) as gateway.port:
            yield gateway


class RecordedUpstream(Upstream):
    """An upstream of a batch that answers with recorded samples and opens no connection."""

    def __init__(self, recorded: RecordedQuestions) -> None:
        super().__init__("http://127.0.0.1:9/v1", MODEL, capabilities=CAPABLE)
        self._recorded = recorded

    async def post_bytes(
        self,
        path: str,
        body: bytes,
        *,
        stream: bool = False,
        headers: Mapping[str, str] | None = None,
        tracker: CallTracker | None = None,
    ) -> Reply:
        """Answer at once, and report the usage."""
        del stream, headers
        call = await (tracker or UNTRACKED).start(path, body, 1)
        document = self._recorded.answer(body)
        samples = tuple(parse_samples(document, usage_counts=CAPABLE.usage))
        usage = sampled_usage(document, samples, prompt_bytes=len(body), usage_counts=CAPABLE.usage)
        call.end(usage)
        return ParsedReply(200, document, samples=samples, usage=usage)


def run_batch(name: str, variant: str) -> Decided:
    """Plan questions at some budgets, and answer each of them at one of the prices, in turn."""
    questions, bundle = read_questions(name, N_SERVED), load_served(name, variant)
    with tempfile.TemporaryDirectory() as given:
        directory = Path(given)
        decided = _plan(name, bundle, _write_questions(directory / "all.parquet", questions))
        for i, (label, price) in enumerate(label_prices(name).items()):
            own = questions[i :: len(PRICES)]
            source = _write_questions(directory / f"{i}.parquet", own)
            decided[label] = _sample_batch(name, bundle, source, own, price)
    return decided


def _write_questions(path: Path, questions: Sequence[Question]) -> QuestionSource:
    texts = [one.text for one in questions]
    pq.write_table(pa.table({"question_id": texts, "question": texts}), path)
    return open_questions([str(path)])


def _plan(name: str, bundle: Bundle, source: QuestionSource) -> Decided:
    """Return the price and the first actions of a plan at each budget."""
    decided: Decided = {}
    with tempfile.TemporaryDirectory() as given, WorkerProcesses(1) as processes:
        directory = Path(given)
        batch = prepare_batch(bundle, source, directory=directory, processes=processes)
        for budget in PLAN_BUDGETS:
            plan = make_plan(batch, budget * SETS[name].sample_cost * batch.n_questions)
            written = write_first_actions(batch, plan, directory / "plan", processes)
            table = pq.read_table(written.paths)
            decided[f"plan {budget:g}"] = {
                "price": plan.price,
                "expected_cost": plan.expected_cost,
                "first": join(table["n_samples"].to_pylist()),
                **({"arms": join(table["arm"].to_pylist())} if "arm" in table.schema.names else {}),
            }
    return decided


def _sample_batch(
    name: str, bundle: Bundle, source: QuestionSource, questions: Sequence[Question], price: float
) -> dict[str, Any]:
    """Answer questions in a batch whose total limits none of them, at one price."""
    recorded, settings = RecordedQuestions(questions), Settings(max_tokens=500)
    with tempfile.TemporaryDirectory() as given:
        directory = Path(given, "batch")
        job = BatchJob(
            directory,
            Span.all(source),
            bundle,
            load_grader(SETS[name].grader),
            [BatchArm(one.name, one.model, Template(), settings) for one in bundle.arms]
            or [BatchArm(None, MODEL, Template(), settings)],
            CostCurve(np.array([price]), np.array([1.0])),
            CallCosts(SETS[name].unit),
            BatchSettings(total=1e6, samples_per_call=16, flush_s=0.0),
        )
        asyncio.run(job.run(RecordedUpstream(recorded)))
        rows = pq.read_table(directory / "answers").sort_by("position").to_pylist()
    ended = [(row["n_samples"], _number(row["text"])) for row in rows]
    return _describe(name, recorded, questions, ended, ("samples", "winner"))
